//! Attention of exported language models, with a key-value cache as operands and results.

use meganeura_core::graph::Value;

use super::attention::{join_heads, probabilities, repeat_heads, rotate, seen, softcapped, split_heads};
use super::matmul::swap_last;
use super::{OnnxOp, ms};
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[ms("GroupQueryAttention", group_query_attention).partly(
    "caches that are longer than what they hold, smooth softmax, biases, positions and quantised caches as operands",
)];

/// Operands: query, key, value `[batch, rows, heads * width]` (or all packed in the first), past keys and values
/// `[batch, heads, past, width]`, lengths, total length, and tables of cosines and sines.
///
/// Lengths are those of the operands: rows of the query come right behind the past. Where sequences of a batch are padded,
/// results of the padding differ from those of other programs, and nothing reads them.
fn group_query_attention(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let size = |name: &str| -> Result<usize, String> {
        let size = usize::try_from(call.int(name, 0)?)
            .ok()
            .filter(|&n| n > 0 && n < 1 << 16);
        size.ok_or_else(|| format!("{name} is not positive"))
    };
    let (heads, kv_heads) = (size("num_heads")?, size("kv_num_heads")?);
    if call.int("smooth_softmax", 0)? == 1 || (9..call.arity()).any(|i| call.has_input(i)) {
        return Err(format!("operands {} are not supported", call.types()));
    }
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
    let mut q = split_heads(call, q, heads)?;
    let mut k = split_heads(call, k, kv_heads)?;
    let mut v = split_heads(call, v, kv_heads)?;
    let dims = call.graph().shape(q).to_vec();
    let [_, _, rows, width] =
        <[usize; 4]>::try_from(dims.as_slice()).map_err(|_| format!("operands {} do not fit", call.types()))?;
    let past = match (call.has_input(3), call.has_input(4)) {
        (true, true) => *call.dims(3)?.get(2).ok_or("the past has no rows")?,
        _ => 0,
    };
    if call.int("do_rotary", 0)? != 0 {
        let interleaved = call.int("rotary_interleaved", 0)? != 0;
        let table = call.dims(7)?;
        let half = *table.last().ok_or("a table has no dimensions")?;
        if table.len() != 2 || past + rows > table[0] || 2 * half > width {
            return Err(format!(
                "tables of {table:?} do not fit {} rows of {width} values",
                past + rows
            ));
        }
        let mut angles = Vec::new();
        for i in [7, 8] {
            let table = call.value(i)?;
            let graph = call.graph();
            let own = graph.slice_axis(table, 0, past, past + rows);
            angles.push(graph.reshape(own, &[1, 1, rows, half]));
        }
        let (cos, sin) = (angles[0].into(), angles[1].into());
        q = rotate(call, q, cos, sin, 2 * half, interleaved)?;
        k = rotate(call, k, cos, sin, 2 * half, interleaved)?;
    }
    if past > 0 {
        let (old_k, old_v) = (call.value(3)?, call.value(4)?);
        k = call.graph().concat(&[old_k, k], 2).into();
        v = call.graph().concat(&[old_v, v], 2).into();
    }
    let keys = past + rows;
    // Lengths that are known must be those of the operands.
    if let Some(total) = call.tensor(6).and_then(|t| t.to_i64().first().copied())
        && total != keys as i64
    {
        return Err(format!("a total length of {total} is given for {keys} rows"));
    }
    let (present_k, present_v) = (k, v);
    let k = repeat_heads(call, k, heads)?;
    let v = repeat_heads(call, v, heads)?;
    let scale = call.float("scale", 0.0)?;
    let scale = if scale == 0.0 {
        1.0 / (width as f32).sqrt()
    } else {
        scale
    };
    let factor = call.scalar(element, scale.into());
    let k = swap_last(call, k);
    let graph = call.graph();
    let scores = graph.matmul(q, k);
    let scores = graph.mul(scores, factor).into();
    let scores = softcapped(call, scores, element)?;
    let window = call.int("local_window_size", -1)?;
    let window = usize::try_from(window).ok().filter(|&w| w > 0).unwrap_or(usize::MAX);
    let mask = seen(call, &[rows, keys], element, |_, i, j| {
        j <= i + past && i + past - j < window
    })?;
    let scores = call.graph().add(scores, mask);
    let soft = probabilities(call, scores.into());
    let y = call.graph().matmul(soft, v);
    let y = join_heads(call, y.into());
    Ok(vec![
        call.result(y, element),
        call.result(present_k, element),
        call.result(present_v, element),
    ])
}
