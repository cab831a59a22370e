//! Fused programs that end with a reduction. It folds the elementwise result without storing it.

use meganeura_core::DType;
use meganeura_core::program::Slot;

use super::FOLD_TASK;
use super::engine::{Engine, RUN};
use super::lower::{LoweredProgram, Part, TypedProgram, lower};
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::kernels::reduce::{Fold, join_adjacent, join_rows};
use crate::memory::View;
use crate::vmath::Level;

/// The reduced axes: the last ones or the first ones.
#[derive(Clone, Copy, Debug)]
enum Axes {
    /// The last axes: `kept` results, each folded from `folded` adjacent elements.
    Last,
    /// The first axes: `folded` rows of `kept` elements each are folded to one row.
    First,
}

/// The execution plan of a program that ends with a reduction.
pub(super) struct Plan {
    lowered: LoweredProgram,
    fold: Fold,
    axes: Axes,
    kept: usize,
    folded: usize,
    /// Index of the folded result.
    result: usize,
}

/// Plans a program in which step `step` is the reduction.
pub(super) fn plan(typed: &TypedProgram, step: usize) -> Result<Plan, String> {
    let steps = typed.program.steps();
    let (call, slot) = (&steps[step], Slot::Step(step as u32));
    if steps.iter().any(|s| s.inputs.contains(&slot)) {
        return Err("calls after a reduction need a separate kernel".into());
    }
    let result = typed.program.results().iter().position(|&r| r == slot);
    let from = typed.ty(call.inputs[0]);
    if from.dtype != DType::F32 {
        return Err(format!("the CPU kernel does not fold {}", from.dtype));
    }
    let axes = from.shape.axes(call.attrs.ints("axes")?)?;
    let size = |folds: bool| -> usize {
        let chosen = (0..from.shape.rank()).filter(|a| axes.contains(a) == folds);
        chosen.map(|a| from.shape[a]).product()
    };
    let (kept, folded) = (size(false), size(true));
    let fold = match call.op.name() {
        "core.sum" => Fold::Sum(1.0),
        "core.mean" => Fold::Sum(1.0 / folded as f32),
        "core.max_reduce" => Fold::Max,
        "core.min_reduce" => Fold::Min,
        name => return Err(format!("the CPU backend has no fused {name}")),
    };
    // Axes of size 1 may be at any position.
    let flags: Vec<bool> = (0..from.shape.rank())
        .filter(|&a| from.shape[a] != 1)
        .map(|a| axes.contains(&a))
        .collect();
    let axes = if flags.is_sorted() {
        Axes::Last
    } else if flags.is_sorted_by(|a, b| a >= b) && kept <= RUN {
        Axes::First
    } else {
        return Err("the CPU kernel folds the first or the last axes".into());
    };
    let part = Part {
        results: typed.results(|r| r != slot),
        folded: Some(call.inputs[0]),
        ..Part::default()
    };
    let lowered = lower(typed, &part)?;
    match result {
        Some(result) => Ok(Plan {
            lowered,
            fold,
            axes,
            kept,
            folded,
            result,
        }),
        None => Err("the result of its reduction is not used".into()),
    }
}

pub(super) fn compile(cx: &CompileCx, typed: &TypedProgram, step: usize) -> Result<Compiled, String> {
    let plan = plan(typed, step)?;
    let work = Work {
        out: cx.output::<f32>(plan.result),
        engine: Engine::new(cx, plan.lowered, None)?,
        level: cx.level,
        fold: plan.fold,
        kept: plan.kept,
        folded: plan.folded,
    };
    Ok(match plan.axes {
        Axes::Last => last(work),
        Axes::First => first(work),
    })
}

struct Work {
    engine: Engine,
    out: View<f32>,
    level: Level,
    fold: Fold,
    kept: usize,
    folded: usize,
}

impl Work {
    fn nanos(&self) -> u64 {
        stream_nanos(self.engine.bytes).max(self.engine.nanos) + self.engine.len as u64 / 16
    }
}

