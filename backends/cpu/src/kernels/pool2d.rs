//! Two-dimensional pooling, with sliding windows over padded planes.

use std::ops::Range;

use meganeura_core::DType;
use meganeura_core::ops::Pool2dDims;

use super::conv::plane::{Axis, LANES, Plane, lanes};
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, f32_or_integers, rows_per_task};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.max_pool2d",
        supports: f32_or_integers,
        compile: max_pool,
    },
    KernelDef {
        name: "core.max_pool2d_grad",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => Ok(max_pool_grad::<f32>(cx, |a, b| a + b)),
            _ => Ok(max_pool_grad::<u32>(cx, u32::wrapping_add)),
        },
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

/// Expected number of window elements that one thread processes per nanosecond.
const ELEMENTS_PER_NANO: usize = 4;

/// Returns the windows along rows and along columns.
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

/// Compiles a kernel whose tasks call `visit(plane, index, strip, scratch)` for some planes, or for strips of planes.
/// `scratch` is private and contains the padded rows.
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
            // SAFETY: private scratch has the length requested below, and is borrowed only here.
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
        // SAFETY: only the task of a strip accesses its results, and the operand is in another buffer.
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

/// Offset for windows that contain no element above negative infinity.
const NO_TAP: u32 = u32::MAX;

fn max_pool(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Pool2dDims::of(&cx.input_type(0).shape, cx.attrs())?;
    let (x, out, indices) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.output::<u32>(1));
    let level = cx.level;
    let [rows, columns] = axes(&dims);
    // Distance of the input of each tap from that of the first tap.
    let width = dims.input[1];
    let steps: Vec<usize> = (0..dims.kernel[0])
        .flat_map(|j| (0..dims.kernel[1]).map(move |k| j * width + k))
        .collect();
    let visit = move |plane: &Plane, index: usize, strip: Range<usize>, scratch: &mut [f32]| {
        let (source, result, width) = (index * plane.elements(), index * plane.windows(), dims.output[1]);
        let own = result + strip.start * width..result + strip.end * width;
        // SAFETY: only the task of a strip accesses its results, and the operand is in another buffer.
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
            let base = source + row * dims.stride[0] * dims.input[1];
            let base = (base as u32).wrapping_sub((dims.padding[0] * dims.input[1] + dims.padding[1]) as u32);
            largest_of_row(
                level,
                x,
                [&plane.taps, &steps],
                [base, dims.stride[1] as u32],
                out,
                indices,
            );
            for (column, index) in indices.iter_mut().enumerate().filter(|(_, i)| **i == NO_TAP) {
                *index = (source + first_input(&dims, row, column)) as u32;
            }
        }
    };
    Ok(by_strips(dims.planes, Plane::new(rows, columns), visit))
}

multiversion! {
    /// Writes the largest element of each window in a row of windows, and its offset in the tensor. Tap `t` of window
    /// `i` has the offset `base + i stride + steps[t]`. The offset is [`NO_TAP`] if no element is above negative
    /// infinity.
    fn largest_of_row(
        x: &[f32],
        taps: [&[usize]; 2],
        indices: [u32; 2],
        best: &mut [f32],
        chosen: &mut [u32],
    ) = largest_of_row_body;
}

