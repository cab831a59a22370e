//! Gradient of a convolution with respect to its weights: `dw = sum over images of dy * patches(x)^T`.
//!
//! It is computed as the transpose, `patches * dy^T`, so that only the small `dy` has to be transposed. Images are
//! divided among a number of partial sums that depends only on the shapes. The last phase adds up the partial sums in
//! order.

use meganeura_core::ops::Conv2dDims;

use super::depthwise;
use super::input_grad::channels_per_task;
use super::serial::StripMatmul;
use super::sizes::{STRIP_LEN, Sizes, Strips, TILE, block};
use super::window::Window;
use crate::gemm::{GemmSpec, Strides};
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};

/// Maximum number of partial sums, and their maximum total size in `f32`s.
const MAX_PARTS: usize = 8;
const MAX_PARTS_LEN: usize = 8 * 1024 * 1024;

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Conv2dDims::of_weight_grad(&cx.call())?;
    if depthwise::applies(&dims) {
        return Ok(depthwise::weight_grad(cx, dims));
    }
    let (sizes, window) = (Sizes::new(&dims), Window::new(&dims));
    let (x, dy, dw) = (cx.input(0), cx.input(1), cx.output(0));
    let most = (MAX_PARTS_LEN / dw.len().max(1))
        .min(sizes.wanted_tasks())
        .clamp(1, MAX_PARTS);
    let plan = Plan::new(sizes, most);
    let shared = plan.parts * dw.len();
    let private = plan.patches_len() + plan.matmuls.iter().map(StripMatmul::scratch_len).max().unwrap_or(0);
    let sum = sum_parts(sizes, plan.parts, dw);
    Ok(Compiled {
        phases: vec![Box::new(partial_sums(plan, window, x, dy)), sum],
        shared,
        private,
    })
}

/// The division of work. A unit of work is one strip of one image; units are in order.
struct Plan {
    sizes: Sizes,
    strips: Strips,
    units: usize,
    parts: usize,
    /// Number of channels of a task.
    channels: usize,
    row_len: usize,
    /// Matmuls for a block of channels, and for the last block.
    matmuls: [StripMatmul; 2],
}

impl Plan {
    fn new(sizes: Sizes, most_parts: usize) -> Self {
        let groups = sizes.groups;
        let channels = channels_per_task(&sizes, most_parts * groups);
        let rows = channels * sizes.taps;
        let at_least = most_parts.div_ceil(sizes.images.max(1));
        let strips = Strips::new(sizes.windows, at_least, STRIP_LEN / rows.max(sizes.outputs).max(1));
        let units = sizes.images * strips.count();
        let row_len = if sizes.pointwise {
            sizes.windows
        } else {
            strips.row_len()
        };
        let blocks = sizes.inputs.div_ceil(channels);
        let last = block(sizes.inputs, channels, blocks.saturating_sub(1)).len() * sizes.taps;
        let matmuls = [rows, last].map(|rows| {
            StripMatmul::new(strips, |len| GemmSpec {
                m: rows,
                n: sizes.outputs,
                k: len,
                a: Strides { row: row_len, col: 1 },
                b: Strides {
                    row: 1,
                    col: sizes.windows,
                },
                ldc: sizes.outputs,
                accumulate: true,
            })
        });
        Plan {
            sizes,
            strips,
            units,
            parts: most_parts.min(units).max(1),
            channels,
            row_len,
            matmuls,
        }
    }

    fn patches_len(&self) -> usize {
        if self.sizes.pointwise {
            0
        } else {
            aligned(self.channels * self.sizes.taps * self.row_len)
        }
    }

    fn blocks(&self) -> usize {
        self.sizes.inputs.div_ceil(self.channels)
    }
}

/// Compiles a task for each partial sum, group and block of channels.
fn partial_sums(plan: Plan, window: Window, x: View<f32>, dy: View<f32>) -> impl Kernel {
    let sizes = plan.sizes;
    let blocks = plan.blocks();
    let tasks = plan.parts * sizes.groups * blocks;
    let body = move |task: usize, cx: &RunCx| {
        let (index, rest) = (task % blocks, task / blocks);
        let (group, part) = (rest % sizes.groups, rest / sizes.groups);
        let own = block(sizes.inputs, plan.channels, index);
        let matmul = &plan.matmuls[usize::from(index + 1 == blocks)];
        let first_row = (part * sizes.groups + group) * sizes.patch() + own.start * sizes.taps;
        let sum_len = own.len() * sizes.taps * sizes.outputs;
        let units = part * plan.units / plan.parts..(part + 1) * plan.units / plan.parts;
        // SAFETY: this dispatch does not write any operand. Only this task accesses its rows of its partial sum in
        // the shared scratch. Private scratch has the requested size, and only this task uses it. Offsets follow from
        // the shapes.
        unsafe {
            let sum = cx.shared.add(first_row * sizes.outputs);
            std::slice::from_raw_parts_mut(sum, sum_len).fill(0.0);
            for unit in units {
                let strip = unit % plan.strips.count();
                let image = unit / plan.strips.count() * sizes.groups + group;
                let range = plan.strips.range(strip);
                let start = sizes.input_at(image) + own.start * sizes.plane;
                let patches = if sizes.pointwise {
                    x.as_ptr().add(start + range.start).cast_const()
                } else {
                    let len = own.len() * sizes.taps * plan.row_len;
                    let patches = std::slice::from_raw_parts_mut(cx.private, len);
                    let input = x.slice(start..start + own.len() * sizes.plane);
                    let channels = input.chunks_exact(sizes.plane.max(1));
                    for (plane, patches) in channels.zip(patches.chunks_exact_mut(sizes.taps * plan.row_len)) {
                        window.unfold(plane, &range, patches, plan.row_len);
                    }
                    cx.private.cast_const()
                };
                let grads = dy.as_ptr().add(sizes.output_at(image) + range.start);
                matmul.run(strip, patches, grads, sum, cx.private.add(plan.patches_len()));
            }
        }
    };
    Task {
        tasks,
        nanos: sizes.nanos(),
        body,
    }
}

/// Compiles the phase that adds up the partial sums, `[parts, groups, patch, outputs]`, and transposes the result.
fn sum_parts(sizes: Sizes, parts: usize, dw: View<f32>) -> Box<dyn Kernel> {
    let (patch, outputs) = (sizes.patch(), sizes.outputs);
    // A task has some columns of one group's weights: a cache line in each row.
    let blocks = patch.div_ceil(TILE);
    Box::new(Task {
        tasks: sizes.groups * blocks,
        nanos: stream_nanos(4 * (parts + 4) * dw.len()),
        body: move |task: usize, cx: &RunCx| {
            let group = task / blocks;
            let columns = block(patch, TILE, task % blocks);
            for output in 0..outputs {
                let at = (group * outputs + output) * patch + columns.start;
                // SAFETY: only this task writes these columns; the previous phase has filled the
                // scratch.
                let (out, sums) = unsafe {
                    let sums = std::slice::from_raw_parts(cx.shared, parts * dw.len());
                    (dw.slice_mut(at..at + columns.len()), sums)
                };
                for (column, out) in columns.clone().zip(out) {
                    let at = (group * patch + column) * outputs + output;
                    *out = sums[at..].iter().step_by(dw.len()).sum();
                }
            }
        },
    })
}
