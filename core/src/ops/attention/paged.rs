//! Attention to keys and values in the blocks of a paged cache.

use super::caches::{attention_sinks, cache_scales, plain_caches, plain_types};
use super::dims::operand;
use super::{Attention, AttentionDims, AttentionOptions, empty_results};
use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{Arity, AttrDecls, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics};
use crate::shape::TensorType;

pub(in crate::ops) struct PagedAttention;

/// Number of operands of a call without scales.
const PAGED_OPERANDS: usize = 5;

/// Sizes of a `core.paged_attention` call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedDims {
    /// Dimensions of one sequence with `rows` queries, whose keys are the cache rows of one row of
    /// the block table. The position of a query determines which keys it sees.
    pub dims: AttentionDims,
    /// Number of blocks of the cache.
    pub blocks: usize,
    /// Number of rows of a block.
    pub block_rows: usize,
    /// Maximum number of blocks of a sequence: the columns of the block table.
    pub table_len: usize,
}

impl PagedDims {
    /// Reads the dimensions of a call.
    ///
    /// # Errors
    /// Operands and attributes that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [_, _, _, positions, table, ..] = call.inputs else {
            return Err("takes queries, cached keys, cached values, positions and a block table".into());
        };
        // Checks shared with attention to one sequence.
        let [q, k, v] = &plain_types(call, PAGED_OPERANDS)?;
        let dims = AttentionDims::attributes_of(call)?;
        let (leading, rows) = operand("the queries", q, dims.heads, dims.head_dim)?;
        if !leading.is_empty() {
            return Err(format!(
                "the queries {q} have leading axes; each row is a token of some sequence: [rows, heads * head_dim]"
            ));
        }
        let (blocks, block_rows) = operand("the keys", k, dims.kv_heads, dims.head_dim)?;
        let &[blocks] = blocks else {
            return Err(format!(
                "the keys {k} are no cache [blocks, block_rows, heads * head_dim]"
            ));
        };
        if k.shape != v.shape {
            return Err(format!("the cached keys {k} and values {v} differ in their shapes"));
        }
        if blocks == 0 || block_rows == 0 {
            return Err(format!("the keys {k} have no rows, so there is nothing to attend to"));
        }
        if positions.dtype != DType::U32 || positions.shape.dims() != [rows] {
            return Err(format!(
                "the positions are {positions}, but there is one for each query: u32 [{rows}]"
            ));
        }
        let table_len = match table.shape.dims() {
            &[of_rows, len] if of_rows == rows && len > 0 && table.dtype == DType::U32 => len,
            _ => {
                return Err(format!(
                    "the block table is {table}, but has the blocks of each query's sequence: u32 [{rows}, at least 1]"
                ));
            }
        };
        let rows_k = table_len
            .checked_mul(block_rows)
            .ok_or("the block table has more rows than there can be")?;
        Ok(PagedDims {
            dims: AttentionDims {
                batch: 1,
                rows_q: rows,
                rows_k,
                ..dims
            },
            blocks,
            block_rows,
            table_len,
        })
    }
}

fn decompose(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let PagedDims { dims, .. } = cx.with_call(PagedDims::of)?;
    if dims.rows_q == 0 {
        return Ok(empty_results(cx));
    }
    let (scales, sinks) = cx.with_call(|call| Ok((cache_scales(call.inputs), attention_sinks(call.inputs))))?;
    let g = &mut *cx.graph;
    let mut operands = of_sequences(g, cx.inputs, scales, &dims).to_vec();
    operands.extend(sinks.map(|sinks| cx.inputs[sinks]));
    let out = g.call(OpRef::new(&super::CachedAttention), cx.attrs.clone(), operands);
    Ok(vec![g.reshape(out, &cx.outputs[0].shape).into()])
}

