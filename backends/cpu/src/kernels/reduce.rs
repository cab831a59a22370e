//! Kernels of reductions over any axes.

use meganeura_core::DType;

use super::strided::{Nest, row_major};
use crate::kernel::{
    CHUNK, CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, f32_only, f32_or_integers, stream_nanos,
};
use crate::memory::View;
use crate::vmath::{self, Level};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.sum",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => float(cx, Fold::Sum(1.0)),
            _ => integers(cx, 0, u32::wrapping_add),
        },
    },
    KernelDef {
        name: "core.max_reduce",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => float(cx, Fold::Max),
            DType::U32 => integers(cx, 0, u32::max),
            _ => integers(cx, i32::MIN as u32, |a, b| (a as i32).max(b as i32) as u32),
        },
    },
    KernelDef {
        name: "core.min_reduce",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => float(cx, Fold::Min),
            DType::U32 => integers(cx, u32::MAX, u32::min),
            _ => integers(cx, i32::MAX as u32, |a, b| (a as i32).min(b as i32) as u32),
        },
    },
    KernelDef {
        name: "core.prod",
        supports: f32_or_integers,
        compile: |cx| match cx.output_type(0).dtype {
            DType::F32 => float(cx, Fold::Product),
            _ => integers(cx, 1, u32::wrapping_mul),
        },
    },
    KernelDef {
        name: "core.mean",
        supports: f32_only,
        compile: |cx| {
            let count = cx.input_type(0).numel() / cx.output_type(0).numel().max(1);
            float(cx, Fold::Sum(1.0 / count.max(1) as f32))
        },
    },
];

/// The function of a reduction. A sum is multiplied by a factor, so that it can be a mean.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fold {
    Sum(f32),
    Product,
    Max,
    Min,
}

impl Fold {
    pub(super) fn start(self) -> f32 {
        match self {
            Fold::Sum(_) => 0.0,
            Fold::Product => 1.0,
            Fold::Max => f32::NEG_INFINITY,
            Fold::Min => f32::INFINITY,
        }
    }

    pub(super) fn slice(self, level: Level, x: &[f32]) -> f32 {
        match self {
            Fold::Sum(_) => vmath::sum(level, x),
            Fold::Product => vmath::product(level, x),
            Fold::Max => vmath::max(level, x),
            Fold::Min => vmath::min(level, x),
        }
    }

    /// Applies [`Fold::slice`] to each row of `x`. `out` has an element for each row.
    pub(super) fn each_row(self, level: Level, x: &[f32], width: usize, out: &mut [f32]) {
        match self {
            Fold::Sum(_) => vmath::row_sums(level, x, width, out),
            _ => {
                for (out, row) in out.iter_mut().zip(x.chunks_exact(width)) {
                    *out = self.slice(level, row);
                }
            }
        }
    }

    fn pair(self, a: f32, b: f32) -> f32 {
        match self {
            Fold::Sum(_) => a + b,
            Fold::Product => a * b,
            Fold::Max if a.is_nan() || a > b => a,
            Fold::Min if a.is_nan() || a < b => a,
            Fold::Max | Fold::Min => b,
        }
    }

    pub(super) fn rows(self, level: Level, acc: &mut [f32], x: &[f32]) {
        match self {
            Fold::Sum(_) => vmath::add_assign(level, acc, x),
            Fold::Product => vmath::mul_assign(level, acc, x),
            Fold::Max => vmath::max_assign(level, acc, x),
            Fold::Min => vmath::min_assign(level, acc, x),
        }
    }

    pub(super) fn finish(self, out: &mut [f32]) {
        if let Fold::Sum(factor) = self
            && factor != 1.0
        {
            out.iter_mut().for_each(|v| *v *= factor);
        }
    }
}

/// Loops over an operand: over the axes that remain, and over the axes that are reduced.
struct Axes {
    kept: Nest<1>,
    reduced: Nest<1>,
}

fn axes(cx: &CompileCx) -> Result<Axes, String> {
    let shape = &cx.input_type(0).shape;
    let reduced = shape.axes(cx.attrs().ints("axes")?)?;
    let strides = row_major(shape);
    let part = |keep: bool| {
        let chosen: Vec<usize> = (0..shape.rank()).filter(|a| reduced.contains(a) != keep).collect();
        let dims: Vec<usize> = chosen.iter().map(|&a| shape[a]).collect();
        let strides = chosen.iter().map(|&a| strides[a]).collect();
        Nest::collapsed(&dims, [strides])
    };
    Ok(Axes {
        kept: part(true),
        reduced: part(false),
    })
}

