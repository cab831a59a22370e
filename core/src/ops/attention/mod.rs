//! Scaled dot-product attention with several heads, masks and shared keys. [`Graph::attention`] lists the methods.

mod cached;
mod caches;
mod capped;
mod dims;
mod grad;
mod masked;
mod paged;

pub(super) use cached::CachedAttention;
use caches::expect_sinks;
pub(super) use caches::quantized;
pub use caches::{attention_sinks, cache_scales};
pub use dims::AttentionDims;
pub(super) use grad::AttentionGrad;
pub(super) use paged::PagedAttention;
pub use paged::PagedDims;

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Attention;

/// Returns the type of a tensor with one number for each query of each head: `[batch..., num_heads, rows_q]`.
fn per_query(q: &TensorType, heads: usize) -> Result<TensorType, String> {
    let mut dims = q.shape.to_vec();
    if let [.., rows, last] = dims.as_mut_slice() {
        (*rows, *last) = (heads, *rows);
    }
    Ok(TensorType::new(q.dtype, Shape::new(&dims)?))
}

/// Splits the heads of `[batch..., rows, heads * head_dim]` as
/// `[batch, kv_heads, group, rows, head_dim]`.
fn split_heads(g: &mut Graph, x: Value, rows: usize, dims: &AttentionDims, group: usize) -> NodeId {
    let split = g.reshape(x, &[dims.batch, rows, dims.kv_heads, group, dims.head_dim]);
    g.permute(split, &[0, 2, 3, 1, 4])
}

/// Reverses [`split_heads`].
fn join_heads(g: &mut Graph, x: NodeId, shape: &[usize]) -> Value {
    let joined = g.permute(x, &[0, 3, 1, 2, 4]);
    g.reshape(joined, shape).into()
}

/// Returns the scaled scores `[batch, kv_heads, group, rows_q, rows_k]` of split heads. The score of a hidden key is
/// minus infinity.
fn scores(g: &mut Graph, q: NodeId, k: NodeId, dims: &AttentionDims, softcap: Option<f32>) -> NodeId {
    let scores = scaled_products(g, q, k, dims, softcap);
    if !dims.causal {
        return scores;
    }
    let shift = dims.rows_k - dims.rows_q;
    let last: Vec<u32> = (0..dims.rows_q).map(|i| (i + shift) as u32).collect();
    let last = g.constant_u32(last, &[dims.rows_q, 1]);
    hide(g, scores, last, dims)
}

fn scaled_products(g: &mut Graph, q: NodeId, k: NodeId, dims: &AttentionDims, softcap: Option<f32>) -> NodeId {
    let products = g.matmul_bt(q, k);
    let dtype = g.dtype(q);
    let Some(cap) = softcap.map(f64::from) else {
        let scale = g.scalar_of(dtype, dims.scale);
        return g.mul(products, scale);
    };
    let scale = g.scalar_of(dtype, dims.scale / cap);
    let scaled = g.mul(products, scale);
    let bounded = g.tanh(scaled);
    let cap = g.scalar_of(dtype, cap);
    g.mul(bounded, cap)
}

/// Sets the score of each key that its query does not see to minus infinity: keys after `last`, and
/// keys before the window that ends there.
fn hide(g: &mut Graph, scores: NodeId, last: NodeId, dims: &AttentionDims) -> NodeId {
    let keys: Vec<u32> = (0..dims.rows_k).map(|j| j as u32).collect();
    let hidden = g.scalar_of(g.dtype(scores), f64::NEG_INFINITY);
    let mut shown = scores;
    if dims.window > 0 {
        let window = u32::try_from(dims.window).unwrap_or(u32::MAX);
        let ends = keys.iter().map(|j| j.saturating_add(window)).collect();
        let ends = g.constant_u32(ends, &[dims.rows_k]);
        let near = g.less_than(last, ends);
        shown = g.select(near, shown, hidden);
    }
    let keys = g.constant_u32(keys, &[dims.rows_k]);
    let past = g.less_equal(keys, last);
    g.select(past, shown, hidden)
}

