//! Attention of `com.microsoft`: projections in the operator or before it, masks, and a cache of keys and values.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::attention::{join_heads, probabilities, seen, split_heads};
use super::matmul::swap_last;
use super::quantized::{centred_matrix, matrix_scale};
use super::{OnnxOp, limits, ms};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    ms("Attention", attention).partly(
        "masks with four dimensions, cumulative lengths, rotary positions, caches that are longer than what they hold, past together with attention_bias",
    ),
    ms("MultiHeadAttention", multi_head_attention)
        .partly("cumulative lengths, caches that are longer than what they hold, beams"),
    ms("QAttention", quantized_attention).partly(
        "cumulative lengths, rotary positions, caches that are longer than what they hold",
    ),
];

/// Sizes of an attention's scores.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    rows: usize,
    past: usize,
    keys: usize,
}

/// Terms that are added to the scores: masks and biases that broadcast to `[batch, heads, rows, keys]`.
struct ScoreTerms<'a> {
    /// Operand with the mask.
    mask: usize,
    /// Operand with the attention bias, if the operator has one.
    bias: Option<usize>,
    /// Unsupported optional operands, with their descriptions.
    refused: &'a [(usize, &'a str)],
}

impl ScoreTerms<'_> {
    fn of(&self, call: &mut Call, sizes: Sizes, element: ElementType) -> Result<Vec<Value>, String> {
        let mut found = Vec::new();
        if call.has_input(self.mask) {
            found.extend(key_mask(call, self.mask, sizes, element)?);
        }
        if let Some(bias) = self.bias {
            found.extend(call.optional(bias)?);
        }
        if call.int("unidirectional", 0)? != 0 {
            let dims = [sizes.rows, sizes.keys];
            found.push(seen(call, &dims, element, |_, i, j| j <= i + sizes.past)?);
        }
        Ok(found)
    }

    fn check(&self, call: &Call) -> Result<(), String> {
        match self.refused.iter().find(|(i, _)| call.has_input(*i)) {
            Some((_, what)) => Err(format!("{what} are not supported")),
            None => Ok(()),
        }
    }
}

/// Returns a mask from integers. `[batch, keys]` and `[batch, rows, keys]` are 1 for visible keys; `[batch]` contains
/// lengths, and `[2 batch]` ends and then starts. Returns `None` if the mask has the shape `[batch, 1]`, which hides no
/// key.
fn key_mask(call: &mut Call, i: usize, sizes: Sizes, element: ElementType) -> Result<Option<Value>, String> {
    let Sizes { batch, rows, keys, .. } = sizes;
    let dims = call.dims(i)?;
    // A row without visible keys gives the mean of the values. This requires a finite mask value instead of infinity.
    let low = call.float("mask_filter_value", -10000.0)?;
    let mask = call.value(i)?;
    let ones = |call: &mut Call, dims: &[usize]| -> Value {
        let graph = call.graph();
        let none = graph.scalar_of(graph.dtype(mask), 0.0);
        let ones = graph.less_than(none, mask);
        graph.reshape(ones, dims).into()
    };
    let kept: Value = match *dims.as_slice() {
        [b, n] if b == batch && n == keys => ones(call, &[batch, 1, 1, keys]),
        [b, 1] if b == batch || b == 1 => return Ok(None),
        [b, r, n] if b == batch && r == rows && n == keys => ones(call, &[batch, 1, rows, keys]),
        [n] if n > 0 && (n == batch || n == 2 * batch) => {
            let graph = call.graph();
            let counting = limits::counting(graph, &[1, 1, 1, keys])?;
            let bounds = graph.cast(mask, DType::U32);
            let bounds = graph.reshape(bounds, &[n / batch, batch, 1, 1, 1]);
            let part = |graph: &mut meganeura_core::graph::Graph, at: usize| {
                let one = graph.slice_axis(bounds, 0, at, at + 1);
                graph.reshape(one, &[batch, 1, 1, 1])
            };
            let ends = part(graph, 0);
            let before = graph.less_than(counting, ends);
            if n == batch {
                before.into()
            } else {
                let begins = part(graph, 1);
                let hidden = graph.less_than(counting, begins);
                let none = graph.scalar_of(DType::U32, 0.0);
                graph.select(hidden, none, before).into()
            }
        }
        [n] if n == 3 * batch + 2 => return Err("cumulative lengths as a mask are not supported".into()),
        [_, _, _, _] => return Err("masks with four dimensions are not supported".into()),
        _ => return Err(format!("a mask of {dims:?} does not fit {rows} rows of {keys} keys")),
    };
    let (zero, low) = (call.scalar(element, 0.0), call.scalar(element, low.into()));
    Ok(Some(call.graph().select(kept, zero, low).into()))
}