/// Maximum number of parts of the elements of one result. Each part is folded separately first.
const MAX_PARTS: usize = 16;

/// Compiles folds of adjacent elements. Long rows are cut into parts, whose results are folded afterwards.
fn last(work: Work) -> Compiled {
    let (kept, folded) = (work.kept, work.folded);
    let parts = folded.div_ceil(FOLD_TASK).min(MAX_PARTS);
    let part_len = folded.div_ceil(parts);
    let rows = (FOLD_TASK / folded).max(1);
    let private = work.engine.scratch();
    let (fold, level, out, nanos) = (work.fold, work.level, work.out, work.nanos());
    let main = Task {
        tasks: kept.div_ceil(rows) * parts,
        nanos,
        body: move |task: usize, cx: &RunCx| {
            let (group, part) = (task / parts, task % parts);
            let range = group * rows..(group * rows + rows).min(kept);
            // SAFETY: only this task computes these results, or these parts of them.
            let slots = unsafe {
                match parts {
                    1 => out.slice_mut(range.clone()),
                    _ => std::slice::from_raw_parts_mut(cx.shared.add(range.start * parts + part), 1),
                }
            };
            let within = part * part_len..((part + 1) * part_len).min(folded);
            if within.len() <= RUN && parts == 1 {
                // A run contains several rows.
                let together = RUN / folded;
                for start in range.clone().step_by(together) {
                    let end = (start + together).min(range.end);
                    // SAFETY: the elements belong to this task only.
                    let values = unsafe { work.engine.run(start * folded..end * folded, cx.private) };
                    let slots = &mut slots[start - range.start..end - range.start];
                    fold.each_row(level, values.unwrap_or_default(), folded, slots);
                }
            } else {
                for (slot, row) in slots.iter_mut().zip(range) {
                    let (from, to) = (row * folded + within.start, row * folded + within.end);
                    let mut acc = [fold.start()];
                    for start in (from..to).step_by(RUN) {
                        // SAFETY: the elements belong to this task only.
                        let values = unsafe { work.engine.run(start..(start + RUN).min(to), cx.private) };
                        fold.rows(level, &mut acc, &[fold.slice(level, values.unwrap_or_default())]);
                    }
                    *slot = acc[0];
                }
            }
            if parts == 1 {
                fold.finish(slots);
            }
        },
    };
    let mut phases: Vec<Box<dyn Kernel>> = vec![Box::new(main)];
    if parts > 1 {
        phases.push(join_adjacent(out, parts, fold, level));
    }
    Compiled {
        phases,
        shared: if parts > 1 { kept * parts } else { 0 },
        private,
    }
}

/// Compiles folds of rows onto each other. Parts of the rows are folded separately first.
fn first(work: Work) -> Compiled {
    let (kept, folded) = (work.kept, work.folded);
    let parts = (kept * folded).div_ceil(FOLD_TASK).min(MAX_PARTS);
    let part_len = folded.div_ceil(parts);
    // Empty parts would fold no elements.
    let parts = folded.div_ceil(part_len);
    let private = work.engine.scratch();
    let (fold, level, out, nanos) = (work.fold, work.level, work.out, work.nanos());
    let main = Task {
        tasks: parts,
        nanos,
        body: move |part: usize, cx: &RunCx| {
            // SAFETY: only this task writes its part of the scratch.
            let acc = unsafe { std::slice::from_raw_parts_mut(cx.shared.add(part * kept), kept) };
            acc.fill(fold.start());
            let rows = part * part_len..((part + 1) * part_len).min(folded);
            let together = RUN / kept;
            for start in rows.clone().step_by(together) {
                let end = (start + together).min(rows.end);
                // SAFETY: the elements belong to this task only.
                let values = unsafe { work.engine.run(start * kept..end * kept, cx.private) };
                for row in values.unwrap_or_default().chunks_exact(kept) {
                    fold.rows(level, acc, row);
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(main), join_rows(out, parts, fold, level)],
        shared: kept * parts,
        private,
    }
}
