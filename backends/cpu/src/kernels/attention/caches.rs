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
    /// A cache whose tiles are converted to `f32` before use.
    Converted(Stored),
}

/// A cache in another type than `f32`.
#[derive(Clone, Copy)]
pub(super) enum Stored {
    Halves(View<f16>),
    /// 8-bit integers in words, with scales.
    Quantized(View<u32>, View<f16>),
}

impl Cache {
    /// Returns the cached keys (`which` is 0) or values (1) of a call.
    pub(super) fn of(cx: &CompileCx, which: usize) -> Self {
        let operand = which + 1;
        match cache_scales(cx.call().inputs) {
            Some(scales) => Cache::Converted(Stored::Quantized(cx.input(operand), cx.input(scales[which]))),
            None if has_halves(cx.input_type(operand)) => Cache::Converted(Stored::Halves(cx.input(operand))),
            None => Cache::Plain(cx.input(operand)),
        }
    }
}

impl Stored {
    /// Converts numbers of a row to `f32`. A row has `width` numbers; `first` is the first one.
    ///
    /// # Safety
    /// The row must exist, and no code may write it.
    pub(super) unsafe fn convert(&self, row: usize, width: usize, first: usize, to: &mut [f32]) {
        let start = row * width;
        match self {
            Stored::Halves(view) => {
                // SAFETY: forwarded.
                unsafe { view.slice(start + first..start + first + to.len()) }.convert_to_f32_slice(to);
            }
            Stored::Quantized(words, scales) => {
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
