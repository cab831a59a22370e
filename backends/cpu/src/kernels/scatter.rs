//! Kernel of `scatter`, which replaces parts of a tensor by index.

use super::index::around_axis;
use crate::kernel::{
    CompileCx, Compiled, KernelDef, RunCx, Task, any_dtype, chunk, chunks, rows_per_task, stream_nanos,
};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.scatter",
    supports: any_dtype,
    compile: |cx| match cx.output_type(0).dtype.block().bytes {
        2 => scatter::<u16>(cx),
        _ => scatter::<u32>(cx),
    },
}];

/// Number of columns of a task. The task writes the rows of all indices in order: of equal indices, the last one
/// wins.
const COLUMNS: usize = 1024;

/// Compiles a copy of the tensor followed by the updates. Elements are copied as words.
fn scatter<T: Copy + Send + Sync + 'static>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, indices, updates) = (cx.input::<T>(0), cx.input::<u32>(1), cx.input::<T>(2));
    let out = cx.output::<T>(0);
    let [outer, rows, inner] = around_axis(&cx.input_type(0).shape, cx.attrs().int("axis")?)?;
    let (count, dispatch) = (indices.len(), cx.index);
    let copy = Task {
        tasks: chunks(out.len()),
        nanos: stream_nanos(2 * out.len() * size_of::<T>()),
        body: move |task: usize, _: &RunCx| {
            let range = chunk(out.len(), task);
            // SAFETY: only this task writes its chunk in this phase, and the operand is in another buffer.
            unsafe { out.slice_mut(range.clone()).copy_from_slice(x.slice(range)) };
        },
    };
    let check = Task {
        tasks: usize::from(count > 0),
        nanos: count as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: this dispatch does not write the operand.
            let ids = unsafe { indices.all() };
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= rows) {
                cx.index_out_of_range(dispatch, id, rows);
            }
        },
    };
    let strips = inner.div_ceil(COLUMNS);
    let items = outer * strips;
    let per_task = rows_per_task(count * inner.min(COLUMNS));
    let write = Task {
        tasks: items.div_ceil(per_task),
        nanos: stream_nanos(2 * updates.len() * size_of::<T>()) + (items * count) as u64,
        body: move |task: usize, _: &RunCx| {
            // SAFETY: this dispatch does not write operands.
            let ids = unsafe { indices.all() };
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let (outer, start) = (item / strips, item % strips * COLUMNS);
                let width = COLUMNS.min(inner - start);
                for (i, &id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < rows) {
                    let from = (outer * count + i) * inner + start;
                    let to = (outer * rows + id as usize) * inner + start;
                    // SAFETY: only this task writes these columns of this part in this phase.
                    unsafe {
                        out.slice_mut(to..to + width)
                            .copy_from_slice(updates.slice(from..from + width));
                    }
                }
            }
        },
    };
    Ok(Compiled::phases(vec![Box::new(copy), Box::new(check), Box::new(write)]))
}
