//! Kernels of softmax, log-softmax and cross-entropy.

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, f32_or_integers, rows_per_task};
use crate::memory::View;
use crate::vmath::{self, Level, Unary};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.softmax",
        supports: f32_only,
        compile: |cx| along_axis(cx, SoftmaxKind::Plain),
    },
    KernelDef {
        name: "core.log_softmax",
        supports: f32_only,
        compile: |cx| along_axis(cx, SoftmaxKind::Log),
    },
    KernelDef {
        name: "core.cross_entropy",
        supports: f32_only,
        compile: |cx| cross_entropy(cx, Labels::Probabilities(cx.input(1))),
    },
    KernelDef {
        name: "core.cross_entropy_ids",
        supports: f32_or_integers,
        compile: |cx| {
            let (ids, dispatch) = (cx.input(1), cx.index);
            cross_entropy(cx, Labels::Ids { ids, dispatch })
        },
    },
    KernelDef {
        name: "core.cross_entropy_grad",
        supports: f32_only,
        compile: |cx| cross_entropy_grad(cx, Labels::Probabilities(cx.input(1))),
    },
    KernelDef {
        name: "core.cross_entropy_ids_grad",
        supports: f32_or_integers,
        compile: |cx| {
            let (ids, dispatch) = (cx.input(1), cx.index);
            cross_entropy_grad(cx, Labels::Ids { ids, dispatch })
        },
    },
];

/// The function that is computed along the axis.
#[derive(Clone, Copy, PartialEq)]
enum SoftmaxKind {
    Plain,
    Log,
}

/// Number of columns of a block, if the axis is not the last. The maxima and sums of the columns stay on the stack.
const COLUMNS: usize = 256;

/// Returns the estimated time for this number of elements, in nanoseconds: an exponential and three passes.
fn nanos(elements: usize) -> u64 {
    elements as u64
}

fn along_axis(cx: &CompileCx, form: SoftmaxKind) -> Result<Compiled, String> {
    let (x, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let shape = &cx.input_type(0).shape;
    let axis = shape.axis(cx.attrs().int("axis")?)?;
    let len = shape[axis];
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    if inner > 1 {
        return Ok(columns(x, out, [outer, len, inner], form, level));
    }
    let per_task = rows_per_task(len);
    Ok(Compiled::one(Task {
        tasks: x.len().div_ceil(per_task * len),
        nanos: nanos(x.len()),
        body: move |task: usize, _: &RunCx| {
            let rows = task * per_task * len..((task + 1) * per_task * len).min(x.len());
            // SAFETY: only this task writes these rows, and the operand is in another buffer.
            let (x, out) = unsafe { (x.slice(rows.clone()), out.slice_mut(rows)) };
            for (x, out) in x.chunks_exact(len).zip(out.chunks_exact_mut(len)) {
                match form {
                    SoftmaxKind::Plain => vmath::softmax_row(level, x, out),
                    SoftmaxKind::Log => vmath::log_softmax_row(level, x, out),
                }
            }
        },
    }))
}

/// Compiles a softmax along an axis that is not the last: `[outer, len, inner]`, by blocks of
/// columns.
fn columns(x: View<f32>, out: View<f32>, [outer, len, inner]: [usize; 3], form: SoftmaxKind, level: Level) -> Compiled {
    let blocks = inner.div_ceil(COLUMNS);
    let items = outer * blocks;
    let per_task = rows_per_task(len * inner.min(COLUMNS));
    Compiled::one(Task {
        tasks: items.div_ceil(per_task),
        nanos: nanos(x.len()),
        body: move |task: usize, _: &RunCx| {
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let start = item % blocks * COLUMNS;
                let block = Block {
                    x,
                    out,
                    base: item / blocks * len * inner + start,
                    width: COLUMNS.min(inner - start),
                    len,
                    stride: inner,
                };
                // SAFETY: blocks are disjoint, and only this task has this block.
                unsafe { block.run(form, level) };
            }
        },
    })
}

/// A range of neighbouring columns along the whole axis.
struct Block {
    x: View<f32>,
    out: View<f32>,
    /// Index of the first element.
    base: usize,
    width: usize,
    len: usize,
    /// Distance between consecutive elements along the axis.
    stride: usize,
}

impl Block {
    /// Computes the results of the block.
    ///
    /// # Safety
    /// No other code may access this block of the result or write to the operand meanwhile.
    unsafe fn run(&self, form: SoftmaxKind, level: Level) {
        let (mut max, mut sum) = ([f32::NEG_INFINITY; COLUMNS], [0.0; COLUMNS]);
        let (max, sum) = (&mut max[..self.width], &mut sum[..self.width]);
        let rows = || {
            (0..self.len).map(|i| {
                let at = self.base + i * self.stride;
                let row = at..at + self.width;
                // SAFETY: the row is within the block, by the caller's contract. Only one row is borrowed at a time.
                unsafe { (self.x.slice(row.clone()), self.out.slice_mut(row)) }
            })
        };
        for (x, _) in rows() {
            vmath::greatest_assign(level, max, x);
        }
        for (x, out) in rows() {
            vmath::exp_columns(level, x, max, sum, out);
        }
        match form {
            SoftmaxKind::Plain => {
                vmath::unary_in_place(Unary::Reciprocal, level, sum);
                for (_, out) in rows() {
                    out.iter_mut().zip(&*sum).for_each(|(o, &s)| *o *= s);
                }
            }
            SoftmaxKind::Log => {
                vmath::unary_in_place(Unary::Log, level, sum);
                for (x, out) in rows() {
                    for (((o, &x), &m), &log) in out.iter_mut().zip(x).zip(&*max).zip(&*sum) {
                        *o = (x - m) - log;
                    }
                }
            }
        }
    }
}

