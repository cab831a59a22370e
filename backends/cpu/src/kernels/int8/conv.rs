//! Convolutions of images that are rounded to bytes.
//!
//! The first phase rounds the images to `[n, h, w, channels in whole units]`. The second one multiplies tiles of pixels
//! by the weights of all taps; a pixel of the padding is the byte of the number 0.

use std::ops::Range;

use meganeura_core::ops::{Call, Conv2dDims, int8_conv2d_dims};

use super::{Corrections, Rounding, check_terms, round_words, row_factor, write_ones};
use crate::gemm::int8::{COLUMNS, Int8Kernels, Int8Weights, ROWS, Sums, Taps, UNIT};
use crate::kernel::{CompileCx, Compiled, RunCx, Task, rows_per_task, stream_nanos};
use crate::memory::{View, aligned};
use crate::share::share;

/// Number of pixels of a task.
const PIXELS: usize = 64;
/// Minimum number of tasks. If there are fewer blocks of pixels, tasks have a part of the channels.
const MIN_TASKS: usize = 8;

/// Sizes of a convolution, and of its scratch.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    dims: Conv2dDims,
    /// Number of units of a pixel.
    units: usize,
    /// Number of weights of a channel, with one unit for up to four channels.
    taps: usize,
}

impl Geometry {
    /// Returns the sizes of a call.
    ///
    /// # Errors
    /// Sums with too many terms, or images with more than 4 GiB.
    pub(super) fn of(call: &Call) -> Result<Self, String> {
        let dims = int8_conv2d_dims(call)?;
        let geometry = Geometry {
            dims,
            units: dims.c.div_ceil(UNIT),
            taps: dims.kernel[0] * dims.kernel[1],
        };
        check_terms(geometry.taps * dims.c)?;
        match u32::try_from(geometry.image_bytes() + UNIT * geometry.units) {
            Ok(_) => Ok(geometry),
            Err(_) => Err("the rounded images take more than 4 GiB".into()),
        }
    }

    fn pixel_bytes(&self) -> usize {
        UNIT * self.units
    }

    /// Returns the number of bytes of all images. A pixel of the padding follows them.
    fn image_bytes(&self) -> usize {
        let [h, w] = self.dims.input;
        self.dims.n * h * w * self.pixel_bytes()
    }

    /// Writes the offset of each tap's pixel, for the result `pixel` of an image.
    fn write_offsets(&self, image: usize, pixel: usize, row: usize, offsets: &mut [[u32; ROWS]]) {
        let d = &self.dims;
        let [h, w] = d.input;
        let at = [pixel / d.output[1], pixel % d.output[1]];
        for (tap, offsets) in offsets.iter_mut().enumerate() {
            let tap = [tap / d.kernel[1], tap % d.kernel[1]];
            let [y, x] = [0, 1].map(|i| (at[i] * d.stride[i] + tap[i] * d.dilation[i]).wrapping_sub(d.padding[i]));
            offsets[row] = if y < h && x < w {
                (((image * h + y) * w + x) * self.pixel_bytes()) as u32
            } else {
                self.image_bytes() as u32
            };
        }
    }

    /// Returns the rows of an image that results of these pixels depend on.
    fn input_rows(&self, pixels: &Range<usize>) -> Range<usize> {
        let d = &self.dims;
        let first = pixels.start / d.output[1] * d.stride[0];
        let last = (pixels.end - 1) / d.output[1] * d.stride[0] + (d.kernel[0] - 1) * d.dilation[0];
        let rows = [first, last + 1].map(|row| row.saturating_sub(d.padding[0]).min(d.input[0]));
        rows[0]..rows[1]
    }
}

/// Scratch of the rounded images, in `f32`s from the start of the shared scratch.
#[derive(Clone, Copy)]
struct Layout {
    /// Bytes of 1 for each channel.
    ones: usize,
    images: usize,
    len: usize,
}

