//! Programs: elementwise steps as one pass, what they feed into a reduction, what follows a matmul or convolution, and what
//! stands around a norm or softmax.
//!
//! A pass goes over its elements in runs that fit the first-level cache ([`engine`]): each step of the program is a
//! vector function from short buffers to a short buffer, and only operands and results touch memory.

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
use meganeura_core::ops::Fusing;

use crate::kernel::{
    CHUNK, CompileCx, Compiled, KernelDef, OrderFn, RunCx, Task, chunk, chunks, f32_or_integers, stream_nanos,
};
use crate::order::Order;
use engine::Engine;
use lower::{Part, Typed, lower};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.fused",
    supports,
    compile,
}];

/// Matmuls read their right operands as they do alone.
pub(super) const ORDER: (&str, OrderFn) = ("core.fused", |call, i| {
    let typed = call
        .attrs
        .program("program")
        .and_then(|program| Typed::new(program, call.inputs));
    match typed.as_ref().map(|typed| (typed, form(typed))) {
        Ok((typed, Ok(Form::Product(step)))) => matmul::order(typed, step, i),
        _ => Order::Plain,
    }
});

/// How a program is run.
enum Form {
    Pointwise,
    /// The step that folds, which is the last.
    Fold(usize),
    /// The step that multiplies or convolves, which is the first.
    Product(usize),
    /// The step that goes over rows.
    Rows(usize),
}

/// The form of a program, by what its operators say of themselves.
fn form(typed: &Typed) -> Result<Form, String> {
    for ty in typed.operands.iter().chain(typed.steps.iter().flatten()) {
        if !matches!(ty.dtype, DType::F32 | DType::U32 | DType::I32) {
            return Err(format!("the CPU kernel does not compute in {}", ty.dtype));
        }
        if ty.numel() == 0 {
            return Err("there are no elements".into());
        }
    }
    let steps = typed.program.steps();
    let mut special = (0..steps.len()).filter(|&i| !matches!(steps[i].op.fusing(), Fusing::Pointwise | Fusing::View));
    match (special.next(), special.next()) {
        (None, _) => Ok(Form::Pointwise),
        (Some(i), None) if steps[i].op.fusing() == Fusing::Reduction => Ok(Form::Fold(i)),
        (Some(i), None) if steps[i].op.fusing() == Fusing::Contraction => Ok(Form::Product(i)),
        (Some(i), None) if steps[i].op.fusing() == Fusing::Rows => Ok(Form::Rows(i)),
        _ => Err("the CPU kernel has one reduction, matmul or norm in a program".into()),
    }
}

fn supports(k: &KernelDesc) -> Result<(), String> {
    f32_or_integers(k)?;
    let typed = Typed::new(k.attrs.program("program")?, k.inputs)?;
    match form(&typed)? {
        Form::Pointwise => lower(&typed, &whole(&typed)).map(|_| ()),
        Form::Fold(step) => fold::plan(&typed, step).map(|_| ()),
        Form::Product(step) => matmul::plan(&typed, step).map(|_| ()),
        Form::Rows(step) => rows::plan(&typed, step).map(|_| ()),
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let call = cx.call();
    let typed = Typed::new(call.attrs.program("program")?, call.inputs)?;
    match form(&typed)? {
        Form::Pointwise => {
            let engine = Engine::new(cx, lower(&typed, &whole(&typed))?, None)?;
            Ok(pointwise(engine))
        }
        Form::Fold(step) => fold::compile(cx, &typed, step),
        Form::Product(step) if convolution::is_one(&typed, step) => convolution::compile(cx, &typed, step),
        Form::Product(step) => matmul::compile(cx, &typed, step),
        Form::Rows(step) => rows::compile(cx, &typed, step),
    }
}

/// All results of a program.
fn whole(typed: &Typed) -> Part {
    Part {
        results: typed.results(|_| true),
        ..Part::default()
    }
}

/// Elementwise steps alone.
fn pointwise(engine: Engine) -> Compiled {
    let private = engine.scratch();
    Compiled {
        shared: 0,
        private,
        phases: vec![Box::new(Task {
            tasks: chunks(engine.len),
            nanos: stream_nanos(engine.bytes).max(engine.nanos),
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: this task alone computes these elements; the operands are other buffers.
                unsafe { engine.run_all(chunk(engine.len, task), cx.private) };
            },
        })],
    }
}

/// Elements of a task that folds: as of any streaming one.
const FOLD_TASK: usize = CHUNK;
