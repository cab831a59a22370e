//! Kernels of `take_along_axis` and `put_along_axis`, which have a separate index for each element.

use std::ops::Range;

use meganeura_core::DType;

use super::index::around_axis;
use crate::kernel::{
    CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, any_dtype, f32_or_integers, rows_per_task, stream_nanos,
};
use crate::memory::View;

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

/// Sizes of a call: elements before the axis (`outer`), along it, and after it (`inner`).
#[derive(Clone, Copy)]
struct Dims {
    outer: usize,
    /// Number of elements of the indices along the axis.
    count: usize,
    /// Number of elements of the indexed tensor along the axis.
    size: usize,
    inner: usize,
}

impl Dims {
    /// Returns the number of columns of a task. The task's indexed elements stay in the second-level cache, and its
    /// columns fill at least a cache line.
    fn columns(self) -> usize {
        const LINE: usize = 16;
        (2 * CHUNK / self.size.max(1)).clamp(LINE, 16 * LINE).min(self.inner)
    }

    /// Divides the work into tasks: each has some whole outer indices, or some columns of one outer index.
    fn strips(self) -> Strips {
        let columns = self.columns();
        let per_part = self.inner.div_ceil(columns.max(1));
        let items = self.outer * per_part;
        let per_task = rows_per_task((self.size + self.count) * columns);
        Strips {
            dims: self,
            columns,
            per_part,
            items,
            per_task,
        }
    }
}

#[derive(Clone, Copy)]
struct Strips {
    dims: Dims,
    columns: usize,
    per_part: usize,
    items: usize,
    per_task: usize,
}

impl Strips {
    fn tasks(self) -> usize {
        self.items.div_ceil(self.per_task)
    }

    /// Calls `visit(outer, columns)` for each outer index of a task. `columns` are the columns to process.
    fn for_each(self, task: usize, mut visit: impl FnMut(usize, Range<usize>)) {
        for item in task * self.per_task..((task + 1) * self.per_task).min(self.items) {
            let start = item % self.per_part * self.columns;
            visit(item / self.per_part, start..(start + self.columns).min(self.dims.inner));
        }
    }
}

/// Compiles a gather of elements by index. Elements are copied as words. The dtype only determines `missing`, the
/// value for invalid indices.
fn take<T: Copy + Send + Sync + 'static>(cx: &CompileCx, missing: T) -> Result<Compiled, String> {
    let (x, indices, out) = (cx.input::<T>(0), cx.input::<u32>(1), cx.output::<T>(0));
    let axis = cx.attrs().int("axis")?;
    let [outer, size, inner] = around_axis(&cx.input_type(0).shape, axis)?;
    let [_, count, _] = around_axis(&cx.input_type(1).shape, axis)?;
    let dims = Dims {
        outer,
        count,
        size,
        inner,
    };
    let (strips, dispatch) = (dims.strips(), cx.index);
    Ok(Compiled::one(Task {
        tasks: strips.tasks(),
        nanos: stream_nanos((x.len() + 2 * out.len()) * size_of::<T>()) + out.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            strips.for_each(task, |outer, columns| {
                // SAFETY: this dispatch does not write the operand.
                let x = unsafe { x.slice(outer * size * inner..(outer + 1) * size * inner) };
                // With one column, the rows are contiguous and form one slice.
                let (rows, step) = if inner == 1 { (1, count) } else { (count, columns.len()) };
                for i in 0..rows {
                    let start = (outer * count + i) * inner + columns.start;
                    // SAFETY: only this task writes these columns, and the indices are in another buffer.
                    let (ids, out) =
                        unsafe { (indices.slice(start..start + step), out.slice_mut(start..start + step)) };
                    for ((slot, &id), j) in out.iter_mut().zip(ids).zip(columns.start..) {
                        let column = if inner == 1 { 0 } else { j };
                        *slot = if (id as usize) < size {
                            x[id as usize * inner + column]
                        } else {
                            cx.index_out_of_range(dispatch, id, size);
                            missing
                        };
                    }
                }
            });
        },
    }))
}

/// Compiles a put along an axis. `add` combines elements that have the same index. Each task writes whole columns of
/// the result and processes the indices in order.
fn put<T: Copy + Default + Send + Sync + 'static>(
    cx: &CompileCx,
    add: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Result<Compiled, String> {
    let (indices, updates, out) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let axis = cx.attrs().int("axis")?;
    let [outer, count, inner] = around_axis(&cx.input_type(0).shape, axis)?;
    let [_, size, _] = around_axis(&cx.output_type(0).shape, axis)?;
    let dims = Dims {
        outer,
        count,
        size,
        inner,
    };
    let (strips, dispatch) = (dims.strips(), cx.index);
    Ok(Compiled::one(Task {
        tasks: strips.tasks(),
        nanos: stream_nanos(2 * (updates.len() + out.len()) * size_of::<T>()) + updates.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            strips.for_each(task, |outer, columns| {
                // With one column, the rows are contiguous and form one slice.
                let (rows, step) = if inner == 1 { (1, count) } else { (count, columns.len()) };
                let (out_rows, out_step) = if inner == 1 { (1, size) } else { (size, columns.len()) };
                for r in 0..out_rows {
                    let start = (outer * size + r) * inner + columns.start;
                    // SAFETY: only this task accesses these columns of this part of the result.
                    unsafe { out.slice_mut(start..start + out_step) }.fill(T::default());
                }
                let part = View::new(out.as_ptr().wrapping_add(outer * size * inner).cast(), size * inner);
                for i in 0..rows {
                    let start = (outer * count + i) * inner + columns.start;
                    // SAFETY: the operands are in other buffers than the result.
                    let (ids, updates) =
                        unsafe { (indices.slice(start..start + step), updates.slice(start..start + step)) };
                    for ((&id, &update), j) in ids.iter().zip(updates).zip(columns.start..) {
                        if id as usize >= size {
                            cx.index_out_of_range(dispatch, id, size);
                            continue;
                        }
                        let at = id as usize * inner + if inner == 1 { 0 } else { j };
                        // SAFETY: as above.
                        let slot: &mut [T] = unsafe { part.slice_mut(at..at + 1) };
                        slot[0] = add(slot[0], update);
                    }
                }
            });
        },
    }))
}
