//! A norm or softmax, with elementwise steps on what it reads and on what it makes, row by row in the cache.

use meganeura_core::DType;
use meganeura_core::program::Slot;

use super::engine::{Engine, RUN};
use super::lower::{Lowered, Part, Typed, lower, step_of};
use crate::kernel::{CompileCx, Compiled, RunCx, Task, rows_per_task, stream_nanos};
use crate::kernels::norm::{layer_norm_row, rms_norm_row};
use crate::memory::View;
use crate::vmath::{self, Level};

/// Longest row that is computed before it is gone over: it is kept in scratch.
const MAX_LENGTH: usize = 1 << 16;

/// How a program with a norm or softmax in it is run.
pub(super) struct Plan {
    /// What computes operand 0, unless that is an operand of the program.
    before: Option<Lowered>,
    /// What follows, if anything does.
    after: Option<Lowered>,
    /// The result that holds the rows, for good or until what follows overwrites it.
    output: usize,
    width: usize,
}

/// The plan of a program in which step `step` goes over rows.
pub(super) fn plan(typed: &Typed, step: usize) -> Result<Plan, String> {
    let call = &typed.program.steps()[step];
    let width = width(typed, step)?;
    let operands = &call.inputs[1..];
    if operands.iter().any(|slot| !matches!(slot, Slot::Operand(_))) {
        return Err("the parameters of a norm are operands".into());
    }
    let types = typed.inputs_of(step);
    if types.iter().chain(&typed.steps[step]).any(|t| t.dtype != DType::F32) {
        return Err("the CPU kernel normalises f32".into());
    }
    let dependent = typed.dependent(step);
    let [follows, precedes] = [true, false]
        .map(|wanted| typed.results(|r| step_of(r).is_some_and(|at| at != step && dependent[at] == wanted)));
    let before = match call.inputs[0] {
        Slot::Operand(_) if precedes.is_empty() => None,
        Slot::Operand(_) => return Err("it yields values that nothing here reads".into()),
        input => {
            let part = Part {
                results: precedes,
                folded: Some(input),
                ..Part::default()
            };
            if width > MAX_LENGTH {
                return Err(format!("rows of {width} elements are too long for a prologue"));
            }
            Some(lower(typed, &part)?)
        }
    };
    let part = Part {
        results: follows,
        head: Some(step),
        ..Part::default()
    };
    let lowered = lower(typed, &part)?;
    Ok(Plan {
        before,
        output: lowered.output_of(typed, step)?,
        after: (!part.results.is_empty()).then_some(lowered),
        width,
    })
}

/// Elements of a row, which are adjacent.
fn width(typed: &Typed, step: usize) -> Result<usize, String> {
    let call = &typed.program.steps()[step];
    let shape = &typed.ty(call.inputs[0]).shape;
    let axis = match call.op.name() {
        "core.softmax" | "core.log_softmax" => shape.axis(call.attrs.int("axis")?)?,
        "core.layer_norm" | "core.rms_norm" => shape.axis(-1)?,
        name => return Err(format!("the CPU backend has no fused {name}")),
    };
    match shape[axis + 1..].iter().product() {
        1usize => Ok(shape[axis]),
        _ => Err("the CPU kernel goes over rows of adjacent elements".into()),
    }
}

/// What is done with a row.
enum Function {
    Softmax,
    LogSoftmax,
    LayerNorm {
        parameters: [View<f32>; 2],
        /// Means and reciprocal deviations, where somebody needs them.
        statistics: [Option<View<f32>>; 2],
        eps: f32,
    },
    RmsNorm {
        weight: View<f32>,
        rstd: Option<View<f32>>,
        eps: f32,
    },
}

impl Function {
    fn new(cx: &CompileCx, typed: &Typed, step: usize) -> Result<Self, String> {
        let call = &typed.program.steps()[step];
        let operand = |at: usize| match call.inputs[at] {
            Slot::Operand(i) => Ok(cx.input::<f32>(i as usize)),
            _ => Err("the parameters of a norm are operands".to_owned()),
        };
        let port = |port: u32| {
            let own = Slot::result(step as u32, port);
            let result = typed.program.results().iter().position(|&r| r == own);
            result.map(|result| cx.output::<f32>(result))
        };
        Ok(match call.op.name() {
            "core.softmax" => Function::Softmax,
            "core.log_softmax" => Function::LogSoftmax,
            "core.layer_norm" => Function::LayerNorm {
                parameters: [operand(1)?, operand(2)?],
                statistics: [port(1), port(2)],
                eps: call.attrs.float("eps")? as f32,
            },
            "core.rms_norm" => Function::RmsNorm {
                weight: operand(1)?,
                rstd: port(1),
                eps: call.attrs.float("eps")? as f32,
            },
            name => return Err(format!("the CPU backend has no fused {name}")),
        })
    }

