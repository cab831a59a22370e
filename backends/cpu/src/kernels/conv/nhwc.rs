//! Convolutions of images with channels last:
//! `y[position, o] = sum over taps and c of x[position of tap, c] w[tap, c, o]`.
//!
//! A row of the product is an output position. Its left operand consists of the channels of the input positions that
//! the kernel covers. They are multiplied in place, so nothing is unfolded. In the padding, a tap reads zeros.
//! Weights are packed to panels of a few output channels, each of which stays in the second-level cache for a block
//! of positions. With one channel per group there is no matmul: vectors of channels are summed up over the taps.

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{Conv2dDims, ImageLayout};

use super::forward::{Epilogue, OptionalEpilogue};
use super::sizes::{FLOPS_PER_NANO, places};
use super::winograd;
use crate::gemm::{Blocks, Pieces, Strides, Target};
use crate::kernel::{CompileCx, Compiled, RunCx, Task, f32_only, rows_per_task};
use crate::memory::{View, aligned};
use crate::share::share;
use crate::vmath::{Isa, Level, mul_add, multiversion};

/// Number of output positions in a block. With this number, packing of weights is a small part of the work.
const BLOCK: usize = 256;
/// Desired number of tasks of a convolution with few blocks of positions.
const WANTED_TASKS: usize = 16;
/// Maximum number of weight rows in a panel. With 32 columns, they are a quarter of a 1 MiB second-level cache.
const PANEL_ROWS: usize = 2048;
/// Number of channels that are summed up together.
const LANES: usize = 16;
/// Number of neighbouring positions that share the reads of the weights.
const UNROLL: usize = 4;
/// Expected number of floating-point operations per nanosecond of one thread, with one channel per group.
const DEPTHWISE_FLOPS_PER_NANO: u64 = 20;

fn is_depthwise(dims: &Conv2dDims) -> bool {
    dims.groups > 1 && dims.groups == dims.c && dims.c == dims.o
}

/// Accepts convolutions of `f32` with one group or with one channel per group.
pub(super) fn supports(k: &KernelDesc) -> Result<(), String> {
    f32_only(k)?;
    supports_dims(&ImageLayout::Nhwc.conv2d(&k.call())?)
}

/// Accepts the same convolutions as [`supports`], given their sizes.
pub(in crate::kernels) fn supports_dims(dims: &Conv2dDims) -> Result<(), String> {
    if dims.groups == 1 || is_depthwise(dims) {
        Ok(())
    } else {
        Err("the CPU kernel for images with channels last has one group, or one for each channel".into())
    }
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = ImageLayout::Nhwc.conv2d(&cx.call())?;
    Ok(convolution(cx, &dims, [cx.input(0), cx.input(1)], cx.output(0), None))
}

/// Compiles a convolution `y` of `[x, w]` with its epilogue.
pub(in crate::kernels) fn convolution(
    cx: &CompileCx,
    dims: &Conv2dDims,
    [x, w]: [View<f32>; 2],
    y: View<f32>,
    epilogue: Option<Arc<dyn Epilogue>>,
) -> Compiled {
    if winograd::applies(dims) {
        return winograd::convolution(cx.level, dims, [x, w], y, epilogue);
    }
    let convolution = Nhwc {
        dims: *dims,
        x,
        w,
        y,
        after: OptionalEpilogue(epilogue),
    };
    if is_depthwise(dims) {
        convolution.depthwise(cx.level)
    } else {
        convolution.dense()
    }
}

struct Nhwc {
    dims: Conv2dDims,
    x: View<f32>,
    w: View<f32>,
    y: View<f32>,
    after: OptionalEpilogue,
}

impl Nhwc {
    fn nanos(&self, flops_per_nano: u64) -> u64 {
        self.dims.flops() / flops_per_nano + self.after.nanos()
    }

    /// Returns the index of the first channel of the input position that a tap reads for an output position. Returns
    /// `None` in the padding.
    fn input_of(&self, place: usize, tap: [usize; 2]) -> Option<usize> {
        let d = &self.dims;
        let [oh, ow] = d.output;
        let at = [place / ow % oh, place % ow];
        let mut found = place / ow / oh;
        for axis in 0..2 {
            let index = (at[axis] * d.stride[axis] + tap[axis] * d.dilation[axis]).checked_sub(d.padding[axis])?;
            if index >= d.input[axis] {
                return None;
            }
            found = found * d.input[axis] + index;
        }
        Some(found * d.c)
    }

