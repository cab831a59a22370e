//! Partition of a matrix-matrix product into tasks and blocks.

use std::ops::Range;

use super::kernels::KernelSet;
use super::pack;
use super::spec::{GemmSpec, Operands, Strides};
use super::tile::Tile;
use crate::share::share;

/// Maximum number of steps along k in a block. With AVX2, a panel of B then has 32 KiB, and a part of it is
/// read from the second-level cache. That is fast enough: each tile computes long enough to hide its loads
/// and stores of C.
const K_BLOCK: usize = 512;
/// Maximum number of rows in a block. A block of A then has about 400 KB, a part of the second-level cache.
const ROW_BLOCK: usize = 192;
/// Number of columns that a task packs at a time. They take about as much memory as a block of A.
const COL_BLOCK: usize = 256;

/// Minimum number of operations of a task: some microseconds of work.
const TASK_FLOPS: u64 = 400_000;
/// Maximum number of tasks of a matmul of medium size, and the number of operations per additional
/// task of a large one, which may run on many threads.
const MEDIUM_TASKS: u64 = 16;
const LARGE_TASK_FLOPS: u64 = 100_000_000;
const MAX_TASKS: u64 = 64;
/// Maximum number of rows of a C that is cut by columns only. Each task then packs its columns of B itself,
/// in cache, and no thread waits for a common packing phase.
const WIDE_ROWS: usize = 128;
/// Minimum number of rows of a task in a taller C, and minimum number of panels if C has to be cut by columns
/// too.
const TASK_ROWS: usize = 48;
const TASK_PANELS: usize = 4;

/// Maximum number of f32s of a B that is read in place: half of a 1 MiB second-level cache. A smaller B is also
/// packed if C is tall and the matmul has at least `IN_PLACE_FLOPS`: with many rows of C, the time to pack B is
/// small, and a packed panel stays in the first-level cache even if the rows of B are far apart or are not whole
/// cache lines.
const OPERAND_LEN: usize = 128 * 1024;
const IN_PLACE_FLOPS: u64 = 8_000_000;
/// Maximum number of panels of a block for which rows are the outer loop of its tiles. A tile's rows of A are
/// then read only once, from any level of memory, and the panels come from the second-level cache.
const FEW_PANELS: usize = 4;
/// Minimum number of `f32`s of B for a packing task.
const PACK_LEN: usize = 32 * 1024;
const MAX_PACK_TASKS: usize = 16;
/// Distance between rows of A, in `f32`s, at whose multiples the rows compete for few cache sets.
const CROWDING: usize = 256;

/// The memory from which tiles read B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The operand itself, row by row.
    Operand,
    /// The operand itself, already stored in panels.
    Panels,
    /// Panels in the worker's scratch. Each task packs its own columns, which no other task uses.
    Worker,
    /// Panels in the worker's scratch, like `Worker`. The tiles of the task's first rows read B in place and
    /// copy it to the panels for the remaining rows. This overlaps memory reads with arithmetic.
    Copied,
    /// Panels in the shared scratch. The first phase packs them for all tasks.
    Shared,
}

/// The partition of a matmul.
///
/// C is cut into a grid of tasks. A task iterates over blocks of k, blocks of columns, blocks of rows, and then over
/// tiles. If each task packs B, it packs each block of columns. Tiles are ordered with columns in the outer loop, and
/// rows in the inner one. The panel of B therefore stays in the first-level cache, and the block of A in the
/// second-level cache. With few panels, rows are the outer loop.
#[derive(Clone, Debug)]
pub(super) struct MatrixPlan {
    source: Source,
    /// Number of parts into which C is cut by rows, and by columns.
    row_parts: usize,
    col_parts: usize,
    /// Number of columns of the widest tile, and number of panels of this width in B.
    width: usize,
    panels: usize,
    /// Number of steps along k in a block, and number of such blocks.
    k_block: usize,
    k_blocks: usize,
    /// Maximum number of rows, and maximum number of panels, of a block.
    row_block: usize,
    panel_block: usize,
    /// True if blocks of A are copied before use: A has no contiguous axis, or its rows compete for the same cache
    /// sets.
    copy_a: bool,
    /// Number of tasks of the packing phase.
    pack_tasks: usize,
}

