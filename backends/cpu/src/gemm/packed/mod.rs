//! Matmuls with the rows of a matrix in few bits, expanded where they are used: in registers for few rows of the left
//! operand, else a piece at a time as other right operands are packed. One row is rounded to integers instead, where there
//! are kernels for it.

mod integers;
mod kernels;
#[cfg(target_arch = "x86_64")]
mod panels;
mod rows;

use std::ops::Range;

use meganeura_core::quantization::{BLOCK, BlockFormat};

pub(super) use kernels::{
    Affine, Bytes, Expand, F16, FewBits, Halves, MAX_ROWS, Nibbles, PackedKernels, expand, matmul, panels,
};
pub(crate) use rows::{Rows, Storage};

use integers::{Group, Integers};
use kernels::{MatmulFn, PANEL_ROWS, PanelKernels, UNIT};

use super::kernels::KernelSet;
use super::matrix::{MatrixPlan, Right};
use super::spec::{Addend, GemmSpec, Kernel, Operands, Strides};
use crate::order::Panels;
use crate::prefetch::Prefetch;
use crate::share::share;

impl Storage {
    fn kernels(self, set: &KernelSet) -> &PackedKernels {
        &set.packed[match self {
            Storage::F16 => 0,
            Storage::Blocks(BlockFormat::Q8_0) => 1,
            Storage::Blocks(BlockFormat::Q4_0) => 2,
            Storage::Blocks(BlockFormat::Q4_1) => 3,
            Storage::Blocks(BlockFormat::Q5_0) => 4,
            Storage::Blocks(BlockFormat::Q5_1) => 5,
            Storage::Blocks(BlockFormat::Q6) => 6,
        }]
    }
}

/// Stored numbers that are worth a task, and the most tasks.
const TASK_NUMBERS: usize = 64 * 1024;
const MAX_TASKS: usize = 32;
/// The same of matmuls in integers. Matrices of 576 by 192 are two tasks, which two threads can share.
const INTEGER_TASK_NUMBERS: usize = 48 * 1024;
const MAX_INTEGER_TASKS: usize = 64;
/// Rows of the left operand up to which numbers are expanded in registers, for each few rows anew.
const FEW_ROWS: usize = 2 * MAX_ROWS;
/// Tasks have whole groups of so many columns, which is what inner loops like, or whole panels.
const GROUP: usize = 4;

/// `f32`s, a cache line, before a rounded row, of which the first says whether it can be used.
const HEADER: usize = 16;

/// How a matmul is computed.
#[derive(Clone)]
enum Way {
    /// Numbers are expanded in registers. So are those of sums of nothing, which have to be written, too.
    Registers { tasks: usize },
    /// The row is rounded to integers, which [`PackedGemm::prepare`] does, unless its numbers forbid it.
    Integers { tasks: usize, kernels: &'static Integers },
    /// Numbers are expanded as the right operand of a matmul is packed.
    Panels(GemmSpec, MatrixPlan),
}

/// A planned matmul `y[m, n] = x[m, k] · weights[n, k]` transposed.
#[derive(Clone)]
pub(crate) struct PackedGemm {
    m: usize,
    n: usize,
    k: usize,
    storage: Storage,
    set: &'static KernelSet,
    /// The kernels for panels, if the weights lie in them.
    panels: Option<&'static PanelKernels>,
    way: Way,
}

/// The kernels for a rounded row and weights that follow each other, if a CPU is faster with them.
fn integers_by_rows(kernel: Kernel, storage: Storage) -> Option<&'static Integers> {
    #[cfg(target_arch = "x86_64")]
    return Integers::fastest(kernel, storage);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (kernel, storage);
        None
    }
}

/// The kernels for a storage in panels, if a CPU is faster with them.
fn panel_kernels(kernel: Kernel, storage: Storage) -> Option<&'static PanelKernels> {
    #[cfg(target_arch = "x86_64")]
    return panels::fastest(kernel, storage);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (kernel, storage);
        None
    }
}

impl PackedGemm {
    /// Plans a matmul with the fastest inner loops that this CPU can run, with weights that follow each other or lie in the
    /// [`PackedGemm::panels`] that there are for them.
    pub(crate) fn new([m, n, k]: [usize; 3], storage: Storage, in_panels: bool) -> Self {
        PackedGemm::with_kernel([m, n, k], storage, in_panels, Kernel::detect())
    }

    /// The panels of numbers and of scales in which matmuls by a matrix `[n, k]` are faster, if they are.
    pub(crate) fn panels([n, k]: [usize; 2], storage: Storage) -> Option<[Panels; 2]> {
        PackedGemm::panels_for([n, k], storage, Kernel::detect())
    }

    fn panels_for([n, k]: [usize; 2], storage: Storage, kernel: Kernel) -> Option<[Panels; 2]> {
        panel_kernels(kernel, storage)?;
        let scale = size_of::<u16>();
        let numbers = Panels::new(n, storage.bytes(k), PANEL_ROWS, UNIT)?;
        let scales = Panels::new(n, k / BLOCK * storage.scales() * scale, PANEL_ROWS, scale);
        // A block's scale of each row lies as it does in panels of one unit.
        let one = Panels {
            rows: PANEL_ROWS,
            units: 1,
            unit: scale,
            count: n / PANEL_ROWS,
        };
        Some([numbers, scales.unwrap_or(one)])
    }

