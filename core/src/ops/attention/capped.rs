//! Attention with bounded scores: compositions of other operators, which stand for the three operators where there is a
//! soft cap.

use super::masked::Fault;
use super::{AttentionDims, PagedDims, cached, masked, paged};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::{Call, Operator};
use crate::shape::TensorType;

/// Whether scores can be bounded by it.
pub(super) fn check_softcap(cap: f32) -> Result<(), Fault> {
    match cap.is_finite() && cap > 0.0 {
        true => Ok(()),
        false => Err((
            format!("the soft cap of the scores is {cap}"),
            "a soft cap is finite and above 0; `None` leaves scores as they are",
        )),
    }
}

impl Graph {
    /// What a call of this attention operator yields, with scores that are bounded by `cap`. Rejects what the operator
    /// rejects.
    #[track_caller]
    pub(super) fn capped(&mut self, op: &dyn Operator, attrs: &Attrs, operands: &[Value], cap: f32) -> NodeId {
        let types: Option<Vec<TensorType>> = operands.iter().map(|&v| self.ty(v).cloned()).collect();
        let Some(types) = types else {
            // What is wrong with an operand was reported, or is reported here.
            let [q, k, ..] = *operands else {
                return self.report(op.name(), "takes queries, keys and values", "give them all");
            };
            return self.add(q, k);
        };
        let call = Call {
            attrs,
            inputs: &types,
            outputs: &[],
        };
        if let Err((message, remedy)) = check_softcap(cap) {
            return self.report(op.name(), message, remedy);
        }
        match op.infer(&call).and_then(|_| Form::of(&call, operands)) {
            Ok(form) => self.at_caller(|g| form.attend(g, cap)),
            Err(message) => self.report(op.name(), message, "see `Graph::attention`"),
        }
    }
}

/// A call by its number of operands.
enum Form {
    Whole(AttentionDims, [Value; 3]),
    Cached(AttentionDims, [Value; 4]),
    Paged(AttentionDims, [Value; 5]),
}

impl Form {
    fn of(call: &Call, operands: &[Value]) -> Result<Self, String> {
        Ok(match *operands {
            [q, k, v] => Form::Whole(AttentionDims::of(call)?, [q, k, v]),
            [q, k, v, at] => Form::Cached(AttentionDims::of_cached(call)?, [q, k, v, at]),
            [q, k, v, at, table] => Form::Paged(PagedDims::of(call)?.dims, [q, k, v, at, table]),
            _ => return Err("takes queries, keys and values".into()),
        })
    }

    fn attend(self, g: &mut Graph, cap: f32) -> NodeId {
        let empty = |g: &mut Graph, q: Value| {
            let shape = g.shape(q).to_vec();
            g.full(g.dtype(q), 0.0, &shape)
        };
        match self {
            Form::Whole(dims, operands) => masked::attend(g, operands, None, &dims, Some(cap)),
            Form::Cached(dims, operands) if dims.batch == 0 || dims.rows_q == 0 => empty(g, operands[0]),
            Form::Cached(dims, operands) => {
                let shape = g.shape(operands[0]).to_vec();
                let out = cached::attend(g, operands, &dims, Some(cap));
                g.reshape(out, &shape)
            }
            Form::Paged(dims, operands) if dims.rows_q == 0 => empty(g, operands[0]),
            Form::Paged(dims, operands) => {
                let shape = g.shape(operands[0]).to_vec();
                let sequences = paged::of_sequences(g, operands, &dims);
                let one = AttentionDims {
                    batch: dims.rows_q,
                    rows_q: 1,
                    ..dims
                };
                let out = cached::attend(g, sequences, &one, Some(cap));
                g.reshape(out, &shape)
            }
        }
    }
}