/// A right operand of a matmul that can be packed into panels.
pub(super) trait RightOperand {
    /// Packs `panels` for `steps` along k, in the order of [`pack::panels`].
    ///
    /// # Safety
    ///
    /// The operand must be valid. `to` must have room for the panels, and no other code may access it
    /// meanwhile. The CPU must be able to run `set`.
    unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, steps: &Range<usize>, panels: Range<usize>, to: *mut f32);
}

/// A right operand of `f32`s with the strides of the spec.
struct StridedF32(*const f32);

impl MatrixPlan {
    /// Creates a plan with one phase. Each task computes its own columns, and no part of the right operand is
    /// packed twice or read in place. Blocks of k begin at multiples of `step`.
    pub(super) fn of_columns(spec: &GemmSpec, set: &KernelSet, step: usize) -> Self {
        let plan = MatrixPlan::new(spec, set, false);
        let k_block = plan.k_block.next_multiple_of(step);
        let col_parts = wanted_tasks(spec).min(plan.panels);
        Self {
            source: Source::Worker,
            row_parts: 1,
            col_parts,
            k_block,
            k_blocks: spec.k.div_ceil(k_block),
            row_block: ROW_BLOCK.min(spec.m),
            panel_block: (COL_BLOCK / plan.width).min(plan.panels.div_ceil(col_parts)),
            pack_tasks: 0,
            ..plan
        }
    }

    /// Plans a matmul. With `in_panels`, B is stored in panels that each contain all of k, and the strides of
    /// B in the spec are ignored.
    pub(super) fn new(spec: &GemmSpec, set: &KernelSet, in_panels: bool) -> Self {
        let width = set.tile_cols;
        let panels = spec.n.div_ceil(width);
        let k_block = spec.k.div_ceil(spec.k.div_ceil(K_BLOCK)).next_multiple_of(4);
        let k_blocks = spec.k.div_ceil(k_block);
        let tasks = wanted_tasks(spec);
        let (row_parts, col_parts) = if spec.m <= WIDE_ROWS {
            (1, tasks.min(panels))
        } else {
            let rows = tasks.min(spec.m.div_ceil(TASK_ROWS));
            let cols = tasks.div_ceil(rows).min(panels.div_ceil(TASK_PANELS));
            (rows, cols)
        };
        let b_len = spec.k.saturating_mul(spec.n);
        let tall = spec.m > WIDE_ROWS && flops(spec) > IN_PLACE_FLOPS;
        let in_place = spec.b.col == 1 && b_len <= OPERAND_LEN && !tall;
        let (source, pack_tasks, panel_block) = if in_panels {
            (Source::Panels, 0, panels)
        } else if in_place {
            (Source::Operand, 0, panels)
        } else if row_parts == 1 {
            let block = (COL_BLOCK / width).min(panels.div_ceil(col_parts));
            let contiguous = spec.a.col == 1 && spec.b.col == 1;
            let source = if contiguous { Source::Copied } else { Source::Worker };
            (source, 0, block)
        } else {
            let tasks = (b_len / PACK_LEN).clamp(1, MAX_PACK_TASKS).min(panels);
            (Source::Shared, tasks, panels)
        };
        let (unit, line) = if spec.a.col == 1 {
            (true, spec.a.row)
        } else {
            (spec.a.row == 1, spec.a.col)
        };
        let reused = panels.div_ceil(col_parts) > FEW_PANELS;
        Self {
            source,
            row_parts,
            col_parts,
            width,
            panels,
            k_block,
            k_blocks,
            row_block: ROW_BLOCK.min(spec.m.div_ceil(row_parts)),
            panel_block,
            copy_a: !unit || (reused && line.is_multiple_of(CROWDING)),
            pack_tasks,
        }
    }

