//! Kernels that copy the upper or lower triangle of matrices.

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, any_dtype, rows_per_task, stream_nanos};

macro_rules! triangle {
    ($name:literal, $lower:literal) => {
        KernelDef {
            name: $name,
            supports: any_dtype,
            compile: |cx| match cx.output_type(0).dtype.block().bytes {
                2 => triangle::<u16>(cx, $lower),
                _ => triangle::<u32>(cx, $lower),
            },
        }
    };
}

pub(super) const KERNELS: &[KernelDef] = &[triangle!("core.tril", true), triangle!("core.triu", false)];

/// Compiles the copy of a triangle. Elements are copied as words, and the remaining elements of each row are zero.
fn triangle<T: Copy + Default + Send + Sync + 'static>(cx: &CompileCx, lower: bool) -> Result<Compiled, String> {
    let (x, out) = (cx.input::<T>(0), cx.output::<T>(0));
    let diagonal = cx.attrs().int("diagonal")?;
    let [.., rows, columns] = cx.input_type(0).shape[..] else {
        return Err("there are less than two axes".into());
    };
    if x.len() == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let (total, per_task) = (x.len() / columns, rows_per_task(columns));
    Ok(Compiled::one(Task {
        tasks: total.div_ceil(per_task),
        nanos: stream_nanos(2 * x.len() * size_of::<T>()),
        body: move |task: usize, _: &RunCx| {
            for row in task * per_task..((task + 1) * per_task).min(total) {
                let range = row * columns..(row + 1) * columns;
                // SAFETY: only this task writes this row, and the operand is in another buffer.
                let (x, out) = unsafe { (x.slice(range.clone()), out.slice_mut(range)) };
                // First column to the right of the lower triangle, or first column of the upper one.
                let edge = (row % rows) as i64 + diagonal + i64::from(lower);
                let cut = edge.clamp(0, columns as i64) as usize;
                let kept = if lower { 0..cut } else { cut..columns };
                let zeros = if lower { cut..columns } else { 0..cut };
                out[kept.clone()].copy_from_slice(&x[kept]);
                out[zeros].fill(T::default());
            }
        },
    }))
}
