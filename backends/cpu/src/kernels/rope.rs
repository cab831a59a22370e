//! Kernels of rotary position embedding. Tables contain the cosines and sines of all angles, or only of one row's
//! angles if the positions are an operand. Keys can also be rotated while they are written to a cache.

use half::f16;
use meganeura_core::ops::{CacheDims, RopeDims};

use super::cached_rows::{has_halves, round, supports_write};
use crate::kernel::{
    CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, f32_or_integers, rows_per_task, stream_nanos,
};
use crate::vmath::{self, Isa, Level, Unary, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.rope",
        supports: f32_only,
        compile,
    },
    KernelDef {
        name: "core.rope_dynamic_offset",
        supports: f32_or_integers,
        compile: compile_dynamic,
    },
    KernelDef {
        name: "core.rope_cache_write",
        supports: supports_write,
        compile: compile_cache_write,
    },
];

/// Estimated nanoseconds for the sine and cosine of one angle.
const ANGLE_NANOS: usize = 4;

multiversion! {
    /// Rotates the pairs of all heads of a row. `tables` contains the cosines and sines of the angles.
    fn rotate(x: &[f32], tables: [&[f32]; 2], out: &mut [f32]) = rotate_body;
}

#[inline(always)]
fn rotate_body<const FMA: bool>(x: &[f32], [cos, sin]: [&[f32]; 2], out: &mut [f32]) {
    let half = cos.len();
    for (x, out) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
        let (x1, x2) = x.split_at(half);
        let (out1, out2) = out.split_at_mut(half);
        let results = out1.iter_mut().zip(out2);
        let angles = cos.iter().zip(sin);
        for (((out1, out2), (&x1, &x2)), (&cos, &sin)) in results.zip(x1.iter().zip(x2)).zip(angles) {
            *out1 = x1 * cos - x2 * sin;
            *out2 = x2 * cos + x1 * sin;
        }
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = RopeDims::of(&cx.call())?;
    let (x, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let [cos, sin] = if dims.is_empty() {
        [Vec::new(), Vec::new()]
    } else {
        dims.tables()
    };
    let (half, width) = (dims.half, 2 * dims.half * dims.heads);
    let rows = if dims.is_empty() { 0 } else { dims.batch * dims.rows };
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos(8 * x.len() + 8 * cos.len()),
        body: move |task: usize, _: &RunCx| {
            for row in task * per_task..((task + 1) * per_task).min(rows) {
                let own = row * width..(row + 1) * width;
                let angles = row % dims.rows * half..(row % dims.rows + 1) * half;
                // SAFETY: only this task writes these rows, and this dispatch does not write any operand.
                let (x, out) = unsafe { (x.slice(own.clone()), out.slice_mut(own)) };
                rotate(level, x, [&cos[angles.clone()], &sin[angles]], out);
            }
        },
    }))
}

/// Returns the rotation of each pair from one position to the next, as a fraction of a full turn.
fn turns(dims: &RopeDims) -> Vec<f64> {
    dims.speeds()
        .iter()
        .map(|speed| speed / std::f64::consts::TAU)
        .collect()
}

/// Returns the cosines and sines of the angles of a position. They are in the last two thirds of `angles`.
fn angles_at<'a>(level: Level, position: u32, turns: &[f64], angles: &'a mut [f32]) -> [&'a [f32]; 2] {
    /// Rounding constant: adding and then subtracting it rounds numbers below 2^51 to the nearest integer.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let (reduced, tables) = angles.split_at_mut(turns.len());
    let (cos, sin) = tables.split_at_mut(turns.len());
    for (angle, per_position) in reduced.iter_mut().zip(turns) {
        let turned = f64::from(position) * per_position;
        // Whole turns are subtracted before the angle is rounded to f32.
        *angle = ((turned - (turned + ROUND - ROUND)) * std::f64::consts::TAU) as f32;
    }
    vmath::unary(Unary::Cos, level, reduced, cos);
    vmath::unary(Unary::Sin, level, reduced, sin);
    [cos, sin]
}

