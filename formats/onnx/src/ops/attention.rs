//! Attention and related operators.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::matmul::swap_last;
use super::{OnnxOp, limits, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Attention", 23, attention).partly(
        "lengths that depend on the data of an input, intermediate results other than scores and probabilities",
    ),
    op("RotaryEmbedding", 23, rotary).partly("sequences longer than the tables"),
    ms("EmbedLayerNormalization", embed_layer_norm),
    ms("RotaryEmbedding", contrib_rotary).partly("packed batches"),
];

/// Converts `[batch, rows, heads * width]` to `[batch, heads, rows, width]`.
pub(super) fn split_heads(call: &mut Call, x: Value, heads: usize) -> Result<Value, String> {
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let [batch, rows, width] = dims.as_slice() else {
        return Err(format!("expected [batch, rows, width], found {dims:?}"));
    };
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(format!("{width} values cannot be divided into {heads} heads"));
    }
    let x = graph.reshape(x, &[*batch, *rows, heads, width / heads]);
    Ok(graph.permute(x, &[0, 2, 1, 3]).into())
}

/// Inverts [`split_heads`].
pub(super) fn join_heads(call: &mut Call, x: Value) -> Value {
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let [batch, heads, rows, width] = dims.as_slice() else {
        return x;
    };
    let x = graph.permute(x, &[0, 2, 1, 3]);
    graph.reshape(x, &[*batch, *rows, heads * width]).into()
}

/// Repeats each head of the keys for the heads of the queries that share it.
pub(super) fn repeat_heads(call: &mut Call, x: Value, heads: usize) -> Result<Value, String> {
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let [batch, own, rows, width] = dims.as_slice() else {
        return Err(format!("{dims:?} has no heads"));
    };
    if *own == heads {
        return Ok(x);
    }
    if *own == 0 || !heads.is_multiple_of(*own) {
        return Err(format!("{heads} heads of queries cannot share {own} heads of keys"));
    }
    let column = graph.reshape(x, &[*batch, *own, 1, *rows, *width]);
    let all = graph.expand(column, &[*batch, *own, heads / own, *rows, *width]);
    Ok(graph.reshape(all, &[*batch, heads, *rows, *width]).into())
}

/// Returns the term that is added to the scores `[batch, heads, rows, keys]`, from a mask that broadcasts to them.
fn additive(call: &mut Call, mask: Value, element: ElementType, out: ElementType) -> Value {
    if element != ElementType::Bool {
        return call.as_element(mask, out);
    }
    let (zero, low) = (call.scalar(out, 0.0), call.scalar(out, f64::NEG_INFINITY));
    call.graph().select(mask, zero, low).into()
}

/// Returns the softmax over the keys; 0 in rows without a visible key.
pub(super) fn probabilities(call: &mut Call, scores: Value) -> Value {
    let graph = call.graph();
    let dtype = graph.dtype(scores);
    let rank = graph.shape(scores).len() as i32;
    let largest = graph.max(scores, &[rank - 1], true);
    let low = graph.scalar_of(dtype, f64::NEG_INFINITY);
    let empty = graph.equal(largest, low);
    let zero = graph.scalar_of(dtype, 0.0);
    let scores = graph.select(empty, zero, scores);
    let soft = graph.softmax(scores, rank - 1);
    graph.select(empty, zero, soft).into()
}

/// Returns `cap * tanh(scores / cap)` with the attribute `softcap`, or the scores if it is 0.
pub(super) fn softcapped(call: &mut Call, scores: Value, element: ElementType) -> Result<Value, String> {
    let cap = call.float("softcap", 0.0)?;
    if cap == 0.0 {
        return Ok(scores);
    }
    let cap = call.scalar(element, cap.into());
    let graph = call.graph();
    let part = graph.div(scores, cap);
    let tanh = graph.tanh(part);
    Ok(graph.mul(tanh, cap).into())
}

/// Returns a constant mask `[rows, keys]` or `[batch, 1, rows, keys]`: 0 if `sees` returns true for a batch index, a
/// row and a key, and minus infinity otherwise.
pub(super) fn seen(
    call: &mut Call,
    dims: &[usize],
    element: ElementType,
    sees: impl Fn(usize, usize, usize) -> bool,
) -> Result<Value, String> {
    let (batch, rows, keys) = match dims {
        [rows, keys] => (1, *rows, *keys),
        [batch, _, rows, keys] => (*batch, *rows, *keys),
        _ => return Err("a mask has two or four dimensions".into()),
    };
    let mut data = Vec::with_capacity(limits::elements(&[batch, rows, keys], "a mask")?);
    for b in 0..batch {
        for i in 0..rows {
            data.extend((0..keys).map(|j| if sees(b, i, j) { 0.0 } else { f32::NEG_INFINITY }));
        }
    }
    let mask = call.graph().constant(data, dims);
    Ok(call.as_element(mask.into(), element))
}

