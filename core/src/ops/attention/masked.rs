//! Attention with a mask as an operand: a composition of other operators.

use super::capped::check_softcap;
use super::{AttentionDims, AttentionOptions, NO_WINDOW, join_heads, scores, split_heads};
use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::Call;
use crate::shape::TensorType;

/// A finite number below every meaningful score. Minus infinity minus this number is defined; minus infinity minus
/// itself is not.
const LOWEST: f64 = -1e30;
/// Minimum denominator, between 0 and 1: the sum of exponentials of a query that sees any key is at least 1.
const MIN_SUM: f64 = 0.5;

impl Graph {
    /// Computes [`Graph::attention`] with a mask that broadcasts to
    /// `[batch..., num_heads, rows_q, rows_k]`: either an additive one of the operands'
    /// floating-point dtype, which is added to the scaled scores (minus infinity hides a key; a
    /// relative position bias is such a mask, and has a gradient), or a `u32` one, which is nonzero
    /// for keys that a query sees. Keys that `options.causal` and `options.window` hide stay
    /// hidden.
    ///
    /// A query that sees no key at all yields zeros, not NaN, and gives no gradient. Memory grows with the number of
    /// scores, `rows_q` times `rows_k` for each head; half precision is computed in `f32`. A purely causal mask needs
    /// no operand: [`Graph::causal_attention`] has a kernel for it.
    ///
    /// Rejected: what [`Graph::attention`] rejects; a mask of another dtype or one that does not broadcast.
    #[track_caller]
    pub fn masked_attention(
        &mut self,
        q: impl Into<Value>,
        k: impl Into<Value>,
        v: impl Into<Value>,
        mask: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        let (operands, mask) = ([q.into(), k.into(), v.into()], mask.into());
        let types: Option<Vec<TensorType>> = operands.iter().map(|&v| self.ty(v).cloned()).collect();
        let (Some(types), Some(mask_type)) = (types, self.ty(mask).cloned()) else {
            // Errors of operands were reported before, or are reported here.
            let [q, k, v] = operands;
            let y = self.attention(q, k, v, options);
            return self.add(y, mask);
        };
        match sizes(&types, &mask_type, &options) {
            Ok(dims) => self.at_caller(|g| attend(g, operands, Some(mask), &dims, options.softcap, options.sinks)),
            Err((message, remedy)) => self.report("masked_attention", message, remedy),
        }
    }

    /// Computes the mask of [`Graph::masked_attention`] that hides the padding of sequences of
    /// different lengths from every query: from `u32 [batch..., rows_k]`, not 0 for real rows and 0
    /// for padding, to `[batch..., 1, 1, rows_k]`.
    #[track_caller]
    pub fn key_padding_mask(&mut self, real: impl Into<Value>) -> NodeId {
        let real = real.into();
        let mut shape = self.shape(real).to_vec();
        if let (Some(ty), Some(rows)) = (self.ty(real), shape.pop()) {
            if ty.dtype != DType::U32 {
                let message = format!("{ty} is no mask of keys");
                return self.report(
                    "key_padding_mask",
                    message,
                    "give u32 [batch..., rows], 1 for real rows and 0 for padding",
                );
            }
            shape.extend([1, 1, rows]);
        }
        self.reshape(real, &shape)
    }
}

