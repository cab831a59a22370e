//! What a kernel is, what it is compiled from, and helpers that families share.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Call;
use meganeura_core::plan::{BufferRef, Dispatch};
use meganeura_core::{DType, TensorType};

use crate::faults::Faults;
use crate::memory::{Arena, View};
use crate::order::{Order, Orders, Panels};
use crate::prefetch::Prefetch;
use crate::vmath;

/// What a task works with beside its operands.
pub(crate) struct RunCx<'a> {
    /// Scratch of the dispatch, shared by its tasks.
    pub(crate) shared: *mut f32,
    /// Scratch of the thread.
    pub(crate) private: *mut f32,
    pub(crate) faults: &'a Faults,
}

impl RunCx<'_> {
    /// Reports an index outside of a table of so many rows, met by the dispatch at that position. The
    /// first report of a step is kept.
    pub(crate) fn index_out_of_range(&self, dispatch: usize, index: u32, rows: usize) {
        self.faults.report(dispatch, index, rows);
    }
}

/// A phase of a compiled dispatch.
pub(crate) trait Kernel: Send + Sync {
    /// Number of independent tasks.
    fn tasks(&self) -> usize;

    /// Rough duration of all tasks on one thread, in nanoseconds: short stages are not worth waking
    /// threads for.
    fn nanos(&self) -> u64;

    /// Runs one task.
    ///
    /// # Safety
    /// The task exists; the executable's memory is alive; scratch is as long as asked for, the private one the
    /// caller's own; the phases before are over; and no dispatch but this one touches what it writes, or
    /// writes what it reads, at the same time.
    unsafe fn run(&self, task: usize, cx: &RunCx);

    /// Adds what a task reads from its begin to its end, once, if memory is what bounds it.
    fn reads(&self, _task: usize, _ahead: &mut Prefetch) {}
}

/// A compiled dispatch.
pub(crate) struct Compiled {
    /// Phases in order.
    pub(crate) phases: Vec<Box<dyn Kernel>>,
    /// `f32`s of scratch that all its tasks share, from its first to its last phase.
    pub(crate) shared: usize,
    /// `f32`s of scratch that each thread needs during a task.
    pub(crate) private: usize,
}

impl Compiled {
    /// One phase without scratch.
    pub(crate) fn one(kernel: impl Kernel + 'static) -> Self {
        Compiled::phases(vec![Box::new(kernel)])
    }

    /// Several phases without scratch.
    pub(crate) fn phases(phases: Vec<Box<dyn Kernel>>) -> Self {
        Compiled {
            phases,
            shared: 0,
            private: 0,
        }
    }
}

/// A kernel as a function of one task, for families that need no type of their own.
pub(crate) struct Task<F> {
    pub(crate) tasks: usize,
    pub(crate) nanos: u64,
    /// What a task does; it may assume the contract of [`Kernel::run`].
    pub(crate) body: F,
}

impl<F: Fn(usize, &RunCx) + Send + Sync> Kernel for Task<F> {
    fn tasks(&self) -> usize {
        self.tasks
    }

    fn nanos(&self) -> u64 {
        self.nanos
    }

    unsafe fn run(&self, task: usize, cx: &RunCx) {
        (self.body)(task, cx);
    }
}

/// What a kernel is compiled from.
pub(crate) struct CompileCx<'a> {
    pub(crate) dispatch: &'a Dispatch,
    /// Position in the plan, for error reports.
    pub(crate) index: usize,
    pub(crate) arena: &'a Arena,
    /// Parameters that are not in the order of rows.
    orders: &'a Orders,
    /// Instruction set of the vector functions.
    pub(crate) level: vmath::Level,
    input_types: Vec<TensorType>,
    output_types: Vec<TensorType>,
}

impl<'a> CompileCx<'a> {
    pub(crate) fn new(
        dispatch: &'a Dispatch,
        index: usize,
        arena: &'a Arena,
        orders: &'a Orders,
        level: vmath::Level,
    ) -> Self {
        let [input_types, output_types] = dispatch.types();
        CompileCx {
            dispatch,
            index,
            arena,
            orders,
            level,
            input_types,
            output_types,
        }
    }