    /// # Safety
    /// Nobody writes the parameters, and the entries of row `row` of the statistics are the caller's own.
    unsafe fn run(&self, level: Level, row: usize, x: &[f32], out: &mut [f32]) {
        // SAFETY: by contract.
        let keep = |view: Option<View<f32>>, value: f32| unsafe {
            if let Some(view) = view {
                view.slice_mut(row..row + 1)[0] = value;
            }
        };
        match *self {
            Function::Softmax => vmath::softmax_row(level, x, out),
            Function::LogSoftmax => vmath::log_softmax_row(level, x, out),
            Function::LayerNorm {
                parameters,
                statistics,
                eps,
            } => {
                // SAFETY: by contract.
                let parameters = parameters.map(|view| unsafe { view.all() });
                let values = layer_norm_row(level, x, parameters, eps, out);
                statistics
                    .into_iter()
                    .zip(values)
                    .for_each(|(view, value)| keep(view, value));
            }
            Function::RmsNorm { weight, rstd, eps } => {
                // SAFETY: by contract.
                let weight = unsafe { weight.all() };
                keep(rstd, rms_norm_row(level, x, weight, eps, out));
            }
        }
    }
}

/// Where the rows come from.
enum Input {
    Operand(View<f32>),
    /// Computed, a run at a time.
    Computed(Engine),
}

pub(super) fn compile(cx: &CompileCx, typed: &Typed, step: usize) -> Result<Compiled, String> {
    let plan = plan(typed, step)?;
    let out = cx.output::<f32>(plan.output);
    let input = match (plan.before, typed.program.steps()[step].inputs[0]) {
        (Some(before), _) => Input::Computed(Engine::new(cx, before, None)?),
        (None, Slot::Operand(i)) => Input::Operand(cx.input(i as usize)),
        (None, _) => return Err("there is nothing to normalise".into()),
    };
    let head: View<u32> = cx.output(plan.output);
    let after = plan.after.map(|lowered| Engine::new(cx, lowered, Some(head)));
    let rows = Rows {
        function: Function::new(cx, typed, step)?,
        level: cx.level,
        width: plan.width,
        input,
        out,
        after: after.transpose()?,
    };
    let count = out.len() / rows.width;
    let per_task = rows_per_task(rows.width);
    Ok(Compiled {
        shared: 0,
        private: rows.private(),
        phases: vec![Box::new(Task {
            tasks: count.div_ceil(per_task),
            nanos: rows.nanos(),
            body: move |task: usize, cx: &RunCx| {
                let end = ((task + 1) * per_task).min(count);
                for start in (task * per_task..end).step_by(rows.together()) {
                    // SAFETY: this task alone has these rows.
                    unsafe { rows.run(start..(start + rows.together()).min(end), cx.private) };
                }
            },
        })],
    })
}

struct Rows {
    function: Function,
    level: Level,
    width: usize,
    input: Input,
    out: View<f32>,
    after: Option<Engine>,
}

impl Rows {
    /// Rows that are gone over at once.
    fn together(&self) -> usize {
        (RUN / self.width).max(1)
    }

    /// `f32`s of the scratch in which a long row is put together.
    fn long_row(&self) -> usize {
        match self.input {
            Input::Computed(_) if self.width > RUN => self.width,
            _ => 0,
        }
    }

    fn engines(&self) -> impl Iterator<Item = &Engine> {
        let before = match &self.input {
            Input::Computed(engine) => Some(engine),
            Input::Operand(_) => None,
        };
        before.into_iter().chain(&self.after)
    }

    /// `f32`s of private scratch: a long row, and what either engine needs, as they run in turn.
    fn private(&self) -> usize {
        self.long_row() + self.engines().map(Engine::scratch).max().unwrap_or(0)
    }

    fn nanos(&self) -> u64 {
        let engines = self.engines().map(|e| stream_nanos(e.bytes).max(e.nanos));
        self.out.len() as u64 + engines.sum::<u64>()
    }

    /// Computes some rows that fit a run, or one that is longer.
    ///
    /// # Safety
    /// The rows of all results are the caller's own, and so is the scratch; nobody writes the operands.
    unsafe fn run(&self, rows: std::ops::Range<usize>, scratch: *mut f32) {
        let elements = rows.start * self.width..rows.end * self.width;
        let pieces = elements.clone().step_by(RUN);
        let pieces = pieces.map(|start| start..(start + RUN).min(elements.end));
        let long = scratch;
        let scratch = scratch.wrapping_add(self.long_row());
        // SAFETY: the operands are other buffers than the results. The engine's values are in its scratch or in
        // another result, and stay until it runs again. The long row is before the engines' scratch.
        let (x, out) = unsafe {
            let x = match &self.input {
                Input::Operand(view) => view.slice(elements.clone()),
                Input::Computed(engine) if self.long_row() == 0 => {
                    engine.run(elements.clone(), scratch).unwrap_or_default()
                }
                Input::Computed(engine) => {
                    let row = std::slice::from_raw_parts_mut(long, self.width);
                    for (piece, part) in pieces.clone().zip(row.chunks_mut(RUN)) {
                        part.copy_from_slice(engine.run(piece, scratch).unwrap_or_default());
                    }
                    row
                }
            };
            (x, self.out.slice_mut(elements.clone()))
        };
        let each = x.chunks_exact(self.width).zip(out.chunks_exact_mut(self.width));
        for ((x, out), row) in each.zip(rows) {
            // SAFETY: forwarded.
            unsafe { self.function.run(self.level, row, x, out) };
        }
        if let Some(after) = &self.after {
            // SAFETY: the rows have been computed, and are not borrowed any more.
            pieces.for_each(|piece| unsafe {
                after.run(piece, scratch);
            });
        }
    }
}