    fn dense(self) -> Compiled {
        let d = self.dims;
        let multiply = Blocks::detect();
        let (taps, width) = (d.kernel[0] * d.kernel[1], multiply.panel_cols());
        let (places, panels) = (places(&d), d.o.div_ceil(width));
        let blocks = places.div_ceil(BLOCK);
        let groups = WANTED_TASKS.div_ceil(blocks.max(1)).clamp(1, panels.max(1));
        let taps_of_panel = (PANEL_ROWS / d.c.max(1)).clamp(1, taps);
        // The scratch contains zeros, a panel, pointers for the taps of each position, and the epilogue's scratch.
        let panel_at = aligned(d.c);
        let pointers_at = panel_at + aligned(multiply.packed_len(taps_of_panel * d.c, width));
        let pointer_floats = size_of::<*const f32>() / size_of::<f32>();
        let epilogue_at = pointers_at + aligned(BLOCK.min(places) * taps * pointer_floats);
        let (private, nanos) = (epilogue_at + self.after.scratch(), self.nanos(FLOPS_PER_NANO));
        let body = move |task: usize, cx: &RunCx| {
            let block = share(places, blocks, task / groups);
            let panels = share(panels, groups, task % groups);
            // SAFETY: private scratch has the size requested below, and only this task uses it. This dispatch does
            // not write any operand, and only this task writes its positions and channels of the result. Pointers
            // refer to the channels of an input position, or to the same number of zeros. Offsets follow from the
            // shapes.
            unsafe {
                let zeros = cx.private;
                std::ptr::write_bytes(zeros, 0, d.c);
                let panel = cx.private.add(panel_at);
                let pointers: *mut *const f32 = cx.private.add(pointers_at).cast();
                for tap in 0..taps {
                    let at = [tap / d.kernel[1], tap % d.kernel[1]];
                    for (i, place) in block.clone().enumerate() {
                        let input = self.input_of(place, at);
                        let from = input.map_or(zeros.cast_const(), |at| self.x.as_ptr().add(at).cast_const());
                        pointers.add(tap * block.len() + i).write(from);
                    }
                }
                for index in panels.clone() {
                    let columns = index * width..((index + 1) * width).min(d.o);
                    for first in (0..taps).step_by(taps_of_panel) {
                        let count = taps_of_panel.min(taps - first);
                        let weights = self.w.as_ptr().add(first * d.c * d.o + columns.start);
                        let strides = Strides { row: d.o, col: 1 };
                        let b = multiply.pack(weights, strides, count * d.c, columns.len(), panel);
                        let tiles = block.len().div_ceil(multiply.piece_rows());
                        for rows in (0..tiles).map(|tile| share(block.len(), tiles, tile)) {
                            let pieces = Pieces {
                                pointers: pointers.add(first * block.len() + rows.start).cast_const(),
                                step: block.len(),
                                count,
                            };
                            let target = Target {
                                start: self.y.as_ptr().add((block.start + rows.start) * d.o + columns.start),
                                row: d.o,
                                add: first > 0,
                            };
                            multiply.multiply_pieces(&pieces, b, target, [rows.len(), columns.len(), d.c]);
                        }
                    }
                }
                let scratch = cx.private.add(epilogue_at);
                let channels = panels.start * width..(panels.end * width).min(d.o);
                self.after.run_channels(block, &channels, d.o, scratch);
            }
        };
        Compiled {
            phases: vec![Box::new(Task {
                tasks: blocks * groups,
                nanos,
                body,
            })],
            shared: 0,
            private,
        }
    }

    fn depthwise(self, level: Level) -> Compiled {
        let d = self.dims;
        let row = d.output[1] * d.c;
        let rows = d.n * d.output[0];
        let per_task = rows_per_task(row * d.kernel[0] * d.kernel[1]);
        let private = self.after.scratch();
        let nanos = self.nanos(DEPTHWISE_FLOPS_PER_NANO);
        let body = move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            // SAFETY: this dispatch does not write any operand, and only this task accesses its rows of the result.
            // The scratch is requested below.
            unsafe {
                let (x, w) = (self.x.all(), self.w.all());
                for index in own.clone() {
                    depthwise_row(level, &d, x, w, index, self.y.slice_mut(index * row..(index + 1) * row));
                }
                self.after.run(own.start * row..own.end * row, cx.private);
            }
        };
        Compiled {
            phases: vec![Box::new(Task {
                tasks: rows.div_ceil(per_task),
                nanos,
                body,
            })],
            shared: 0,
            private,
        }
    }
}

/// Returns the taps along one axis that read the image in a window, and the input index of the first such tap.
fn taps_inside(d: &Conv2dDims, axis: usize, window: usize) -> (Range<usize>, usize) {
    let (dilation, padding, size) = (d.dilation[axis], d.padding[axis], d.input[axis]);
    let begin = window * d.stride[axis];
    let first = padding.saturating_sub(begin).div_ceil(dilation).min(d.kernel[axis]);
    let end = (size + padding)
        .saturating_sub(begin)
        .div_ceil(dilation)
        .min(d.kernel[axis]);
    let first = first.min(end);
    (first..end, (begin + first * dilation).saturating_sub(padding))
}

