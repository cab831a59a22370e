//! Products with the rows of a matrix in few bits, expanded where they are used: in registers for few rows of the left
//! operand, else a piece at a time as other right operands are packed. One row by Q4_0 is rounded to integers instead, where
//! there are kernels for it.

mod integers;
mod kernels;

use std::ops::Range;

use meganeura_core::quantization::{BLOCK, BlockFormat};

pub(super) use kernels::{Bytes, Expand, Half, HalfBytes, MOST_ROWS, PackedKernels, expand, panels, products};

use integers::{Group, Integers};

use super::kernels::KernelSet;
use super::matrix::{MatrixPlan, Right};
use super::{Addend, GemmSpec, Kernel, Operands, Strides, share};
use crate::ahead::Ahead;

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
/// The same of products in integers. Matrices of 576 by 192 are two tasks, which two threads can share.
const INTEGER_TASK_NUMBERS: usize = 48 * 1024;
const MAX_INTEGER_TASKS: usize = 64;
/// Rows of the left operand up to which numbers are expanded in registers, for each few rows anew.
const FEW_ROWS: usize = 2 * MOST_ROWS;
/// Tasks have whole groups of so many columns, which is what inner loops like.
const GROUP: usize = 4;

/// `f32`s, a cache line, before a rounded row, of which the first says whether it can be used.
const HEADER: usize = 16;

/// How a product is computed.
#[derive(Clone)]
enum Way {
    /// Numbers are expanded in registers. So are those of sums of nothing, which have to be written, too.
    Registers { tasks: usize },
    /// The row is rounded to integers, which [`PackedGemm::prepare`] does, unless its numbers forbid it.
    Integers { tasks: usize, kernels: &'static Integers },
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
            let groups = n.div_ceil(GROUP);
            match Integers::beside(set.kernel) {
                Some(kernels) if m == 1 && work > 0 && storage == Storage::Blocks(BlockFormat::Q4_0) => Way::Integers {
                    tasks: (work / INTEGER_TASK_NUMBERS).clamp(1, MAX_INTEGER_TASKS).min(groups),
                    kernels,
                },
                _ => Way::Registers {
                    tasks: match m {
                        0 => 0,
                        _ => (work / TASK_NUMBERS).clamp(1, MAX_TASKS).min(groups),
                    },
                },
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
            Way::Registers { tasks } | Way::Integers { tasks, .. } => *tasks,
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
            Way::Registers { .. } | Way::Integers { .. } => 0,
            Way::Panels(_, plan) => plan.worker_len(),
        }
    }

    /// `f32`s of scratch that the tasks share, which [`PackedGemm::prepare`] fills; with none there is nothing to prepare.
    pub(crate) fn shared_len(&self) -> usize {
        match &self.way {
            Way::Integers { .. } => HEADER + integers::groups(self.k) * (size_of::<Group>() / size_of::<f32>()),
            Way::Registers { .. } | Way::Panels(..) => 0,
        }
    }

    /// Does what has to be done once, before any task.
    ///
    /// # Safety
    ///
    /// The left operand has its size, the shared scratch is as long as asked for and begins with a cache line; nobody writes
    /// the one or accesses the other meanwhile.
    pub(crate) unsafe fn prepare(&self, x: *const f32, shared: *mut f32) {
        if let Way::Integers { kernels, .. } = &self.way {
            // SAFETY: the kernels are of a set that the CPU can run; passed on to the caller.
            unsafe {
                let is_rounded = (kernels.round)(x, self.k, shared.add(HEADER).cast());
                *shared = f32::from(u8::from(is_rounded));
            }
        }
    }

    /// Columns of a task, which are rows of the weights.
    fn columns(&self, tasks: usize, task: usize) -> Range<usize> {
        let groups = share(self.n.div_ceil(GROUP), tasks, task);
        groups.start * GROUP..(groups.end * GROUP).min(self.n)
    }

    /// Adds the weights that a task reads, if memory bounds the product.
    pub(crate) fn reads(&self, task: usize, weights: Rows, ahead: &mut Ahead) {
        let (Way::Registers { tasks } | Way::Integers { tasks, .. }) = &self.way else {
            return;
        };
        let cols = self.columns(*tasks, task);
        let row = self.storage.bytes(self.k);
        ahead.push(weights.numbers.wrapping_add(cols.start * row), cols.len() * row);
        if let Storage::Blocks(_) = self.storage {
            let blocks = self.k / BLOCK;
            let scales = weights.scales.wrapping_add(cols.start * blocks);
            ahead.push(scales.cast(), cols.len() * blocks * size_of::<u16>());
        }
    }

    /// Runs a task, with the shared and the worker's own scratch.
    ///
    /// # Safety
    ///
    /// The task exists, the operands have these sizes, scales included where the storage has them, scratch is as long as
    /// asked for; the shared one is prepared for this `x` and is not written, the worker's is its own; nobody accesses this
    /// task's part of `y`, or writes the others, meanwhile.
    pub(crate) unsafe fn run(
        &self,
        task: usize,
        x: *const f32,
        weights: Rows,
        y: *mut f32,
        [shared, worker]: [*mut f32; 2],
    ) {
        match &self.way {
            Way::Registers { tasks } => {
                let cols = self.columns(*tasks, task);
                // SAFETY: columns of a task are its own, and below `n`; passed on to the caller.
                unsafe { self.in_registers(cols, x, weights, y) }
            }
            Way::Integers { tasks, kernels } => {
                let cols = self.columns(*tasks, task);
                // SAFETY: as above; the row is rounded if its header says so.
                unsafe {
                    if *shared == 0.0 {
                        return self.in_registers(cols, x, weights, y);
                    }
                    let weights = weights.from(self.storage, cols.start);
                    (kernels.product)(shared.add(HEADER).cast(), weights, cols.len(), y.add(cols.start));
                }
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
