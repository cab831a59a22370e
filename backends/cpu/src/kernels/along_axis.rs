//! Kernels with an index of its own for each element: take and put along an axis.

use meganeura_core::DType;

use super::index::around_axis;
use super::{
    CompileCx, Compiled, KernelDef, Task, any_dtype, chunk, chunks, f32_or_integers, rows_per_task, stream_nanos,
};
use crate::executor::RunCx;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.take_along_axis",
        supports: any_dtype,
        compile: |cx| match cx.output_type(0).dtype.block().bytes {
            2 => take::<u16>(cx, half::f16::NAN.to_bits()),
            _ => take::<u32>(cx, f32::NAN.to_bits()),
        },
    },
    KernelDef {
        name: "core.put_along_axis",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => put::<f32>(cx, |a, b| a + b),
            _ => put::<u32>(cx, u32::wrapping_add),
        },
    },
];

/// Elements by index, as words: the dtype does not matter but for what stands in for a missing one.
fn take<T: Copy + Send + Sync + 'static>(cx: &CompileCx, missing: T) -> Result<Compiled, String> {
    let (x, indices, out) = (cx.input::<T>(0), cx.input::<u32>(1), cx.output::<T>(0));
    let axis = cx.attrs().int("axis")?;
    let [_, len, inner] = around_axis(&cx.input_type(0).shape, axis)?;
    let [_, count, _] = around_axis(&cx.input_type(1).shape, axis)?;
    let dispatch = cx.index;
    // Results that read the same part of the operand.
    let part = count * inner;
    Ok(Compiled::one(Task {
        tasks: chunks(out.len()),
        nanos: stream_nanos((x.len() + 2 * out.len()) * size_of::<T>()) + out.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = chunk(out.len(), task);
            let mut at = own.start;
            while at < own.end {
                let outer = at / part;
                let end = own.end.min((outer + 1) * part);
                // SAFETY: this task alone writes its chunk; operands are other buffers.
                let (x, ids, out) = unsafe {
                    (
                        x.slice(outer * len * inner..(outer + 1) * len * inner),
                        indices.slice(at..end),
                        out.slice_mut(at..end),
                    )
                };
                let mut column = at % inner;
                for (slot, &id) in out.iter_mut().zip(ids) {
                    *slot = if (id as usize) < len {
                        x[id as usize * inner + column]
                    } else {
                        cx.index_out_of_range(dispatch, id, len);
                        missing
                    };
                    column += 1;
                    if column == inner {
                        column = 0;
                    }
                }
                at = end;
            }
        },
    }))
}

/// Columns of a task where there are few parts before the axis.
const COLUMNS: usize = 64;

/// Each task owns whole columns of the result, and walks the indices in order.
fn put<T: Copy + Default + Send + Sync + 'static>(cx: &CompileCx, add: fn(T, T) -> T) -> Result<Compiled, String> {
    let (indices, updates, out) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let axis = cx.attrs().int("axis")?;
    let [outer, count, inner] = around_axis(&cx.input_type(0).shape, axis)?;
    let [_, size, _] = around_axis(&cx.output_type(0).shape, axis)?;
    let dispatch = cx.index;
    let strips = inner.div_ceil(COLUMNS);
    let per_task = rows_per_task((size + count) * inner.min(COLUMNS));
    let items = outer * strips;
    Ok(Compiled::one(Task {
        tasks: items.div_ceil(per_task),
        nanos: stream_nanos(2 * (updates.len() + out.len()) * size_of::<T>()) + updates.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let (outer, strip) = (item / strips, item % strips);
                let columns = strip * COLUMNS..((strip + 1) * COLUMNS).min(inner);
                let width = columns.len();
                let row = |base: usize, r: usize| {
                    let start = (base + r) * inner + columns.start;
                    start..start + width
                };
                for r in 0..size {
                    // SAFETY: this task alone touches these columns of this part of the result.
                    unsafe { out.slice_mut(row(outer * size, r)) }.fill(T::default());
                }
                for i in 0..count {
                    let from = row(outer * count, i);
                    // SAFETY: operands are other buffers than the result.
                    let (ids, updates) = unsafe { (indices.slice(from.clone()), updates.slice(from)) };
                    for (column, (&id, &update)) in ids.iter().zip(updates).enumerate() {
                        if (id as usize) < size {
                            let at = row(outer * size, id as usize).start + column;
                            // SAFETY: as above.
                            let slot = unsafe { &mut out.slice_mut(at..at + 1)[0] };
                            *slot = add(*slot, update);
                        } else {
                            cx.index_out_of_range(dispatch, id, size);
                        }
                    }
                }
            }
        },
    }))
}
