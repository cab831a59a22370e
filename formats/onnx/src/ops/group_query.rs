//! Attention of exported language models, with a key-value cache as operands and results.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::attention::{join_heads, probabilities, repeat_heads, rotate, seen, softcapped, split_heads};
use super::matmul::swap_last;
use super::{OnnxOp, limits, ms};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[ms("GroupQueryAttention", group_query_attention).partly(
    "a total length that depends on the data of an input, quantised caches, caches of a window's size, norms of queries and keys, padded chunks, layers that share a cache",
)];

/// Operands that are not supported, with their descriptions.
const REFUSED: [(usize, &str); 5] = [
    (12, "quantised caches (k_scale)"),
    (13, "quantised caches (v_scale)"),
    (14, "norms of queries (q_norm_weight)"),
    (15, "norms of keys (k_norm_weight)"),
    (16, "padded chunks (query_seqlens)"),
];

/// Position of the first query row in the cache.
#[derive(Clone, Copy)]
enum Begin {
    /// The same row for all sequences of the batch.
    Known(usize),
    /// A separate row for each sequence, from an operand: `i32 [batch, 1, 1, 1]`.
    Each(Value),
}

/// Sizes of a node.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    rows: usize,
    width: usize,
    /// Number of rows of the cache operands.
    past: usize,
    /// Number of keys of the longest sequence after the call.
    total: usize,
}

impl Sizes {
    /// Returns the number of rows of the cache results.
    fn present(self) -> usize {
        self.past.max(self.total)
    }
}

/// Returns `0, 1...` as `i32`, in a shape with one axis of this size.
fn counting(call: &mut Call, shape: &[usize]) -> Result<Value, String> {
    let graph = call.graph();
    let numbers = limits::counting(graph, shape)?;
    Ok(graph.cast(numbers, DType::I32).into())
}

/// Returns queries, keys and values `[batch, heads, rows, width]`.
fn operands(call: &mut Call, heads: usize, kv_heads: usize) -> Result<[Value; 3], String> {
    let query = call.value(0)?;
    let (q, k, v) = match (call.optional(1)?, call.optional(2)?) {
        (Some(k), Some(v)) => (query, k, v),
        _ => {
            let total = call.dims(0)?.last().copied().unwrap_or(0);
            let all = heads + 2 * kv_heads;
            if !total.is_multiple_of(all) {
                return Err(format!("{total} values cannot be divided into {all} heads"));
            }
            let width = total / all;
            let parts = call
                .graph()
                .split(query, 2, &[heads * width, kv_heads * width, kv_heads * width]);
            let [q, k, v] = <[Value; 3]>::try_from(parts).map_err(|_| "three parts are needed")?;
            (q, k, v)
        }
    };
    Ok([
        split_heads(call, q, heads)?,
        split_heads(call, k, kv_heads)?,
        split_heads(call, v, kv_heads)?,
    ])
}

/// Returns the position of the first row.
fn begin(call: &mut Call, sizes: Sizes) -> Result<Begin, String> {
    let Sizes { batch, rows, total, .. } = sizes;
    // A prompt begins at 0, and the only sequence of a batch is the longest one.
    if total == rows || batch == 1 {
        return Ok(Begin::Known(total - rows));
    }
    if let Some(lengths) = call.tensor(5).map(|t| t.to_i64())
        && lengths.len() == batch
        && lengths.iter().all(|&length| length + 1 == total as i64)
    {
        return Ok(Begin::Known(total - rows));
    }
    let lengths = call.value(5)?;
    let graph = call.graph();
    let lengths = graph.cast(lengths, DType::I32);
    let lengths = graph.reshape(lengths, &[batch, 1, 1, 1]);
    // The operand contains the lengths minus 1.
    let less = graph.scalar_of(DType::I32, rows as f64 - 1.0);
    Ok(Begin::Each(graph.sub(lengths, less).into()))
}

/// Returns the tables of cosines and sines at the positions of the rows: `[batch or 1, 1, rows, half]`.
fn angles(call: &mut Call, sizes: Sizes, begin: Begin) -> Result<[Value; 2], String> {
    let Sizes {
        batch,
        rows,
        width,
        total,
        ..
    } = sizes;
    let dims = call.dims(7)?;
    let [length, half] = *dims.as_slice() else {
        return Err(format!("expected a table [positions, values], found {dims:?}"));
    };
    if total > length || 2 * half > width {
        return Err(format!("tables of {dims:?} do not fit {total} rows of {width} values"));
    }
    let positions: Option<Value> = match (call.optional(9)?, begin) {
        (Some(given), _) => Some(call.graph().cast(given, DType::U32).into()),
        (None, Begin::Known(_)) => None,
        (None, Begin::Each(at)) => {
            let own = counting(call, &[1, rows])?;
            let graph = call.graph();
            let at = graph.reshape(at, &[batch, 1]);
            let positions = graph.add(at, own);
            Some(graph.cast(positions, DType::U32).into())
        }
    };
    let mut found = Vec::new();
    for i in [7, 8] {
        let table = call.value(i)?;
        let graph = call.graph();
        found.push(match (positions, begin) {
            (Some(positions), _) => {
                let own = graph.gather_axis(table, positions, 0);
                graph.reshape(own, &[batch, 1, rows, half]).into()
            }
            (None, Begin::Known(at)) => {
                let own = graph.slice_axis(table, 0, at, at + rows);
                graph.reshape(own, &[1, 1, rows, half]).into()
            }
            (None, Begin::Each(_)) => return Err("positions are missing".into()),
        });
    }
    <[Value; 2]>::try_from(found).map_err(|_| "two tables are needed".into())
}

