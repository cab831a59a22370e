//! Rotary position embedding: with tables of all angles, or of those of one row at a time where positions are data.

use meganeura_core::ops::RopeDims;

use super::{CompileCx, Compiled, KernelDef, Task, f32_only, f32_or_integers, rows_per_task, stream_nanos};
use crate::executor::RunCx;
use crate::vmath::{Isa, Level, multiversion};

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
];

/// Estimated nanoseconds for the sine and the cosine of an angle.
const ANGLE_NANOS: usize = 25;

multiversion! {
    /// Turns the pairs of all heads of a row by the angles whose cosines and sines are given.
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
                // SAFETY: this task alone writes these rows; no operand is written by this dispatch.
                let (x, out) = unsafe { (x.slice(own.clone()), out.slice_mut(own)) };
                rotate(level, x, [&cos[angles.clone()], &sin[angles]], out);
            }
        },
    }))
}

fn compile_dynamic(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = RopeDims::of_dynamic(&cx.call())?;
    let (x, offsets, out) = (cx.input::<f32>(0), cx.input::<u32>(1), cx.output::<f32>(0));
    let (speeds, half, level) = (dims.speeds(), dims.half, cx.level);
    let width = 2 * half * dims.heads;
    let rows = if dims.is_empty() { 0 } else { dims.batch * dims.rows };
    let per_task = rows_per_task(width + half * ANGLE_NANOS);
    Ok(Compiled {
        phases: vec![Box::new(Task {
            tasks: rows.div_ceil(per_task),
            nanos: stream_nanos(8 * x.len()) + (rows * half * ANGLE_NANOS) as u64,
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: private scratch is as long as asked for; the operand is not written by this dispatch.
                let (angles, offsets) =
                    unsafe { (std::slice::from_raw_parts_mut(cx.private, 2 * half), offsets.all()) };
                let (cos, sin) = angles.split_at_mut(half);
                for row in task * per_task..((task + 1) * per_task).min(rows) {
                    let position = offsets[row / dims.rows].wrapping_add((row % dims.rows) as u32);
                    for ((cos, sin), speed) in cos.iter_mut().zip(&mut *sin).zip(&speeds) {
                        let turned = (f64::from(position) * speed).sin_cos();
                        (*sin, *cos) = (turned.0 as f32, turned.1 as f32);
                    }
                    let own = row * width..(row + 1) * width;
                    // SAFETY: this task alone writes this row; no operand is written by this dispatch.
                    let (x, out) = unsafe { (x.slice(own.clone()), out.slice_mut(own)) };
                    rotate(level, x, [cos, sin], out);
                }
            },
        })],
        shared: 0,
        private: 2 * half,
    })
}
