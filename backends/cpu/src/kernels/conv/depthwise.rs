//! Convolutions with one input channel per group. They slide windows over planes instead of using matmuls.

use meganeura_core::ops::Conv2dDims;

use super::forward::Operands;
use super::plane::{Axis, LANES, Plane, lanes};
use crate::kernel::{CompileCx, Compiled, RunCx, Task, rows_per_task};
use crate::memory::aligned;
use crate::vmath::{Isa, Level, mul_add, multiversion};

/// Expected number of floating-point operations per nanosecond of one thread.
const FLOPS_PER_NANO: u64 = 10;

/// Returns true for convolutions that these kernels compute faster than matmuls.
pub(super) fn applies(dims: &Conv2dDims) -> bool {
    dims.groups > 1 && dims.c == dims.groups
}

fn nanos(dims: &Conv2dDims) -> u64 {
    dims.flops() / FLOPS_PER_NANO
}

/// Returns the windows along rows and along columns.
fn axes(dims: &Conv2dDims) -> [Axis; 2] {
    [0, 1].map(|a| Axis {
        elements: dims.input[a],
        windows: dims.output[a],
        taps: dims.kernel[a],
        stride: dims.stride[a],
        dilation: dims.dilation[a],
        spread: 1,
        offset: dims.padding[a] as isize,
    })
}

/// Returns the private scratch of a task. `len` is the number of `f32`s that the task requested.
///
/// # Safety
/// The task must have requested this size, and must not borrow the scratch twice at a time.
unsafe fn private<'a>(cx: &RunCx, len: usize) -> &'a mut [f32] {
    // SAFETY: the executor gives each thread initialised scratch of its own.
    unsafe { std::slice::from_raw_parts_mut(cx.private, len) }
}

pub(super) fn forward(level: Level, dims: Conv2dDims, operands: Operands) -> Compiled {
    let (x, w, y) = (operands.x, operands.w, operands.y);
    let [rows, columns] = axes(&dims);
    let plane = Plane::new(rows, columns);
    let taps = plane.taps.len();
    let multiplier = dims.o / dims.c;
    let items = dims.n * dims.o * plane.strips();
    let per_task = rows_per_task(plane.windows() * taps / plane.strips().max(1));
    let scratch_len = aligned(plane.scratch_len());
    let private_len = scratch_len + operands.after.scratch();
    let task = Task {
        tasks: items.div_ceil(per_task),
        nanos: nanos(&dims) + operands.after.nanos(),
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: the size is requested below, and the scratch is borrowed only here.
            let scratch = unsafe { private(cx, scratch_len) };
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let (channel, strip) = (item / plane.strips(), plane.strip(item % plane.strips()));
                let source = channel / multiplier * plane.elements();
                let kernel = channel % dims.o * taps;
                let out = channel * plane.windows();
                let width = dims.output[1];
                // SAFETY: only this task accesses the strip's results, and this dispatch does not write any operand.
                let (x, w, y) = unsafe {
                    (
                        x.slice(source..source + plane.elements()),
                        w.slice(kernel..kernel + taps),
                        y.slice_mut(out + strip.start * width..out + strip.end * width),
                    )
                };
                y.fill(0.0);
                plane.load(x, &strip, 0.0, scratch);
                plane.correlate(level, scratch, &strip, w, y);
                // SAFETY: the elements were computed above; the epilogue's scratch follows that of the convolution.
                unsafe {
                    let elements = out + strip.start * width..out + strip.end * width;
                    operands.after.run(elements, cx.private.add(scratch_len));
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: private_len,
    }
}

pub(super) fn input_grad(cx: &CompileCx, dims: Conv2dDims) -> Compiled {
    let (dy, w, dx) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0));
    let [rows, columns] = axes(&dims);
    let plane = Plane::transposed(rows, columns);
    let (taps, level) = (plane.taps.len(), cx.level);
    let multiplier = dims.o / dims.c;
    let items = dims.n * dims.c * plane.strips();
    let per_task = rows_per_task(plane.windows() * taps * multiplier / plane.strips().max(1));
    let scratch_len = plane.scratch_len();
    let task = Task {
        tasks: items.div_ceil(per_task),
        nanos: nanos(&dims) * (dims.stride[0] * dims.stride[1]) as u64,
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: the size is requested below, and the scratch is borrowed only here.
            let scratch = unsafe { private(cx, scratch_len) };
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let (channel, strip) = (item / plane.strips(), plane.strip(item % plane.strips()));
                let out = channel * plane.windows();
                let width = dims.input[1];
                // SAFETY: only this task accesses the strip's results.
                let dx = unsafe { dx.slice_mut(out + strip.start * width..out + strip.end * width) };
                dx.fill(0.0);
                for output in channel * multiplier..(channel + 1) * multiplier {
                    let kernel = output % dims.o * taps;
                    let source = output * plane.elements();
                    // SAFETY: this dispatch does not write any operand.
                    let (dy, w) = unsafe {
                        (
                            dy.slice(source..source + plane.elements()),
                            w.slice(kernel..kernel + taps),
                        )
                    };
                    plane.load(dy, &strip, 0.0, scratch);
                    plane.correlate(level, scratch, &strip, w, dx);
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: scratch_len,
    }
}