/// Computes attention of heads `[batch, heads, rows, width]`: returns the masked scores, and the values `[batch, rows, heads *
/// width]`.
fn attend(call: &mut Call, [q, k, v]: [Value; 3], added: &[Value]) -> Result<(Value, Value), String> {
    let scale = call.attributes().float("scale")?.filter(|s| *s != 0.0);
    let graph = call.graph();
    let width = graph.shape(q).last().copied().unwrap_or(1);
    let factor = graph.scalar_of(graph.dtype(q), scale.unwrap_or(1.0 / (width as f32).sqrt()).into());
    let k = swap_last(call, k);
    let graph = call.graph();
    let scores = graph.matmul(q, k);
    let mut scores: Value = graph.mul(scores, factor).into();
    for part in added {
        scores = graph.add(scores, *part).into();
    }
    let soft = probabilities(call, scores);
    let y = call.graph().matmul(soft, v);
    Ok((scores, join_heads(call, y.into())))
}

fn heads_of(call: &Call) -> Result<usize, String> {
    usize::try_from(call.int("num_heads", 0)?)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| "num_heads is not positive".into())
}

/// Appends keys or values to the cached ones.
fn behind(call: &mut Call, past: Option<Value>, own: Value) -> Value {
    match past {
        Some(past) => call.graph().concat(&[past, own], 2).into(),
        None => own,
    }
}

/// Builds the combined projection to queries, keys and values, and attention over them.
fn attention(call: &mut Call) -> Built {
    let added = ScoreTerms {
        mask: 3,
        bias: Some(5),
        refused: &[(6, "caches that are longer than what they hold")],
    };
    if call.has_input(4) && call.has_input(5) {
        return Err("past together with attention_bias is not supported, nor defined".into());
    }
    let (x, w) = (call.value(0)?, call.value(1)?);
    let packed = super::matmul::product(call, x, w)?;
    let packed = match call.optional(2)? {
        Some(bias) => call.graph().add(packed, bias).into(),
        None => packed,
    };
    let element = call.element(0)?;
    projected(call, packed, element, &added, 4)
}

/// Builds attention like `attention`, with quantised projections.
fn quantized_attention(call: &mut Call) -> Built {
    let added = ScoreTerms {
        mask: 5,
        bias: None,
        refused: &[],
    };
    let element = call.element(2)?;
    let x = centred_matrix(call, 0, 6, false)?;
    let w = centred_matrix(call, 1, 7, false)?;
    let product = super::matmul::integer_product(call, x, w)?;
    let product = call.as_f32(product);
    let (x_scale, w_scale) = (matrix_scale(call, 3, false)?, matrix_scale(call, 4, false)?);
    let graph = call.graph();
    let factor = graph.mul(x_scale, w_scale);
    let packed = graph.mul(product, factor);
    let packed = call.as_element(packed.into(), element);
    let bias = call.value(2)?;
    let packed = call.graph().add(packed, bias);
    projected(call, packed.into(), element, &added, 8)
}

/// Builds attention over packed queries, keys and values, `[batch, rows, width]`, with cached keys and values in operand `cache`,
/// `[2, batch, heads, rows, width]`.
fn projected(call: &mut Call, packed: Value, element: ElementType, added: &ScoreTerms, cache: usize) -> Built {
    added.check(call)?;
    let heads = heads_of(call)?;
    for (name, what) in [
        ("do_rotary", "rotary positions"),
        (
            "past_present_share_buffer",
            "caches that are longer than what they hold",
        ),
    ] {
        if call.int(name, 0)? != 0 {
            return Err(format!("{what} ({name}) are not supported"));
        }
    }
    let dims = call.graph().shape(packed).to_vec();
    let [batch, rows, total] = *dims.as_slice() else {
        return Err(format!("expected [batch, rows, width], found {dims:?}"));
    };
    let parts: Vec<usize> = match call.ints("qkv_hidden_sizes")?.filter(|s| !s.is_empty()) {
        Some(parts) => parts.iter().map(|&s| usize::try_from(s).unwrap_or(0)).collect(),
        None => vec![total / 3; 3],
    };
    if parts.len() != 3 || parts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(total) {
        return Err(format!("{total} values are not divided into {parts:?}"));
    }
    let split = call.graph().split(packed, 2, &parts);
    let [q, k, v] = <[Value; 3]>::try_from(split).map_err(|_| "three parts are needed")?;
    let (q, mut k, mut v) = (
        split_heads(call, q, heads)?,
        split_heads(call, k, heads)?,
        split_heads(call, v, heads)?,
    );
    let mut past = 0;
    if call.has_input(cache) {
        let dims = call.dims(cache)?;
        let [2, b, h, rows, width] = *dims.as_slice() else {
            return Err(format!("expected [2, batch, heads, rows, width], found {dims:?}"));
        };
        past = rows;
        if past > 0 {
            let both = call.value(cache)?;
            let part = |call: &mut Call, at: usize| -> Value {
                let graph = call.graph();
                let one = graph.slice_axis(both, 0, at, at + 1);
                graph.reshape(one, &[b, h, rows, width]).into()
            };
            let (old_k, old_v) = (part(call, 0), part(call, 1));
            k = behind(call, Some(old_k), k);
            v = behind(call, Some(old_v), v);
        }
    }
    let keys = past + rows;
    let sizes = Sizes {
        batch,
        rows,
        past,
        keys,
    };
    let masks = added.of(call, sizes, element)?;
    let (_, y) = attend(call, [q, k, v], &masks)?;
    let mut results = vec![call.result(y, element)];
    if call.wants(1) {
        let graph = call.graph();
        let parts = [k, v].map(|x| {
            let dims = [&[1], graph.shape(x)].concat();
            graph.reshape(x, &dims)
        });
        let present = graph.concat(&parts, 0);
        results.push(call.result(present, element));
    }
    Ok(results)
}

