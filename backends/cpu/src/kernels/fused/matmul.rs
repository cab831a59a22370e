//! Fused programs that begin with a matmul. Elementwise steps process its result while it is in the cache.

use meganeura_core::DType;
use meganeura_core::program::Slot;

use super::convolution;
use super::engine::Engine;
use super::lower::{LoweredProgram, Part, TypedProgram, lower};
use super::pointwise;
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx};
use crate::kernels::matmul::{self, Batch, Phase, addend_of};
use crate::memory::{View, aligned};
use crate::order::Order;

/// The execution plan of a program that begins with a matmul or convolution.
pub(super) struct Plan {
    pub(super) lowered: LoweredProgram,
    /// Indices of the multiplied operands, and of the addend, if any.
    pub(super) operands: Vec<usize>,
    /// Index of the result that stores the matmul, either permanently or until the following steps overwrite it.
    pub(super) output: usize,
}

/// Plans a program in which step `step` is a matmul or convolution.
pub(super) fn plan(typed: &TypedProgram, step: usize) -> Result<Plan, String> {
    let call = &typed.program.steps()[step];
    match call.op.name() {
        "core.matmul" | "core.matmul_add" => {
            addend_of(&typed.inputs_of(step), &typed.steps[step][0])?;
        }
        _ if convolution::is_one(typed, step) => {
            convolution::sizes(typed, step)?;
        }
        name => return Err(format!("the CPU backend has no fused {name}")),
    }
    let operand = |slot: &Slot| match *slot {
        Slot::Operand(i) if typed.operands[i as usize].dtype == DType::F32 => Ok(i as usize),
        _ => Err("the CPU kernel multiplies operands of f32".to_owned()),
    };
    let operands: Vec<usize> = call.inputs.iter().map(operand).collect::<Result<_, _>>()?;
    let part = Part {
        results: typed.results(|r| r != Slot::Step(step as u32)),
        head: Some(step),
        ..Part::default()
    };
    let lowered = lower(typed, &part)?;
    Ok(Plan {
        output: lowered.output_of(typed, step)?,
        lowered,
        operands,
    })
}

/// Returns the storage orders that a program that begins with a matmul supports for operand `i`.
pub(super) fn order(typed: &TypedProgram, step: usize, i: usize) -> Order {
    let own = Slot::Operand(i as u32);
    let steps = typed.program.steps();
    let readers = steps.iter().flat_map(|call| &call.inputs).filter(|&&slot| slot == own);
    let is_multiplied = steps[step].inputs.get(1) == Some(&own);
    if convolution::is_one(typed, step)
        || !is_multiplied
        || readers.count() > 1
        || typed.program.results().contains(&own)
    {
        return Order::Plain;
    }
    matmul::order(&typed.call(step, &typed.inputs_of(step)), 1)
}

/// Minimum number of columns of a task for which its part of the result is processed at once.
const WIDE: usize = 128;

pub(super) fn compile(cx: &CompileCx, typed: &TypedProgram, step: usize) -> Result<Compiled, String> {
    let plan = plan(typed, step)?;
    let batch = Batch::new(
        &typed.call(step, &typed.inputs_of(step)),
        &plan.operands.iter().map(|&i| cx.input(i)).collect::<Vec<_>>(),
        cx.output(plan.output),
        cx.panels(plan.operands[1]).is_some(),
    )?;
    let matmul: View<u32> = cx.output(plan.output);
    let engine = Engine::new(cx, plan.lowered, Some(matmul))?;
    let phases = batch.gemm.phases();
    let worker = aligned(batch.gemm.worker_len());
    let (shared, scratch) = (batch.shared_len(), engine.scratch());
    let n = batch.gemm.spec().n;
    let at_once = |task| {
        let part = batch.gemm.part(task);
        part.is_some_and(|(_, columns)| columns.len() == n || columns.len() >= WIDE)
    };
    let whole = (0..batch.gemm.tasks(phases - 1)).all(at_once);
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    for phase in 0..phases - 1 {
        let batch = batch.clone();
        kernels.push(Box::new(Phase { batch, phase }));
    }
    if whole {
        let phase = phases - 1;
        kernels.push(Box::new(WithRest {
            phase: Phase { batch, phase },
            engine,
            worker,
        }));
    } else {
        let phase = phases - 1;
        kernels.push(Box::new(Phase { batch, phase }));
        kernels.extend(pointwise(engine).phases);
    }
    Ok(Compiled {
        phases: kernels,
        shared,
        private: worker + scratch,
    })
}

/// The last phase of a matmul. Its tasks also run the elementwise steps on their part of the result.
struct WithRest {
    phase: Phase,
    engine: Engine,
    /// Number of `f32`s of the private scratch that the matmul needs.
    worker: usize,
}

impl Kernel for WithRest {
    fn tasks(&self) -> usize {
        self.phase.tasks()
    }

    fn nanos(&self) -> u64 {
        self.phase.nanos() + self.engine.nanos
    }

    unsafe fn run(&self, task: usize, cx: &RunCx) {
        let batch = &self.phase.batch;
        // SAFETY: forwarded.
        let (matmul, task) = unsafe { self.phase.run_task(task, cx) };
        let Some((rows, columns)) = batch.gemm.part(task) else {
            return;
        };
        let n = batch.gemm.spec().n;
        let base = matmul * batch.c_len;
        let scratch = cx.private.wrapping_add(self.worker);
        let go_over = |from: usize, to: usize| {
            // SAFETY: only this task computes these elements, and it has completed their matmul. The scratch follows
            // that of the matmul.
            unsafe { self.engine.run_all(from..to, scratch) };
        };
        if columns.len() == n {
            go_over(base + rows.start * n, base + rows.end * n);
        } else {
            for row in rows {
                go_over(base + row * n + columns.start, base + row * n + columns.end);
            }
        }
    }
}
