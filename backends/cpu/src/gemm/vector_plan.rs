//! Partition of a product of a vector and a matrix into tasks.

use std::ops::Range;

use super::kernels::KernelSet;
use super::spec::{GemmSpec, Operands};
use crate::share::share;

/// Minimum number of matrix elements of a task: 128 KiB, some microseconds of reading.
const TASK_ELEMENTS: usize = 32 * 1024;
/// Maximum number of tasks. More tasks would only cut long runs of memory into short ones.
const MAX_TASKS: usize = 32;
/// Ones: the second phase of [`Walk::Rows`] multiplies the partial sums by them to add them up.
static ONES: [f32; MAX_TASKS] = [1.0; MAX_TASKS];
/// Minimum number of adjacent results of a task if rows of the matrix are contiguous: a quarter of a page. Each row
/// is in other pages, and shorter runs spend more time on address translation than on reading.
const TASK_RUN: usize = 256;
/// Minimum number of matrix rows of a task if tasks divide the rows, because each task also writes its sums and reads
/// them once.
const TASK_ROWS: usize = 48;
/// Minimum number of tasks for a division by whole rows. A smaller matrix may be in a cache. Then the second phase
/// costs more than reading parts of rows.
const ROW_TASKS: usize = 8;
/// Number of results that are computed at a time: half of a 32 KiB first-level cache.
const BLOCK: usize = 4096;

/// Reading order of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Walk {
    /// Row by row, for contiguous rows. Each task computes some of the results.
    Stream,
    /// Like `Stream`, for a matrix stored in panels of this number of columns.
    Panels(usize),
    /// Like `Stream`, but each task adds up whole rows of the matrix. They are one contiguous range of memory. A
    /// second phase adds up the sums of all tasks.
    Rows,
    /// Column by column (along k), for contiguous columns.
    Dots,
    /// Element by element, for a matrix without a contiguous axis.
    Scalar,
}

/// The plan of a product `y[len] = x[k] · matrix[k, len]`: B times a row of A, or A transposed times a column of B.
#[derive(Clone, Debug)]
pub(super) struct VectorPlan {
    /// True if A is the matrix and B the vector.
    matrix_is_a: bool,
    len: usize,
    k: usize,
    /// Distance between elements of the vector.
    x_stride: usize,
    /// Distances between elements of the matrix, along k and along the results.
    k_stride: usize,
    len_stride: usize,
    /// Distance between results in C.
    y_stride: usize,
    accumulate: bool,
    walk: Walk,
    /// Tasks of the first phase.
    tasks: usize,
}

impl VectorPlan {
    /// Plans a product. With `in_panels`, B is the matrix and is stored in panels.
    pub(super) fn new(spec: &GemmSpec, set: &KernelSet, in_panels: bool) -> Self {
        let matrix_is_a = spec.m != 1;
        let (len, x_stride, k_stride, len_stride, y_stride) = if matrix_is_a {
            (spec.m, spec.b.row, spec.a.col, spec.a.row, spec.ldc)
        } else {
            (spec.n, spec.a.col, spec.b.row, spec.b.col, 1)
        };
        let tasks = (len.saturating_mul(spec.k) / TASK_ELEMENTS).clamp(1, MAX_TASKS);
        let walk = match (len_stride, k_stride) {
            _ if in_panels => Walk::Panels(set.tile_cols),
            (1, 1) if len < set.lanes => Walk::Dots,
            (1, _) if tasks > ROW_TASKS && spec.k >= 2 * TASK_ROWS => Walk::Rows,
            (1, _) => Walk::Stream,
            (_, 1) => Walk::Dots,
            _ => Walk::Scalar,
        };
        let vectors = len.div_ceil(set.lanes);
        Self {
            matrix_is_a,
            len,
            k: spec.k,
            x_stride,
            k_stride,
            len_stride,
            y_stride,
            accumulate: spec.accumulate,
            walk,
            tasks: match walk {
                Walk::Stream => tasks.min(len.div_ceil(TASK_RUN)),
                Walk::Panels(width) => tasks.min(len / width),
                Walk::Rows => tasks.min(spec.k / TASK_ROWS),
                Walk::Dots | Walk::Scalar => tasks.min(vectors),
            },
        }
    }

    pub(super) fn phases(&self) -> usize {
        if self.walk == Walk::Rows { 2 } else { 1 }
    }

    pub(super) fn tasks(&self, phase: usize) -> usize {
        match phase {
            0 => self.tasks,
            _ => self.len.div_ceil(BLOCK),
        }
    }

    /// Returns the range of results that a task of the last phase computes.
    pub(super) fn part(&self, task: usize, set: &KernelSet) -> Range<usize> {
        if self.walk == Walk::Rows {
            return task * BLOCK..self.len.min((task + 1) * BLOCK);
        }
        if let Walk::Panels(width) = self.walk {
            let panels = share(self.len / width, self.tasks, task);
            return panels.start * width..panels.end * width;
        }
        // Tasks compute whole vectors, except for the last task.
        let vectors = share(self.len.div_ceil(set.lanes), self.tasks, task);
        vectors.start * set.lanes..(vectors.end * set.lanes).min(self.len)
    }

    /// Returns the number of f32s of the shared scratch. It contains the sums of all tasks of the first phase if
    /// there is a second phase.
    pub(super) fn shared_len(&self) -> usize {
        if self.walk == Walk::Rows {
            self.tasks * self.sums_len()
        } else {
            0
        }
    }