/// Treats every row as a sequence of one query and gathers its blocks: returns queries, keys,
/// values and positions of cached attention. `scales` are the operands of [`cache_scales`].
pub(super) fn of_sequences(
    g: &mut Graph,
    operands: &[Value],
    scales: Option<[usize; 2]>,
    dims: &AttentionDims,
) -> [Value; 4] {
    let (q, positions, table) = (operands[0], operands[3], operands[4]);
    let rows = dims.rows_q;
    let [k, v] = plain_caches(g, operands, scales, |g, cache| {
        let width = *g.shape(cache).last().unwrap_or(&0);
        let blocks = g.gather(cache, table);
        g.reshape(blocks, &[rows, dims.rows_k, width]).into()
    });
    let last = g.scalar_of(DType::U32, (dims.rows_k - 1) as f64);
    let inside = g.less_than(positions, last);
    let positions = g.select(inside, positions, last);
    let q = g.reshape(q, &[rows, 1, dims.heads * dims.head_dim]);
    [q.into(), k, v, positions.into()]
}

impl Operator for PagedAttention {
    fn name(&self) -> &'static str {
        "core.paged_attention"
    }

    fn signature(&self) -> String {
        "g.paged_attention(q, k_cache, v_cache, positions, block_table, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "q [rows, num_heads * head_dim], cached keys and values [blocks, block_rows, num_kv_heads * head_dim], positions (u32) [rows], block table (u32) [rows, blocks of a sequence] -> as q; caches are of the queries' type, or f16 for queries of f32, with rows of an even number of elements; or words and scales as core.quantized_cache_write has them, with the scales of keys and of values as further operands; the last operand may be sinks [num_heads] in the queries' type",
            formula: "core.attention of each row r to rows 0 .. positions[r] of its own sequence, with a window w to the last w of these; row j of the sequence is row j % block_rows of block block_table[r, j / block_rows]. A position beyond the table's rows sees all of them. Whatever other rows hold changes nothing. A block that is not there is an error of the step. Sinks are as in core.cached_attention",
            source: "PagedAttention (Kwon et al., 2023)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(5, 8)
    }

    fn attributes(&self) -> AttrDecls {
        let mut all = Attention.attributes();
        all.retain(|(name, _)| *name != "causal");
        all
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        PagedDims::of(call)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((4, PagedDims::of(call).ok()?.blocks))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(decompose)
    }

    fn cost(&self, call: &Call) -> Cost {
        // Cost of full caches: the number of valid rows is not available before the step.
        let Ok(PagedDims { dims, .. }) = PagedDims::of(call) else {
            return Cost::streaming(call, 0);
        };
        let pairs = (dims.rows_q as u64).saturating_mul(dims.rows_k as u64);
        let products = pairs.saturating_mul((dims.heads * dims.head_dim) as u64);
        Cost {
            flops: products.saturating_mul(4),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, len, kv, width) = (sizes.dim(9), sizes.dim(6), 1 + sizes.below(3), sizes.dim(33));
        let heads = kv * (1 + sizes.below(3));
        let block_rows = sizes.dim(20);
        let cases = [
            ([1, 1], [1, 1], [1, 1, 1], 0),
            ([1, 3], [5, 4], [4, 2, 4], 0),
            ([4, 2], [3, 8], [2, 1, 3], 0),
            ([3, 4], [9, 16], [9, 3, 64], 0),
            ([5, 3], [4, 5], [2, 2, 8], 6),
            ([20, 2], [4, 3], [3, 1, 6], 0),
            ([2, 3], [4, 100], [2, 1, 17], 0),
            ([rows, len], [len + 2, block_rows], [heads, kv, width], 0),
        ];
        let of = |dtype| cases.map(|(rows, blocks, heads, window)| call_of(dtype, rows, blocks, heads, window));
        let halves = of(DType::F16).into_iter().filter(|sample| sample.inputs[1].has_pairs());
        let quantized = [
            ([1, 3], [5, 4], [4, 2, 64], 0),
            ([5, 3], [4, 5], [4, 4, 16], 6),
            ([20, 2], [4, 3], [4, 4, 80], 0),
            ([rows, len], [len + 2, block_rows], [heads, kv, 64], 0),
        ];
        let quantized = quantized.map(|(rows, blocks, heads, window)| {
            call_of(DType::F32, rows, blocks, heads, window).with_quantized_caches()
        });
        let with_sinks = [
            call_of(DType::F32, [3, 4], [9, 16], [9, 3, 64], 0),
            call_of(DType::F32, [20, 2], [4, 3], [3, 1, 6], 4),
            call_of(DType::F16, [5, 3], [4, 5], [2, 2, 8], 6),
            call_of(DType::F32, [2, 3], [4, 100], [4, 4, 80], 0).with_quantized_caches(),
            call_of(DType::F32, [rows, len], [len + 2, block_rows], [heads, kv, width], 0),
        ];
        let with_sinks = with_sinks.map(Sample::with_sinks);
        let all = of(DType::F32).into_iter().chain(halves).chain(quantized);
        all.chain(with_sinks).collect()
    }
}