pub(super) fn compile(cx: &CompileCx, kernels: &'static Int8Kernels) -> Result<Compiled, String> {
    let geometry = Geometry::of(&cx.call())?;
    let Geometry { dims: d, units, taps } = geometry;
    let signed = cx.attrs().bool("signed")?;
    let (x, scale, zero): (View<f32>, View<f32>, View<i32>) = (cx.input(0), cx.input(1), cx.input(2));
    let (words, scales, y): (View<u8>, View<f32>, View<f32>) = (cx.input(3), cx.input(4), cx.output(0));
    if y.len() == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let weights = Int8Weights::new(kernels, [d.o, taps * units], cx.panels(3));
    let ones = aligned(d.n * d.input[0]);
    let images = ones + aligned(units);
    let layout = Layout {
        ones,
        images,
        len: images + aligned(geometry.image_bytes() / UNIT + units),
    };
    let [h, width] = d.input;
    let level = cx.level;
    let per_task = rows_per_task(width * d.c);
    let round = Task {
        tasks: (d.n * h).div_ceil(per_task),
        nanos: stream_nanos(2 * x.len() * size_of::<f32>()),
        body: move |task: usize, run: &RunCx| {
            // SAFETY: only this task has these rows; scratch has the requested size, and operands are not written.
            unsafe {
                let rounding = Rounding::read(scale, zero, signed);
                let to = run.shared.add(layout.images).cast::<u32>();
                if task == 0 {
                    let channels =
                        |at: usize| std::slice::from_raw_parts_mut(run.shared.add(at).cast::<u8>(), UNIT * units);
                    write_ones(channels(layout.ones), d.c);
                    let padding = channels(layout.images + geometry.image_bytes() / UNIT);
                    padding.fill(0);
                    padding[..d.c].fill(rounding.zero_byte());
                }
                let temporary = std::slice::from_raw_parts_mut(run.private.cast::<u32>(), width);
                for row in task * per_task..(d.n * h).min((task + 1) * per_task) {
                    let (image, line) = (row / h, row % h);
                    let mut nan = false;
                    for unit in 0..units {
                        let mut channels = [&[][..]; UNIT];
                        let count = UNIT.min(d.c - UNIT * unit);
                        for (i, channel) in channels.iter_mut().enumerate().take(count) {
                            let start = ((image * d.c + UNIT * unit + i) * h + line) * width;
                            *channel = x.slice(start..start + width);
                        }
                        nan |= round_words(level, &channels[..count], rounding, temporary);
                        for (column, &word) in temporary.iter().enumerate() {
                            *to.add((row * width + column) * units + unit) = word;
                        }
                    }
                    *run.shared.add(row) = row_factor(nan);
                }
            }
        },
    };
    let pixels = d.output[0] * d.output[1];
    let blocks = pixels.div_ceil(PIXELS);
    let by_channels = MIN_TASKS.div_ceil(d.n * blocks).min(weights.groups());
    let products = (d.flops() / 2) as usize;
    let multiply = Task {
        tasks: d.n * blocks * by_channels,
        nanos: stream_nanos(y.len() * size_of::<f32>()).max(products as u64 / 150),
        body: move |task: usize, run: &RunCx| {
            let (block, part) = (task / by_channels, task % by_channels);
            let (image, first) = (block / blocks, block % blocks * PIXELS);
            let own = first..(first + PIXELS).min(pixels);
            let tiles = own.len().div_ceil(ROWS);
            let mut sums: Sums = [[0; COLUMNS]; ROWS];
            // SAFETY: the phase before wrote the scratch. Views have the sizes of the call, and only this task writes
            // these pixels of these channels.
            unsafe {
                let offsets = std::slice::from_raw_parts_mut(run.private.cast::<[u32; ROWS]>(), tiles * taps);
                for (i, pixel) in own.clone().enumerate() {
                    let tile = &mut offsets[i / ROWS * taps..(i / ROWS + 1) * taps];
                    geometry.write_offsets(image, pixel, i % ROWS, tile);
                }
                let rounding = Rounding::read(scale, zero, signed);
                let factors = std::slice::from_raw_parts(run.shared.add(image * h), h);
                let factor = geometry.input_rows(&own).map(|row| factors[row]).product::<f32>() * rounding.scale;
                let base = run.shared.add(layout.images).cast::<u8>().cast_const();
                // All taps of the row of ones are at the same address.
                let zeros = run.private.cast::<[u32; ROWS]>().add(PIXELS.div_ceil(ROWS) * taps);
                let zeros = std::slice::from_raw_parts_mut(zeros, taps);
                zeros.fill([0; ROWS]);
                let ones = Taps {
                    base: run.shared.add(layout.ones).cast(),
                    offsets: zeros,
                    units,
                };
                for group in share(weights.groups(), by_channels, part) {
                    let channels = weights.columns(group);
                    let corrections = Corrections::of(&weights, &ones, words.as_ptr(), group, &rounding, &mut sums);
                    for (tile, offsets) in offsets.chunks_exact(taps).enumerate() {
                        let at = own.start + tile * ROWS;
                        let count = ROWS.min(own.end - at);
                        let rows = Taps { base, offsets, units };
                        weights.products(&rows, count, words.as_ptr(), group, &mut sums);
                        for (column, channel) in channels.clone().enumerate() {
                            let start = (image * d.o + channel) * pixels + at;
                            let factor = scales.all()[channel] * factor;
                            for (out, sums) in y.slice_mut(start..start + count).iter_mut().zip(&sums) {
                                *out = sums[column].wrapping_sub(corrections.0[column]) as f32 * factor;
                            }
                        }
                    }
                }
            }
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(round), Box::new(multiply)],
        shared: layout.len,
        private: aligned((PIXELS.div_ceil(ROWS) + 1) * taps * ROWS).max(aligned(width)),
    })
}