    /// Returns the number of f32s of a worker's scratch. It contains a block of results, and a copy of the vector if
    /// the vector is not contiguous.
    pub(super) fn worker_len(&self) -> usize {
        self.block() + if self.x_stride == 1 { 0 } else { self.k }
    }

    fn block(&self) -> usize {
        // The length is a multiple of a cache line, so that the copy after it is aligned.
        BLOCK.min(self.sums_len())
    }

    /// Returns the distance between the sums of two tasks, in f32s.
    fn sums_len(&self) -> usize {
        self.len.next_multiple_of(16)
    }

    /// Runs a task of a phase.
    ///
    /// # Safety
    ///
    /// As for [`super::Gemm::run_task`], with a `set` that the CPU can run.
    pub(super) unsafe fn run(&self, set: &KernelSet, phase: usize, task: usize, operands: Operands) {
        let sums = operands.worker;
        let part = match self.walk {
            Walk::Rows if phase == 0 => {
                // SAFETY: forwarded.
                unsafe { self.add_rows(set, task, operands) };
                return;
            }
            _ => self.part(task, set),
        };
        // SAFETY: all indices stay below `len` and `k`; the worker's scratch has room for a block of results.
        unsafe {
            let (x, matrix) = match self.walk {
                // The sums of the first phase are the rows of the second phase's matrix.
                Walk::Rows => (ONES.as_ptr(), operands.shared.cast_const()),
                _ => self.operands(operands),
            };
            let mut first = part.start;
            while first < part.end {
                let count = BLOCK.min(part.end - first);
                let from = match self.walk {
                    Walk::Panels(_) => matrix.add(first * self.k),
                    _ => matrix.add(first * self.len_stride),
                };
                match self.walk {
                    Walk::Panels(width) => {
                        for at in (0..count).step_by(width) {
                            (set.stream)(x, from.add(at * self.k), width, self.k, width, sums.add(at));
                        }
                    }
                    Walk::Rows => (set.stream)(x, from, self.sums_len(), self.tasks, count, sums),
                    Walk::Stream => (set.stream)(x, from, self.k_stride, self.k, count, sums),
                    Walk::Dots => (set.dots[0])(x, from, [0, self.len_stride, 0], [self.k, count], sums),
                    Walk::Scalar => self.scalar(x, from, count, sums),
                }
                self.write(first, count, operands);
                first += count;
            }
        }
    }

    /// Returns the vector and the matrix. A vector that is not contiguous is copied to the worker's scratch.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn operands(&self, operands: Operands) -> (*const f32, *const f32) {
        let (vector, matrix) = if self.matrix_is_a {
            (operands.b, operands.a)
        } else {
            (operands.a, operands.b)
        };
        if self.x_stride == 1 {
            return (vector, matrix);
        }
        // SAFETY: the worker's scratch has room for the vector after a block of results.
        unsafe {
            let copy = operands.worker.add(self.block());
            for p in 0..self.k {
                *copy.add(p) = *vector.add(p * self.x_stride);
            }
            (copy.cast_const(), matrix)
        }
    }

    /// Runs a task of the first phase of [`Walk::Rows`]: adds up some rows of the matrix, each multiplied by its
    /// element of the vector.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn add_rows(&self, set: &KernelSet, task: usize, operands: Operands) {
        let rows = share(self.k, self.tasks, task);
        // SAFETY: rows below `k`, results below `len`; the shared scratch has sums for each task.
        unsafe {
            let (x, matrix) = self.operands(operands);
            let from = matrix.add(rows.start * self.k_stride);
            let sums = operands.shared.add(task * self.sums_len());
            for first in (0..self.len).step_by(BLOCK) {
                let count = BLOCK.min(self.len - first);
                let (x, from) = (x.add(rows.start), from.add(first));
                (set.stream)(x, from, self.k_stride, rows.len(), count, sums.add(first));
            }
        }
    }

    /// Writes a block of sums to C.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`]; `first + count` must not be beyond `len`.
    unsafe fn write(&self, first: usize, count: usize, operands: Operands) {
        for j in 0..count {
            // SAFETY: `first + j < len`, and the worker's scratch contains the sums.
            unsafe {
                let to = operands.c.add((first + j) * self.y_stride);
                let [row, column] = if self.matrix_is_a {
                    [first + j, 0]
                } else {
                    [0, first + j]
                };
                let before = match operands.addend.at(row, column) {
                    _ if self.accumulate => *to,
                    Some(addend) => *addend,
                    None => 0.0,
                };
                *to = before + *operands.worker.add(j);
            }
        }
    }

    /// Computes `count` results from a matrix without a contiguous axis.
    ///
    /// # Safety
    ///
    /// `x` must be valid for `k` f32s, `y` for `count` f32s, and `matrix` for `[k, count]` f32s with the strides of
    /// this plan.
    unsafe fn scalar(&self, x: *const f32, matrix: *const f32, count: usize, y: *mut f32) {
        for j in 0..count {
            let mut sum = 0.0;
            for p in 0..self.k {
                // SAFETY: `p < k`, `j < count`.
                sum += unsafe { *x.add(p) * *matrix.add(p * self.k_stride + j * self.len_stride) };
            }
            // SAFETY: `j < count`.
            unsafe { *y.add(j) = sum };
        }
    }
}