/// Limits of the keys that are visible to a query, by their distance.
struct Frontier {
    causal: bool,
    left: Option<i64>,
    right: Option<i64>,
}

impl Frontier {
    /// Returns the limits of a node; `None` if all keys are visible to every query.
    fn of(call: &Call) -> Result<Option<Self>, String> {
        let window = |name: &str| Ok::<_, String>(Some(call.int(name, -1)?).filter(|&size| size >= 0));
        let found = Frontier {
            causal: call.int("is_causal", 0)? != 0,
            left: window("left_window_size")?,
            right: window("right_window_size")?,
        };
        Ok((found.causal || found.left.is_some() || found.right.is_some()).then_some(found))
    }

    /// Returns true if the key at position `key` is visible to the query at position `at`.
    fn sees(&self, at: i64, key: i64) -> bool {
        (!self.causal || key <= at)
            && self.left.is_none_or(|left| at.saturating_sub(left) <= key)
            && self.right.is_none_or(|right| key <= at.saturating_add(right))
    }
}

fn attention(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let flat = call.dims(0)?.len() == 3;
    let (mut q, mut k, mut v) = (call.value(0)?, call.value(1)?, call.value(2)?);
    if flat {
        let heads = |name: &str| call.int(name, 0).map(|n| usize::try_from(n).unwrap_or(0));
        let (q_heads, kv_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
        q = split_heads(call, q, q_heads)?;
        k = split_heads(call, k, kv_heads)?;
        v = split_heads(call, v, kv_heads)?;
    }
    let mut past = 0;
    if call.has_input(4) && call.has_input(5) {
        past = *call.dims(4)?.get(2).ok_or("the past has no rows")?;
        let (old_k, old_v) = (call.value(4)?, call.value(5)?);
        if past > 0 {
            k = call.graph().concat(&[old_k, k], 2).into();
            v = call.graph().concat(&[old_v, v], 2).into();
        }
    }
    let (present_k, present_v) = (k, v);
    let dims = call.graph().shape(q).to_vec();
    let [batch, heads, rows, width] =
        <[usize; 4]>::try_from(dims.as_slice()).map_err(|_| format!("operands {} are not supported", call.types()))?;
    let keys = *call.graph().shape(k).get(2).ok_or("the keys have no rows")?;
    let k = repeat_heads(call, k, heads)?;
    let v = repeat_heads(call, v, heads)?;
    // Both operands are multiplied by the square root of the scale, so that neither overflows in f16.
    let scale = call.float("scale", 1.0 / (width as f32).sqrt())?;
    let root = call.scalar(element, f64::from(scale).sqrt());
    let graph = call.graph();
    let (q, k) = (graph.mul(q, root), graph.mul(k, root));
    let k = swap_last(call, k.into());
    let raw: Value = call.graph().matmul(q, k).into();
    let capped = softcapped(call, raw, element)?;
    let mut scores = capped;
    let mut bias: Option<Value> = None;
    let join = |call: &mut Call, bias: Option<Value>, part: Value| -> Option<Value> {
        Some(match bias {
            None => part,
            Some(bias) => call.graph().add(bias, part).into(),
        })
    };
    if call.has_input(3) {
        let kind = call.element(3)?;
        let mask = call.value(3)?;
        let mask = additive(call, mask, kind, element);
        let graph = call.graph();
        let shape = graph.shape(mask).to_vec();
        let last = shape.last().copied().unwrap_or(keys);
        let mask = match keys.checked_sub(last) {
            // Keys past the end of the mask are not visible.
            Some(missing) if missing > 0 && last > 1 => {
                let mut high = vec![0; shape.len()];
                if let Some(last) = high.last_mut() {
                    *last = missing;
                }
                graph.pad(mask, &vec![0; shape.len()], &high, f32::NEG_INFINITY).into()
            }
            _ => mask,
        };
        bias = join(call, bias, mask);
    }
    let lengths = if call.has_input(6) {
        call.known_ints(6, "the lengths")?
    } else {
        None
    };
    if let Some(frontier) = Frontier::of(call)? {
        let part = match &lengths {
            Some(lengths) => seen(call, &[batch, 1, rows, keys], element, |b, i, j| {
                let length = lengths.get(b).copied().unwrap_or(0);
                frontier.sees(length.saturating_sub(rows as i64).saturating_add(i as i64), j as i64)
            })?,
            None => seen(call, &[rows, keys], element, |_, i, j| {
                frontier.sees((i + past) as i64, j as i64)
            })?,
        };
        bias = join(call, bias, part);
    }
    if let Some(lengths) = &lengths {
        let part = seen(call, &[batch, 1, rows, keys], element, |b, _, j| {
            (j as i64) < lengths.get(b).copied().unwrap_or(0)
        })?;
        bias = join(call, bias, part);
    }
    if let Some(bias) = bias {
        scores = call.graph().add(scores, bias).into();
    }
    let biased = scores;
    let wide = call.as_f32(scores);
    let precise = match call.attributes().int("softmax_precision")? {
        Some(1 | 11) => wide,
        _ => scores,
    };
    let soft = probabilities(call, precise);
    let soft = call.as_element(soft, element);
    let y: Value = call.graph().matmul(soft, v).into();
    let y = if flat { join_heads(call, y) } else { y };
    let shown = match call.int("qk_matmul_output_mode", 0)? {
        0 => raw,
        1 => capped,
        2 => biased,
        3 => soft,
        other => return Err(format!("qk_matmul_output_mode = {other} is not supported")),
    };
    Ok(vec![
        call.result(y, element),
        call.result(present_k, element),
        call.result(present_v, element),
        call.result(shown, element),
    ])
}

/// Rotates pairs of the first `rotated` values of each head `[batch, heads, rows, width]` by angles whose cosines and sines
/// are `[batch, 1, rows, rotated / 2]`.
pub(super) fn rotate(
    call: &mut Call,
    x: Value,
    cos: Value,
    sin: Value,
    rotated: usize,
    interleaved: bool,
) -> Result<Value, String> {
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let [batch, heads, rows, width] = dims.as_slice() else {
        return Err(format!("{dims:?} has no heads"));
    };
    let (half, axis) = (rotated / 2, 3);
    let part = graph.slice_axis(x, axis, 0, rotated);
    let (a, b) = if interleaved {
        let pairs = graph.reshape(part, &[*batch, *heads, *rows, half, 2]);
        let a = graph.slice_axis(pairs, 4, 0, 1);
        let b = graph.slice_axis(pairs, 4, 1, 2);
        (
            graph.reshape(a, &[*batch, *heads, *rows, half]),
            graph.reshape(b, &[*batch, *heads, *rows, half]),
        )
    } else {
        (
            graph.slice_axis(part, axis, 0, half),
            graph.slice_axis(part, axis, half, rotated),
        )
    };
    let (ac, bs) = (graph.mul(a, cos), graph.mul(b, sin));
    let (as_, bc) = (graph.mul(a, sin), graph.mul(b, cos));
    let (first, second) = (graph.sub(ac, bs), graph.add(as_, bc));
    let turned: Value = if interleaved {
        let column = [*batch, *heads, *rows, half, 1];
        let (first, second) = (graph.reshape(first, &column), graph.reshape(second, &column));
        let pairs = graph.concat(&[first, second], 4);
        graph.reshape(pairs, &[*batch, *heads, *rows, rotated]).into()
    } else {
        graph.concat(&[first, second], axis).into()
    };
    if rotated == *width {
        return Ok(turned);
    }
    let rest = graph.slice_axis(x, axis, rotated, *width);
    Ok(graph.concat(&[turned, rest.into()], axis).into())
}

/// Applies rotary embeddings. Operands: x, tables of cosines and sines, and positions, if present.
fn rotary_of(call: &mut Call, tables: (usize, usize), positions: Option<usize>, heads: &str, rotated: &str) -> Built {
    let element = call.element(0)?;
    let flat = call.dims(0)?.len() == 3;
    let mut x = call.value(0)?;
    if flat {
        let heads = usize::try_from(call.int(heads, 0)?).unwrap_or(0);
        let half = *call.dims(tables.0)?.last().ok_or("a table has no dimensions")?;
        let width = *call.dims(0)?.last().unwrap_or(&0);
        // Without a number of heads, the size of the tables determines the width of a head.
        let heads = if heads == 0 && half > 0 {
            width / (2 * half)
        } else {
            heads
        };
        x = split_heads(call, x, heads)?;
    }
    let dims = call.graph().shape(x).to_vec();
    let [batch, _, rows, width] =
        <[usize; 4]>::try_from(dims.as_slice()).map_err(|_| format!("operands {} are not supported", call.types()))?;
    let rotated = match usize::try_from(call.int(rotated, 0)?).unwrap_or(0) {
        0 => width,
        some => some,
    };
    if !rotated.is_multiple_of(2) || rotated > width {
        return Err(format!("{rotated} of {width} values cannot be rotated in pairs"));
    }
    let interleaved = call.int("interleaved", 0)? != 0;
    let mut angles = Vec::new();
    for table in [tables.0, tables.1] {
        let value = call.value(table)?;
        let list = match positions {
            Some(i) if call.has_input(i) => {
                let at = call.value(i)?;
                let at = call.graph().cast(at, DType::U32);
                let at_dims = call.graph().shape(at).to_vec();
                let graph = call.graph();
                // A single number is the first position of all sequences.
                let at: Value = match at_dims.iter().product::<usize>() {
                    1 if batch * rows > 1 => {
                        let counting = limits::counting(graph, &[rows])?;
                        let first = graph.reshape(at, &[1]);
                        let one = graph.add(counting, first);
                        let one = graph.reshape(one, &[1, rows]);
                        graph.expand(one, &[batch, rows]).into()
                    }
                    _ => at.into(),
                };
                graph.gather_axis(value, at, 0).into()
            }
            _ => value,
        };
        let graph = call.graph();
        let half = graph.shape(list).last().copied().unwrap_or(0);
        let list = match half.cmp(&(rotated / 2)) {
            std::cmp::Ordering::Greater => graph.slice_axis(list, -1, 0, rotated / 2).into(),
            _ => list,
        };
        angles.push(graph.reshape(list, &[batch, 1, rows, rotated / 2]));
    }
    let y = rotate(call, x, angles[0].into(), angles[1].into(), rotated, interleaved)?;
    let y = if flat { join_heads(call, y) } else { y };
    call.one(y, element)
}

fn rotary(call: &mut Call) -> Built {
    rotary_of(call, (1, 2), Some(3), "num_heads", "rotary_embedding_dim")
}

fn contrib_rotary(call: &mut Call) -> Built {
    rotary_of(call, (2, 3), Some(1), "num_heads", "rotary_embedding_dim")
}

/// Sums embeddings of words, positions and segments, and normalises the sum.
fn embed_layer_norm(call: &mut Call) -> Built {
    let element = call.element(2)?;
    let eps = call.float("epsilon", 1e-12)?;
    let dims = call.dims(0)?;
    let [batch, rows] = dims.as_slice() else {
        return Err(format!("expected [batch, rows], found {dims:?}"));
    };
    let words = call.value(0)?;
    let table = call.value(2)?;
    let graph = call.graph();
    let words = graph.cast(words, DType::U32);
    let mut sum: Value = graph.gather_axis(table, words, 0).into();
    let positions = match call.optional(8)? {
        Some(given) => call.graph().cast(given, DType::U32).into(),
        None => limits::counting(call.graph(), &[1, *rows])?,
    };
    let table = call.value(3)?;
    let graph = call.graph();
    let part = graph.gather_axis(table, positions, 0);
    sum = graph.add(sum, part).into();
    if let (Some(segments), Some(table)) = (call.optional(1)?, call.optional(4)?) {
        let graph = call.graph();
        let segments = graph.cast(segments, DType::U32);
        let part = graph.gather_axis(table, segments, 0);
        sum = graph.add(sum, part).into();
    }
    let (weight, bias) = (call.value(5)?, call.value(6)?);
    let y = call.graph().layer_norm(sum, weight, bias, eps);
    let count: Value = match call.optional(7)? {
        Some(mask) => {
            let graph = call.graph();
            let mask = graph.cast(mask, DType::I32);
            graph.sum(mask, &[1], false).into()
        }
        None => {
            let zero = call.scalar(ElementType::I32, 0.0);
            call.graph().expand(zero, &[*batch]).into()
        }
    };
    Ok(vec![
        call.result(y, element),
        call.result(count, ElementType::I32),
        call.result(sum, element),
    ])
}
