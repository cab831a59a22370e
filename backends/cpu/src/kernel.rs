//! The kernel interface, the inputs of kernel compilation, and functions that several kernel families use.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Call;
use meganeura_core::plan::{BufferRef, Dispatch};
use meganeura_core::{DType, TensorType};

use crate::arena::Arena;
use crate::faults::Faults;
use crate::memory::View;
use crate::order::{Order, Orders, Panels};
use crate::prefetch::Prefetch;
use crate::vmath;

/// The scratch and the fault report of a running task.
pub(crate) struct RunCx<'a> {
    /// Scratch of the dispatch, shared by its tasks.
    pub(crate) shared: *mut f32,
    /// Scratch of the thread.
    pub(crate) private: *mut f32,
    pub(crate) faults: &'a Faults,
}

impl RunCx<'_> {
    /// Reports an index that is not below `rows`. `dispatch` is the index of the dispatch in the plan. Only the first
    /// report of a step is kept.
    pub(crate) fn index_out_of_range(&self, dispatch: usize, index: u32, rows: usize) {
        self.faults.report(dispatch, index, rows);
    }
}

/// A phase of a compiled dispatch.
pub(crate) trait Kernel: Send + Sync {
    /// Returns the number of independent tasks.
    fn tasks(&self) -> usize;

    /// Returns the estimated duration of all tasks on one thread, in nanoseconds. Short stages do not wake other
    /// threads.
    fn nanos(&self) -> u64;

    /// Runs one task.
    ///
    /// # Safety
    /// The task must exist and the executable's memory must be alive. Scratch must have the requested sizes, and no
    /// other code may use the private scratch. The previous phases must have ended. Meanwhile, no other dispatch may
    /// access this dispatch's results or write its operands.
    unsafe fn run(&self, task: usize, cx: &RunCx);

    /// Adds the memory that a task reads once, from start to end, to `_ahead`, if the kernel is memory-bound.
    fn reads(&self, _task: usize, _ahead: &mut Prefetch) {}
}

/// A compiled dispatch: its phases and the scratch that they need.
pub(crate) struct Compiled {
    /// Phases, which run in this order.
    pub(crate) phases: Vec<Box<dyn Kernel>>,
    /// Number of `f32`s of the scratch that all tasks share, from the first to the last phase.
    pub(crate) shared: usize,
    /// Number of `f32`s of the scratch that each thread needs during a task.
    pub(crate) private: usize,
}

impl Compiled {
    /// Creates a dispatch with one phase and no scratch.
    pub(crate) fn one(kernel: impl Kernel + 'static) -> Self {
        Compiled::phases(vec![Box::new(kernel)])
    }

    /// Creates a dispatch with several phases and no scratch.
    pub(crate) fn phases(phases: Vec<Box<dyn Kernel>>) -> Self {
        Compiled {
            phases,
            shared: 0,
            private: 0,
        }
    }
}

/// A kernel whose tasks run a closure, for families that need no separate type.
pub(crate) struct Task<F> {
    pub(crate) tasks: usize,
    pub(crate) nanos: u64,
    /// Function that runs a task. Its caller must fulfil the contract of [`Kernel::run`].
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

/// The dispatch to compile, with its buffers, storage orders and instruction set.
pub(crate) struct CompileCx<'a> {
    pub(crate) dispatch: &'a Dispatch,
    /// Index of the dispatch in the plan, for error reports.
    pub(crate) index: usize,
    pub(crate) arena: &'a Arena,
    /// Storage orders of the parameters that are not stored row by row.
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

    /// Returns the panel layout in which operand `i` is stored, or `None` if it is stored row by row.
    pub(crate) fn panels(&self, i: usize) -> Option<Panels> {
        self.orders.of(self.dispatch.inputs[i].buffer)
    }

    /// Returns the elements of operand `i`. `T` must match a dtype that `supports` accepted.
    pub(crate) fn input<T>(&self, i: usize) -> View<T> {
        self.view(self.dispatch.inputs[i].buffer, &self.input_types[i])
    }

    /// Returns the elements of result `i`.
    pub(crate) fn output<T>(&self, i: usize) -> View<T> {
        self.view(self.dispatch.outputs[i].buffer, &self.output_types[i])
    }

    /// Returns the buffer of operand `i`, for kernels that check whether a result is computed in place.
    pub(crate) fn input_buffer(&self, i: usize) -> BufferRef {
        self.dispatch.inputs[i].buffer
    }

    /// Returns the buffer of result `i`.
    pub(crate) fn output_buffer(&self, i: usize) -> BufferRef {
        self.dispatch.outputs[i].buffer
    }

    fn view<T>(&self, buffer: BufferRef, ty: &TensorType) -> View<T> {
        View::new(self.arena.pointer(buffer), ty.numel())
    }
}

/// Function that returns the storage order of operand `i` of a call that a kernel can read.
pub(crate) type OrderFn = fn(&Call, usize) -> Order;

/// An entry of the kernel table: one operator and its kernel.
pub(crate) struct KernelDef {
    /// Name of the operator.
    pub(crate) name: &'static str,
    /// Function that checks whether the kernel can run a call. The error is the reason why not.
    pub(crate) supports: fn(&KernelDesc) -> Result<(), String>,
    /// Function that compiles a dispatch that `supports` accepted. Its plan was verified: types follow from the
    /// operator's shape rule, results are different buffers, and an operand shares a buffer only with a result that
    /// the operator updates in place. Only [`KernelDef::compile_checked`] calls it.
    pub(crate) compile: fn(&CompileCx) -> Result<Compiled, String>,
}

impl KernelDef {
    /// Compiles a dispatch of a verified plan. Repeats the check of `supports`, because the plan may have been made
    /// without this device, and the kernel reads operands as the accepted types.
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

/// Accepts calls whose float operands and results are `f32`, with any integer types.
pub(crate) fn f32_or_integers(k: &KernelDesc) -> Result<(), String> {
    expect_dtypes(k.inputs.iter().chain(k.outputs), &[DType::F32, DType::U32, DType::I32])
}

/// Accepts calls of every dtype.
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

/// Number of elements that a task of a streaming kernel processes: large enough to hide the cost of a task, small
/// enough to stay in the second-level cache with its operands.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Returns the estimated nanoseconds to read or write this number of bytes, at 10 bytes per nanosecond.
pub(crate) fn stream_nanos(bytes: usize) -> u64 {
    bytes as u64 / 10
}

/// Returns the range of chunk number `task` in `0..len`. A chunk has up to [`CHUNK`] elements.
pub(crate) fn chunk(len: usize, task: usize) -> std::ops::Range<usize> {
    let start = task * CHUNK;
    start..(start + CHUNK).min(len)
}

/// Returns the number of chunks of up to [`CHUNK`] elements in `0..len`.
pub(crate) fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK)
}

/// Returns the number of rows of one task, if each row has `width` elements.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}
