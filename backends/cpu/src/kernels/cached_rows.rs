//! Rows of key-value caches: of the type of the rows that are written, or of `f16` for rows of `f32`.

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{DType, TensorType};

use crate::kernel::f32_or_integers;

/// Accepts writes, of which the first operand are new rows and the second is a cache.
pub(super) fn supports_write(k: &KernelDesc) -> Result<(), String> {
    let is_rounded = matches!(k.inputs, [new, cache, ..] if new.dtype == DType::F32 && cache.dtype == DType::F16);
    if is_rounded { Ok(()) } else { f32_or_integers(k) }
}

/// Accepts attention of queries, the first operand, to cached keys and values, the next two.
pub(super) fn supports_attention(k: &KernelDesc) -> Result<(), String> {
    match k.inputs {
        [q, keys, values, ..] if q.dtype == DType::F32 && keys.dtype == DType::F16 && values.dtype == DType::F16 => {
            Ok(())
        }
        _ => f32_or_integers(k),
    }
}

/// Whether a cache is of `f16`.
pub(super) fn has_halves(cache: &TensorType) -> bool {
    cache.dtype == DType::F16
}

/// Rounds rows of equal lengths to the nearest numbers of `f16`.
pub(super) fn round(new: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(new);
}

/// Moves words, whatever they stand for.
pub(super) fn copy(new: &[u32], to: &mut [u32]) {
    to.copy_from_slice(new);
}
