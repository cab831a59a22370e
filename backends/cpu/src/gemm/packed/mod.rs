//! Products with the rows of a matrix in few bits, expanded where they are used: in registers for few rows of the left
//! operand, else a piece at a time as other right operands are packed.

mod kernels;

use std::ops::Range;

use meganeura_core::quantization::{BLOCK, BlockFormat};

pub(super) use kernels::{Bytes, Expand, Half, HalfBytes, MOST_ROWS, PackedKernels, expand, panels, products};

use super::kernels::KernelSet;
use super::matrix::{MatrixPlan, Right};
use super::{Addend, GemmSpec, Kernel, Operands, Strides, share};

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// IEEE 754 binary16.
    Half,
    /// Blocks of integers with a scale each.
    Blocks(BlockFormat),
}

impl Storage {
    fn kernels(self, set: &KernelSet) -> &PackedKernels {
        &set.packed[match self {
            Storage::Half => 0,
            Storage::Blocks(BlockFormat::Q8_0) => 1,
            Storage::Blocks(BlockFormat::Q4_0) => 2,
        }]
    }

    /// Bytes of so many numbers without scales, whole blocks where there are blocks.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Storage::Half => 2 * count,
            Storage::Blocks(format) => count / BLOCK * format.bytes(),
        }
    }
}

/// Rows of a stored matrix.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// The first row's numbers; rows follow each other.
    pub(crate) numbers: *const u8,
    /// The first row's scales; rows follow each other.
    pub(crate) scales: *const u16,
    /// Numbers of a row.
    pub(crate) k: usize,
}

impl Rows {
    /// The rows from one on.
    ///
    /// # Safety
    ///
    /// There are so many rows.
    unsafe fn from(self, storage: Storage, row: usize) -> Rows {
        // SAFETY: passed on to the caller.
        unsafe {
            Rows {
                numbers: self.numbers.add(row * storage.bytes(self.k)),
                scales: match storage {
                    Storage::Half => self.scales,
                    Storage::Blocks(_) => self.scales.add(row * (self.k / BLOCK)),
                },
                k: self.k,
            }
        }
    }
}

/// Stored numbers that are worth a task, and the most tasks.
const TASK_NUMBERS: usize = 64 * 1024;
const MAX_TASKS: usize = 32;
/// Rows of the left operand up to which numbers are expanded in registers, for each few rows anew.
const FEW_ROWS: usize = 2 * MOST_ROWS;
/// Tasks have whole groups of so many columns, which is what inner loops like.
const GROUP: usize = 4;

/// How a product is computed.
#[derive(Clone)]
enum Way {
    /// Numbers are expanded in registers. So are those of sums of nothing, which have to be written, too.
    Registers { tasks: usize },
    /// Numbers are expanded as the right operand of a product of matrices is packed.
    Panels(GemmSpec, MatrixPlan),
}

/// A planned product `y[m, n] = x[m, k] · weights[n, k]` transposed.
#[derive(Clone)]
pub(crate) struct PackedGemm {
    m: usize,
    n: usize,
    k: usize,
    storage: Storage,
    set: &'static KernelSet,
    way: Way,
}

impl PackedGemm {
    /// Plans a product with the fastest inner loops that this CPU can run.
    pub(crate) fn new([m, n, k]: [usize; 3], storage: Storage) -> Self {
        PackedGemm::with_kernel([m, n, k], storage, Kernel::detect())
    }

    fn with_kernel([m, n, k]: [usize; 3], storage: Storage, kernel: Kernel) -> Self {
        let set = kernel.set();
        let way = if m <= FEW_ROWS || n == 0 || k == 0 {
            let work = n.saturating_mul(k).saturating_mul(m.div_ceil(MOST_ROWS));
            let tasks = (work / TASK_NUMBERS).clamp(1, MAX_TASKS).min(n.div_ceil(GROUP));
            Way::Registers {
                tasks: if m == 0 { 0 } else { tasks },
            }
        } else {
            let spec = GemmSpec {
                m,
                n,
                k,
                a: Strides { row: k, col: 1 },
                b: Strides { row: 1, col: k },
                ldc: n,
                accumulate: false,
            };
            Way::Panels(spec, MatrixPlan::of_columns(&spec, set, BLOCK))
        };
        PackedGemm {
            m,
            n,
            k,
            storage,
            set,
            way,
        }
    }