/// Writes new rows into the cache of operand `i`: `[batch, heads, present, width]`.
fn written(call: &mut Call, i: usize, new: Value, sizes: Sizes, begin: Begin) -> Result<Value, String> {
    let Sizes { rows, past, total, .. } = sizes;
    let present = sizes.present();
    if past == 0 {
        return Ok(new);
    }
    let old = call.value(i)?;
    let graph = call.graph();
    let at = match begin {
        Begin::Known(at) => {
            let mut parts = Vec::new();
            if at > 0 {
                parts.push(graph.slice_axis(old, 2, 0, at).into());
            }
            parts.push(new);
            if present > at + rows {
                parts.push(graph.slice_axis(old, 2, at + rows, present).into());
            }
            return Ok(graph.concat(&parts, 2).into());
        }
        Begin::Each(at) => at,
    };
    let old: Value = if total > past {
        graph.pad(old, &[0; 4], &[0, 0, total - past, 0], 0.0).into()
    } else {
        old
    };
    let element = graph.dtype(new);
    let place = counting(call, &[1, 1, present, 1])?;
    let own = counting(call, &[1, 1, 1, rows])?;
    let graph = call.graph();
    let place = graph.sub(place, at);
    let same = graph.equal(place, own);
    if rows == 1 {
        return Ok(graph.select(same, new, old).into());
    }
    // A product with zeros and ones moves rows; it is exact because each sum has only one term that is not 0.
    let (one, zero) = (graph.scalar_of(element, 1.0), graph.scalar_of(element, 0.0));
    let moves = graph.select(same, one, zero);
    let moved = graph.matmul(moves, new);
    let some = graph.max(same, &[3], true);
    Ok(graph.select(some, moved, old).into())
}

/// Returns the term that is added to the scores `[batch, heads, rows, total]`: 0 for keys that are visible to a row,
/// and otherwise minus infinity.
fn mask(call: &mut Call, sizes: Sizes, begin: Begin, element: ElementType) -> Result<Option<Value>, String> {
    let Sizes { rows, total, .. } = sizes;
    let causal = match call.int("causal", 1)? {
        0 => false,
        1 => true,
        other => return Err(format!("causal = {other} is not known")),
    };
    let window = usize::try_from(call.int("local_window_size", -1)?)
        .ok()
        .filter(|&w| w > 0 && w < total);
    if !causal && window.is_some() {
        return Err("a window without causal attention is not defined".into());
    }
    match begin {
        Begin::Known(_) if !causal => Ok(None),
        Begin::Known(at) => seen(call, &[rows, total], element, |_, i, j| {
            j <= i + at && window.is_none_or(|window| i + at < j + window)
        })
        .map(Some),
        Begin::Each(at) => {
            let keys = counting(call, &[1, 1, 1, total])?;
            let own = counting(call, &[1, 1, rows, 1])?;
            let (zero, low) = (call.scalar(element, 0.0), call.scalar(element, f64::NEG_INFINITY));
            let graph = call.graph();
            let last = if causal {
                graph.add(at, own)
            } else {
                let last = graph.scalar_of(DType::I32, rows as f64 - 1.0);
                graph.add(at, last)
            };
            let later = graph.less_than(last, keys);
            let mut mask: Value = graph.select(later, low, zero).into();
            if let Some(window) = window {
                let window = graph.scalar_of(DType::I32, window as f64 - 1.0);
                let first = graph.sub(last, window);
                let earlier = graph.less_than(keys, first);
                mask = graph.select(earlier, low, mask).into();
            }
            Ok(Some(mask))
        }
    }
}

/// Returns the softmax over the keys and one additional score: the sink of the head, or 0 without sinks.
fn with_sink(call: &mut Call, scores: Value, element: ElementType) -> Result<Value, String> {
    let dims = call.graph().shape(scores).to_vec();
    let [batch, heads, rows, keys] = *dims.as_slice() else {
        return Err(format!("scores {dims:?} have no heads"));
    };
    let sink = match call.optional(11)? {
        Some(sink) => sink,
        None if call.int("smooth_softmax", 0)? == 1 => call.scalar(element, 0.0),
        None => return Ok(probabilities(call, scores)),
    };
    let graph = call.graph();
    let count: usize = graph.shape(sink).iter().product();
    if count != heads && count != 1 {
        return Err(format!("{count} sinks do not fit {heads} heads"));
    }
    let sink = graph.reshape(sink, &[1, count, 1, 1]);
    let sink = graph.expand(sink, &[batch, heads, rows, 1]);
    let all = graph.concat(&[scores, sink.into()], 3);
    let soft = graph.softmax(all, 3);
    Ok(graph.slice_axis(soft, 3, 0, keys).into())
}

