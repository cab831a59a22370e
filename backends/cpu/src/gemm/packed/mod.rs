//! Matmuls with weights of few bits.
//!
//! Rows of the left operand are rounded to integers if the storage format has integer kernels: to 16 bits for weights
//! in panels, to 21 bits for a single row. Otherwise weights are expanded to `f32` when they are used: in
//! registers for few rows of the left operand, or block by block when the right operand is packed.

mod integers;
pub(super) mod kernels;
#[cfg(target_arch = "x86_64")]
mod panels;
mod rounded;
mod rows;

use std::ops::Range;

use meganeura_core::quantization::{BLOCK, BlockFormat};

pub(super) use kernels::{MAX_ROWS, PackedKernels};
pub(crate) use rows::{Rows, Storage};

use integers::{Group, Integers};
use kernels::{MatmulFn, PANEL_ROWS, PanelKernels, UNIT};
use rounded::{Block, RoundedKernels};

use super::kernels::KernelSet;
use super::matrix::{MatrixPlan, RightOperand};
use super::spec::{Addend, GemmSpec, Kernel, Operands, Strides};
use crate::memory::aligned;
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

/// Minimum number of stored numbers of a task, and maximum number of tasks.
const TASK_NUMBERS: usize = 64 * 1024;
const MAX_TASKS: usize = 32;
/// Minimum number of stored numbers of a task, and maximum number of tasks, of integer matmuls. A matrix of 576 by
/// 192 makes two tasks, so that two threads can share it.
const INTEGER_TASK_NUMBERS: usize = 48 * 1024;
const MAX_INTEGER_TASKS: usize = 64;
/// Minimum number of multiplications of a task in matmuls of rounded rows: about 50 microseconds.
const ROUNDED_TASK_PRODUCTS: usize = 3 << 20;
/// Maximum number of bytes of rounded rows that a task multiplies by each panel of weights. They stay in the
/// second-level cache.
const ROUNDED_TASK_BYTES: usize = 384 << 10;
/// Maximum number of rows of the left operand for which weights are expanded in registers. Each group of [`MAX_ROWS`]
/// rows expands the weights again.
const FEW_ROWS: usize = 2 * MAX_ROWS;
/// Number of columns in a group. Tasks have whole groups, because the inner loops process a group together, or whole
/// panels.
const GROUP: usize = 4;

/// Permitted bits of the largest magnitude in a block of a rounded row, from 2^-60 to 2^60 (exclusive).
#[cfg(target_arch = "x86_64")]
const MAGNITUDES: Range<u32> = (127 - 60) << 23..(127 + 60) << 23;

/// The algorithm of a matmul.
#[derive(Clone)]
enum Algorithm {
    /// Weights are expanded in registers. If k is 0, this algorithm writes the results.
    Registers { tasks: usize },
    /// [`PackedGemm::prepare`] rounds the single row to integers, unless its numbers are out of range.
    Integers { tasks: usize, kernels: &'static Integers },
    /// All rows are rounded to integers, for weights in panels. A task computes a part of the rows and of the columns.
    Rounded {
        by_rows: usize,
        by_cols: usize,
        kernels: &'static RoundedKernels,
    },
    /// Weights are expanded when the right operand of an `f32` matmul is packed.
    Panels(GemmSpec, MatrixPlan),
}

/// A planned matmul `y[m, n] = x[m, k] · weights[n, k]` transposed (each row of weights gives a column of `y`).
#[derive(Clone)]
pub(crate) struct PackedGemm {
    m: usize,
    n: usize,
    k: usize,
    storage: Storage,
    set: &'static KernelSet,
    /// Kernels for panels; `None` if the weights are stored row by row.
    panels: Option<&'static PanelKernels>,
    way: Algorithm,
}

/// Returns the integer kernels for weights stored row by row, if they are faster on the CPU.
fn integers_by_rows(kernel: Kernel, storage: Storage) -> Option<&'static Integers> {
    #[cfg(target_arch = "x86_64")]
    return Integers::fastest(kernel, storage);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (kernel, storage);
        None
    }
}

