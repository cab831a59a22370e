//! Matmul of `f32` matrices, planned once and replayed without allocation.
//!
//! A [`Gemm`] cuts `C[m, n] = A[m, k] · B[k, n]` into phases of independent tasks. The caller distributes the
//! tasks of one phase over any threads, waits for all of them, and continues with the next phase. The
//! partition, and the order of the additions for each element of C, depend only on the [`GemmSpec`] and the
//! kernel. Results are therefore bitwise equal for any number of threads.

mod block;
pub(crate) mod int8;
mod kernels;
mod matrix;
mod pack;
mod packed;
mod spec;
mod tile;
mod vector;
mod vector_plan;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub(crate) use block::{Blocks, LeftBlock, Target};
use kernels::KernelSet;
use matrix::MatrixPlan;
pub(crate) use packed::{PackedGemm, Rows, Storage};
pub use spec::{Addend, GemmSpec, Kernel, Operands, Strides};
pub(crate) use tile::Pieces;
use vector_plan::VectorPlan;

use crate::order::Panels;

/// The algorithm of a matmul.
#[derive(Clone, Debug)]
enum Plan {
    /// The matmul has no results to compute.
    Nothing,
    /// C is set to 0, because k is 0.
    Clear,
    /// A or B is a vector.
    Vector(VectorPlan),
    Matrix(MatrixPlan),
}

/// A planned matmul.
#[derive(Clone)]
pub struct Gemm {
    spec: GemmSpec,
    set: &'static KernelSet,
    plan: Plan,
}

impl Gemm {
    /// Plans a matmul with the fastest kernel that this CPU can run.
    pub fn new(spec: GemmSpec) -> Self {
        Self::with_kernel(spec, Kernel::detect())
    }

    /// Plans a matmul with `kernel`, or with the fastest one if this CPU cannot run it.
    pub fn with_kernel(spec: GemmSpec, kernel: Kernel) -> Self {
        Self::planned(spec, kernel, false)
    }

    /// Plans a matmul whose B is stored in [`Gemm::panels`]. The strides of B are ignored.
    pub(crate) fn by_panels(spec: GemmSpec) -> Self {
        Self::planned(spec, Kernel::detect(), true)
    }

    /// Returns the panel layout of a matrix `B[k, n]`, stored as `[k, n]` or transposed, that tiles can read
    /// in place. Returns `None` if the last panel would not be full.
    pub(crate) fn panels([k, n]: [usize; 2], transposed: bool) -> Option<Panels> {
        Self::panels_for([k, n], transposed, Kernel::detect())
    }

    fn panels_for([k, n]: [usize; 2], transposed: bool, kernel: Kernel) -> Option<Panels> {
        let (width, float) = (kernel.set().tile_cols, size_of::<f32>());
        if !n.is_multiple_of(width) {
            return None;
        }
        if transposed {
            Panels::new(n, k * float, width, float)
        } else {
            Panels::new(k, n * float, k, width * float)
        }
    }

    fn planned(spec: GemmSpec, kernel: Kernel, in_panels: bool) -> Self {
        let set = kernel.set();
        let plan = if spec.m == 0 || spec.n == 0 || (spec.k == 0 && spec.accumulate) {
            Plan::Nothing
        } else if spec.k == 0 {
            Plan::Clear
        } else if spec.m == 1 || spec.n == 1 {
            Plan::Vector(VectorPlan::new(&spec, set, in_panels))
        } else {
            Plan::Matrix(MatrixPlan::new(&spec, set, in_panels))
        };
        Self { spec, set, plan }
    }

    /// Returns the specification of the matmul.
    pub fn spec(&self) -> &GemmSpec {
        &self.spec
    }

    /// Returns the kernel in use.
    pub fn kernel(&self) -> Kernel {
        self.set.kernel
    }

    /// Returns the number of phases, 1 or 2, which run one after the other.
    pub fn phases(&self) -> usize {
        match &self.plan {
            Plan::Matrix(plan) => plan.phases(),
            Plan::Vector(plan) => plan.phases(),
            Plan::Nothing | Plan::Clear => 1,
        }
    }

    /// Returns the number of independent tasks in a phase; it may be 0.
    pub fn tasks(&self, phase: usize) -> usize {
        match &self.plan {
            _ if phase >= self.phases() => 0,
            Plan::Nothing => 0,
            Plan::Clear => 1,
            Plan::Vector(plan) => plan.tasks(phase),
            Plan::Matrix(plan) => plan.tasks(phase),
        }
    }

