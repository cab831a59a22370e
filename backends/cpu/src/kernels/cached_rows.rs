//! Rows of key-value caches. The cache has the dtype of the written rows, or `f16` for rows of `f32`.

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::cache_scales;
use meganeura_core::quantization::BLOCK;
use meganeura_core::{DType, TensorType};

use crate::kernel::f32_or_integers;

/// Accepts cache writes. The first operand contains the new rows, the second one is the cache.
pub(super) fn supports_write(k: &KernelDesc) -> Result<(), String> {
    let is_rounded = matches!(k.inputs, [new, cache, ..] if new.dtype == DType::F32 && cache.dtype == DType::F16);
    if is_rounded { Ok(()) } else { f32_or_integers(k) }
}

/// Accepts attention to a cache. The first operand contains the queries, the next two the cached keys and values.
pub(super) fn supports_attention(k: &KernelDesc) -> Result<(), String> {
    match k.inputs {
        [q, keys, values, ..] if q.dtype == DType::F32 && keys.dtype == DType::F16 && values.dtype == DType::F16 => {
            Ok(())
        }
        _ if cache_scales(k.inputs).is_some() => Ok(()),
        _ => f32_or_integers(k),
    }
}

/// Converts `to.len()` numbers of a quantized row to `f32`, from number `first` of the row on.
pub(super) fn dequantize(words: &[u32], scales: &[f16], first: usize, to: &mut [f32]) {
    let end = first + to.len();
    let blocks = first / BLOCK..end.div_ceil(BLOCK);
    for (block, scale) in blocks.clone().zip(&scales[blocks]) {
        let (start, scale) = (block * BLOCK, scale.to_f32());
        let mut numbers = [0.0; BLOCK];
        let (of_word, _) = numbers.as_chunks_mut::<4>();
        for (numbers, word) in of_word.iter_mut().zip(&words[start / 4..]) {
            *numbers = word.to_le_bytes().map(|byte| f32::from(byte as i8) * scale);
        }
        // A head may begin or end within a block.
        let (from, until) = (first.max(start), end.min(start + BLOCK));
        to[from - first..until - first].copy_from_slice(&numbers[from - start..until - start]);
    }
}

/// Returns true if the cache is `f16`.
pub(super) fn has_halves(cache: &TensorType) -> bool {
    cache.dtype == DType::F16
}

/// Rounds a row to the nearest `f16` numbers.
pub(super) fn round(new: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(new);
}

/// Copies a row of 32-bit words of any type.
pub(super) fn copy(new: &[u32], to: &mut [u32]) {
    to.copy_from_slice(new);
}
