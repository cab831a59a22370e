//! Kernels that access rows by index: gather and scatter-add.

use meganeura_core::ops::Call;
use meganeura_core::{DType, Shape};

use crate::kernel::{
    CHUNK, CompileCx, Compiled, KernelDef, OrderFn, RunCx, Task, any_dtype, f32_or_integers, rows_per_task,
    stream_nanos,
};
use crate::memory::View;
use crate::order::Order;
use crate::vmath;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.gather",
        supports: any_dtype,
        compile: |cx| match cx.output_type(0).dtype.block().bytes {
            2 => gather::<u16>(cx, half::f16::NAN.to_bits()),
            _ => gather::<u32>(cx, f32::NAN.to_bits()),
        },
    },
    KernelDef {
        name: "core.scatter_add",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => {
                let level = cx.level;
                scatter_add::<f32>(cx, move |acc, x| vmath::add_assign(level, acc, x), |a, b| a + b)
            }
            _ => {
                let rows = |acc: &mut [u32], x: &[u32]| {
                    acc.iter_mut().zip(x).for_each(|(a, &x)| *a = a.wrapping_add(x));
                };
                scatter_add::<u32>(cx, rows, u32::wrapping_add)
            }
        },
    },
];

/// Storage orders of a gather. It supports tables in panels of any size, if a unit has one element.
pub(super) const ORDER: (&str, OrderFn) = ("core.gather", |call, i| match (i, around_axis_of(call)) {
    (1, Ok([1, _, width])) if width > 1 => Order::Any {
        unit: call.inputs[1].dtype.block().bytes,
    },
    _ => Order::Plain,
});

fn around_axis_of(call: &Call) -> Result<[usize; 3], String> {
    around_axis(&call.inputs[1].shape, call.attrs.int("axis")?)
}

/// Returns the number of elements before an axis, along it and after it.
pub(super) fn around_axis(shape: &Shape, axis: i64) -> Result<[usize; 3], String> {
    let axis = shape.axis(axis)?;
    let product = |dims: &[usize]| dims.iter().product();
    Ok([product(&shape[..axis]), shape[axis], product(&shape[axis + 1..])])
}

/// Compiles a gather of rows by index. Elements are copied as words. The dtype only determines `missing`, the value
/// of rows with an invalid index.
fn gather<T: Copy + Send + Sync + 'static>(cx: &CompileCx, missing: T) -> Result<Compiled, String> {
    let (indices, table, out) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let [outer, rows, width] = around_axis_of(&cx.call())?;
    let panels = cx.panels(1);
    let (per_task, count) = (rows_per_task(width), indices.len());
    let dispatch = cx.index;
    Ok(Compiled::one(Task {
        tasks: (outer * count).div_ceil(per_task),
        nanos: stream_nanos(2 * out.len() * size_of::<T>()) + (outer * count) as u64,
        body: move |task: usize, cx: &RunCx| {
            let first = task * per_task;
            let last = (first + per_task).min(outer * count);
            // SAFETY: only this task writes these rows, and the operands are in other buffers.
            let (ids, out) = unsafe { (indices.all(), out.slice_mut(first * width..last * width)) };
            if width == 1 && outer == 1 {
                // SAFETY: this dispatch does not write operands.
                let table = unsafe { table.all() };
                for (slot, &id) in out.iter_mut().zip(&ids[first..last]) {
                    *slot = *table.get(id as usize).unwrap_or(&missing);
                    if id as usize >= rows {
                        cx.index_out_of_range(dispatch, id, rows);
                    }
                }
                return;
            }
            let (mut o, mut i) = (first / count, first % count);
            for row in 0..last - first {
                let (id, source) = (ids[i], o);
                let target = &mut out[row * width..(row + 1) * width];
                i += 1;
                if i == count {
                    (o, i) = (o + 1, 0);
                }
                if (id as usize) < rows {
                    let start = (source * rows + id as usize) * width;
                    match panels {
                        // SAFETY: as above; the row exists.
                        None => target.copy_from_slice(unsafe { table.slice(start..start + width) }),
                        Some(panels) => {
                            // SAFETY: as above.
                            let table = unsafe { table.all() };
                            match panels.in_row(start, width) {
                                Some([first, step]) => {
                                    let row = table[first..].iter().step_by(step);
                                    target.iter_mut().zip(row).for_each(|(to, &from)| *to = from);
                                }
                                None => {
                                    let row = (start..).map(|number| table[panels.offset(number)]);
                                    target.iter_mut().zip(row).for_each(|(to, from)| *to = from);
                                }
                            }
                        }
                    }
                } else {
                    cx.index_out_of_range(dispatch, id, rows);
                    target.fill(missing);
                }
            }
        },
    }))
}