/// Returns the kernels for a storage format in panels, if they are faster on the CPU.
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
    /// Plans a matmul with the fastest inner loops that this CPU can run. The weights are stored row by row, or in
    /// the layout of [`PackedGemm::panels`].
    pub(crate) fn new([m, n, k]: [usize; 3], storage: Storage, in_panels: bool) -> Self {
        PackedGemm::with_kernel([m, n, k], storage, in_panels, Kernel::detect())
    }

    /// Returns the panel layouts of the numbers and of the scales of a matrix `[n, k]`. Returns `None` if panels do
    /// not make its matmuls faster.
    pub(crate) fn panels([n, k]: [usize; 2], storage: Storage) -> Option<[Panels; 2]> {
        PackedGemm::panels_for([n, k], storage, Kernel::detect())
    }

    fn panels_for([n, k]: [usize; 2], storage: Storage, kernel: Kernel) -> Option<[Panels; 2]> {
        panel_kernels(kernel, storage)?;
        let scale = size_of::<u16>();
        let numbers = Panels::new(n, storage.bytes(k), PANEL_ROWS, UNIT)?;
        let scales = Panels::new(n, k / BLOCK * storage.scales() * scale, PANEL_ROWS, scale);
        // The scales of a block are stored like panels with one unit per row.
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
        let groups = n.div_ceil(if panels.is_some() { PANEL_ROWS } else { GROUP });
        let is_empty = m == 0 || n == 0 || k == 0;
        let way = if let (Some(panels), false) = (panels, is_empty) {
            let row_bytes = size_of::<Block>() * (k / BLOCK);
            let rows = (ROUNDED_TASK_BYTES / row_bytes / rounded::ROWS).max(1) * rounded::ROWS;
            let by_rows = m.div_ceil(rows);
            let products = n.saturating_mul(k).saturating_mul(m);
            // Memory bandwidth limits matmuls with a few rows.
            let tasks = (products / ROUNDED_TASK_PRODUCTS).max(n.saturating_mul(k) / INTEGER_TASK_NUMBERS);
            Algorithm::Rounded {
                by_rows,
                by_cols: (tasks / by_rows).clamp(1, MAX_INTEGER_TASKS).min(groups),
                kernels: &panels.rounded,
            }
        } else if m <= FEW_ROWS || is_empty {
            let work = n.saturating_mul(k).saturating_mul(m.div_ceil(MAX_ROWS));
            match integers_by_rows(set.kernel, storage) {
                Some(kernels) if m == 1 && work > 0 => Algorithm::Integers {
                    tasks: (work / INTEGER_TASK_NUMBERS).clamp(1, MAX_INTEGER_TASKS).min(groups),
                    kernels,
                },
                _ => Algorithm::Registers {
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
            Algorithm::Panels(spec, MatrixPlan::of_columns(&spec, set, BLOCK))
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

    /// Returns the number of independent tasks. It depends only on the sizes of the matmul.
    pub(crate) fn tasks(&self) -> usize {
        match &self.way {
            Algorithm::Registers { tasks } | Algorithm::Integers { tasks, .. } => *tasks,
            Algorithm::Rounded { by_rows, by_cols, .. } => by_rows * by_cols,
            Algorithm::Panels(_, plan) => plan.tasks(0),
        }
    }

    /// Returns the number of floating-point operations.
    pub(crate) fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }

    /// Returns the size of a worker's scratch in `f32`s.
    pub(crate) fn worker_len(&self) -> usize {
        match &self.way {
            Algorithm::Registers { .. } | Algorithm::Integers { .. } | Algorithm::Rounded { .. } => 0,
            Algorithm::Panels(_, plan) => plan.worker_len(),
        }
    }

    /// Returns the number of `f32`s of the scratch that the tasks share. [`PackedGemm::prepare`] fills it.
    pub(crate) fn shared_len(&self) -> usize {
        match &self.way {
            Algorithm::Integers { .. } => {
                self.header() + integers::groups(self.k) * (size_of::<Group>() / size_of::<f32>())
            }
            Algorithm::Rounded { .. } => self.header() + self.preparations() * self.tile_len(),
            Algorithm::Registers { .. } | Algorithm::Panels(..) => 0,
        }
    }

    /// Returns the number of independent tasks of [`PackedGemm::prepare`]; 0 if there is nothing to
    /// prepare.
    pub(crate) fn preparations(&self) -> usize {
        match &self.way {
            Algorithm::Integers { .. } => 1,
            Algorithm::Rounded { .. } => self.m.div_ceil(rounded::ROWS),
            Algorithm::Registers { .. } | Algorithm::Panels(..) => 0,
        }
    }

    /// Returns the number of `f32`s before the rounded rows. They contain a flag for each row that is not 0 if the
    /// rounded numbers of the row are usable.
    fn header(&self) -> usize {
        aligned(self.m)
    }

    /// Returns the size of a tile (up to [`rounded::ROWS`] rounded rows) in `f32`s.
    fn tile_len(&self) -> usize {
        rounded::tile_blocks(self.k) * (size_of::<Block>() / size_of::<f32>())
    }

    /// Runs a task of the preparation, which rounds rows before [`PackedGemm::run`].
    ///
    /// # Safety
    ///
    /// The task must exist, the left operand must have its size, and the shared scratch must have
    /// the requested length and begin at a cache line. Meanwhile, no code may write the left
    /// operand, and only other tasks of this call may access the scratch.
    pub(crate) unsafe fn prepare(&self, task: usize, x: *const f32, shared: *mut f32) {
        // SAFETY: this CPU can run the kernels. Each task has its own rows, blocks and flag. All other conditions are
        // passed on to the caller.
        unsafe {
            let (first, rows, usable) = match &self.way {
                Algorithm::Integers { kernels, .. } => {
                    let is_usable = (kernels.round)(x, self.k, shared.add(self.header()).cast());
                    (0, 1, u8::from(is_usable))
                }
                Algorithm::Rounded { kernels, .. } => {
                    let first = task * rounded::ROWS;
                    let rows = rounded::ROWS.min(self.m - first);
                    let tile = shared.add(self.header() + task * self.tile_len());
                    let usable = (kernels.round)(x.add(first * self.k), [rows, self.k], tile.cast());
                    (first, rows, usable)
                }
                Algorithm::Registers { .. } | Algorithm::Panels(..) => return,
            };
            for row in 0..rows {
                *shared.add(first + row) = f32::from(usable >> row & 1);
            }
        }
    }

    /// Returns the columns of `y` that a task computes, as rows of the weights.
    fn columns(&self, tasks: usize, task: usize) -> Range<usize> {
        let group = if self.panels.is_some() { PANEL_ROWS } else { GROUP };
        let groups = share(self.n.div_ceil(group), tasks, task);
        groups.start * group..(groups.end * group).min(self.n)
    }

    /// Returns how many columns of a range are in panels. The first column of the range must be the first of a panel.
    fn in_panels(&self, cols: &Range<usize>) -> usize {
        match self.panels {
            Some(_) => (self.n / PANEL_ROWS * PANEL_ROWS)
                .min(cols.end)
                .saturating_sub(cols.start),
            None => 0,
        }
    }

    /// Adds the weights that a task reads to `prefetch`, if the matmul is memory-bound.
    pub(crate) fn reads(&self, task: usize, weights: Rows, prefetch: &mut Prefetch) {
        let tasks = match &self.way {
            Algorithm::Registers { tasks } | Algorithm::Integers { tasks, .. } => tasks,
            Algorithm::Rounded {
                by_rows: 1, by_cols, ..
            } if self.m <= FEW_ROWS => by_cols,
            Algorithm::Rounded { .. } | Algorithm::Panels(..) => return,
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

    /// Runs a task. `scratch` is the shared scratch and the worker's own scratch.
    ///
    /// # Safety
    ///
    /// The task must exist. The operands must have the sizes of the plan and include scales if the storage format has
    /// them. The scratch must have the requested lengths. The shared scratch must be prepared for this `x` and is not
    /// written; only this task may use the worker's scratch. Meanwhile, no other code may access this task's part of
    /// `y` or write the other operands.
    pub(crate) unsafe fn run(
        &self,
        task: usize,
        x: *const f32,
        weights: Rows,
        y: *mut f32,
        [shared, worker]: [*mut f32; 2],
    ) {
        match &self.way {
            Algorithm::Registers { tasks } => {
                let cols = self.columns(*tasks, task);
                // SAFETY: the columns belong to this task only and are below `n`; passed on to the caller.
                unsafe { self.in_registers(0..self.m, cols, x, weights, y) }
            }
            Algorithm::Integers { tasks, kernels } => {
                let cols = self.columns(*tasks, task);
                // SAFETY: as above; the row is rounded if its header is not 0.
                unsafe {
                    if *shared == 0.0 {
                        return self.in_registers(0..1, cols, x, weights, y);
                    }
                    let weights = weights.from(self.storage, cols.start);
                    (kernels.matvec)(shared.add(self.header()).cast(), weights, cols.len(), y.add(cols.start));
                }
            }
            Algorithm::Rounded {
                by_rows,
                by_cols,
                kernels,
            } => {
                let cols = self.columns(*by_cols, task % by_cols);
                let tiles = share(self.preparations(), *by_rows, task / by_cols);
                // SAFETY: the columns and rows belong to this task only; passed on to the caller.
                unsafe { self.by_tiles(kernels, tiles, cols, x, weights, y, shared) }
            }
            Algorithm::Panels(spec, plan) => {
                let right = Expanded { gemm: self, weights };
                let operands = Operands {
                    a: x,
                    b: std::ptr::null(),
                    c: y,
                    addend: Addend::NONE,
                    shared: std::ptr::null_mut(),
                    worker,
                };
                // SAFETY: the plan reads the right operand only through `right`, and has one phase;
                // passed on to the caller.
                unsafe { plan.multiply_by(spec, self.set, task, &right, operands) }
            }
        }
    }

    /// Multiplies tiles of rounded rows. Each panel of weights is multiplied by all tiles while it is in a cache.
    ///
    /// # Safety
    ///
    /// As for [`PackedGemm::run`].
    #[expect(clippy::too_many_arguments, reason = "operands, and what a task has of them")]
    unsafe fn by_tiles(
        &self,
        kernels: &RoundedKernels,
        tiles: Range<usize>,
        cols: Range<usize>,
        x: *const f32,
        weights: Rows,
        y: *mut f32,
        shared: *const f32,
    ) {
        let in_panels = self.in_panels(&cols);
        let rows_of = |tile: usize| tile * rounded::ROWS..self.m.min((tile + 1) * rounded::ROWS);
        // SAFETY: tiles and columns of the task; a row is rounded if its number in the header is
        // not 0.
        unsafe {
            for at in (0..in_panels).step_by(PANEL_ROWS) {
                let col = cols.start + at;
                let panel = weights.from(self.storage, col);
                for tile in tiles.clone() {
                    let rows = rows_of(tile);
                    let from = shared.add(self.header() + tile * self.tile_len());
                    let to = y.add(rows.start * self.n + col);
                    (kernels.matmul[rows.len() - 1])(from.cast(), panel, PANEL_ROWS, to, self.n);
                }
            }
            for tile in tiles {
                self.in_registers(rows_of(tile), cols.start + in_panels..cols.end, x, weights, y);
                for row in rows_of(tile).filter(|&row| *shared.add(row) == 0.0) {
                    self.in_registers(row..row + 1, cols.start..cols.start + in_panels, x, weights, y);
                }
            }
        }
    }

    /// Multiplies rows of `x` by weights that are expanded in registers.
    ///
    /// # Safety
    ///
    /// As for [`PackedGemm::run`].
    unsafe fn in_registers(&self, rows: Range<usize>, cols: Range<usize>, x: *const f32, weights: Rows, y: *mut f32) {
        let plain = &self.storage.kernels(self.set).matmul;
        let in_panels = self.in_panels(&cols);
        for row in rows.clone().step_by(MAX_ROWS) {
            let rows = MAX_ROWS.min(rows.end - row);
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

    /// Expands a row of weights, which must not be in panels, to `f32`.
    ///
    /// # Safety
    ///
    /// The row must exist; `to` must have room for `k` `f32`s that no other code accesses
    /// meanwhile.
    pub(crate) unsafe fn expand(&self, weights: Rows, row: usize, to: *mut f32) {
        let kernels = self.storage.kernels(self.set);
        // SAFETY: passed on to the caller.
        unsafe { (kernels.expand)(weights.from(self.storage, row), 0, self.k, to) }
    }
}

/// The rows of a weight matrix as the columns of a right operand. Packing expands them.
struct Expanded<'a> {
    gemm: &'a PackedGemm,
    weights: Rows,
}

impl RightOperand for Expanded<'_> {
    unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, steps: &Range<usize>, panels: Range<usize>, to: *mut f32) {
        let (width, storage) = (set.tile_cols, self.gemm.storage);
        let cols = panels.start * width..(panels.end * width).min(spec.n);
        // SAFETY: rows and their numbers are within the weights, and the weights are not in panels. Blocks along k
        // are whole, except for the last block.
        unsafe {
            let rows = self.weights.from(storage, cols.start);
            (storage.kernels(set).panels)(rows, [steps.start, steps.len()], [cols.len(), width], to);
        }
    }
}

#[cfg(test)]
mod tests;
