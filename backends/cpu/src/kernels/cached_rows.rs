//! Rows of key-value caches. The cache has the dtype of the written rows, or `f16` for rows of `f32`.

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::backend::KernelDesc;
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
        _ => f32_or_integers(k),
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
