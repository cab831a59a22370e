//! The storage of cached keys and values, and their conversion to `f32`.

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::ops::cache_scales;
use meganeura_core::quantization::BLOCK;

use super::super::cached_rows::{dequantize, has_halves};
use crate::kernel::CompileCx;
use crate::memory::View;

/// The cached keys or the cached values.
#[derive(Clone, Copy)]
pub(super) enum Cache {
    Plain(View<f32>),
    /// A cache in `f16`. Its tiles are converted to `f32` before use.
    Halves(View<f16>),
    /// A cache of 8-bit integers in words, with scales. Its tiles are converted to `f32` before use.
    Quantized(View<u32>, View<f16>),
}

impl Cache {
    /// Returns the cached keys (`which` is 0) or values (1) of a call.
    pub(super) fn of(cx: &CompileCx, which: usize) -> Self {
        let operand = which + 1;
        match cache_scales(cx.call().inputs) {
            Some(scales) => Cache::Quantized(cx.input(operand), cx.input(scales[which])),
            None if has_halves(cx.input_type(operand)) => Cache::Halves(cx.input(operand)),
            None => Cache::Plain(cx.input(operand)),
        }
    }

    /// Converts numbers of a row to `f32`. A row has `width` numbers; `first` is the first one.
    ///
    /// # Safety
    /// The row must exist, and no code may write it.
    pub(super) unsafe fn convert(&self, row: usize, width: usize, first: usize, to: &mut [f32]) {
        let start = row * width;
        let run = start + first..start + first + to.len();
        match self {
            // SAFETY: forwarded.
            Cache::Plain(view) => to.copy_from_slice(unsafe { view.slice(run) }),
            // SAFETY: forwarded.
            Cache::Halves(view) => unsafe { view.slice(run) }.convert_to_f32_slice(to),
            Cache::Quantized(words, scales) => {
                // SAFETY: forwarded.
                let (words, scales) = unsafe {
                    (
                        words.slice(start / 4..(start + width) / 4),
                        scales.slice(start / BLOCK..(start + width) / BLOCK),
                    )
                };
                dequantize(words, scales, first, to);
            }
        }
    }
}