/// Returns part `at` of `[batch, rows, heads, parts, width]`, as `[batch, rows, heads * width]`.
fn unpack(call: &mut Call, x: Value, at: usize) -> Result<Value, String> {
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let [batch, rows, heads, parts, width] = *dims.as_slice() else {
        return Err(format!("expected [batch, rows, heads, parts, width], found {dims:?}"));
    };
    if at >= parts {
        return Err(format!("{dims:?} has too few parts"));
    }
    let one = graph.slice_axis(x, 3, at, at + 1);
    Ok(graph.reshape(one, &[batch, rows, heads * width]).into())
}

/// Returns queries, keys and values `[batch, rows, heads * width]`; keys and values may already be split into heads (`[batch,
/// heads, rows, width]`).
fn operands(call: &mut Call) -> Result<[Value; 3], String> {
    let first = call.value(0)?;
    let rank = |call: &Call, i: usize| call.dims(i).map_or(0, |dims| dims.len());
    match (rank(call, 0), rank(call, 1), rank(call, 2)) {
        (5, 0, 0) => Ok([
            unpack(call, first, 0)?,
            unpack(call, first, 1)?,
            unpack(call, first, 2)?,
        ]),
        (3, 5, 0) => {
            let both = call.value(1)?;
            Ok([first, unpack(call, both, 0)?, unpack(call, both, 1)?])
        }
        (3, 3, 3) | (3, 4, 4) => Ok([first, call.value(1)?, call.value(2)?]),
        _ => Err(format!("operands {} are not supported", call.types())),
    }
}

fn multi_head_attention(call: &mut Call) -> Built {
    let added = ScoreTerms {
        mask: 4,
        bias: Some(5),
        refused: &[(8, "caches that are longer than what they hold"), (9, "beams")],
    };
    added.check(call)?;
    let element = call.element(0)?;
    let heads = heads_of(call)?;
    let mut parts = operands(call)?;
    if let Some(bias) = call.optional(3)? {
        let mut start = 0;
        for part in &mut parts {
            let graph = call.graph();
            let dims = graph.shape(*part).to_vec();
            // Keys and values that are already split into heads come from another operator, which has added their biases.
            let [_, _, width] = *dims.as_slice() else { break };
            let own = graph.slice(bias, &[start], &[start + width]);
            *part = graph.add(*part, own).into();
            start += width;
        }
    }
    for part in &mut parts {
        if call.graph().shape(*part).len() == 3 {
            *part = split_heads(call, *part, heads)?;
        }
    }
    let mut past = 0;
    if call.has_input(6) && call.has_input(7) {
        past = *call.dims(6)?.get(2).ok_or("the past has no rows")?;
        if past > 0 {
            let (old_k, old_v) = (call.value(6)?, call.value(7)?);
            parts[1] = behind(call, Some(old_k), parts[1]);
            parts[2] = behind(call, Some(old_v), parts[2]);
        }
    }
    let (q_dims, k_dims) = (
        call.graph().shape(parts[0]).to_vec(),
        call.graph().shape(parts[1]).to_vec(),
    );
    let (&[batch, _, rows, _], &[_, _, keys, _]) = (q_dims.as_slice(), k_dims.as_slice()) else {
        return Err(format!("operands {} are not supported", call.types()));
    };
    let sizes = Sizes {
        batch,
        rows,
        past,
        keys,
    };
    let masks = added.of(call, sizes, element)?;
    let (scores, y) = attend(call, parts, &masks)?;
    Ok(vec![
        call.result(y, element),
        call.result(parts[1], element),
        call.result(parts[2], element),
        call.result(scores, element),
    ])
}