/// Builds the attention. Operands: query, key, value `[batch, rows, heads * width]` (or all packed in the first), past keys and
/// values `[batch, heads, past, width]`, lengths minus 1, the total length of the longest sequence, tables of cosines and sines,
/// positions, an attention bias, and sinks of the heads.
///
/// A cache that is longer than its contents keeps its size. For padded prompts, the results of the padding differ from other
/// implementations; they are not used.
fn group_query_attention(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let size = |name: &str| -> Result<usize, String> {
        let size = usize::try_from(call.int(name, 0)?)
            .ok()
            .filter(|&n| n > 0 && n < 1 << 16);
        size.ok_or_else(|| format!("{name} is not positive"))
    };
    let (heads, kv_heads) = (size("num_heads")?, size("kv_num_heads")?);
    if let Some((_, what)) = REFUSED.iter().find(|(i, _)| call.has_input(*i)) {
        return Err(format!("{what} are not supported"));
    }
    if call.int("sliding_window_cache", 0)? != 0 {
        return Err("caches of a window's size (sliding_window_cache) are not supported".into());
    }
    let [mut q, mut k, v] = operands(call, heads, kv_heads)?;
    let dims = call.graph().shape(q).to_vec();
    let [batch, _, rows, width] =
        <[usize; 4]>::try_from(dims.as_slice()).map_err(|_| format!("operands {} do not fit", call.types()))?;
    if call.graph().shape(k).get(2) != Some(&rows) {
        return Err(format!(
            "operands {} do not fit: layers that share a cache are not supported",
            call.types()
        ));
    }
    let past = match (call.has_input(3), call.has_input(4)) {
        (true, true) => *call.dims(3)?.get(2).ok_or("the past has no rows")?,
        _ => 0,
    };
    // The total length determines the length of the result caches, and whether this is a prompt.
    let total = match call.known_scalar(6, "the total length") {
        Ok(Some(total)) => total as usize,
        Err(reason) if past > 0 => return Err(reason),
        _ => past + rows,
    };
    if total < rows || total > past + rows {
        return Err(format!(
            "the total length {total} does not match {rows} new and {past} past rows"
        ));
    }
    let sizes = Sizes {
        batch,
        rows,
        width,
        past,
        total,
    };
    let begin = begin(call, sizes)?;
    if call.int("do_rotary", 0)? != 0 {
        let interleaved = call.int("rotary_interleaved", 0)? != 0;
        let [cos, sin] = angles(call, sizes, begin)?;
        let rotated = 2 * call.graph().shape(cos).last().copied().unwrap_or(0);
        q = rotate(call, q, cos, sin, rotated, interleaved)?;
        k = rotate(call, k, cos, sin, rotated, interleaved)?;
    }
    let present_k = written(call, 3, k, sizes, begin)?;
    let present_v = written(call, 4, v, sizes, begin)?;
    let [k, v] = [present_k, present_v].map(|cache| {
        if sizes.present() > total {
            call.graph().slice_axis(cache, 2, 0, total).into()
        } else {
            cache
        }
    });
    let k = repeat_heads(call, k, heads)?;
    let v = repeat_heads(call, v, heads)?;
    let scale = match call.float("scale", 0.0)? {
        0.0 => 1.0 / (width as f32).sqrt(),
        scale => scale,
    };
    let factor = call.scalar(element, scale.into());
    let k = swap_last(call, k);
    let graph = call.graph();
    let scores = graph.matmul(q, k);
    let scores = graph.mul(scores, factor).into();
    let mut scores = softcapped(call, scores, element)?;
    if let Some(bias) = call.optional(10)? {
        scores = call.graph().add(scores, bias).into();
    }
    let mut before = scores;
    if let Some(mask) = mask(call, sizes, begin, element)? {
        let graph = call.graph();
        // The returned scores are 0 if no key is visible.
        let zero = graph.scalar_of(graph.dtype(mask), 0.0);
        let hidden = graph.less_than(mask, zero);
        before = graph.select(hidden, zero, scores).into();
        scores = graph.add(scores, mask).into();
    }
    let soft = with_sink(call, scores, element)?;
    let y = call.graph().matmul(soft, v);
    let y = join_heads(call, y.into());
    let shown = match call.int("qk_output", 0)? {
        0 | 1 => before,
        2 => soft,
        other => return Err(format!("qk_output = {other} is not known")),
    };
    Ok(vec![
        call.result(y, element),
        call.result(present_k, element),
        call.result(present_v, element),
        call.result(shown, element),
    ])
}