#[inline(always)]
fn largest_of_row_body<const FMA: bool>(
    x: &[f32],
    [taps, steps]: [&[usize]; 2],
    [base, stride]: [u32; 2],
    best: &mut [f32],
    chosen: &mut [u32],
) {
    let blocks = best.chunks_mut(LANES).zip(chosen.chunks_mut(LANES));
    for (block, (best, chosen)) in blocks.enumerate() {
        let (mut values, mut indices) = ([f32::NEG_INFINITY; LANES], [NO_TAP; LANES]);
        for (&tap, &step) in taps.iter().zip(steps) {
            let (x, step) = (lanes(x, tap + block * LANES), step as u32);
            for i in 0..LANES {
                // The first of equal elements wins, and NaN counts as largest. The code uses masks: for a choice, the
                // compiler would generate branches, which random data mispredicts.
                let better = (x[i] > values[i]) | (x[i].is_nan() & !values[i].is_nan());
                let mask = u32::from(better).wrapping_neg();
                indices[i] = (step & mask) | (indices[i] & !mask);
                values[i] = f32::from_bits((x[i].to_bits() & mask) | (values[i].to_bits() & !mask));
            }
        }
        if let (Some(best), Some(chosen)) = (best.first_chunk_mut(), chosen.first_chunk_mut()) {
            (*best, *chosen) = (values, indices);
        } else {
            best.copy_from_slice(&values[..best.len()]);
            chosen.copy_from_slice(&indices[..chosen.len()]);
        }
    }
    for (i, chosen) in chosen.iter_mut().enumerate() {
        let index = (i as u32).wrapping_mul(stride).wrapping_add(base).wrapping_add(*chosen);
        *chosen = if *chosen == NO_TAP { NO_TAP } else { index };
    }
}

/// Compiles the derivative of max pooling. Tasks process separate planes. This is correct if the offsets of each
/// plane are within the plane. This is always true of the offsets that max pooling computes. If an offset is outside
/// its plane, one task repeats the whole computation.
fn max_pool_grad<T: Copy + Default + Send + Sync + 'static>(cx: &CompileCx, add: fn(T, T) -> T) -> Compiled {
    let (indices, dy, dx) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let shape = &cx.output_type(0).shape;
    let (planes, dispatch) = (shape[0] * shape[1], cx.index);
    let (windows, elements) = (dy.len() / planes.max(1), dx.len() / planes.max(1));
    let per_task = rows_per_task(windows.max(elements));
    let tasks = planes.div_ceil(per_task);
    let main = Task {
        tasks,
        nanos: (2 * dy.len() + dx.len() / ELEMENTS_PER_NANO) as u64,
        body: move |task: usize, cx: &RunCx| {
            let mut strays = false;
            for plane in task * per_task..((task + 1) * per_task).min(planes) {
                let (own, first) = (plane * windows..(plane + 1) * windows, plane * elements);
                // SAFETY: this dispatch does not write operands, and only this task writes these planes.
                let (ids, dy, dx) = unsafe {
                    let dx = dx.slice_mut(first..first + elements);
                    (indices.slice(own.clone()), dy.slice(own), dx)
                };
                dx.fill(T::default());
                for (&id, &dy) in ids.iter().zip(dy) {
                    match dx.get_mut((id as usize).wrapping_sub(first)) {
                        Some(slot) => *slot = add(*slot, dy),
                        None => strays = true,
                    }
                }
            }
            // SAFETY: only this task uses slot `task` of the shared scratch.
            unsafe { *cx.shared.add(task) = f32::from(u8::from(strays)) };
        },
    };
    let again = Task {
        tasks: 1,
        nanos: tasks as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: the first phase has filled the slots.
            let strays = unsafe { std::slice::from_raw_parts(cx.shared, tasks) };
            if strays.iter().all(|&s| s == 0.0) {
                return;
            }
            // SAFETY: this is the only task of its phase, and no task writes operands.
            let (ids, dy, dx) = unsafe { (indices.all(), dy.all(), dx.slice_mut(0..dx.len())) };
            dx.fill(T::default());
            for (&id, &dy) in ids.iter().zip(dy) {
                match dx.get_mut(id as usize) {
                    Some(slot) => *slot = add(*slot, dy),
                    None => cx.index_out_of_range(dispatch, id, dx.len()),
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(main), Box::new(again)],
        shared: tasks,
        private: 0,
    }
}

/// Returns the offset in the plane of the first element that a window contains.
fn first_input(dims: &Pool2dDims, row: usize, column: usize) -> usize {
    let (y, x) = (row * dims.stride[0], column * dims.stride[1]);
    let (y, x) = (y.saturating_sub(dims.padding[0]), x.saturating_sub(dims.padding[1]));
    y * dims.input[1] + x
}