/// The targets of a cross-entropy.
#[derive(Clone, Copy)]
enum Labels {
    /// One probability for each logit.
    Probabilities(View<f32>),
    /// One class index for each row. `dispatch` is the dispatch that an error report names for an invalid index.
    Ids { ids: View<u32>, dispatch: usize },
}

/// Compiles a cross-entropy. The first phase writes the losses of the rows to shared scratch. The second phase
/// computes their mean in a fixed order.
fn cross_entropy(cx: &CompileCx, labels: Labels) -> Result<Compiled, String> {
    let (x, loss, lse, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.output::<f32>(1), cx.level);
    let rows = lse.len();
    let classes = x.len() / rows.max(1);
    let per_task = rows_per_task(classes);
    let each = Task {
        tasks: rows.div_ceil(per_task),
        nanos: nanos(x.len()),
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            // SAFETY: only this task writes these rows of the scratch and of the result.
            let (losses, lse) = unsafe {
                (
                    std::slice::from_raw_parts_mut(cx.shared.add(own.start), own.len()),
                    lse.slice_mut(own.clone()),
                )
            };
            for ((row, loss), lse) in own.zip(losses).zip(lse) {
                // SAFETY: this dispatch does not write any operand.
                let x = unsafe { x.slice(row * classes..(row + 1) * classes) };
                let [max, log] = vmath::log_sum_exp(level, x);
                *lse = max + log;
                *loss = row_loss(level, labels, row, x, [max, log], cx);
            }
        },
    };
    let mean = Task {
        tasks: 1,
        nanos: rows as u64 / 4,
        body: move |_, cx: &RunCx| {
            // SAFETY: the first phase has filled the scratch, and this is the only task of its phase.
            let (losses, loss) = unsafe { (std::slice::from_raw_parts(cx.shared, rows), loss.slice_mut(0..1)) };
            loss[0] = vmath::sum(level, losses) / rows as f32;
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(each), Box::new(mean)],
        shared: rows,
        private: 0,
    })
}

fn row_loss(level: Level, labels: Labels, row: usize, x: &[f32], [max, log]: [f32; 2], cx: &RunCx) -> f32 {
    match labels {
        Labels::Probabilities(labels) => {
            let start = row * x.len();
            // SAFETY: this dispatch does not write any operand.
            let labels = unsafe { labels.slice(start..start + x.len()) };
            vmath::weighted_loss(level, labels, x, [max, log])
        }
        Labels::Ids { ids, dispatch } => {
            // SAFETY: as above.
            let id = unsafe { ids.slice(row..row + 1)[0] };
            match x.get(id as usize) {
                Some(&x) => log - (x - max),
                None => {
                    cx.index_out_of_range(dispatch, id, x.len());
                    f32::NAN
                }
            }
        }
    }
}

/// Compiles the gradient of a cross-entropy. For every element, it is `(e^(x - lse) total - label) dloss / rows`,
/// where `total` is the sum of the labels of the row.
fn cross_entropy_grad(cx: &CompileCx, labels: Labels) -> Result<Compiled, String> {
    let (x, lse, dloss) = (cx.input::<f32>(0), cx.input::<f32>(2), cx.input::<f32>(3));
    let (out, level) = (cx.output::<f32>(0), cx.level);
    let rows = lse.len();
    let classes = x.len() / rows.max(1);
    let per_task = rows_per_task(classes);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: nanos(x.len()),
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            let elements = own.start * classes..own.end * classes;
            // SAFETY: only this task writes these rows of the result, and this dispatch does not write any operand.
            let (x, lse, dloss, out) = unsafe {
                (
                    x.slice(elements.clone()),
                    lse.slice(own.clone()),
                    dloss.slice(0..1)[0],
                    out.slice_mut(elements),
                )
            };
            let scale = dloss / rows as f32;
            let each = x.chunks_exact(classes).zip(out.chunks_exact_mut(classes)).zip(lse);
            for (((x, out), &lse), row) in each.zip(own) {
                vmath::sum_exp_sub(level, x, lse, out);
                match labels {
                    Labels::Probabilities(labels) => {
                        // SAFETY: as above.
                        let labels = unsafe { labels.slice(row * classes..(row + 1) * classes) };
                        let total = vmath::sum(level, labels);
                        for (o, &l) in out.iter_mut().zip(labels) {
                            *o = (*o * total - l) * scale;
                        }
                    }
                    Labels::Ids { ids, dispatch } => {
                        // SAFETY: as above.
                        let id = unsafe { ids.slice(row..row + 1)[0] };
                        out.iter_mut().for_each(|o| *o *= scale);
                        match out.get_mut(id as usize) {
                            Some(o) => *o -= scale,
                            None => cx.index_out_of_range(dispatch, id, classes),
                        }
                    }
                }
            }
        },
    }))
}