pub(super) type Fault = (String, &'static str);

/// Returns the sizes of a call whose operands fit.
fn sizes(types: &[TensorType], mask: &TensorType, options: &AttentionOptions) -> Result<AttentionDims, Fault> {
    const FORMULA: &str = "per head softmax(scale q k^T + mask) v; see `Graph::attention`";
    if options.window == Some(0) {
        return Err((NO_WINDOW[0].to_owned(), NO_WINDOW[1]));
    }
    if let Some(cap) = options.softcap {
        check_softcap(cap)?;
    }
    let attrs = options.mask(options.heads().with("causal", options.causal));
    let call = Call {
        attrs: &attrs,
        inputs: types,
        outputs: &[],
    };
    let dims = AttentionDims::of(&call).map_err(|message| (message, FORMULA))?;
    if mask.dtype != DType::U32 && mask.dtype != types[0].dtype {
        let message = format!(
            "the mask {mask} is neither u32 nor of the queries' dtype, {}",
            types[0].dtype
        );
        return Err((
            message,
            "give an additive mask in the dtype of the queries, or a u32 one that is 1 where a key is seen",
        ));
    }
    let scores = score_shape(types, &dims);
    let own = mask.shape.dims();
    let fits = own.len() <= scores.len()
        && own
            .iter()
            .rev()
            .zip(scores.iter().rev())
            .all(|(m, s)| *m == 1 || m == s);
    if !fits {
        let message = format!("the mask {mask} does not broadcast to the scores {scores:?}");
        return Err((
            message,
            "scores are [batch..., num_heads, rows_q, rows_k]; `key_padding_mask` makes a mask of [batch..., rows_k]",
        ));
    }
    Ok(dims)
}

/// Returns the shape of the scores, `[batch..., num_heads, rows_q, rows_k]`.
fn score_shape(types: &[TensorType], dims: &AttentionDims) -> Vec<usize> {
    let q = types[0].shape.dims();
    let mut shape = q[..q.len() - 2].to_vec();
    shape.extend([dims.heads, dims.rows_q, dims.rows_k]);
    shape
}

/// Returns the attention of operands that fit, with a mask that fits if there is one.
pub(super) fn attend(
    g: &mut Graph,
    operands: [Value; 3],
    mask: Option<Value>,
    dims: &AttentionDims,
    softcap: Option<f32>,
    sinks: Option<Value>,
) -> NodeId {
    let types: Vec<TensorType> = operands.iter().filter_map(|&v| g.ty(v).cloned()).collect();
    let (dtype, shape) = (types[0].dtype, types[0].shape.to_vec());
    if dims.batch == 0 || dims.rows_q == 0 {
        return g.full(dtype, 0.0, &shape);
    }
    let [q, k, v] = operands.map(|x| g.cast(x, DType::F32).into());
    let group = dims.group();
    let q = split_heads(g, q, dims.rows_q, dims, group);
    let k = split_heads(g, k, dims.rows_k, dims, 1);
    let v = split_heads(g, v, dims.rows_k, dims, 1);
    let scores = scores(g, q, k, dims, softcap);
    let split = g.shape(scores).to_vec();
    let scores = g.reshape(scores, &score_shape(&types, dims));
    let scores = match mask.map(|mask| (mask, g.dtype(mask))) {
        None => scores,
        Some((mask, DType::U32)) => {
            let hidden = g.scalar(f32::NEG_INFINITY);
            g.select(mask, scores, hidden)
        }
        Some((mask, _)) => {
            let mask = g.cast(mask, DType::F32);
            g.add(scores, mask)
        }
    };
    let sinks = sinks.map(|sinks| {
        let sinks = g.cast(sinks, DType::F32);
        g.reshape(sinks, &[dims.heads, 1, 1])
    });
    let p = visible_softmax(g, scores, sinks);
    let p = g.reshape(p, &split);
    let y = g.matmul(p, v);
    let y = join_heads(g, y, &shape);
    g.cast(y, dtype)
}

/// Returns the softmax over the last axis, zeros where all of it is minus infinity. Sinks are further scores, which have no
/// result.
fn visible_softmax(g: &mut Graph, scores: NodeId, sinks: Option<NodeId>) -> NodeId {
    let mut max = g.max(scores, &[-1], true);
    if let Some(sinks) = sinks {
        max = g.maximum(max, sinks);
    }
    let lowest = g.scalar(LOWEST as f32);
    let max = g.maximum(max, lowest);
    // Softmax is invariant to a shift of all scores, so the shift needs no derivative.
    let max = g.stop_gradient(max);
    let shifted = g.sub(scores, max);
    let e = g.exp(shifted);
    let mut sum = g.sum(e, &[-1], true);
    if let Some(sinks) = sinks {
        let shifted = g.sub(sinks, max);
        let further = g.exp(shifted);
        sum = g.add(sum, further);
    }
    let least = g.scalar(MIN_SUM as f32);
    let sum = g.maximum(sum, least);
    g.div(e, sum)
}