/// Returns a sample call with `rows` queries of `table_len` blocks each, a cache of `blocks` blocks of `block_rows`
/// rows, `heads` query heads, and `kv_heads` key-value heads of `width` elements.
fn call_of(
    dtype: DType,
    [rows, table_len]: [usize; 2],
    [blocks, block_rows]: [usize; 2],
    [heads, kv_heads, width]: [usize; 3],
    window: i64,
) -> Sample {
    let options = AttentionOptions::new(heads as u32, kv_heads as u32, width as u32);
    let attrs = options.mask(options.heads()).with("window", window);
    let cache = [blocks, block_rows, kv_heads * width];
    let label = format!(
        "{rows} rows of {table_len} blocks of {blocks} of {block_rows} rows, {heads} on {kv_heads} heads of {width}, window {window}, {dtype}"
    );
    let inputs = vec![
        SampleInput::f32(&[rows, heads * width]),
        SampleInput::cache(dtype, &cache),
        SampleInput::cache(dtype, &cache),
        // One position beyond the table's rows, too.
        SampleInput::below(&[rows], table_len * block_rows + 1),
        SampleInput::below(&[rows, table_len], blocks),
    ];
    Sample::new(label, inputs, attrs)
}

impl Graph {
    /// Computes the attention of tokens of several sequences to their paged caches: row `r` of
    /// `q [rows, num_heads * head_dim]` sees rows `0..=positions[r]` of its sequence, of which row
    /// `j` is row `j % block_rows` of block `block_table[r, j / block_rows]` of `k_cache` and
    /// `v_cache [blocks, block_rows, num_kv_heads * head_dim]`. `positions` is `u32 [rows]`,
    /// `block_table` `u32 [rows, blocks of a sequence]`. Shaped as `q`. With queries of `f32`, the
    /// caches may be of `f16`.
    ///
    /// It is always causal, regardless of `options`. A position beyond the table's rows sees all of them. The contents
    /// of other rows, including NaN, have no influence. A block index out of range is an error of the step.
    #[track_caller]
    pub fn paged_attention(
        &mut self,
        q: impl Into<Value>,
        k_cache: impl Into<Value>,
        v_cache: impl Into<Value>,
        positions: impl Into<Value>,
        block_table: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        let operands = vec![
            q.into(),
            k_cache.into(),
            v_cache.into(),
            positions.into(),
            block_table.into(),
        ];
        self.attention_to_cache(&PagedAttention, operands, options)
    }

    /// Computes [`Graph::paged_attention`] to quantized caches: the words and scales of keys and of values, as
    /// [`Graph::quantized_cache_write`] writes them, `u32 [blocks, block_rows, num_kv_heads * head_dim / 4]` and
    /// `f16 [blocks, block_rows, num_kv_heads * head_dim / 32]`. `q` is `f32`.
    #[track_caller]
    pub fn quantized_paged_attention(
        &mut self,
        q: impl Into<Value>,
        k_cache: [Value; 2],
        v_cache: [Value; 2],
        positions: impl Into<Value>,
        block_table: impl Into<Value>,
        options: AttentionOptions,
    ) -> NodeId {
        let ([k, k_scales], [v, v_scales]) = (k_cache, v_cache);
        let (positions, block_table) = (positions.into(), block_table.into());
        let operands = vec![q.into(), k, v, positions, block_table, k_scales, v_scales];
        self.attention_to_cache(&PagedAttention, operands, options)
    }
}
