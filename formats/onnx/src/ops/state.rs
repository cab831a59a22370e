//! Convolutions and attention that carry state from one call to the next.

use meganeura_core::graph::Value;
use meganeura_core::ops::Conv1dOptions;

use super::conv::add_channels;
use super::{OnnxOp, op};
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;

/// Maximum length of an unrolled sequence.
const MAX_ROUNDS: usize = 256;

pub(super) const OPS: &[OnnxOp] = &[
    op("CausalConvWithState", 27, causal_conv),
    op("LinearAttention", 27, linear_attention).partly("sequences longer than 256"),
];

/// Builds a convolution of each channel with past elements, and returns the end of the input as the next state.
fn causal_conv(call: &mut Call) -> Built {
    let (dims, w_dims, element) = (call.dims(0)?, call.dims(1)?, call.element(0)?);
    let ([batch, channels, length], [_, 1, width]) = (dims.as_slice(), w_dims.as_slice()) else {
        return Err(format!("operands {} are not supported", call.types()));
    };
    let (channels, length, width) = (*channels, *length, *width);
    let past = width.saturating_sub(1);
    let groups = u32::try_from(channels).ok().filter(|&c| c > 0 && w_dims[0] == channels);
    let (Some(groups), true) = (groups, width > 0 && length > 0 && *batch > 0) else {
        return Err(format!("operands {} do not fit", call.types()));
    };
    let activation = call.string("activation", "none")?.into_owned();
    let mut x = call.value(0)?;
    match call.optional(3)? {
        Some(state) if past > 0 => {
            if call.dims(3)? != [*batch, channels, past] {
                return Err(format!("operands {} do not fit", call.types()));
            }
            x = call.graph().concat(&[state, x], 2).into();
        }
        _ => x = call.graph().pad(x, &[0, 0, past], &[0, 0, 0], 0.0).into(),
    }
    let w = call.value(1)?;
    let options = Conv1dOptions {
        stride: 1,
        padding: 0,
        dilation: 1,
        groups,
    };
    let mut y: Value = call.graph().conv1d(x, w, options).into();
    if let Some(bias) = call.optional(2)? {
        y = add_channels(call, y, bias);
    }
    match activation.as_str() {
        "none" => {}
        "silu" | "swish" => y = call.graph().silu(y).into(),
        other => return Err(format!("activation `{other}` is not known")),
    }
    let state = match past {
        0 => {
            let data = super::slice::empty_data(element);
            call.known_result(1, Tensor::new(element, &[*batch, channels, 0], data))
        }
        _ => {
            let state = call.graph().slice_axis(x, 2, length, length + past);
            call.result(state, element)
        }
    };
    Ok(vec![call.result(y, element), state])
}

/// Converts `[batch, rows, heads * width]` to `[batch, heads, rows, width]`.
fn heads_first(call: &mut Call, i: usize, heads: usize) -> Result<Value, String> {
    let dims = call.dims(i)?;
    let [batch, rows, width] = dims.as_slice() else {
        return Err(format!("expected [batch, rows, width], found {dims:?}"));
    };
    if heads == 0 || *width == 0 || !width.is_multiple_of(heads) {
        return Err(format!("{width} values cannot be divided into {heads} heads"));
    }
    let x = call.value(i)?;
    let x = call.as_f32(x);
    let graph = call.graph();
    let x = graph.reshape(x, &[*batch, *rows, heads, width / heads]);
    Ok(graph.permute(x, &[0, 2, 1, 3]).into())
}

/// Builds linear attention, one row at a time: the queries are multiplied by a decaying sum of outer products of keys
/// and values.
fn linear_attention(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let heads = |name: &str| call.int(name, 0).map(|n| usize::try_from(n).unwrap_or(0));
    let (q_heads, heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    let rule = call.string("update_rule", "gated_delta")?.into_owned();
    let (gated, delta) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(format!("update_rule `{other}` is not known")),
    };
    let (q, k, v) = (
        heads_first(call, 0, q_heads)?,
        heads_first(call, 1, heads)?,
        heads_first(call, 2, heads)?,
    );
    let graph = call.graph();
    let (q_dims, k_dims, v_dims) = (
        graph.shape(q).to_vec(),
        graph.shape(k).to_vec(),
        graph.shape(v).to_vec(),
    );
    let fits = q_dims.len() == 4
        && q_dims[0] == k_dims[0]
        && q_dims[2..] == k_dims[2..]
        && k_dims[..3] == v_dims[..3]
        && q_heads.is_multiple_of(heads);
    if !fits {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let [batch, _, rows, width] = [q_dims[0], q_dims[1], q_dims[2], q_dims[3]];
    let depth = v_dims[3];
    if rows == 0 || rows > MAX_ROUNDS || batch == 0 {
        return Err(format!("sequences of {rows} rows are not supported"));
    }
    // A group of query heads reads each state.
    let group = q_heads / heads;
    let q = graph.reshape(q, &[batch, heads, group, rows, width]);
    let scale = match call.float("scale", 0.0)? {
        0.0 => 1.0 / (width as f32).sqrt(),
        scale => scale,
    };
    let decay = if gated {
        let decay = heads_first(call, 4, heads)?;
        Some(call.graph().exp(decay))
    } else {
        None
    };
    let rate = if delta {
        let own = if call.dims(5)?.last() == Some(&heads) { heads } else { 1 };
        Some(heads_first(call, 5, own)?)
    } else {
        None
    };
    let mut state: Value = match call.optional(3)? {
        Some(state) => {
            if call.dims(3)? != [batch, heads, width, depth] {
                return Err(format!("operands {} do not fit", call.types()));
            }
            call.as_f32(state)
        }
        None => {
            let graph = call.graph();
            let zero = graph.scalar(0.0);
            graph.expand(zero, &[batch, heads, width, depth]).into()
        }
    };
    let graph = call.graph();
    let scale = graph.scalar(scale);
    let mut parts: Vec<Value> = Vec::new();
    for t in 0..rows {
        if let Some(decay) = decay {
            // One decay for each row of the state, or one for all rows.
            let now = graph.slice_axis(decay, 2, t, t + 1);
            let now = graph.permute(now, &[0, 1, 3, 2]);
            state = graph.mul(state, now).into();
        }
        let key = graph.slice_axis(k, 2, t, t + 1);
        let mut value: Value = graph.slice_axis(v, 2, t, t + 1).into();
        if let Some(rate) = rate {
            let known = graph.matmul(key, state);
            let rest = graph.sub(value, known);
            let now = graph.slice_axis(rate, 2, t, t + 1);
            value = graph.mul(rest, now).into();
        }
        let column = graph.permute(key, &[0, 1, 3, 2]);
        let product = graph.mul(column, value);
        state = graph.add(state, product).into();
        let query = graph.slice_axis(q, 3, t, t + 1);
        let query = graph.reshape(query, &[batch, heads, group, width]);
        let read = graph.matmul(query, state);
        let read = graph.mul(read, scale);
        parts.push(graph.reshape(read, &[batch, 1, q_heads * depth]).into());
    }
    let y = match parts.as_slice() {
        [one] => *one,
        parts => graph.concat(parts, 1).into(),
    };
    let (y, state) = (call.as_element(y, element), call.as_element(state, element));
    Ok(vec![call.result(y, element), call.result(state, element)])
}