    /// Number of independent tasks; the division depends on sizes alone.
    pub(crate) fn tasks(&self) -> usize {
        match &self.way {
            Way::Registers { tasks } => *tasks,
            Way::Panels(_, plan) => plan.tasks(0),
        }
    }

    /// Floating-point operations.
    pub(crate) fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }

    /// `f32`s of scratch of a worker.
    pub(crate) fn worker_len(&self) -> usize {
        match &self.way {
            Way::Registers { .. } => 0,
            Way::Panels(_, plan) => plan.worker_len(),
        }
    }

    /// Runs a task.
    ///
    /// # Safety
    ///
    /// The task exists, the operands have these sizes, scales included where the storage has them, scratch is as long as
    /// asked for and the worker's own; nobody accesses this task's part of `y`, or writes the others, meanwhile.
    pub(crate) unsafe fn run(&self, task: usize, x: *const f32, weights: Rows, y: *mut f32, worker: *mut f32) {
        match &self.way {
            Way::Registers { tasks } => {
                let groups = share(self.n.div_ceil(GROUP), *tasks, task);
                let cols = groups.start * GROUP..(groups.end * GROUP).min(self.n);
                // SAFETY: columns of a task are its own, and below `n`; passed on to the caller.
                unsafe { self.in_registers(cols, x, weights, y) }
            }
            Way::Panels(spec, plan) => {
                let right = Expanded {
                    weights,
                    storage: self.storage,
                };
                let operands = Operands {
                    a: x,
                    b: std::ptr::null(),
                    c: y,
                    addend: Addend::NONE,
                    shared: std::ptr::null_mut(),
                    worker,
                };
                // SAFETY: the plan reads the right operand by `right` alone, and has one phase; passed on to the caller.
                unsafe { plan.multiply_by(spec, self.set, task, &right, operands) }
            }
        }
    }

    /// # Safety
    ///
    /// As for [`PackedGemm::run`].
    unsafe fn in_registers(&self, cols: Range<usize>, x: *const f32, weights: Rows, y: *mut f32) {
        let kernels = self.storage.kernels(self.set);
        for row in (0..self.m).step_by(MOST_ROWS) {
            let rows = MOST_ROWS.min(self.m - row);
            // SAFETY: `rows` rows from `row` on, and columns of the task.
            unsafe {
                let weights = weights.from(self.storage, cols.start);
                let to = y.add(row * self.n + cols.start);
                (kernels.products[rows - 1])(x.add(row * self.k), weights, cols.len(), to, self.n);
            }
        }
    }

    /// Expands a row of the weights.
    ///
    /// # Safety
    ///
    /// The row exists; `to` has room for `k` `f32`s, which nobody else accesses meanwhile.
    pub(crate) unsafe fn expand(&self, weights: Rows, row: usize, to: *mut f32) {
        let kernels = self.storage.kernels(self.set);
        // SAFETY: passed on to the caller.
        unsafe { (kernels.expand)(weights.from(self.storage, row), 0, self.k, to) }
    }
}

/// Stored rows as the columns of a right operand.
struct Expanded {
    weights: Rows,
    storage: Storage,
}

impl Right for Expanded {
    unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, steps: &Range<usize>, panels: Range<usize>, to: *mut f32) {
        let width = set.tile_cols;
        let first = panels.start * width;
        let cols = (panels.end * width).min(spec.n) - first;
        // SAFETY: rows and their numbers are within the weights; blocks along k are whole, but for the last.
        unsafe {
            let rows = self.weights.from(self.storage, first);
            let panels = self.storage.kernels(set).panels;
            panels(rows, [steps.start, steps.len()], [cols, width], to);
        }
    }
}

#[cfg(test)]
mod tests;
