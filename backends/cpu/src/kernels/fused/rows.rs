//! Fused programs around a norm or softmax. The steps before and after it process the same row while it is in the
//! cache.

use meganeura_core::DType;
use meganeura_core::program::Slot;

use super::engine::{Engine, RUN};
use super::lower::{LoweredProgram, Part, TypedProgram, lower, step_of};
use crate::kernel::{CompileCx, Compiled, RunCx, Task, rows_per_task, stream_nanos};
use crate::kernels::norm::{layer_norm_row, rms_norm_row};
use crate::memory::View;
use crate::vmath::{self, Level};

/// Maximum number of elements of a row that is computed before the norm or softmax, because scratch contains the row.
const MAX_LENGTH: usize = 1 << 16;

/// The execution plan of a program with a norm or softmax.
pub(super) struct Plan {
    /// Steps that compute operand 0; `None` if it is an operand of the program.
    before: Option<LoweredProgram>,
    /// Steps after the norm or softmax, if any.
    after: Option<LoweredProgram>,
    /// Index of the result that stores the rows, either permanently or until the following steps overwrite it.
    output: usize,
    width: usize,
}

/// Plans a program in which step `step` is a norm or softmax.
pub(super) fn plan(typed: &TypedProgram, step: usize) -> Result<Plan, String> {
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
        Slot::Operand(_) => return Err("it has results that do not depend on the norm".into()),
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

/// Returns the number of elements of a row. They are adjacent.
fn width(typed: &TypedProgram, step: usize) -> Result<usize, String> {
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

/// The function that is applied to a row.
enum Function {
    Softmax,
    LogSoftmax,
    LayerNorm {
        parameters: [View<f32>; 2],
        /// Means and reciprocal standard deviations, if they are results.
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
    fn new(cx: &CompileCx, typed: &TypedProgram, step: usize) -> Result<Self, String> {
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

    /// Applies the function to a row, and writes the row's statistics.
    ///
    /// # Safety
    /// The parameters must not be written meanwhile. Only the caller may access the entries of row `row` of the
    /// statistics.
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

/// The source of the rows.
enum Input {
    Operand(View<f32>),
    /// Rows that instructions compute, at most [`RUN`] elements at a time.
    Computed(Engine),
}

pub(super) fn compile(cx: &CompileCx, typed: &TypedProgram, step: usize) -> Result<Compiled, String> {
    let plan = plan(typed, step)?;
    let out = cx.output::<f32>(plan.output);
    let input = match (plan.before, typed.program.steps()[step].inputs[0]) {
        (Some(before), _) => Input::Computed(Engine::new(cx, before, None)?),
        (None, Slot::Operand(i)) => Input::Operand(cx.input(i as usize)),
        (None, _) => return Err("the normalised rows are empty".into()),
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
                    // SAFETY: only this task has these rows.
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
    /// Returns the number of rows that are processed at once.
    fn together(&self) -> usize {
        (RUN / self.width).max(1)
    }

    /// Returns the number of `f32`s of the scratch for the assembly of a long row.
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

    /// Returns the number of `f32`s of the private scratch: a long row, and the larger scratch of the two engines,
    /// which run one after the other.
    fn private(&self) -> usize {
        self.long_row() + self.engines().map(Engine::scratch).max().unwrap_or(0)
    }

    fn nanos(&self) -> u64 {
        let engines = self.engines().map(|e| stream_nanos(e.bytes).max(e.nanos));
        self.out.len() as u64 + engines.sum::<u64>()
    }

    /// Computes either some rows that together have at most [`RUN`] elements, or a single longer row.
    ///
    /// # Safety
    /// Only the caller may access the rows of all results and the scratch. The operands must not be written
    /// meanwhile.
    unsafe fn run(&self, rows: std::ops::Range<usize>, scratch: *mut f32) {
        let elements = rows.start * self.width..rows.end * self.width;
        let pieces = elements.clone().step_by(RUN);
        let pieces = pieces.map(|start| start..(start + RUN).min(elements.end));
        let long = scratch;
        let scratch = scratch.wrapping_add(self.long_row());
        // SAFETY: the operands are in other buffers than the results. The engine's values are in its scratch or in
        // another result, and remain until it runs again. The long row precedes the engines' scratch.
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
            // SAFETY: the rows have been computed, and are no longer borrowed.
            pieces.for_each(|piece| unsafe {
                after.run(piece, scratch);
            });
        }
    }
}
