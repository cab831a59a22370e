//! Kernel that writes rows into a quantized cache, in place.

use half::f16;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::QuantizedWriteDims;
use meganeura_core::quantization::BLOCK;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, stream_nanos};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.quantized_cache_write",
    supports,
    compile,
}];

/// Accepts every call, because the operator determines all types.
fn supports(_: &KernelDesc) -> Result<(), String> {
    Ok(())
}

/// Compiles a write with a single task, because there are few rows.
fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = QuantizedWriteDims::of(&cx.call())?;
    let new = cx.input::<f32>(0);
    let (words, scales) = (cx.input::<u32>(1), cx.input::<f16>(2));
    let (to_words, to_scales) = (cx.output::<u32>(0), cx.output::<f16>(1));
    let (places, dispatch, level) = (cx.input::<u32>(3), cx.index, cx.level);
    let in_place = [(1, 0), (2, 1)].map(|(input, output)| cx.input_buffer(input) == cx.output_buffer(output));
    Ok(Compiled::one(Task {
        tasks: 1,
        nanos: stream_nanos(8 * new.len()),
        body: move |_: usize, cx: &RunCx| {
            // SAFETY: this is the only task. The results share no buffer with the new rows, the positions and the slots.
            let (places, new) = unsafe { (places.all(), new.all()) };
            // SAFETY: as above.
            let (to_words, to_scales) = unsafe {
                (
                    to_words.slice_mut(0..to_words.len()),
                    to_scales.slice_mut(0..to_scales.len()),
                )
            };
            // All positions or slots are checked before a write.
            if let Some(&bad) = places.iter().find(|&&place| place as usize >= dims.bound()) {
                return cx.index_out_of_range(dispatch, bad, dims.bound());
            }
            // SAFETY: an old cache is copied only if it is in another buffer than the result.
            unsafe {
                if !in_place[0] {
                    to_words.copy_from_slice(words.all());
                }
                if !in_place[1] {
                    to_scales.copy_from_slice(scales.all());
                }
            }
            let (width, blocks) = (dims.width, dims.width / BLOCK);
            for row in 0..dims.rows {
                if let Some(slot) = dims.slot(row, places) {
                    let words = &mut to_words[slot * width / 4..(slot + 1) * width / 4];
                    let scales = &mut to_scales[slot * blocks..(slot + 1) * blocks];
                    quantize(level, &new[row * width..(row + 1) * width], words, scales);
                }
            }
        },
    }))
}

multiversion! {
    /// Quantizes a row, as `core.quantized_cache_write` defines it.
    fn quantize(new: &[f32], words: &mut [u32], scales: &mut [f16]) = quantize_body;
}

#[inline(always)]
fn quantize_body<const FMA: bool>(new: &[f32], words: &mut [u32], scales: &mut [f16]) {
    let (blocks, _) = new.as_chunks::<BLOCK>();
    let (of_blocks, _) = words.as_chunks_mut::<{ BLOCK / 4 }>();
    for ((block, words), to_scale) in blocks.iter().zip(of_blocks).zip(scales) {
        // Magnitudes have the order of their bits, and NaN is above infinity.
        let greatest = block.iter().fold(0, |most, x| u32::max(most, x.abs().to_bits()));
        let scale = f32::from_bits(greatest) / 127.0;
        *to_scale = f16::from_f32(scale);
        // A loop instead of a closure: the compiler vectorizes it for the instructions of this function.
        let mut bytes = [0; BLOCK];
        if scale > 0.0 && scale < f32::INFINITY {
            for (byte, x) in bytes.iter_mut().zip(block) {
                *byte = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
            }
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
}
