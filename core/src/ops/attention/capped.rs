//! Attention with a soft cap on the scores: compositions of other operators that replace the three
//! attention operators.

use super::masked::Fault;
use super::{AttentionDims, PagedDims, cached, masked, paged};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::{Call, Operator};
use crate::shape::TensorType;

/// Checks that scores can be capped by this value.
pub(super) fn check_softcap(cap: f32) -> Result<(), Fault> {
    if cap.is_finite() && cap > 0.0 {
        Ok(())
    } else {
        Err((
            format!("the soft cap of the scores is {cap}"),
            "a soft cap is finite and above 0; `None` leaves scores as they are",
        ))
    }
}

impl Graph {
    /// Builds a call of this attention operator with scores capped by `cap`. Rejects the same calls
    /// as the operator.
    #[track_caller]
    pub(super) fn capped(&mut self, op: &dyn Operator, attrs: &Attrs, operands: &[Value], cap: f32) -> NodeId {
        let types: Option<Vec<TensorType>> = operands.iter().map(|&v| self.ty(v).cloned()).collect();
        let Some(types) = types else {
            // Errors of operands were reported before, or are reported here.
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
        match op.infer(&call).and_then(|_| OperandForm::of(&call, operands)) {
            Ok(form) => self.at_caller(|g| form.attend(g, cap)),
            Err(message) => self.report(op.name(), message, "see `Graph::attention`"),
        }
    }
}

/// Sizes and operands of a call: attention of whole sequences, to a cache, or to a paged cache.
enum OperandForm {
    Whole(AttentionDims, [Value; 3]),
    Cached(AttentionDims, [Value; 4]),
    Paged(AttentionDims, [Value; 5]),
}

impl OperandForm {
    fn of(call: &Call, operands: &[Value]) -> Result<Self, String> {
        Ok(match *operands {
            [q, k, v] => OperandForm::Whole(AttentionDims::of(call)?, [q, k, v]),
            [q, k, v, at] => OperandForm::Cached(AttentionDims::of_cached(call)?, [q, k, v, at]),
            [q, k, v, at, table] => OperandForm::Paged(PagedDims::of(call)?.dims, [q, k, v, at, table]),
            _ => return Err("takes queries, keys and values".into()),
        })
    }

    fn attend(self, g: &mut Graph, cap: f32) -> NodeId {
        let empty = |g: &mut Graph, q: Value| {
            let shape = g.shape(q).to_vec();
            g.full(g.dtype(q), 0.0, &shape)
        };
        match self {
            OperandForm::Whole(dims, operands) => masked::attend(g, operands, None, &dims, Some(cap)),
            OperandForm::Cached(dims, operands) if dims.batch == 0 || dims.rows_q == 0 => empty(g, operands[0]),
            OperandForm::Cached(dims, operands) => {
                let shape = g.shape(operands[0]).to_vec();
                let out = cached::attend(g, operands, &dims, Some(cap));
                g.reshape(out, &shape)
            }
            OperandForm::Paged(dims, operands) if dims.rows_q == 0 => empty(g, operands[0]),
            OperandForm::Paged(dims, operands) => {
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
