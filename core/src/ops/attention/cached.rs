//! Attention to the valid rows of a KV cache.

use super::caches::{attention_sinks, cache_scales, plain_caches};
use super::{
    Attention, AttentionDims, AttentionOptions, NO_WINDOW, empty_results, flops, hide, join_heads, probabilities,
    scaled_products, split_heads, split_sinks,
};
use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::positions::{checked, expect_positions, first_rows};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{Arity, AttrDecls, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics, cast_as};
use crate::shape::TensorType;

pub(in crate::ops) struct CachedAttention;

fn decompose(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(AttentionDims::of_cached)?;
    if dims.batch == 0 || dims.rows_q == 0 {
        return Ok(empty_results(cx));
    }
    let &[q, _, _, positions, ..] = cx.inputs else {
        return Err("takes queries, cached keys, cached values and positions".into());
    };
    let (scales, sinks) = cx.with_call(|call| Ok((cache_scales(call.inputs), attention_sinks(call.inputs))))?;
    let [k, v] = plain_caches(cx.graph, cx.inputs, scales, |_, cache| cache);
    let sinks = sinks.map(|sinks| cx.inputs[sinks]);
    Ok(vec![attend(&mut *cx.graph, [q, k, v, positions], &dims, None, sinks)])
}

/// Returns the attention of valid queries, cached keys, cached values and positions; `batch` and
/// `rows_q` are not 0.
pub(super) fn attend(
    g: &mut Graph,
    operands: [Value; 4],
    dims: &AttentionDims,
    softcap: Option<f32>,
    sinks: Option<Value>,
) -> Value {
    let &AttentionDims {
        batch, rows_q, rows_k, ..
    } = dims;
    let [q, k, v, positions] = operands;
    let shape = g.shape(q).to_vec();
    let [k, v] = [k, v].map(|cache| cast_as(g, cache, q));
    let positions = checked(g, positions, first_rows(rows_k, rows_q));
    let positions = g.reshape(positions, &[batch, 1, 1, 1, 1]);
    let q = split_heads(g, q, rows_q, dims, dims.group());
    let k = split_heads(g, k, rows_k, dims, 1);
    let v = split_heads(g, v, rows_k, dims, 1);
    let products = scaled_products(g, q, k, dims, softcap);
    let rows = g.constant_u32((0..rows_q).map(|i| i as u32).collect(), &[rows_q, 1]);
    let last = g.add(positions, rows);
    let scores = hide(g, products, last, dims);
    let sinks = sinks.map(|sinks| split_sinks(g, sinks, dims));
    let (p, _) = probabilities(g, scores, sinks);
    // Unwritten rows may contain NaN, which a probability of zero would not hide.
    let keys = g.constant_u32((0..rows_k).map(|j| j as u32).collect(), &[rows_k, 1]);
    let end = g.scalar_of(DType::U32, rows_q as f64);
    let end = g.add(positions, end);
    let valid = g.less_than(keys, end);
    let zero = g.scalar_of(g.dtype(v), 0.0);
    let v = g.select(valid, v, zero);
    let out = g.matmul(p, v);
    join_heads(g, out, &shape)
}

