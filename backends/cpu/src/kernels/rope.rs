//! Rotary position embedding, with tables of all angles.

use meganeura_core::ops::RopeDims;

use super::{CompileCx, Compiled, KernelDef, Task, f32_only, rows_per_task, stream_nanos};
use crate::executor::RunCx;
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.rope",
    supports: f32_only,
    compile,
}];

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