/// Returns the sinks of all heads as scores of split heads, `[kv_heads, group, 1, 1]`.
fn split_sinks(g: &mut Graph, sinks: Value, dims: &AttentionDims) -> NodeId {
    g.reshape(sinks, &[dims.kv_heads, dims.group(), 1, 1])
}

/// Returns the softmax over the keys; and for each query the greatest score, and the sum of the exponentials relative
/// to it. Sinks are further scores, which have no result.
fn probabilities(g: &mut Graph, scores: NodeId, sinks: Option<NodeId>) -> (NodeId, [NodeId; 2]) {
    let mut max = g.max(scores, &[-1], true);
    if let Some(sinks) = sinks {
        max = g.maximum(max, sinks);
    }
    let shifted = g.sub(scores, max);
    let e = g.exp(shifted);
    let mut sum = g.sum(e, &[-1], true);
    if let Some(sinks) = sinks {
        let shifted = g.sub(sinks, max);
        let further = g.exp(shifted);
        sum = g.add(sum, further);
    }
    (g.div(e, sum), [max, sum])
}

/// Returns the order of axes that swaps the last two of `rank` axes.
fn last_two_swapped(rank: i32) -> Vec<i32> {
    (0..rank - 2).chain([rank - 1, rank - 2]).collect()
}

/// Returns empty results, for empty operands.
fn empty_results(cx: &mut Expansion) -> Vec<Value> {
    let types = cx.outputs.iter();
    types.map(|ty| cx.graph.full(ty.dtype, 0.0, &ty.shape).into()).collect()
}

fn decompose(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = dims_of(cx)?;
    if dims.batch == 0 {
        return Ok(empty_results(cx));
    }
    let (g, group) = (&mut *cx.graph, dims.group());
    let q = split_heads(g, cx.inputs[0], dims.rows_q, &dims, group);
    let k = split_heads(g, cx.inputs[1], dims.rows_k, &dims, 1);
    let v = split_heads(g, cx.inputs[2], dims.rows_k, &dims, 1);
    let scores = scores(g, q, k, &dims, None);
    let (p, [max, sum]) = probabilities(g, scores, None);
    let out = g.matmul(p, v);
    let out = join_heads(g, out, &cx.outputs[0].shape);
    let log = g.log(sum);
    let lse = g.add(max, log);
    let lse = g.reshape(lse, &cx.outputs[1].shape);
    Ok(vec![out, lse.into()])
}

fn dims_of(cx: &Expansion) -> Result<AttentionDims, String> {
    cx.with_call(AttentionDims::of)
}

/// Counts the operations of two matmuls, and about ten for each exponential.
fn flops(dims: &AttentionDims) -> u64 {
    let exponentials = dims.multiplications() / dims.head_dim as u64;
    dims.multiplications()
        .saturating_mul(4)
        .saturating_add(exponentials.saturating_mul(10))
}