impl Operator for CachedAttention {
    fn name(&self) -> &'static str {
        "core.cached_attention"
    }

    fn signature(&self) -> String {
        "g.cached_attention(q, k_cache, v_cache, kv_pos, num_heads, num_kv_heads, head_dim)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "q [batch..., rows, num_heads * head_dim], cached keys and values [batch..., capacity, num_kv_heads * head_dim], position (u32) [batch...], or [1] without batch -> as q; caches are of the queries' type, or f16 for queries of f32, with rows of an even number of elements; or words and scales as core.quantized_cache_write has them, with the scales of keys and of values as further operands; the last operand may be sinks [num_heads] in the queries' type",
            formula: "core.attention of row r to rows 0 .. position + r of the cache, with a window w to the last w of these; whatever later rows hold changes nothing. A position above capacity - rows is an error of the step. With sinks, the softmax of head h has the further score sinks[h], whose value is 0",
            source: "Vaswani et al., 2017, with the cache of Pope et al., 2022",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(4, 7)
    }

    fn attributes(&self) -> AttrDecls {
        let mut all = Attention.attributes();
        all.retain(|(name, _)| *name != "causal");
        all
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        AttentionDims::of_cached(call)?;
        let q = &call.inputs[0];
        let leading = q
            .shape
            .dims()
            .split_last_chunk::<2>()
            .map_or(&[][..], |(leading, _)| leading);
        let [_, _, _, positions, ..] = call.inputs else {
            return Err("takes queries, cached keys, cached values and positions".into());
        };
        expect_positions("the position of the first query", positions, leading)?;
        Ok(vec![q.clone()])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let dims = AttentionDims::of_cached(call).ok()?;
        (dims.rows_q > 0).then(|| (3, first_rows(dims.rows_k, dims.rows_q)))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(decompose)
    }

    fn cost(&self, call: &Call) -> Cost {
        // Cost of a full cache: the number of valid rows is not available before the step.
        let flops = AttentionDims::of_cached(call).map_or(0, |dims| flops(&dims));
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, more, kv, width) = (sizes.dim(9), sizes.below(90), 1 + sizes.below(3), sizes.dim(33));
        let heads = kv * (1 + sizes.below(3));
        let mut samples = vec![
            call_of(&[], [1, 1], [1, 1, 1], 0),
            call_of(&[], [1, 9], [4, 2, 4], 0),
            call_of(&[], [4, 9], [2, 1, 3], 0),
            call_of(&[3], [1, 7], [3, 3, 4], 0),
            call_of(&[2, 2], [2, 6], [2, 1, 2], 3),
            call_of(&[], [1, 140], [2, 1, 17], 0),
            call_of(&[2], [5, 33], [2, 2, 8], 4),
            call_of(&[], [1, 20], [1, 1, 6], 1),
            call_of(&[2], [rows, rows + more], [heads, kv, width], 0),
        ];
        let scaled = &mut samples[2];
        scaled.attrs = scaled.attrs.clone().with("scale", -0.75);
        let with_pairs = samples
            .clone()
            .into_iter()
            .filter(|sample| sample.inputs[1].has_pairs());
        let halves = with_pairs.map(|mut sample| {
            sample.label += ", f16";
            for cache in &mut sample.inputs[1..3] {
                *cache = SampleInput::cache(DType::F16, &cache.shape);
            }
            sample
        });
        samples.extend(halves.collect::<Vec<_>>());
        samples.extend([
            call_of(&[], [1, 9], [4, 2, 64], 0).with_quantized_caches(),
            call_of(&[], [3, 70], [4, 4, 16], 5).with_quantized_caches(),
            call_of(&[2, 2], [2, 6], [2, 1, 64], 3).with_quantized_caches(),
            call_of(&[], [1, 140], [4, 4, 80], 0).with_quantized_caches(),
            call_of(&[2], [rows, rows + more], [heads, kv, 64], 0).with_quantized_caches(),
        ]);
        let with_sinks = [
            call_of(&[], [1, 9], [4, 2, 4], 0),
            call_of(&[2], [5, 33], [2, 2, 8], 4),
            call_of(&[], [1, 20], [3, 1, 6], 1),
            call_of(&[], [1, 140], [4, 4, 80], 0).with_quantized_caches(),
            call_of(&[2], [rows, rows + more], [heads, kv, width], 0),
        ];
        samples.extend(with_sinks.map(Sample::with_sinks));
        samples
    }
}

