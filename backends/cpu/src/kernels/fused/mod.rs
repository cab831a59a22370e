//! Kernels of fused programs: elementwise steps in one pass. The steps are the whole program, or come before a
//! reduction, after a matmul or convolution, or around a norm or softmax.
//!
//! A pass processes its elements in runs that fit in the first-level cache ([`engine`]). Each step of the program is
//! a vector function from short buffers to a short buffer, and only operands and results access memory.

mod convolution;
mod engine;
mod fold;
mod layout;
mod lower;
mod matmul;
mod rows;
mod scalar;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::FusionRole;

use crate::kernel::{
    CHUNK, CompileCx, Compiled, KernelDef, OrderFn, RunCx, Task, chunk, chunks, f32_or_integers, stream_nanos,
};
use crate::order::Order;
use engine::Engine;
use lower::{Part, TypedProgram, lower};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.fused",
    supports,
    compile,
}];

/// Storage orders of operands. A fused matmul supports the same orders of its right operand as a separate matmul.
pub(super) const ORDER: (&str, OrderFn) = ("core.fused", |call, i| {
    let typed = call
        .attrs
        .program("program")
        .and_then(|program| TypedProgram::new(program, call.inputs));
    match typed.as_ref().map(|typed| (typed, form(typed))) {
        Ok((typed, Ok(ProgramForm::Product(step)))) => matmul::order(typed, step, i),
        _ => Order::Plain,
    }
});

/// The form of a program, with the index of its main step.
enum ProgramForm {
    Pointwise,
    /// Elementwise steps before the given reduction. The reduction is the last step.
    Fold(usize),
    /// Elementwise steps after the given matmul or convolution. This is the first step.
    Product(usize),
    /// Elementwise steps around the given norm or softmax.
    Rows(usize),
}

/// Returns the form of a program, which follows from the properties of its operators.
fn form(typed: &TypedProgram) -> Result<ProgramForm, String> {
    for ty in typed.operands.iter().chain(typed.steps.iter().flatten()) {
        if !matches!(ty.dtype, DType::F32 | DType::U32 | DType::I32) {
            return Err(format!("the CPU kernel does not compute in {}", ty.dtype));
        }
        if ty.numel() == 0 {
            return Err("there are no elements".into());
        }
    }
    let steps = typed.program.steps();
    let mut special =
        (0..steps.len()).filter(|&i| !matches!(steps[i].op.fusing(), FusionRole::Pointwise | FusionRole::View));
    match (special.next(), special.next()) {
        (None, _) => Ok(ProgramForm::Pointwise),
        (Some(i), None) if steps[i].op.fusing() == FusionRole::Reduction => Ok(ProgramForm::Fold(i)),
        (Some(i), None) if steps[i].op.fusing() == FusionRole::Contraction => Ok(ProgramForm::Product(i)),
        (Some(i), None) if steps[i].op.fusing() == FusionRole::Rows => Ok(ProgramForm::Rows(i)),
        _ => Err("the CPU kernel has one reduction, matmul or norm in a program".into()),
    }
}

fn supports(k: &KernelDesc) -> Result<(), String> {
    f32_or_integers(k)?;
    let typed = TypedProgram::new(k.attrs.program("program")?, k.inputs)?;
    match form(&typed)? {
        ProgramForm::Pointwise => lower(&typed, &whole(&typed)).map(|_| ()),
        ProgramForm::Fold(step) => fold::plan(&typed, step).map(|_| ()),
        ProgramForm::Product(step) => matmul::plan(&typed, step).map(|_| ()),
        ProgramForm::Rows(step) => rows::plan(&typed, step).map(|_| ()),
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let call = cx.call();
    let typed = TypedProgram::new(call.attrs.program("program")?, call.inputs)?;
    match form(&typed)? {
        ProgramForm::Pointwise => {
            let engine = Engine::new(cx, lower(&typed, &whole(&typed))?, None)?;
            Ok(pointwise(engine))
        }
        ProgramForm::Fold(step) => fold::compile(cx, &typed, step),
        ProgramForm::Product(step) if convolution::is_one(&typed, step) => convolution::compile(cx, &typed, step),
        ProgramForm::Product(step) => matmul::compile(cx, &typed, step),
        ProgramForm::Rows(step) => rows::compile(cx, &typed, step),
    }
}

/// Returns the part that contains all results of a program.
fn whole(typed: &TypedProgram) -> Part {
    Part {
        results: typed.results(|_| true),
        ..Part::default()
    }
}

/// Compiles a program of elementwise steps only.
fn pointwise(engine: Engine) -> Compiled {
    let private = engine.scratch();
    Compiled {
        shared: 0,
        private,
        phases: vec![Box::new(Task {
            tasks: chunks(engine.len),
            nanos: stream_nanos(engine.bytes).max(engine.nanos),
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: only this task computes these elements, and the operands are in other buffers.
                unsafe { engine.run_all(chunk(engine.len, task), cx.private) };
            },
        })],
    }
}

/// Number of elements that a folding task processes; the same as in other streaming tasks.
const FOLD_TASK: usize = CHUNK;