fn float(cx: &CompileCx, fold: Fold) -> Result<Compiled, String> {
    let (x, out) = (cx.input::<f32>(0), cx.output::<f32>(0));
    let axes = axes(cx)?;
    let level = cx.level;
    if x.len() == 0 {
        return Ok(of_nothing(out, fold.start()));
    }
    if axes.reduced.inner_stride(0) == 1 || axes.reduced.inner() == 1 {
        if axes.kept.rows() * axes.kept.inner() == 1 && axes.reduced.dims.len() == 1 && x.len() > 2 * CHUNK {
            return Ok(whole(x, out, fold, level));
        }
        return Ok(contiguous(x, out, axes, fold, level));
    }
    Ok(columns(x, out, axes, fold, level))
}

/// Compiles a reduction over no elements, which fills the result with `start`.
fn of_nothing<T: Copy + Send + Sync + 'static>(out: View<T>, start: T) -> Compiled {
    Compiled::one(Task {
        tasks: usize::from(out.len() > 0),
        nanos: out.len() as u64,
        // SAFETY: this is the only task.
        body: move |_, _: &RunCx| unsafe { out.slice_mut(0..out.len()) }.fill(start),
    })
}

/// Compiles a reduction of the whole tensor to one number. It reduces chunks, then the results of the chunks in
/// order.
fn whole(x: View<f32>, out: View<f32>, fold: Fold, level: Level) -> Compiled {
    let parts = x.len().div_ceil(CHUNK);
    let first = Task {
        tasks: parts,
        nanos: stream_nanos(4 * x.len()),
        body: move |task: usize, cx: &RunCx| {
            let range = crate::kernel::chunk(x.len(), task);
            // SAFETY: no task writes the operand, and only this task uses slot `task` of the shared scratch.
            unsafe { *cx.shared.add(task) = fold.slice(level, x.slice(range)) };
        },
    };
    Compiled {
        phases: vec![Box::new(first), join_adjacent(out, parts, fold, level)],
        shared: parts,
        private: 0,
    }
}

/// Creates a phase that folds groups of `parts` adjacent elements of the shared scratch to one result each.
pub(super) fn join_adjacent(out: View<f32>, parts: usize, fold: Fold, level: Level) -> Box<dyn Kernel> {
    join(out, parts, move |scratch, out| {
        for (o, parts) in out.iter_mut().zip(scratch.chunks_exact(parts)) {
            *o = fold.slice(level, parts);
        }
        fold.finish(out);
    })
}

/// Creates a phase that folds `parts` rows of the shared scratch onto each other. Each row is as long as the result.
pub(super) fn join_rows(out: View<f32>, parts: usize, fold: Fold, level: Level) -> Box<dyn Kernel> {
    join(out, parts, move |scratch, out| {
        let (first, rest) = scratch.split_at(out.len());
        out.copy_from_slice(first);
        for part in rest.chunks_exact(out.len().max(1)) {
            fold.rows(level, out, part);
        }
        fold.finish(out);
    })
}

/// Creates a phase of one task that calls `fold` on the shared scratch, which has `parts` elements for each result.
fn join(out: View<f32>, parts: usize, fold: impl Fn(&[f32], &mut [f32]) + Send + Sync + 'static) -> Box<dyn Kernel> {
    let len = parts * out.len();
    Box::new(Task {
        tasks: 1,
        nanos: stream_nanos(4 * len),
        body: move |_, cx: &RunCx| {
            // SAFETY: the previous phases have filled the scratch, and this is the only task of its phase.
            let (scratch, out) = unsafe { (std::slice::from_raw_parts(cx.shared, len), out.slice_mut(0..out.len())) };
            fold(scratch, out);
        },
    })
}

/// Compiles a reduction of contiguous elements, one result at a time.
fn contiguous(x: View<f32>, out: View<f32>, axes: Axes, fold: Fold, level: Level) -> Compiled {
    let per_result = axes.reduced.inner() * axes.reduced.rows();
    let per_task = crate::kernel::rows_per_task(per_result);
    let (kept_inner, run) = (axes.kept.inner(), axes.reduced.inner());
    Compiled::one(Task {
        tasks: out.len().div_ceil(per_task),
        nanos: stream_nanos(4 * x.len()) + 4 * out.len() as u64,
        body: move |task: usize, _: &RunCx| {
            let range = task * per_task..(task * per_task + per_task).min(out.len());
            // SAFETY: only this task writes these results, and the operand is in another buffer.
            let (x, out) = unsafe { (x.all(), out.slice_mut(range.clone())) };
            let stride = axes.kept.inner_stride(0);
            if axes.reduced.rows() == 1 && axes.kept.rows() == 1 && stride == run as isize {
                fold.each_row(level, &x[range.start * run..range.end * run], run, out);
                return fold.finish(out);
            }
            axes.kept.for_rows(
                range.start / kept_inner..range.end.div_ceil(kept_inner),
                |row, [offset]| {
                    // The task's part of the row. Other tasks compute the rest.
                    let first = range.start.max(row * kept_inner);
                    let last = range.end.min((row + 1) * kept_inner);
                    for position in first..last {
                        let column = position - row * kept_inner;
                        let base = offset + column as isize * stride;
                        let mut acc: Option<f32> = None;
                        axes.reduced.for_rows(0..axes.reduced.rows(), |_, [start]| {
                            let start = (base + start) as usize;
                            let value = fold.slice(level, &x[start..start + run]);
                            acc = Some(acc.map_or(value, |a| fold.pair(a, value)));
                        });
                        out[position - range.start] = acc.unwrap_or(fold.start());
                    }
                },
            );
            fold.finish(out);
        },
    })
}