impl Operator for Attention {
    fn name(&self) -> &'static str {
        "core.attention"
    }

    fn signature(&self) -> String {
        "g.attention(q, k, v, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "q [batch..., rows_q, num_heads * head_dim], k, v [batch..., rows_k, num_kv_heads * head_dim] -> out as q, lse [batch..., num_heads, rows_q]",
            formula: "per head softmax(scale q k^T + mask) v, where query head h reads key-value head h / (num_heads / num_kv_heads); lse is the natural logarithm of the sum of e^score. Causal: query i sees keys j <= i + rows_k - rows_q; window w: of these the last w",
            source: "Vaswani et al., 2017; grouped heads: Ainslie et al., 2023; window: Beltagy, Peters and Cohan, 2020",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("num_heads", AttrKind::Int),
            ("num_kv_heads", AttrKind::Int),
            ("head_dim", AttrKind::Int),
            ("causal", AttrKind::Bool),
            ("window", AttrKind::Int),
            ("scale", AttrKind::Float),
        ]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", super::ATTENTION_LSE]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = AttentionDims::of(call)?;
        let q = &call.inputs[0];
        Ok(vec![q.clone(), per_query(q, dims.heads)?])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (q, k, v) = (cx.operand(0), cx.operand(1), cx.operand(2));
            let (out, lse, dout) = (cx.result(0), cx.result(1), cx.grad(0));
            // delta = sum(dout * out) over a head, minus dlse: both terms have the same effect in the derivative of the
            // softmax.
            let heads = cx.attrs().size("num_heads")?;
            let width = cx.attrs().size("head_dim")?;
            let mut split = cx.shape(q).to_vec();
            let rank = split.len() as i32;
            split.pop();
            split.extend([heads, width]);
            let product = cx.mul(dout, out);
            let product = cx.reshape(product, &split);
            let sums = cx.sum(product, &[-1], false);
            let mut delta = cx.permute(sums, &last_two_swapped(rank));
            if let Some(dlse) = cx.try_grad(1) {
                delta = cx.sub(delta, dlse);
            }
            let attrs = cx.attrs().clone();
            let inputs = vec![q, k, v, lse, delta.into(), dout];
            let grads = cx.call(OpRef::new(&AttentionGrad), attrs, inputs);
            Ok((0..3).map(|port| Some(cx.port(grads, port))).collect())
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(decompose)
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: AttentionDims::of(call).map_or(0, |dims| flops(&dims)),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = cases(sizes);
        // Scores in the hundreds: a kernel that does not subtract the maximum overflows.
        let mut large = call_of(&[], [5, 9], [2, 1, 4], true, 0);
        for input in &mut large.inputs[..2] {
            *input = SampleInput::range(&input.shape.clone(), 12.0, 15.0);
        }
        large.label = "large scores".into();
        large.tolerance = 1e-4;
        samples.push(large);
        samples
    }
}

/// Returns a sample call with `rows_q` queries, `rows_k` keys, `heads` query heads, and `kv_heads` key-value heads of
/// `width` elements.
fn call_of(
    batch: &[usize],
    [rows_q, rows_k]: [usize; 2],
    [heads, kv_heads, width]: [usize; 3],
    causal: bool,
    window: i64,
) -> Sample {
    let operand = |rows: usize, heads: usize| {
        let mut shape = batch.to_vec();
        shape.extend([rows, heads * width]);
        SampleInput::f32(&shape)
    };
    let attrs = Attrs::new()
        .with("num_heads", heads)
        .with("num_kv_heads", kv_heads)
        .with("head_dim", width)
        .with("causal", causal)
        .with("window", window)
        .with("scale", 1.0 / (width as f64).sqrt());
    let mask = match (causal, window) {
        (false, _) => "full".into(),
        (true, 0) => "causal".into(),
        (true, w) => format!("window {w}"),
    };
    let label = format!("{mask}, {batch:?} x {rows_q} by {rows_k}, {heads} on {kv_heads} heads of {width}");
    let inputs = vec![
        operand(rows_q, heads),
        operand(rows_k, kv_heads),
        operand(rows_k, kv_heads),
    ];
    Sample::new(label, inputs, attrs)
}

/// Returns calls with every kind of mask, from one element to more rows than a tile.
fn cases(sizes: &mut Sizes) -> Vec<Sample> {
    let (rows, more, kv) = (sizes.dim(60), sizes.below(60), 1 + sizes.below(3));
    let heads = kv * (1 + sizes.below(3));
    let width = sizes.dim(17);
    let mut samples = vec![
        call_of(&[], [1, 1], [1, 1, 1], false, 0),
        call_of(&[], [5, 5], [2, 2, 4], true, 0),
        call_of(&[], [3, 7], [4, 2, 3], true, 0),
        call_of(&[2], [6, 6], [6, 2, 2], true, 3),
        call_of(&[], [4, 9], [3, 1, 5], false, 0),
        call_of(&[2, 2], [3, 3], [2, 1, 2], true, 100),
        call_of(&[], [1, 13], [2, 1, 8], true, 0),
        call_of(&[], [9, 9], [1, 1, 1], true, 1),
        call_of(&[], [70, 131], [1, 1, 17], true, 40),
        call_of(&[], [75, 101], [2, 1, 5], false, 0),
        call_of(&[], [133, 133], [1, 1, 6], true, 0),
        call_of(&[], [rows, rows + more], [heads, kv, width], true, 0),
    ];
    let scaled = &mut samples[2];
    scaled.attrs = scaled.attrs.clone().with("scale", -0.75);
    samples
}

