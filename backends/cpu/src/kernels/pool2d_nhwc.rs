//! Pooling of channels-last images, for vectors of channels at a time.

use meganeura_core::ops::{ImageLayout, Pool2dDims};

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, rows_per_task};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.max_pool2d_nhwc",
        supports: f32_only,
        compile: |cx| compile(cx, largest),
    },
    KernelDef {
        name: "core.avg_pool2d_nhwc",
        supports: f32_only,
        compile: |cx| compile(cx, mean),
    },
];

/// Expected number of window elements that one thread processes per nanosecond.
const ELEMENTS_PER_NANO: usize = 16;

/// Function that computes row `index` of the result. Rows are counted over all images.
type RowFn = fn(Level, &Pool2dDims, &[f32], usize, &mut [f32]);

fn compile(cx: &CompileCx, compute: RowFn) -> Result<Compiled, String> {
    let d = Pool2dDims::of_layout(ImageLayout::Nhwc, &cx.input_type(0).shape, cx.attrs())?;
    let (x, y, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let (row, rows) = (d.output[1] * d.channels, d.planes * d.output[0]);
    let seen = row * d.kernel[0] * d.kernel[1];
    let per_task = rows_per_task(seen);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: (rows * seen / ELEMENTS_PER_NANO) as u64,
        body: move |task: usize, _: &RunCx| {
            for index in task * per_task..((task + 1) * per_task).min(rows) {
                // SAFETY: the operand is in another buffer, and only this task accesses its rows of the result.
                let (x, y) = unsafe { (x.all(), y.slice_mut(index * row..(index + 1) * row)) };
                compute(level, &d, x, index, y);
            }
        },
    }))
}

/// Calls `visit` for each position of a window that is inside the image, in order, with the offset of its first
/// channel.
#[inline(always)]
fn for_each_tap(d: &Pool2dDims, index: usize, column: usize, mut visit: impl FnMut(usize)) {
    let (image, window) = (index / d.output[0], index % d.output[0]);
    for i in 0..d.kernel[0] {
        for j in 0..d.kernel[1] {
            let row = (window * d.stride[0] + i).wrapping_sub(d.padding[0]);
            let column = (column * d.stride[1] + j).wrapping_sub(d.padding[1]);
            if row < d.input[0] && column < d.input[1] {
                visit(((image * d.input[0] + row) * d.input[1] + column) * d.channels);
            }
        }
    }
}

multiversion! {
    /// Computes the largest element of each window. NaN counts as larger than all numbers.
    fn largest(d: &Pool2dDims, x: &[f32], index: usize, y: &mut [f32]) = largest_body;
}

#[inline(always)]
fn largest_body<const FMA: bool>(d: &Pool2dDims, x: &[f32], index: usize, y: &mut [f32]) {
    for (column, y) in y.chunks_exact_mut(d.channels.max(1)).enumerate() {
        y.fill(f32::NEG_INFINITY);
        for_each_tap(d, index, column, |at| {
            for (most, &x) in y.iter_mut().zip(&x[at..at + d.channels]) {
                // The comparison is false if either operand is NaN.
                let keeps = *most >= x || most.is_nan();
                *most = if keeps { *most } else { x };
            }
        });
    }
}

multiversion! {
    /// Computes the mean of each window: its sum divided by the size of the window.
    fn mean(d: &Pool2dDims, x: &[f32], index: usize, y: &mut [f32]) = mean_body;
}

#[inline(always)]
fn mean_body<const FMA: bool>(d: &Pool2dDims, x: &[f32], index: usize, y: &mut [f32]) {
    let share = 1.0 / (d.kernel[0] * d.kernel[1]) as f32;
    for (column, y) in y.chunks_exact_mut(d.channels.max(1)).enumerate() {
        y.fill(0.0);
        for_each_tap(d, index, column, |at| {
            for (sum, &x) in y.iter_mut().zip(&x[at..at + d.channels]) {
                *sum += x;
            }
        });
        y.iter_mut().for_each(|sum| *sum *= share);
    }
}
