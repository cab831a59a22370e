//! The cut of a product of a vector with a matrix.

use super::kernels::KernelSet;
use super::{GemmSpec, Operands, share};

/// Matrix elements that are worth a task of their own: 128 KiB, some
/// microseconds of reading.
const TASK_ELEMENTS: usize = 32 * 1024;
/// The most tasks; more would only cut long runs of memory into short ones.
const MAX_TASKS: usize = 32;
/// Neighbouring results of a task, at least, where the matrix is read along them: runs of six cache lines, of which fewer
/// cannot be foreseen by the hardware.
const TASK_RUN: usize = 96;
/// Results computed at a time: half of a 32 KiB first-level cache.
const BLOCK: usize = 4096;

/// Which way to walk through the matrix.
#[derive(Clone, Copy, Debug)]
enum Walk {
    /// Along the results, which are contiguous.
    Stream,
    /// Along k, which is contiguous.
    Dots,
    /// Element by element.
    Scalar,
}

/// `y[len] = x[k] · matrix[k, len]`: B times a row of A, or A transposed times a
/// column of B.
#[derive(Clone, Debug)]
pub(super) struct VectorPlan {
    /// A is the matrix and B the vector.
    matrix_is_a: bool,
    len: usize,
    k: usize,
    /// Distance between elements of the vector.
    x_stride: usize,
    /// Distances between elements of the matrix along k and along the results.
    k_stride: usize,
    len_stride: usize,
    /// Distance between results in C.
    y_stride: usize,
    accumulate: bool,
    walk: Walk,
    tasks: usize,
}

impl VectorPlan {
    pub(super) fn new(spec: &GemmSpec, set: &KernelSet) -> Self {
        let matrix_is_a = spec.m != 1;
        let (len, x_stride, k_stride, len_stride, y_stride) = if matrix_is_a {
            (spec.m, spec.b.row, spec.a.col, spec.a.row, spec.ldc)
        } else {
            (spec.n, spec.a.col, spec.b.row, spec.b.col, 1)
        };
        let walk = match (len_stride, k_stride) {
            (1, 1) if len < set.lanes => Walk::Dots,
            (1, _) => Walk::Stream,
            (_, 1) => Walk::Dots,
            _ => Walk::Scalar,
        };
        let vectors = len.div_ceil(set.lanes);
        let tasks = (len.saturating_mul(spec.k) / TASK_ELEMENTS).clamp(1, MAX_TASKS);
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
                Walk::Dots | Walk::Scalar => tasks.min(vectors),
            },
        }
    }

    pub(super) fn tasks(&self) -> usize {
        self.tasks
    }

    /// A block of results, and the vector's copy where it is not contiguous.
    pub(super) fn worker_len(&self) -> usize {
        self.block() + if self.x_stride == 1 { 0 } else { self.k }
    }

    fn block(&self) -> usize {
        // Whole cache lines, so that the copy behind it is aligned.
        BLOCK.min(self.len.next_multiple_of(16))
    }

    /// # Safety
    ///
    /// As for [`super::Gemm::run_task`], with a `set` that the CPU can run.
    pub(super) unsafe fn run(&self, set: &KernelSet, task: usize, operands: Operands) {
        let (vector, matrix) = if self.matrix_is_a {
            (operands.b, operands.a)
        } else {
            (operands.a, operands.b)
        };
        let sums = operands.worker;
        // SAFETY: all indices stay below `len` and `k`; the worker's scratch has
        // room for a block of results and for the vector behind it.
        unsafe {
            let x = if self.x_stride == 1 {
                vector
            } else {
                let copy = operands.worker.add(self.block());
                for p in 0..self.k {
                    *copy.add(p) = *vector.add(p * self.x_stride);
                }
                copy.cast_const()
            };
            // Whole vectors, but for the last task.
            let vectors = share(self.len.div_ceil(set.lanes), self.tasks, task);
            let end = (vectors.end * set.lanes).min(self.len);
            let mut first = vectors.start * set.lanes;
            while first < end {
                let count = BLOCK.min(end - first);
                let from = matrix.add(first * self.len_stride);
                match self.walk {
                    Walk::Stream => (set.stream)(x, from, self.k_stride, self.k, count, sums),
                    Walk::Dots => (set.dots[0])(x, from, [0, self.len_stride, 0], [self.k, count], sums),
                    Walk::Scalar => self.scalar(x, from, count, sums),
                }
                for j in 0..count {
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
                    *to = before + *sums.add(j);
                }
                first += count;
            }
        }
    }

    /// `count` results from a matrix without a contiguous axis.
    ///
    /// # Safety
    ///
    /// `x` must be valid for `k` f32s, `matrix` for k by `count` with this plan's
    /// strides, `y` for `count`.
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
