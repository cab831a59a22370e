//! The caches of a call of attention: keys and values as plain numbers, or as blocks of 8-bit integers with scales.

use super::dims::expect_caches;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::quantized::{Dequantize, expanded};
use crate::ops::{Call, OpRef};
use crate::quantization::BlockFormat;
use crate::shape::TensorType;

/// Indices of the operands with cached keys and with cached values.
const CACHES: [usize; 2] = [1, 2];
/// Index of the operand with positions.
const POSITIONS: usize = 3;

/// Returns the indices of the operands with the scales of keys and of values if a call of attention has quantized
/// caches: the last two operands before the [sinks](attention_sinks). Keys and values are then `u32` words.
pub fn cache_scales(inputs: &[TensorType]) -> Option<[usize; 2]> {
    let is_quantized = inputs.get(CACHES[0]).is_some_and(|keys| keys.dtype == DType::U32);
    let count = attention_sinks(inputs).unwrap_or(inputs.len());
    let first = count.checked_sub(CACHES.len())?;
    (is_quantized && first > CACHES[1]).then_some([first, first + 1])
}

/// Returns the index of the operand with the sinks of a call of attention to a cache, if there is one: the last operand. It
/// is the only one after the positions that has one axis and floating-point numbers.
pub fn attention_sinks(inputs: &[TensorType]) -> Option<usize> {
    let last = inputs.len().checked_sub(1).filter(|&last| last > POSITIONS)?;
    let ty = &inputs[last];
    (ty.dtype.is_float() && ty.shape.rank() == 1).then_some(last)
}

/// Returns the types of queries, keys and values. Quantized caches have the types of the dequantized numbers. `plain` is the
/// number of operands without scales and sinks.
pub(super) fn plain_types(call: &Call, plain: usize) -> Result<[TensorType; 3], String> {
    let [q, k, v, ..] = call.inputs else {
        return Err("takes queries, cached keys and cached values".into());
    };
    let sinks = attention_sinks(call.inputs);
    if let Some(sinks) = sinks {
        expect_sinks(&call.inputs[sinks], q, call.attrs.size("num_heads")?)?;
    }
    let given = sinks.unwrap_or(call.inputs.len());
    let Some(scales) = cache_scales(call.inputs).filter(|_| given == plain + CACHES.len()) else {
        if given != plain {
            return Err(format!(
                "takes {plain} operands, or {} if the cached keys and values are u32 words with scales, and maybe the \
                 sinks of all heads, found {}",
                plain + CACHES.len(),
                call.inputs.len()
            ));
        }
        expect_caches(call.inputs)?;
        return Ok([q.clone(), k.clone(), v.clone()]);
    };
    if q.dtype != DType::F32 {
        return Err(format!("quantized caches need queries of f32, found {q}"));
    }
    let numbers = |words: &TensorType, scales: usize| quantized(words, &call.inputs[scales]);
    Ok([q.clone(), numbers(k, scales[0])?, numbers(v, scales[1])?])
}

/// Checks the type of the sinks for queries of this type.
pub(super) fn expect_sinks(sinks: &TensorType, q: &TensorType, heads: usize) -> Result<(), String> {
    if sinks.dtype == q.dtype && sinks.shape.dims() == [heads] {
        return Ok(());
    }
    Err(format!(
        "the sinks have to be {}[{heads}], one for each query head, found {sinks}",
        q.dtype
    ))
}

/// Returns the type of the numbers in a quantized cache. Two scales of a row share a word, so that a row has an even
/// number of blocks.
pub(in crate::ops) fn quantized(words: &TensorType, scales: &TensorType) -> Result<TensorType, String> {
    let (format, numbers) = expanded(words, scales)?;
    if format != BlockFormat::Q8_0 || scales.dtype != DType::F16 {
        return Err(format!(
            "a quantized cache has 8 words and one scale of f16 for 32 numbers, found {words} and {scales}"
        ));
    }
    match scales.shape.dims().last() {
        Some(blocks) if !blocks.is_multiple_of(2) => Err(format!(
            "rows of a quantized cache have a multiple of 64 numbers, found {}",
            32 * blocks
        )),
        _ => Ok(numbers),
    }
}

/// Returns the keys and values of a call as plain numbers. Quantized ones are dequantized after `placed` has moved
/// words and scales.
pub(super) fn plain_caches(
    g: &mut Graph,
    inputs: &[Value],
    scales: Option<[usize; 2]>,
    placed: impl Fn(&mut Graph, Value) -> Value,
) -> [Value; 2] {
    let plain = |g: &mut Graph, which: usize| {
        let cache = placed(g, inputs[CACHES[which]]);
        match scales {
            None => cache,
            Some(scales) => {
                let scales = placed(g, inputs[scales[which]]);
                g.call(OpRef::new(&Dequantize), Attrs::new(), vec![cache, scales])
                    .into()
            }
        }
    };
    [plain(g, 0), plain(g, 1)]
}