pub(super) fn weight_grad(cx: &CompileCx, dims: Conv2dDims) -> Compiled {
    let (x, dy, dw) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0));
    let [rows, columns] = axes(&dims);
    let plane = Plane::new(rows, columns);
    let (taps, level) = (plane.taps.len(), cx.level);
    let multiplier = dims.o / dims.c;
    let per_task = rows_per_task(dims.n * plane.windows() * taps);
    let scratch_len = plane.scratch_len();
    let task = Task {
        tasks: dims.o.div_ceil(per_task),
        nanos: nanos(&dims),
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: the size is requested below, and the scratch is borrowed only here.
            let scratch = unsafe { private(cx, scratch_len) };
            for output in task * per_task..((task + 1) * per_task).min(dims.o) {
                // SAFETY: only this task accesses these kernels of the result.
                let dw = unsafe { dw.slice_mut(output * taps..(output + 1) * taps) };
                dw.fill(0.0);
                for image in 0..dims.n {
                    let grads = (image * dims.o + output) * plane.windows();
                    let source = (image * dims.c + output / multiplier) * plane.elements();
                    // SAFETY: this dispatch does not write any operand.
                    let (x, dy) = unsafe {
                        (
                            x.slice(source..source + plane.elements()),
                            dy.slice(grads..grads + plane.windows()),
                        )
                    };
                    for strip in (0..plane.strips()).map(|s| plane.strip(s)) {
                        plane.load(x, &strip, 0.0, scratch);
                        let width = plane.columns.windows;
                        let dy = &dy[strip.start * width..strip.end * width];
                        let taps = plane.taps.chunks(UNROLL).zip(dw.chunks_mut(UNROLL));
                        for (taps, dw) in taps {
                            // In a short last group, the last tap is repeated, and the sums of the repetitions are
                            // discarded.
                            let at = std::array::from_fn(|i| taps[i.min(taps.len() - 1)]);
                            let sums = dots(level, scratch, plane.row_step(), at, dy, width);
                            for (dw, sum) in dw.iter_mut().zip(sums) {
                                *dw += sum;
                            }
                        }
                    }
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: scratch_len,
    }
}

/// Number of taps whose sums are computed in parallel. This hides the latency of an addition, and the sums stay in
/// registers.
const UNROLL: usize = 3;

multiversion! {
    /// Returns one sum for each tap, over the windows of a strip: the input that the tap reads times the gradient of
    /// the window. Rows have `width` windows. Each sum consists of a fixed number of partial sums.
    fn dots(x: &[f32], row_step: usize, taps: [usize; UNROLL], dy: &[f32], width: usize) -> [f32; UNROLL]
        = dots_body;
}

#[inline(always)]
fn dots_body<const FMA: bool>(
    x: &[f32],
    row_step: usize,
    taps: [usize; UNROLL],
    dy: &[f32],
    width: usize,
) -> [f32; UNROLL] {
    let mut sums = [[0.0; LANES]; UNROLL];
    // Memory beyond the row may contain NaN, and 0 times NaN would be NaN: clear these lanes.
    let mut within = [0; LANES];
    within[..width % LANES].fill(u32::MAX);
    for (row, dy) in dy.chunks_exact(width.max(1)).enumerate() {
        let x = &x[row * row_step..];
        let (blocks, rest) = dy.as_chunks::<LANES>();
        for (block, dy) in blocks.iter().enumerate() {
            for t in 0..UNROLL {
                let x = lanes(x, taps[t] + block * LANES);
                for i in 0..LANES {
                    sums[t][i] = mul_add::<FMA>(x[i], dy[i], sums[t][i]);
                }
            }
        }
        if rest.is_empty() {
            continue;
        }
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for t in 0..UNROLL {
            let x = lanes(x, taps[t] + blocks.len() * LANES);
            for i in 0..LANES {
                let x = f32::from_bits(x[i].to_bits() & within[i]);
                sums[t][i] = mul_add::<FMA>(x, last[i], sums[t][i]);
            }
        }
    }
    let mut totals = [0.0; UNROLL];
    for t in 0..UNROLL {
        totals[t] = sums[t].iter().sum();
    }
    totals
}