/// Compiles an addition of rows by index. Each task computes a range of the result: rows, or columns if there are few
/// rows. It processes all indices in order, so the order of summation is fixed.
fn scatter_add<T: Copy + Default + Send + Sync + 'static>(
    cx: &CompileCx,
    add: impl Fn(&mut [T], &[T]) + Send + Sync + 'static,
    add_one: fn(T, T) -> T,
) -> Result<Compiled, String> {
    let (indices, updates, out) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let [outer, rows, width] = around_axis(&cx.output_type(0).shape, cx.attrs().int("axis")?)?;
    let dispatch = cx.index;
    if out.len() == 0 {
        return Ok(Compiled::one(Task {
            tasks: 1,
            nanos: indices.len() as u64,
            body: move |_, cx: &RunCx| {
                // SAFETY: this dispatch does not write the operand.
                let ids = unsafe { indices.all() };
                if let Some(&id) = ids.iter().find(|&&id| id as usize >= rows) {
                    cx.index_out_of_range(dispatch, id, rows);
                }
            },
        }));
    }
    if outer > 1 {
        return Ok(scatter_add_slices(cx, [outer, rows, width], add));
    }
    // Every task reads all indices, so there should be few tasks.
    const MAX_TASKS: usize = 8;
    let by_columns = width >= 64;
    let extent = if by_columns { width } else { rows };
    let smallest = if by_columns {
        32
    } else {
        (CHUNK / 4 / width.max(1)).max(1)
    };
    let tasks = extent.div_ceil(smallest).clamp(1, MAX_TASKS);
    let step = extent.div_ceil(tasks).max(1);
    Ok(Compiled::one(Task {
        tasks,
        nanos: stream_nanos((updates.len() + 2 * out.len()) * size_of::<T>()) + (indices.len() * tasks) as u64,
        body: move |task: usize, cx: &RunCx| {
            let start = (task * step).min(extent);
            let end = (start + step).min(extent);
            // SAFETY: the operands are in other buffers than the result.
            let ids = unsafe { indices.all() };
            let columns = if by_columns { start..end } else { 0..width };
            let own_rows = if by_columns { 0..rows } else { start..end };
            for row in own_rows.clone() {
                // SAFETY: only this task writes these columns of these rows.
                unsafe { part(out, row, width, &columns) }.fill(T::default());
            }
            if width == 1 {
                // SAFETY: as above.
                let (updates, out) = unsafe { (updates.all(), out.slice_mut(own_rows.clone())) };
                return scalars(ids, updates, out, own_rows.start, add_one, |id| {
                    if task == 0 && id as usize >= rows {
                        cx.index_out_of_range(dispatch, id, rows);
                    }
                });
            }
            for (i, &id) in ids.iter().enumerate() {
                let row = id as usize;
                if row >= rows {
                    if task == 0 {
                        cx.index_out_of_range(dispatch, id, rows);
                    }
                } else if own_rows.contains(&row) {
                    // SAFETY: as above.
                    unsafe {
                        let source = updates.slice(i * width + columns.start..i * width + columns.end);
                        add(part(out, row, width, &columns), source);
                    }
                }
            }
        },
    }))
}

/// Compiles a scatter-add along an inner axis, like [`scatter_add`]. The parts before the axis are independent.
fn scatter_add_slices<T: Copy + Default + Send + Sync + 'static>(
    cx: &CompileCx,
    [outer, rows, width]: [usize; 3],
    add: impl Fn(&mut [T], &[T]) + Send + Sync + 'static,
) -> Compiled {
    let (indices, updates, out) = (cx.input::<u32>(0), cx.input::<T>(1), cx.output::<T>(0));
    let dispatch = cx.index;
    let per_task = rows_per_task(rows * width);
    let size = indices.len() * width;
    Compiled::one(Task {
        tasks: outer.div_ceil(per_task),
        nanos: stream_nanos((updates.len() + 2 * out.len()) * size_of::<T>()) + (outer * indices.len()) as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(outer);
            // SAFETY: only this task writes these parts of the result, and the operands are in other buffers.
            let (ids, updates, out) = unsafe {
                (
                    indices.all(),
                    updates.slice(own.start * size..own.end * size),
                    out.slice_mut(own.start * rows * width..own.end * rows * width),
                )
            };
            out.fill(T::default());
            for (part, out) in out.chunks_exact_mut(rows * width).enumerate() {
                for (i, &id) in ids.iter().enumerate() {
                    match out.get_mut(id as usize * width..(id as usize + 1) * width) {
                        Some(target) => add(target, &updates[part * size + i * width..][..width]),
                        None if task == 0 && part == 0 => cx.index_out_of_range(dispatch, id, rows),
                        None => {}
                    }
                }
            }
        },
    })
}

/// Adds each update to its row, for rows of one element. `out` begins with row `first`. Calls `other` with the
/// indices of rows that are not in `out`.
fn scalars<T: Copy>(ids: &[u32], updates: &[T], out: &mut [T], first: usize, add: fn(T, T) -> T, other: impl Fn(u32)) {
    for (&id, &update) in ids.iter().zip(updates) {
        match out.get_mut((id as usize).wrapping_sub(first)) {
            Some(slot) => *slot = add(*slot, update),
            None => other(id),
        }
    }
}

/// Returns some columns of a row, for writing.
///
/// # Safety
/// As [`View::slice_mut`].
unsafe fn part<'a, T>(out: View<T>, row: usize, width: usize, columns: &std::ops::Range<usize>) -> &'a mut [T] {
    // SAFETY: forwarded.
    unsafe { out.slice_mut(row * width + columns.start..row * width + columns.end) }
}