    pub(super) fn phases(&self) -> usize {
        if self.source == Source::Shared { 2 } else { 1 }
    }

    pub(super) fn tasks(&self, phase: usize) -> usize {
        if phase + 1 < self.phases() {
            self.pack_tasks
        } else {
            self.row_parts * self.col_parts
        }
    }

    /// Returns the ranges of rows and of columns of C that a task of the last phase computes.
    pub(super) fn part(&self, spec: &GemmSpec, task: usize) -> (Range<usize>, Range<usize>) {
        let rows = share(spec.m, self.row_parts, task / self.col_parts);
        let panels = share(self.panels, self.col_parts, task % self.col_parts);
        (rows, panels.start * self.width..(panels.end * self.width).min(spec.n))
    }

    pub(super) fn shared_len(&self) -> usize {
        if self.source == Source::Shared {
            self.k_blocks * self.k_block * self.panels * self.width
        } else {
            0
        }
    }

    pub(super) fn worker_len(&self) -> usize {
        let a_len = if self.copy_a { self.row_block * self.k_block } else { 0 };
        self.worker_panels_len() + a_len
    }

    /// Returns the number of f32s of the panels of B in a worker's scratch. The copy of A follows them.
    fn worker_panels_len(&self) -> usize {
        match self.source {
            Source::Worker | Source::Copied => self.panel_block * self.k_block * self.width,
            Source::Operand | Source::Panels | Source::Shared => 0,
        }
    }

    /// Returns true if tiles read B from main memory and prefetch the next panel.
    fn reads_on(&self) -> bool {
        matches!(self.source, Source::Copied | Source::Panels)
    }

    /// Returns the steps along k that belong to a block.
    fn steps(&self, spec: &GemmSpec, block: usize) -> Range<usize> {
        let start = block * self.k_block;
        start..(start + self.k_block).min(spec.k)
    }

    /// Returns the offset of a panel in the shared scratch. The scratch is ordered by block of k, then by
    /// panel, then by step.
    fn shared_at(&self, steps: &Range<usize>, panel: usize) -> usize {
        (steps.start * self.panels + steps.len() * panel) * self.width
    }