    fn with_kernel([m, n, k]: [usize; 3], storage: Storage, in_panels: bool, kernel: Kernel) -> Self {
        let set = kernel.set();
        let panels = panel_kernels(set.kernel, storage).filter(|_| in_panels);
        let integers = match panels {
            Some(kernels) => Some(&kernels.integers),
            None => integers_by_rows(set.kernel, storage),
        };
        let way = if m <= FEW_ROWS || n == 0 || k == 0 {
            let work = n.saturating_mul(k).saturating_mul(m.div_ceil(MAX_ROWS));
            let groups = n.div_ceil(if panels.is_some() { PANEL_ROWS } else { GROUP });
            match integers {
                Some(kernels) if m == 1 && work > 0 => Way::Integers {
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
            panels,
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
        let group = if self.panels.is_some() { PANEL_ROWS } else { GROUP };
        let groups = share(self.n.div_ceil(group), tasks, task);
        groups.start * group..(groups.end * group).min(self.n)
    }

    /// How many of a range of columns, which begins with a panel's first one, lie in panels.
    fn in_panels(&self, cols: &Range<usize>) -> usize {
        match self.panels {
            Some(_) => (self.n / PANEL_ROWS * PANEL_ROWS)
                .min(cols.end)
                .saturating_sub(cols.start),
            None => 0,
        }
    }

    /// Adds the weights that a task reads, if memory bounds the matmul.
    pub(crate) fn reads(&self, task: usize, weights: Rows, prefetch: &mut Prefetch) {
        let (Way::Registers { tasks } | Way::Integers { tasks, .. }) = &self.way else {
            return;
        };
        let cols = self.columns(*tasks, task);
        let row = self.storage.bytes(self.k);
        prefetch.push(weights.numbers.wrapping_add(cols.start * row), cols.len() * row);
        if let Storage::Blocks(_) = self.storage {
            let of_row = self.k / BLOCK * self.storage.scales();
            let scales = weights.scales.wrapping_add(cols.start * of_row);
            prefetch.push(scales.cast(), cols.len() * of_row * size_of::<u16>());
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
                let with_integers = match self.panels {
                    Some(_) => self.in_panels(&cols),
                    None => cols.len(),
                };
                let rest = cols.start + with_integers..cols.end;
                // SAFETY: as above; the row is rounded if its header says so.
                unsafe {
                    if *shared == 0.0 {
                        return self.in_registers(cols, x, weights, y);
                    }
                    let weights_of_task = weights.from(self.storage, cols.start);
                    let row = shared.add(HEADER).cast();
                    (kernels.matvec)(row, weights_of_task, with_integers, y.add(cols.start));
                    self.in_registers(rest, x, weights, y);
                }
            }
            Way::Panels(spec, plan) => {
                let right = Expanded { gemm: self, weights };
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
        let plain = &self.storage.kernels(self.set).matmul;
        let in_panels = self.in_panels(&cols);
        for row in (0..self.m).step_by(MAX_ROWS) {
            let rows = MAX_ROWS.min(self.m - row);
            let matmul = |kernels: &[MatmulFn; MAX_ROWS], cols: Range<usize>| {
                // SAFETY: `rows` rows from `row` on, and columns of the task.
                unsafe {
                    let weights = weights.from(self.storage, cols.start);
                    let to = y.add(row * self.n + cols.start);
                    kernels[rows - 1](x.add(row * self.k), weights, cols.len(), to, self.n);
                }
            };
            if let Some(panels) = self.panels {
                matmul(&panels.matmul, cols.start..cols.start + in_panels);
            }
            matmul(plain, cols.start + in_panels..cols.end);
        }
    }

    /// Expands a row of weights that are not in panels.
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
struct Expanded<'a> {
    gemm: &'a PackedGemm,
    weights: Rows,
}

impl Right for Expanded<'_> {
    unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, steps: &Range<usize>, panels: Range<usize>, to: *mut f32) {
        let (width, storage) = (set.tile_cols, self.gemm.storage);
        let plain = storage.kernels(set).panels;
        let cols = panels.start * width..(panels.end * width).min(spec.n);
        let in_panels = self.gemm.in_panels(&cols);
        // SAFETY: rows and their numbers are within the weights; blocks along k are whole, but for the last. A panel has whole
        // registers, and so many columns that a panel is within one.
        unsafe {
            if let Some(panels) = self.gemm.panels {
                for at in (0..in_panels).step_by(PANEL_ROWS) {
                    let rows = self.weights.from(storage, cols.start + at);
                    let to = to.add(at / width * width * steps.len() + at % width);
                    (panels.panel)(rows, [steps.start, steps.len()], width, to);
                }
            }
            // What is left of the panel in which panels end, and whole panels.
            let inside = in_panels % width;
            let rest = cols.len() - in_panels;
            let rows = self.weights.from(storage, cols.start + in_panels);
            let to = to.add((in_panels - inside) * steps.len() + inside);
            plain(rows, [steps.start, steps.len()], [rest, width], to);
        }
    }
}

#[cfg(test)]
mod tests;
