//! Kernel of the variance of contiguous rows. For other axes, and for few long rows, a decomposition into sums uses all
//! threads.

use meganeura_core::backend::KernelDesc;

use super::norm::sum_squares;
use crate::kernel::{CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos};
use crate::vmath;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.variance",
    supports: contiguous_rows,
    compile: variance,
}];

/// Accepts calls that reduce the last axes, if the reduced rows are short or there are many of them.
fn contiguous_rows(k: &KernelDesc) -> Result<(), String> {
    f32_only(k)?;
    let shape = &k.inputs[0].shape;
    let axes = shape.axes(k.attrs.ints("axes")?)?;
    let first = shape.rank() - axes.len();
    if axes.iter().zip(first..).any(|(&axis, last)| axis != last) {
        return Err("the CPU kernel computes the variance over the last axes".into());
    }
    let (rows, elements) = (k.outputs[0].numel(), shape.numel());
    if rows < 4 && elements > 2 * CHUNK {
        return Err("the CPU kernel computes the variance of many rows".into());
    }
    Ok(())
}

fn variance(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let correction = cx.attrs().size("correction")?;
    let width = x.len() / out.len().max(1);
    let factor = 1.0 / (width as f64 - correction as f64) as f32;
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: out.len().div_ceil(per_task),
        nanos: 2 * stream_nanos(4 * x.len()) + 4 * out.len() as u64,
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(out.len());
            // SAFETY: only this task writes these results, and the operand is in another buffer.
            let (x, out) = unsafe { (x.slice(own.start * width..own.end * width), out.slice_mut(own)) };
            for (x, out) in x.chunks_exact(width).zip(out) {
                let mean = vmath::sum(level, x) / width as f32;
                *out = sum_squares(level, x, mean) * factor;
            }
        },
    }))
}