/// Number of columns of one task. Its accumulators stay in the first-level cache.
const COLUMNS: usize = 1024;
/// Number of rows that one task of a tall, narrow reduction folds. The partial results are folded afterwards.
const TALL: usize = 2048;

/// Compiles a reduction that folds rows onto each other, if the result's innermost axis is contiguous in the operand.
fn columns(x: View<f32>, out: View<f32>, axes: Axes, fold: Fold, level: Level) -> Compiled {
    let (inner, outer) = (axes.kept.inner(), axes.kept.rows());
    let reduced = axes.reduced.rows() * axes.reduced.inner();
    let strips = inner.div_ceil(COLUMNS);
    // A reduction of many rows to few results is cut into parts of the rows, so that threads can share it.
    let parts = if outer * strips < 4 {
        reduced.div_ceil(TALL).clamp(1, 16)
    } else {
        1
    };
    let part_len = reduced.div_ceil(parts);
    let rows = Nest {
        dims: [&axes.reduced.dims[..], &[1]].concat(),
        strides: [[&axes.reduced.strides[0][..], &[0]].concat()],
    };
    let total = out.len();
    let first = Task {
        tasks: outer * strips * parts,
        nanos: stream_nanos(4 * x.len()) + 8 * (outer * strips * reduced) as u64,
        body: move |task: usize, cx: &RunCx| {
            let (part, rest) = (task % parts, task / parts);
            let (strip, row) = (rest % strips, rest / strips);
            let start = strip * COLUMNS;
            let len = COLUMNS.min(inner - start);
            // SAFETY: only this task writes this strip of the result, or of its part of the scratch.
            let acc = unsafe {
                if parts == 1 {
                    out.slice_mut(row * inner + start..row * inner + start + len)
                } else {
                    std::slice::from_raw_parts_mut(cx.shared.add(part * total + row * inner + start), len)
                }
            };
            acc.fill(fold.start());
            // SAFETY: this dispatch does not write the operand.
            let x = unsafe { x.all() };
            axes.kept.for_rows(row..row + 1, |_, [base]| {
                let own = part * part_len..((part + 1) * part_len).min(reduced);
                rows.for_rows(own, |_, [offset]| {
                    let from = (base + offset) as usize + start;
                    fold.rows(level, acc, &x[from..from + len]);
                });
            });
            if parts == 1 {
                fold.finish(acc);
            }
        },
    };
    if parts == 1 {
        return Compiled::one(first);
    }
    Compiled {
        phases: vec![Box::new(first), join_rows(out, parts, fold, level)],
        shared: parts * total,
        private: 0,
    }
}

/// Compiles a reduction of integers with simple loops, because such reductions are rare and small.
fn integers(cx: &CompileCx, start: u32, fold: fn(u32, u32) -> u32) -> Result<Compiled, String> {
    let (x, out) = (cx.input::<u32>(0), cx.output::<u32>(0));
    let axes = axes(cx)?;
    if x.len() == 0 {
        return Ok(of_nothing(out, start));
    }
    Ok(Compiled::one(Task {
        tasks: 1,
        nanos: 2 * x.len() as u64,
        body: move |_, _: &RunCx| {
            // SAFETY: this is the only task, and the operand is in another buffer.
            let (x, out) = unsafe { (x.all(), out.slice_mut(0..out.len())) };
            let (kept, reduced) = (axes.kept.inner(), axes.reduced.inner());
            axes.kept.for_rows(0..axes.kept.rows(), |row, [outer]| {
                for column in 0..kept {
                    let base = outer + column as isize * axes.kept.inner_stride(0);
                    let mut acc = start;
                    axes.reduced.for_rows(0..axes.reduced.rows(), |_, [offset]| {
                        for i in 0..reduced {
                            let at = base + offset + i as isize * axes.reduced.inner_stride(0);
                            acc = fold(acc, x[at as usize]);
                        }
                    });
                    out[row * kept + column] = acc;
                }
            });
        },
    }))
}