    /// Runs a task of the first of two phases, which packs some panels of B for all tasks.
    ///
    /// # Safety
    ///
    /// As for [`super::Gemm::run_task`], with a `set` that the CPU can run.
    pub(super) unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, task: usize, operands: Operands) {
        let panels = share(self.panels, self.pack_tasks, task);
        for block in 0..self.k_blocks {
            let steps = self.steps(spec, block);
            // SAFETY: steps and columns are within B; each task writes panels of
            // its own.
            unsafe {
                let to = operands.shared.add(self.shared_at(&steps, panels.start));
                StridedF32(operands.b).pack(spec, set, &steps, panels.clone(), to);
            }
        }
    }

    /// Runs a task of the last phase, which computes one part of C.
    ///
    /// # Safety
    ///
    /// As for [`super::Gemm::run_task`], with a `set` that the CPU can run.
    pub(super) unsafe fn multiply(&self, spec: &GemmSpec, set: &KernelSet, task: usize, operands: Operands) {
        // SAFETY: passed on to the caller.
        unsafe { self.multiply_by(spec, set, task, &StridedF32(operands.b), operands) }
    }

    /// Runs a task of the last phase with the right operand `right` instead of `operands.b`. If the plan
    /// reads B in place, it still reads `operands.b`.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`].
    pub(super) unsafe fn multiply_by(
        &self,
        spec: &GemmSpec,
        set: &KernelSet,
        task: usize,
        right: &impl RightOperand,
        operands: Operands,
    ) {
        let rows = share(spec.m, self.row_parts, task / self.col_parts);
        let panels = share(self.panels, self.col_parts, task % self.col_parts);
        for block in 0..self.k_blocks {
            let steps = self.steps(spec, block);
            for first_panel in panels.clone().step_by(self.panel_block) {
                let some = first_panel..(first_panel + self.panel_block).min(panels.end);
                // SAFETY: steps and columns are within B. The panels fit into the worker's scratch, and the
                // first phase has written the panels of the shared scratch.
                let b = unsafe {
                    match self.source {
                        Source::Operand | Source::Panels => None,
                        Source::Copied => Some(operands.worker.cast_const()),
                        Source::Worker => {
                            right.pack(spec, set, &steps, some.clone(), operands.worker);
                            Some(operands.worker.cast_const())
                        }
                        Source::Shared => {
                            let at = self.shared_at(&steps, some.start);
                            Some(operands.shared.add(at).cast_const())
                        }
                    }
                };
                for first_row in rows.clone().step_by(self.row_block) {
                    let part = Part {
                        rows: first_row..(first_row + self.row_block).min(rows.end),
                        panels: some.clone(),
                        steps: steps.clone(),
                        next: if some.end < panels.end {
                            Some((steps.start, some.end))
                        } else {
                            (block + 1 < self.k_blocks).then_some((steps.end, panels.start))
                        },
                    };
                    // SAFETY: the part is within this task's part of C.
                    unsafe { self.block(spec, set, &part, b, operands) };
                }
            }
        }
    }

    /// Returns the memory from which tile `tile` of `tiles` reads panel `index` of a block. `packed` is the
    /// address of the block's packed panels, if any; `b` is the address of B. The returned addresses may be
    /// invalid.
    fn lines(
        &self,
        spec: &GemmSpec,
        part: &Part,
        packed: Option<*const f32>,
        b: *const f32,
        index: usize,
        (tile, tiles): (usize, usize),
    ) -> TileSource {
        // Otherwise, each block of rows of a task would read B in place again.
        const { assert!(WIDE_ROWS <= ROW_BLOCK) };
        let k = part.steps.len();
        let (step_row, panel_row) = match self.source {
            Source::Panels => (self.width, spec.k * self.width),
            _ => (spec.b.row, self.width),
        };
        let in_place = |(step, panel): (usize, usize)| b.wrapping_add(step * step_row + panel * panel_row);
        let panel = packed.map_or(std::ptr::null(), |packed| packed.wrapping_add(index * k * self.width));
        let first = self.source == Source::Copied && tile == 0;
        let (b, row) = if packed.is_some() && !first {
            (panel, self.width)
        } else {
            (in_place((part.steps.start, part.panels.start + index)), step_row)
        };
        // Each tile of a panel prefetches a part of the next panel.
        let next = if index + 1 < part.panels.len() {
            Some((part.steps.start, part.panels.start + index + 1))
        } else {
            part.next
        };
        let (prefetch, ahead_row) = match next {
            Some((step, panel)) if self.reads_on() => {
                let skipped = share(k, tiles, tile).start;
                (in_place((step + skipped, panel)), step_row)
            }
            _ => (b, 0),
        };
        TileSource {
            b,
            row,
            panel,
            first,
            prefetch,
            ahead_row,
        }
    }

    /// Multiplies one block. `b` is the address of its panels, if they are packed.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`], for a part of C that this task owns.
    unsafe fn block(&self, spec: &GemmSpec, set: &KernelSet, part: &Part, b: Option<*const f32>, operands: Operands) {
        let k = part.steps.len();
        let rows = part.rows.len();
        let by_rows = spec.a.col == 1;
        let kernels = if by_rows { set.by_rows } else { set.by_cols };
        // All tiles have nearly the same height: a tile with few rows would not keep the arithmetic units
        // busy.
        let tiles = rows.div_ceil(kernels.len());
        // SAFETY: the first element of the block, and a copy within the scratch.
        let a = unsafe {
            let at = part.rows.start * spec.a.row + part.steps.start * spec.a.col;
            let from = operands.a.add(at);
            if self.copy_a {
                let to = operands.worker.add(self.worker_panels_len());
                pack::tiles(from, spec.a, rows, k, tiles, to);
                to.cast_const()
            } else {
                from
            }
        };
        let panels = part.panels.len();
        for at in 0..tiles * panels {
            let (tile, index) = if panels <= FEW_PANELS && !self.reads_on() {
                (at / panels, at % panels)
            } else {
                (at % tiles, at / tiles)
            };
            let col = (part.panels.start + index) * self.width;
            let right = self.lines(spec, part, b, operands.b, index, (tile, tiles));
            let rows = share(rows, tiles, tile);
            // The copy of A is stored tile by tile.
            let (a_at, a_row, a_col) = if !self.copy_a {
                (rows.start * spec.a.row, spec.a.row, spec.a.col)
            } else if by_rows {
                (rows.start * k, k, 1)
            } else {
                (rows.start * k, 1, rows.len())
            };
            let kernels = if right.first { set.copying } else { kernels };
            let kernels = &kernels[rows.len() - 1];
            let first_row = part.rows.start + rows.start;
            // SAFETY: elements of the block in A and C; the kernel for the
            // tile's rows and columns.
            unsafe {
                let c = operands.c.add(first_row * spec.ldc + col);
                // Later blocks of k add to the sums of the earlier ones in C.
                let (base, base_row) = if spec.accumulate || part.steps.start > 0 {
                    (c.cast_const(), spec.ldc)
                } else {
                    let start = operands.addend.at(first_row, col);
                    (start.unwrap_or(std::ptr::null()), operands.addend.row)
                };
                let tile = Tile {
                    a: a.add(a_at),
                    a_row,
                    a_col,
                    b: right.b,
                    b_row: right.row,
                    c,
                    c_row: spec.ldc,
                    k,
                    cols: self.width.min(spec.n - col),
                    base,
                    base_row,
                    copy: right.panel.cast_mut(),
                    copy_row: self.width,
                    prefetch: right.prefetch,
                    ahead_row: right.ahead_row,
                };
                set.run(kernels, &tile);
            }
        }
    }
}