fn compile_dynamic(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = RopeDims::of_dynamic(&cx.call())?;
    let (x, offsets, out) = (cx.input::<f32>(0), cx.input::<u32>(1), cx.output::<f32>(0));
    let (turns, half, level) = (turns(&dims), dims.half, cx.level);
    let width = 2 * half * dims.heads;
    let rows = if dims.is_empty() { 0 } else { dims.batch * dims.rows };
    let per_task = rows_per_task(width + half * ANGLE_NANOS);
    Ok(Compiled {
        phases: vec![Box::new(Task {
            tasks: rows.div_ceil(per_task),
            nanos: stream_nanos(8 * x.len()) + (rows * half * ANGLE_NANOS) as u64,
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: private scratch has the requested size, and this dispatch does not write the operand.
                let (angles, offsets) =
                    unsafe { (std::slice::from_raw_parts_mut(cx.private, 3 * half), offsets.all()) };
                for row in task * per_task..((task + 1) * per_task).min(rows) {
                    let position = offsets[row / dims.rows].wrapping_add((row % dims.rows) as u32);
                    let tables = angles_at(level, position, &turns, angles);
                    let own = row * width..(row + 1) * width;
                    // SAFETY: only this task writes this row, and this dispatch does not write any operand.
                    let (x, out) = unsafe { (x.slice(own.clone()), out.slice_mut(own)) };
                    rotate(level, x, tables, out);
                }
            },
        })],
        shared: 0,
        private: 3 * half,
    })
}

fn compile_cache_write(cx: &CompileCx) -> Result<Compiled, String> {
    if has_halves(cx.input_type(1)) {
        cache_write::<f16>(cx, |level, x, tables, turned, out| {
            rotate(level, x, tables, turned);
            round(turned, out);
        })
    } else {
        cache_write::<f32>(cx, |level, x, tables, _, out| rotate(level, x, tables, out))
    }
}

/// Function that rotates a row by the angles of two tables and writes it. The fourth argument is scratch for one row.
type WriteTurned<C> = fn(Level, &[f32], [&[f32]; 2], &mut [f32], &mut [C]);

/// Compiles a cache write of rotated rows. If the cache is updated in place, a task has some rows of a sequence, else
/// a whole sequence.
fn cache_write<C: Copy + Send + Sync + 'static>(cx: &CompileCx, put: WriteTurned<C>) -> Result<Compiled, String> {
    let call = cx.call();
    let (dims, cache) = (RopeDims::of_dynamic(&call)?, CacheDims::of(&call)?);
    let (new, old, positions) = (cx.input::<f32>(0), cx.input::<C>(1), cx.input::<u32>(2));
    let (out, dispatch, level) = (cx.output::<C>(0), cx.index, cx.level);
    let (turns, half, width) = (turns(&dims), dims.half, cache.width);
    let in_place = cx.input_buffer(1) == cx.output_buffer(0);
    let per_task = if in_place {
        rows_per_task(width + half * ANGLE_NANOS).min(cache.rows)
    } else {
        cache.rows
    };
    let tasks_each = cache.rows.div_ceil(per_task);
    let rows = cache.batch * cache.rows;
    let moved = if in_place { new.len() } else { new.len() + old.len() };
    Ok(Compiled {
        phases: vec![Box::new(Task {
            tasks: cache.batch * tasks_each,
            nanos: stream_nanos(8 * moved) + (rows * half * ANGLE_NANOS) as u64,
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: private scratch has the requested size, and this dispatch does not write positions.
                let (scratch, positions) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(cx.private, 3 * half + width),
                        positions.all(),
                    )
                };
                let (angles, turned) = scratch.split_at_mut(3 * half);
                // All positions are checked before anything is written.
                if let Some(&bad) = positions.iter().find(|&&p| p as usize >= cache.bound()) {
                    return cx.index_out_of_range(dispatch, bad, cache.bound());
                }
                let (sequence, first) = (task / tasks_each, task % tasks_each * per_task);
                let start = sequence * cache.capacity;
                if !in_place {
                    let own = start * width..(start + cache.capacity) * width;
                    // SAFETY: only this task writes the cache of this sequence, and the old cache is in another
                    // buffer.
                    unsafe { out.slice_mut(own.clone()).copy_from_slice(old.slice(own)) };
                }
                for row in first..(first + per_task).min(cache.rows) {
                    let position = positions[sequence] + row as u32;
                    let (from, to) = (sequence * cache.rows + row, start + position as usize);
                    // SAFETY: only this task writes this row, and the new rows are in another buffer.
                    let (x, out) = unsafe {
                        (
                            new.slice(from * width..(from + 1) * width),
                            out.slice_mut(to * width..(to + 1) * width),
                        )
                    };
                    put(level, x, angles_at(level, position, &turns, angles), turned, out);
                }
            },
        })],
        shared: 0,
        private: 3 * half + width,
    })
}