multiversion! {
    /// Computes one row of the result, for one channel per group. `index` counts the rows of all images.
    fn depthwise_row(d: &Conv2dDims, x: &[f32], w: &[f32], index: usize, out: &mut [f32]) = depthwise_row_body;
}

#[inline(always)]
fn depthwise_row_body<const FMA: bool>(d: &Conv2dDims, x: &[f32], w: &[f32], index: usize, out: &mut [f32]) {
    let (c, [h, width]) = (d.c, d.input);
    let [kh, kw] = d.kernel;
    let (image, window) = (index / d.output[0], index % d.output[0]);
    assert!(x.len() == d.n * h * width * c && w.len() == kh * kw * c && out.len() == d.output[1] * c && image < d.n);
    let (rows, first_row) = taps_inside(d, 0, window);
    let mut first = 0;
    while first < c {
        // The last vector of channels overlaps the previous one, if there are enough channels.
        let at = if c >= LANES { first.min(c - LANES) } else { 0 };
        let lanes = LANES.min(c);
        let mut column = 0;
        while column < d.output[1] {
            let (columns, first_column) = taps_inside(d, 1, column);
            // A group of neighbouring positions whose windows are entirely inside the image.
            let last = column + UNROLL - 1;
            let together = if last < d.output[1] && columns.len() == kw && taps_inside(d, 1, last).0.len() == kw {
                UNROLL
            } else {
                1
            };
            let step = d.stride[1] * c;
            let mut sums = [[0.0f32; LANES]; UNROLL];
            for (i, row) in rows.clone().enumerate() {
                let line = ((image * h + first_row + i * d.dilation[0]) * width + first_column) * c + at;
                for (j, tap) in columns.clone().enumerate() {
                    let from = line + j * d.dilation[1] * c;
                    let weights = (row * kw + tap) * c + at;
                    if lanes == LANES && together == UNROLL {
                        // SAFETY: by `taps_inside`, each tap is at a position inside the image. There are LANES
                        // channels from `at` on, and the lengths of the slices were checked.
                        let w = unsafe { &*w.as_ptr().add(weights).cast::<[f32; LANES]>() };
                        for (q, sums) in sums.iter_mut().enumerate() {
                            // SAFETY: as above.
                            let x = unsafe { &*x.as_ptr().add(from + q * step).cast::<[f32; LANES]>() };
                            for l in 0..LANES {
                                sums[l] = mul_add::<FMA>(x[l], w[l], sums[l]);
                            }
                        }
                    } else {
                        for q in 0..together {
                            let (x, w) = (&x[from + q * step..][..lanes], &w[weights..][..lanes]);
                            for l in 0..lanes {
                                sums[q][l] = mul_add::<FMA>(x[l], w[l], sums[q][l]);
                            }
                        }
                    }
                }
            }
            for (q, sums) in sums.iter().enumerate().take(together) {
                out[(column + q) * c + at..][..lanes].copy_from_slice(&sums[..lanes]);
            }
            column += together;
        }
        first += LANES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_are_those_that_read_the_image() {
        let mut d = Conv2dDims {
            layout: ImageLayout::Nhwc,
            n: 1,
            c: 1,
            o: 1,
            groups: 1,
            input: [5, 5],
            kernel: [3, 3],
            output: [5, 5],
            stride: [1, 1],
            padding: [1, 1],
            dilation: [1, 1],
        };
        assert_eq!(taps_inside(&d, 0, 0), (1..3, 0));
        assert_eq!(taps_inside(&d, 0, 2), (0..3, 1));
        assert_eq!(taps_inside(&d, 0, 4), (0..2, 3));
        (d.dilation, d.padding) = ([2, 2], [4, 4]);
        assert_eq!(taps_inside(&d, 1, 0), (2..3, 0));
        assert_eq!(taps_inside(&d, 1, 1), (2..3, 1));
        for window in 0..9 {
            for (dilation, padding) in [(1, 0), (1, 2), (2, 3), (3, 5), (7, 9)] {
                (d.dilation, d.padding) = ([dilation; 2], [padding; 2]);
                let at = |tap: usize| (window + tap * dilation).checked_sub(padding).filter(|at| *at < 5);
                let want: Vec<usize> = (0..3).filter(|&tap| at(tap).is_some()).collect();
                let (found, first) = taps_inside(&d, 0, window);
                assert_eq!(found.clone().collect::<Vec<_>>(), want, "{window} {dilation} {padding}");
                if let Some(&tap) = want.first() {
                    assert_eq!(Some(first), at(tap));
                }
            }
        }
    }
}