/// The address of B for one tile, and of the lines that the tile prefetches.
struct TileSource {
    /// Address of the first line (row of B in the tile), and distance to the next line.
    b: *const f32,
    row: usize,
    /// Panel with the lines; null if B is not packed. The first tile that reads the lines copies them to this panel.
    panel: *const f32,
    first: bool,
    /// Address of the first line to prefetch while multiplying (it may be invalid), and distance to the next
    /// line.
    prefetch: *const f32,
    ahead_row: usize,
}

/// Returns the number of floating-point operations of a matmul, saturating at the maximum of the type.
fn flops(spec: &GemmSpec) -> u64 {
    let lengths = [spec.m, spec.n, spec.k];
    lengths
        .iter()
        .fold(2, |product, len| product.saturating_mul(*len as u64))
}

/// Returns the desired number of tasks of a matmul.
fn wanted_tasks(spec: &GemmSpec) -> usize {
    let flops = flops(spec);
    let most = (MEDIUM_TASKS + flops / LARGE_TASK_FLOPS).min(MAX_TASKS);
    // At most MAX_TASKS, which fits any usize.
    (flops / TASK_FLOPS).clamp(1, most) as usize
}

/// The rows, panels and steps of a block of the matmul.
struct Part {
    rows: Range<usize>,
    panels: Range<usize>,
    steps: Range<usize>,
    /// First step and first panel of the next block of this task, if any.
    next: Option<(usize, usize)>,
}

impl RightOperand for StridedF32 {
    unsafe fn pack(&self, spec: &GemmSpec, set: &KernelSet, steps: &Range<usize>, panels: Range<usize>, to: *mut f32) {
        let width = set.tile_cols;
        let first = panels.start * width;
        let cols = (panels.end * width).min(spec.n) - first;
        let Strides { row, col } = spec.b;
        // SAFETY: this is the first element of the panels, and the panels are within B.
        unsafe {
            let from = self.0.add(steps.start * row + first * col);
            (set.panels)(from, spec.b, steps.len(), cols, width, to);
        }
    }
}