    pub(crate) fn attrs(&self) -> &Attrs {
        &self.dispatch.attrs
    }

    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            attrs: &self.dispatch.attrs,
            inputs: &self.input_types,
            outputs: &self.output_types,
        }
    }

    pub(crate) fn input_type(&self, i: usize) -> &TensorType {
        &self.input_types[i]
    }

    pub(crate) fn output_type(&self, i: usize) -> &TensorType {
        &self.output_types[i]
    }

    /// The panels that operand `i` lies in, if its kernel has said that it can read them.
    pub(crate) fn panels(&self, i: usize) -> Option<Panels> {
        self.orders.of(self.dispatch.inputs[i].buffer)
    }

    /// Elements of operand `i`, in the dtype that the kernel's `supports` accepted.
    pub(crate) fn input<T>(&self, i: usize) -> View<T> {
        self.view(self.dispatch.inputs[i].buffer, &self.input_types[i])
    }

    /// Elements of result `i`.
    pub(crate) fn output<T>(&self, i: usize) -> View<T> {
        self.view(self.dispatch.outputs[i].buffer, &self.output_types[i])
    }

    /// Buffer of operand `i`, to see whether a result is computed in place.
    pub(crate) fn input_buffer(&self, i: usize) -> BufferRef {
        self.dispatch.inputs[i].buffer
    }

    /// Buffer of result `i`.
    pub(crate) fn output_buffer(&self, i: usize) -> BufferRef {
        self.dispatch.outputs[i].buffer
    }

    fn view<T>(&self, buffer: BufferRef, ty: &TensorType) -> View<T> {
        View::new(self.arena.pointer(buffer), ty.numel())
    }
}

/// In which orders a kernel can read operand `i` of a call.
pub(crate) type OrderFn = fn(&Call, usize) -> Order;

/// An entry of the kernel table.
pub(crate) struct KernelDef {
    /// Operator.
    pub(crate) name: &'static str,
    /// Whether the kernel can run a call, or why not.
    pub(crate) supports: fn(&KernelDesc) -> Result<(), String>,
    /// Compiles a dispatch that `supports` accepted, of a plan that was verified: its types follow from the
    /// operator's shape rule, its results are different buffers, and an operand that shares its buffer with
    /// a result shares it with one that the operator updates in place. Called by [`KernelDef::compile_checked`] alone.
    pub(crate) compile: fn(&CompileCx) -> Result<Compiled, String>,
}

impl KernelDef {
    /// Compiles a dispatch of a verified plan. A plan may come from elsewhere than this device's answers, so
    /// they are given again: operands are seen as the types that `supports` accepted.
    pub(crate) fn compile_checked(&self, cx: &CompileCx) -> Result<Compiled, String> {
        (self.supports)(&KernelDesc {
            name: &cx.dispatch.kernel.name,
            version: cx.dispatch.kernel.version,
            attrs: &cx.dispatch.attrs,
            inputs: &cx.input_types,
            outputs: &cx.output_types,
        })?;
        (self.compile)(cx)
    }
}

/// Accepts calls whose operands and results are all `f32`.
pub(crate) fn f32_only(k: &KernelDesc) -> Result<(), String> {
    expect_dtypes(k.inputs.iter().chain(k.outputs), &[DType::F32])
}

/// Accepts calls whose float operands and results are `f32`; integers pass.
pub(crate) fn f32_or_integers(k: &KernelDesc) -> Result<(), String> {
    expect_dtypes(k.inputs.iter().chain(k.outputs), &[DType::F32, DType::U32, DType::I32])
}

/// Accepts every dtype.
pub(crate) fn any_dtype(_: &KernelDesc) -> Result<(), String> {
    Ok(())
}

fn expect_dtypes<'a>(types: impl Iterator<Item = &'a TensorType>, accepted: &[DType]) -> Result<(), String> {
    for ty in types {
        if !accepted.contains(&ty.dtype) {
            return Err(format!("the CPU kernel does not compute in {}", ty.dtype));
        }
    }
    Ok(())
}

/// Elements of one task of a streaming kernel: large enough to hide the cost of a task, small enough to
/// stay in the second-level cache with its operands.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Estimated duration of streaming so many bytes, at 10 bytes a nanosecond.
pub(crate) fn stream_nanos(bytes: usize) -> u64 {
    bytes as u64 / 10
}

/// The `task`-th chunk of `0..len`.
pub(crate) fn chunk(len: usize, task: usize) -> std::ops::Range<usize> {
    let start = task * CHUNK;
    start..(start + CHUNK).min(len)
}

/// Number of chunks of `0..len`.
pub(crate) fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK)
}

/// Rows of one task when each row has `width` elements.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}