/// Returns a sample call with `rows` queries, a cache of `capacity` rows, `heads` query heads, and `kv_heads` key-value
/// heads of `width` elements.
fn call_of(batch: &[usize], [rows, capacity]: [usize; 2], [heads, kv_heads, width]: [usize; 3], window: i64) -> Sample {
    let operand = |rows: usize, heads: usize| SampleInput::f32(&[batch, &[rows, heads * width]].concat());
    let options = AttentionOptions::new(heads as u32, kv_heads as u32, width as u32);
    let attrs = options.mask(options.heads()).with("window", window);
    let positions = if batch.is_empty() { &[1] } else { batch };
    let label =
        format!("{rows} of {capacity} rows, batch {batch:?}, {heads} on {kv_heads} heads of {width}, window {window}");
    let inputs = vec![
        operand(rows, heads),
        operand(capacity, kv_heads),
        operand(capacity, kv_heads),
        SampleInput::below(positions, first_rows(capacity, rows)),
    ];
    Sample::new(label, inputs, attrs)
}

impl Graph {
    /// Computes [`Graph::causal_attention`] to a cache whose first rows are valid: row `r` of
    /// `q [batch..., rows, num_heads * head_dim]` sees rows `0..=kv_pos + r` of `k_cache` and `v_cache`
    /// `[batch..., capacity, num_kv_heads * head_dim]`. `kv_pos` is the position of the first query: `u32 [1]`, or with
    /// batch axes one for each sequence, `u32 [batch...]`. Shaped as `q`. With queries of `f32`, the caches may be of
    /// `f16`.
    ///
    /// The contents of later rows, including NaN, have no influence. If the rows do not fit into the cache from a
    /// position on, the step returns an error.
    #[track_caller]
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands and sizes of the published formula"
    )]
    pub fn cached_attention(
        &mut self,
        q: impl Into<Value>,
        k_cache: impl Into<Value>,
        v_cache: impl Into<Value>,
        kv_pos: impl Into<Value>,
        num_heads: u32,
        num_kv_heads: u32,
        head_dim: u32,
    ) -> NodeId {
        let options = AttentionOptions::new(num_heads, num_kv_heads, head_dim);
        self.cached_attention_with(q, k_cache, v_cache, kv_pos, options)
    }

    /// Computes [`Graph::cached_attention`] with its own window, scale or soft cap; it is always
    /// causal, regardless of `options`.
    #[track_caller]
    pub fn cached_attention_with(
        &mut self,
        q: impl Into<Value>,
        k_cache: impl Into<Value>,
        v_cache: impl Into<Value>,
        kv_pos: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        let operands = vec![q.into(), k_cache.into(), v_cache.into(), kv_pos.into()];
        self.attention_to_cache(&CachedAttention, operands, options)
    }

    /// Computes [`Graph::cached_attention_with`] to quantized caches: the words and scales of keys and of values, as
    /// [`Graph::quantized_cache_write`] writes them, `u32 [batch..., capacity, num_kv_heads * head_dim / 4]` and
    /// `f16 [batch..., capacity, num_kv_heads * head_dim / 32]`. `q` is `f32`.
    #[track_caller]
    pub fn quantized_cached_attention(
        &mut self,
        q: impl Into<Value>,
        k_cache: [Value; 2],
        v_cache: [Value; 2],
        kv_pos: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        let ([k, k_scales], [v, v_scales]) = (k_cache, v_cache);
        let operands = vec![q.into(), k, v, kv_pos.into(), k_scales, v_scales];
        self.attention_to_cache(&CachedAttention, operands, options)
    }

    /// Builds a call of an operator without the attribute `causal`.
    #[track_caller]
    pub(super) fn attention_to_cache(
        &mut self,
        op: &'static dyn Operator,
        operands: Vec<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        if options.window == Some(0) {
            return self.report(op.name(), NO_WINDOW[0], NO_WINDOW[1]);
        }
        let attrs = options.mask(options.heads());
        let operands = [operands, options.sinks.into_iter().collect()].concat();
        match options.softcap {
            None => self.call(OpRef::new(op), attrs, operands),
            Some(cap) => self.capped(op, &attrs, &operands, (cap, None)),
        }
    }
}