/// Heads, mask and scale of [`Graph::attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Number of query heads.
    pub num_heads: u32,
    /// Number of key-value heads, a divisor of `num_heads`.
    pub num_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Hides keys `j > i + rows_k - rows_q` from query `i` if `true`.
    pub causal: bool,
    /// Maximum number of keys that a query sees, counted back from its own position; needs
    /// `causal`.
    pub window: Option<u32>,
    /// Factor by which scores are multiplied; `None` for `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Cap of the scores before the mask: a score becomes `softcap tanh(score / softcap)` (logit
    /// soft-capping of "Gemma 2", Gemma Team, 2024, section 2); no cap if `None`. With a cap,
    /// attention is computed by matmuls and a softmax, so memory grows with the number of scores,
    /// and there is no port 1.
    pub softcap: Option<f32>,
    /// Attention sinks, `[num_heads]` in the type of the queries: the softmax of head `h` has the further score `sinks[h]`, whose value
    /// is 0 (gpt-oss, OpenAI, 2025; after "StreamingLLM", Xiao et al., 2024). The scale and the cap do not apply to it. There is no
    /// port 1 with sinks.
    pub sinks: Option<Value>,
}

impl AttentionOptions {
    /// Creates the attention of every query to every key, with the usual scale.
    pub fn new(num_heads: u32, num_kv_heads: u32, head_dim: u32) -> Self {
        AttentionOptions {
            num_heads,
            num_kv_heads,
            head_dim,
            causal: false,
            window: None,
            scale: None,
            softcap: None,
            sinks: None,
        }
    }

    fn heads(&self) -> Attrs {
        Attrs::new()
            .with("num_heads", self.num_heads)
            .with("num_kv_heads", self.num_kv_heads)
            .with("head_dim", self.head_dim)
    }

    fn mask(&self, attrs: Attrs) -> Attrs {
        let scale = match self.scale {
            Some(scale) => f64::from(scale),
            None => 1.0 / f64::from(self.head_dim).sqrt(),
        };
        attrs.with("window", self.window.unwrap_or(0)).with("scale", scale)
    }
}

/// Error for a window of 0, and the remedy.
const NO_WINDOW: [&str; 2] = [
    "a window of 0 keys would leave a query nothing to see",
    "give a window of at least 1, or none",
];

impl Graph {
    /// Computes scaled dot-product attention of `q [batch..., rows_q, num_heads * head_dim]` to `k`
    /// and `v` `[batch..., rows_k, num_kv_heads * head_dim]` (Vaswani et al., 2017): per head
    /// `softmax(scale q k^T + mask) v`, shaped as `q`. Query head `h` reads key-value head
    /// `h / (num_heads / num_kv_heads)`. Port 1 (`lse [batch..., num_heads, rows_q]`) is the
    /// natural logarithm of the sum of the exponentials of a query's scores.
    ///
    /// | method | keys that a query sees | computed by |
    /// | --- | --- | --- |
    /// | [`attention`](Graph::attention) | all, of the same sequence or of another; or what [`AttentionOptions`] say | `core.attention` |
    /// | [`causal_attention`](Graph::causal_attention) | keys up to its own position |
    /// `core.attention` |
    /// | [`sliding_window_attention`](Graph::sliding_window_attention) | the last `window` keys up
    /// to its own position | `core.attention` |
    /// | [`cached_attention`](Graph::cached_attention) | the rows of a cache up to its position, which each step is given | `core.cached_attention` |
    /// | [`cached_attention_with`](Graph::cached_attention_with) | the same, with a window or another scale | `core.cached_attention` |
    /// | [`paged_attention`](Graph::paged_attention) | tokens of several sequences, each to the blocks of its own cache | `core.paged_attention` |
    /// | [`masked_attention`](Graph::masked_attention) | keys that a mask operand shows | matmuls
    /// and a softmax |
    ///
    /// Rejected: heads that do not divide, widths other than heads times `head_dim`, no keys, causal attention
    /// of more queries than keys, a window of 0 or without `causal`, a soft cap that is not positive.
    #[track_caller]
    pub fn attention(
        &mut self,
        q: impl Into<Value>,
        k: impl Into<Value>,
        v: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        if options.window == Some(0) {
            return self.report("core.attention", NO_WINDOW[0], NO_WINDOW[1]);
        }
        let attrs = options.heads().with("causal", options.causal);
        let (attrs, operands) = (options.mask(attrs), vec![q.into(), k.into(), v.into()]);
        match (options.softcap, options.sinks) {
            (None, None) => self.call(OpRef::new(&Attention), attrs, operands),
            (None, Some(sinks)) => {
                let y = self.call(OpRef::new(&Attention), attrs, operands);
                self.at_caller(|g| g.scaled_by_sinks(y, sinks, &options))
            }
            (Some(cap), sinks) => self.capped(&Attention, &attrs, &operands, (cap, sinks)),
        }
    }