    /// Returns the ranges of rows and of columns of C that a task of the last phase computes, or `None` if
    /// they are not a rectangle. These elements are complete when the task has ended.
    pub fn part(&self, task: usize) -> Option<(Range<usize>, Range<usize>)> {
        match &self.plan {
            Plan::Matrix(plan) => Some(plan.part(&self.spec, task)),
            Plan::Vector(plan) if self.spec.m == 1 => Some((0..1, plan.part(task, self.set))),
            Plan::Vector(plan) => Some((plan.part(task, self.set), 0..1)),
            Plan::Nothing | Plan::Clear => None,
        }
    }

    /// Returns the number of f32s of the scratch that all tasks share. A phase leaves data in it for the next
    /// phase, but not for the next call.
    pub fn shared_len(&self) -> usize {
        match &self.plan {
            Plan::Matrix(plan) => plan.shared_len(),
            Plan::Vector(plan) => plan.shared_len(),
            Plan::Nothing | Plan::Clear => 0,
        }
    }

    /// Returns the number of f32s of each worker's own scratch. No task leaves data in it for another task.
    pub fn worker_len(&self) -> usize {
        match &self.plan {
            Plan::Nothing | Plan::Clear => 0,
            Plan::Vector(plan) => plan.worker_len(),
            Plan::Matrix(plan) => plan.worker_len(),
        }
    }

    /// Returns the number of floating-point operations of the matmul: 2 m n k.
    pub fn flops(&self) -> u64 {
        2 * self.spec.m as u64 * self.spec.n as u64 * self.spec.k as u64
    }

    /// Runs one task of a phase.
    ///
    /// # Safety
    ///
    /// - `phase < phases()` and `task < tasks(phase)`. All tasks of the previous phases must have
    ///   ended, with the same operands and the same `shared`.
    /// - `a`, `b` and `c` must be valid for the elements that the spec names, `c` for writing. C
    ///   must overlap neither A nor B, and only other tasks of this call may write any of the three
    ///   meanwhile.
    /// - `shared` must be valid for [`Self::shared_len`] f32s and only be accessed by this call's
    ///   tasks. `worker` must be valid for [`Self::worker_len`] f32s and only be accessed by this
    ///   task. Both should be aligned to 64 bytes (for speed). Their initial values are arbitrary,
    ///   but the memory must be initialized.
    #[expect(clippy::too_many_arguments, reason = "the raw form of a launch")]
    pub unsafe fn run_task(
        &self,
        phase: usize,
        task: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        shared: *mut f32,
        worker: *mut f32,
    ) {
        let operands = Operands {
            a,
            b,
            c,
            addend: Addend::NONE,
            shared,
            worker,
        };
        // SAFETY: passed on to the caller.
        unsafe { self.run_task_on(phase, task, operands) }
    }

    /// Runs a task like [`Self::run_task`], and also adds the addend of the operands.
    ///
    /// # Safety
    ///
    /// As for [`Self::run_task`]; the addend must be null or valid for the elements of C, and no other code
    /// may write it meanwhile.
    pub unsafe fn run_task_on(&self, phase: usize, task: usize, operands: Operands) {
        let c = operands.c;
        match &self.plan {
            Plan::Nothing => {}
            Plan::Clear => {
                for i in 0..self.spec.m {
                    // SAFETY: row `i` of C and of the addend. They are valid by the function's contract.
                    unsafe {
                        let row = c.add(i * self.spec.ldc);
                        match operands.addend.at(i, 0) {
                            Some(from) => std::ptr::copy_nonoverlapping(from, row, self.spec.n),
                            None => std::ptr::write_bytes(row, 0, self.spec.n),
                        }
                    }
                }
            }
            // SAFETY: passed on to the caller; `set` was chosen for this CPU.
            Plan::Vector(plan) => unsafe { plan.run(self.set, phase, task, operands) },
            // SAFETY: as above.
            Plan::Matrix(plan) => unsafe {
                if phase + 1 < plan.phases() {
                    plan.pack(&self.spec, self.set, task, operands);
                } else {
                    plan.multiply(&self.spec, self.set, task, operands);
                }
            },
        }
    }
}
