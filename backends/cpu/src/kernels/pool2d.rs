//! Two-dimensional pooling by windows over padded planes.

use std::ops::Range;

use meganeura_core::ops::Pool2dDims;

use super::conv::plane::{Axis, LANES, Plane, lanes};
use super::{CompileCx, Compiled, KernelDef, Task, f32_only, f32_or_integers, rows_per_task};
use crate::executor::RunCx;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.max_pool2d",
        supports: f32_or_integers,
        compile: max_pool,
    },
    KernelDef {
        name: "core.avg_pool2d",
        supports: f32_only,
        compile: |cx| {
            let dims = Pool2dDims::of(&cx.input_type(0).shape, cx.attrs())?;
            let [rows, columns] = axes(&dims);
            Ok(average(cx, dims.planes, Plane::new(rows, columns)))
        },
    },
    KernelDef {
        name: "core.avg_pool2d_grad",
        supports: f32_only,
        compile: |cx| {
            let dims = Pool2dDims::of(&cx.output_type(0).shape, cx.attrs())?;
            let [rows, columns] = axes(&dims);
            Ok(average(cx, dims.planes, Plane::transposed(rows, columns)))
        },
    },
];

/// Elements of windows that one thread is expected to see in a nanosecond.
const ELEMENTS_PER_NANO: usize = 4;

/// Rows and columns of the windows.
fn axes(dims: &Pool2dDims) -> [Axis; 2] {
    [0, 1].map(|a| Axis {
        elements: dims.input[a],
        windows: dims.output[a],
        taps: dims.kernel[a],
        stride: dims.stride[a],
        dilation: 1,
        spread: 1,
        offset: dims.padding[a] as isize,
    })
}

/// Some planes or strips of planes at a time, each with its padded rows in private scratch:
/// `visit(plane, strip, scratch)`.
fn by_strips(
    planes: usize,
    plane: Plane,
    visit: impl Fn(&Plane, usize, Range<usize>, &mut [f32]) + Send + Sync + 'static,
) -> Compiled {
    let items = planes * plane.strips();
    let seen = plane.windows() * plane.taps.len();
    let per_task = rows_per_task(seen.max(plane.elements()) / plane.strips().max(1));
    let scratch_len = plane.scratch_len();
    let task = Task {
        tasks: items.div_ceil(per_task),
        nanos: (planes * (seen / ELEMENTS_PER_NANO + plane.elements())) as u64,
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: private scratch of the length asked for below, borrowed here alone.
            let scratch = unsafe { std::slice::from_raw_parts_mut(cx.private, scratch_len) };
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let strip = plane.strip(item % plane.strips());
                visit(&plane, item / plane.strips(), strip, scratch);
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: scratch_len,
    }
}

fn average(cx: &CompileCx, planes: usize, plane: Plane) -> Compiled {
    let (x, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let weights = vec![1.0 / plane.taps.len() as f32; plane.taps.len()];
    by_strips(planes, plane, move |plane, index, strip, scratch| {
        let (source, result) = (index * plane.elements(), index * plane.windows());
        let width = plane.columns.windows;
        // SAFETY: the task of a strip alone touches its results; the operand is another buffer.
        let (x, out) = unsafe {
            (
                x.slice(source..source + plane.elements()),
                out.slice_mut(result + strip.start * width..result + strip.end * width),
            )
        };
        out.fill(0.0);
        plane.load(x, &strip, 0.0, scratch);
        plane.correlate(level, scratch, &strip, &weights, out);
    })
}

/// Stands for no tap where all that a window sees is negative infinity.
const NO_TAP: u32 = u32::MAX;

fn max_pool(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Pool2dDims::of(&cx.input_type(0).shape, cx.attrs())?;
    let (x, out, indices) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.output::<u32>(1));
    let [rows, columns] = axes(&dims);
    // Distance of what a tap sees from what the first one sees.
    let width = dims.input[1];
    let deltas: Vec<u32> = (0..dims.kernel[0])
        .flat_map(|j| (0..dims.kernel[1]).map(move |k| (j * width + k) as u32))
        .collect();
    let visit = move |plane: &Plane, index: usize, strip: Range<usize>, scratch: &mut [f32]| {
        let (source, result, width) = (index * plane.elements(), index * plane.windows(), dims.output[1]);
        let own = result + strip.start * width..result + strip.end * width;
        // SAFETY: the task of a strip alone touches its results; the operand is another buffer.
        let (x, out, indices) = unsafe {
            (
                x.slice(source..source + plane.elements()),
                out.slice_mut(own.clone()),
                indices.slice_mut(own),
            )
        };
        plane.load(x, &strip, f32::NEG_INFINITY, scratch);
        let rows = out.chunks_exact_mut(width).zip(indices.chunks_exact_mut(width));
        for (row, (out, indices)) in strip.clone().zip(rows) {
            let x = plane.row(scratch, &strip, row);
            let blocks = out.chunks_mut(LANES).zip(indices.chunks_mut(LANES));
            for (block, (out, indices)) in blocks.enumerate() {
                let column = block * LANES;
                let (best, chosen) = largest(x, column, plane, &deltas);
                out.copy_from_slice(&best[..out.len()]);
                for (i, (index, delta)) in indices.iter_mut().zip(chosen).enumerate() {
                    *index = (source + chosen_input(&dims, row, column + i, delta)) as u32;
                }
            }
        }
    };
    Ok(by_strips(dims.planes, Plane::new(rows, columns), visit))
}

/// The largest elements of neighbouring windows, and the taps that saw them first; NaN counts as largest.
fn largest(x: &[f32], column: usize, plane: &Plane, deltas: &[u32]) -> ([f32; LANES], [u32; LANES]) {
    let (mut best, mut chosen) = ([f32::NEG_INFINITY; LANES], [NO_TAP; LANES]);
    for (&tap, &delta) in plane.taps.iter().zip(deltas) {
        let seen = best.iter_mut().zip(&mut chosen).zip(lanes(x, tap + column));
        for ((best, chosen), &x) in seen {
            let better = (x > *best) | (x.is_nan() & !best.is_nan());
            *chosen = if better { delta } else { *chosen };
            *best = if better { x } else { *best };
        }
    }
    (best, chosen)
}

/// Offset in the plane of what a tap of a window sees, or of the first element that the window sees at all.
fn chosen_input(dims: &Pool2dDims, row: usize, column: usize, delta: u32) -> usize {
    let (y, x) = (row * dims.stride[0], column * dims.stride[1]);
    if delta == NO_TAP {
        let (y, x) = (y.saturating_sub(dims.padding[0]), x.saturating_sub(dims.padding[1]));
        return y * dims.input[1] + x;
    }
    // The first tap may see padding before the plane, but the chosen one does not.
    y * dims.input[1] + x + delta as usize - (dims.padding[0] * dims.input[1] + dims.padding[1])
}