    /// Applies sinks to a result of `core.attention`. With the log-sum-exp `l` of its scores, a query's result is multiplied by
    /// `e^l / (e^l + e^sink) = sigmoid(l - sink)`.
    #[track_caller]
    fn scaled_by_sinks(&mut self, y: NodeId, sinks: Value, options: &AttentionOptions) -> NodeId {
        let shape = self.shape(y).to_vec();
        let types = (self.ty(y).cloned(), self.ty(sinks).cloned());
        let ((Some(y_type), Some(sinks_type)), Some((_, rows))) = (types, shape.split_last()) else {
            // The error was already reported.
            return y;
        };
        let heads = options.num_heads as usize;
        if let Err(message) = expect_sinks(&sinks_type, &y_type, heads) {
            return self.report("core.attention", message, "see `AttentionOptions::sinks`");
        }
        let sinks = self.reshape(sinks, &[heads, 1]);
        let difference = self.sub(self.port(y, 1), sinks);
        let factor = self.sigmoid(difference);
        // `[batch..., heads, rows]` becomes `[batch..., rows, heads, 1]`.
        let factor = self.permute(factor, &last_two_swapped(shape.len() as i32));
        let factor = self.reshape(factor, &[rows, &[heads, 1]].concat());
        let split = self.reshape(y, &[rows, &[heads, options.head_dim as usize]].concat());
        let scaled = self.mul(split, factor);
        self.reshape(scaled, &shape)
    }

    /// Computes [`Graph::attention`] in which each query sees the keys up to its own position:
    /// query `i` sees keys `j <= i + rows_k - rows_q`.
    #[track_caller]
    pub fn causal_attention(
        &mut self,
        q: impl Into<Value>,
        k: impl Into<Value>,
        v: impl Into<Value>,
        num_heads: u32,
        num_kv_heads: u32,
        head_dim: u32,
    ) -> NodeId {
        let options = AttentionOptions {
            causal: true,
            ..AttentionOptions::new(num_heads, num_kv_heads, head_dim)
        };
        self.attention(q, k, v, options)
    }

    /// Computes [`Graph::causal_attention`] in which each query sees only the last `window` of its
    /// keys.
    #[track_caller]
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands and sizes of the published formula"
    )]
    pub fn sliding_window_attention(
        &mut self,
        q: impl Into<Value>,
        k: impl Into<Value>,
        v: impl Into<Value>,
        num_heads: u32,
        num_kv_heads: u32,
        head_dim: u32,
        window: u32,
    ) -> NodeId {
        let options = AttentionOptions {
            causal: true,
            window: Some(window),
            ..AttentionOptions::new(num_heads, num_kv_heads, head_dim)
        };
        self.attention(q, k, v, options)
    }
}
