//! Attention with a soft cap on the scores: compositions of other operators that replace the three
//! attention operators.

use super::caches::{attention_sinks, cache_scales, plain_caches};
use super::masked::Fault;
use super::{AttentionDims, CachedAttention, PagedAttention, PagedDims, cached, masked, paged};
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
    /// Builds a call of this attention operator with scores capped by `cap`, and with the sinks of whole sequences; a call to a
    /// cache has them among its operands. Rejects the same calls as the operator.
    #[track_caller]
    pub(super) fn capped(
        &mut self,
        op: &dyn Operator,
        attrs: &Attrs,
        operands: &[Value],
        (cap, sinks): (f32, Option<Value>),
    ) -> NodeId {
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
        match op.infer(&call).and_then(|_| OperandForm::of(op, &call)) {
            Ok(form) => {
                let sinks = sinks.or(attention_sinks(&types).map(|sinks| operands[sinks]));
                self.at_caller(|g| form.attend(g, operands, cap, sinks))
            }
            Err(message) => self.report(op.name(), message, "see `Graph::attention`"),
        }
    }
}

/// Sizes of a call, and the indices of the operands with the scales of quantized caches.
enum OperandForm {
    /// Attention of whole sequences.
    Whole(AttentionDims),
    /// Attention to a cache.
    Cached(AttentionDims, Option<[usize; 2]>),
    /// Attention to a paged cache.
    Paged(AttentionDims, Option<[usize; 2]>),
}

impl OperandForm {
    fn of(op: &dyn Operator, call: &Call) -> Result<Self, String> {
        let scales = cache_scales(call.inputs);
        Ok(if op.name() == PagedAttention.name() {
            OperandForm::Paged(PagedDims::of(call)?.dims, scales)
        } else if op.name() == CachedAttention.name() {
            OperandForm::Cached(AttentionDims::of_cached(call)?, scales)
        } else {
            OperandForm::Whole(AttentionDims::of(call)?)
        })
    }

    /// Returns the attention to operands that were checked.
    fn attend(self, g: &mut Graph, operands: &[Value], cap: f32, sinks: Option<Value>) -> NodeId {
        let (q, shape) = (operands[0], g.shape(operands[0]).to_vec());
        let out = match self {
            OperandForm::Whole(dims) => {
                return masked::attend(g, [q, operands[1], operands[2]], None, &dims, Some(cap), sinks);
            }
            OperandForm::Cached(dims, _) | OperandForm::Paged(dims, _) if dims.batch == 0 || dims.rows_q == 0 => {
                return g.full(g.dtype(q), 0.0, &shape);
            }
            OperandForm::Cached(dims, scales) => {
                let [k, v] = plain_caches(g, operands, scales, |_, cache| cache);
                cached::attend(g, [q, k, v, operands[3]], &dims, Some(cap), sinks)
            }
            OperandForm::Paged(dims, scales) => {
                let sequences = paged::of_sequences(g, operands, scales, &dims);
                let one = AttentionDims {
                    batch: dims.rows_q,
                    rows_q: 1,
                    ..dims
                };
                cached::attend(g, sequences, &one, Some(cap), sinks)
            }
        };
        g.reshape(out, &shape)
    }
}
