//! Kernels that multiply rows by the matrix of their expert.

use std::sync::Arc;

use meganeura_core::ops::ExpertDims;

use super::groups::{Groups, Segment, gather};
use super::matmuls::Matmuls;
use crate::gemm::{Addend, Gemm, Operands};
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};
use crate::share::share;

/// Expected number of floating-point operations per nanosecond of one thread.
const FLOPS_PER_NANO: u64 = 40;
/// Number of tasks of a product with few rows. The matrices are divided among them.
const TASKS: usize = 32;
/// Maximum number of tasks that share the columns of a segment.
const MAX_PARTS: usize = 16;

struct Product {
    dims: ExpertDims,
    groups: Groups,
    matmuls: Matmuls,
    x: View<f32>,
    /// Number of tasks that share the columns of a segment.
    parts: usize,
    /// Offsets of the sections of shared scratch: rows in the order of experts, results of these rows, and prepared
    /// data.
    begins: [usize; 3],
    /// Number of `f32`s of the prepared data: per segment, and per row of the segment.
    prepared: [usize; 2],
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = ExpertDims::of(&cx.call())?;
    let (x, indices, y): (View<f32>, View<u32>, View<f32>) = (cx.input(0), cx.input(1), cx.output(0));
    let groups = Groups::new(indices, dims.experts);
    if dims.rows == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let matmuls = Matmuls::new(cx, &dims);
    let prepared = matmuls.prepared_len();
    let sorted = groups.shared_len();
    let results = sorted + aligned(dims.rows * dims.k);
    let rounded = results + aligned(dims.rows * dims.n);
    let product = Arc::new(Product {
        dims,
        groups,
        x,
        parts: (TASKS / groups.most_segments().max(1)).clamp(1, MAX_PARTS),
        begins: [sorted, results, rounded],
        prepared,
        matmuls,
    });
    let [of_segment, of_row] = prepared;
    let shared = rounded + groups.most_segments() * of_segment + dims.rows * of_row;
    let private = product.matmuls.private_len();
    let phases: Vec<Box<dyn Kernel>> = vec![
        groups.phase(cx.index),
        Box::new(Phase {
            tasks: groups.most_segments(),
            nanos: stream_nanos(2 * x.len() * size_of::<f32>()),
            product: Arc::clone(&product),
            run: Product::gather,
        }),
        Box::new(Phase {
            tasks: groups.most_segments() * product.parts,
            nanos: stream_nanos(product.bytes()).max(product.flops() / FLOPS_PER_NANO),
            product: Arc::clone(&product),
            run: Product::multiply,
        }),
        Box::new(Task {
            // Each segment has a task. The rows without an expert have one additional task.
            tasks: groups.most_segments() + 1,
            nanos: stream_nanos(2 * y.len() * size_of::<f32>()),
            // SAFETY: the previous phases have filled the scratch, and every row is in at most one segment.
            body: move |task: usize, run: &RunCx| unsafe { product.scatter(task, run, y) },
        }),
    ];
    Ok(Compiled {
        phases,
        shared,
        private,
    })
}

impl Product {
    fn flops(&self) -> u64 {
        2 * (self.dims.rows as u64) * (self.dims.n as u64) * self.dims.k as u64
    }

    /// Returns the maximum number of bytes of matrices that the call reads.
    fn bytes(&self) -> usize {
        let experts = self.dims.experts.max(1);
        self.matmuls.bytes() / experts * experts.min(self.dims.rows)
    }

    /// Copies the rows of a segment to shared scratch, and prepares them for the matmul.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn gather(&self, task: usize, run: &RunCx) {
        // SAFETY: the scratch has the requested size and contains the sorted rows; segments do not overlap in it.
        unsafe {
            let Some(segment) = self.groups.segment(run.shared, task) else {
                return;
            };
            let to = run.shared.add(self.begins[0] + segment.start * self.dims.k);
            let order = self.groups.order(run.shared, segment.rows());
            gather(self.x, order, self.dims.k, to);
            if let Matmuls::Packed { gemms, .. } = &self.matmuls {
                let gemm = &gemms[segment.len - 1];
                for part in 0..gemm.preparations() {
                    gemm.prepare(part, to, self.prepared_at(task, segment, run));
                }
            }
        }
    }

    /// Returns the address of a segment's prepared data.
    ///
    /// # Safety
    /// The scratch must have the requested size.
    unsafe fn prepared_at(&self, number: usize, segment: Segment, run: &RunCx) -> *mut f32 {
        let [of_segment, of_row] = self.prepared;
        // SAFETY: passed on to the caller.
        unsafe {
            run.shared
                .add(self.begins[2] + number * of_segment + segment.start * of_row)
        }
    }

    /// Computes some columns of the results of a segment.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn multiply(&self, task: usize, run: &RunCx) {
        let (number, part) = (task / self.parts, task % self.parts);
        // SAFETY: as for `gather`; the rows of the segment have been gathered.
        unsafe {
            let Some(segment) = self.groups.segment(run.shared, number) else {
                return;
            };
            let a = run.shared.add(self.begins[0] + segment.start * self.dims.k);
            let c = run.shared.add(self.begins[1] + segment.start * self.dims.n);
            match &self.matmuls {
                Matmuls::Plain { gemms, weights } => {
                    let gemm = &gemms[segment.len - 1];
                    let operands = Operands {
                        a,
                        b: weights.as_ptr().add(segment.expert * self.dims.n * self.dims.k),
                        c,
                        addend: Addend::NONE,
                        shared: run.private.add(aligned(gemm.worker_len())),
                        worker: run.private,
                    };
                    self.run_plain(gemm, part, operands);
                }
                Matmuls::Packed { gemms, weights } => {
                    let gemm = &gemms[segment.len - 1];
                    let weights = weights.matrix(&self.dims, segment.expert);
                    for task in share(gemm.tasks(), self.parts, part) {
                        gemm.run(
                            task,
                            a,
                            weights,
                            c,
                            [self.prepared_at(number, segment, run), run.private],
                        );
                    }
                }
            }
        }
    }

    /// Runs the tasks of one part of a matmul. If the matmul has two phases, part 0 runs all tasks.
    ///
    /// # Safety
    /// As [`Gemm::run_task_on`].
    unsafe fn run_plain(&self, gemm: &Gemm, part: usize, operands: Operands) {
        let (parts, part) = match gemm.phases() {
            1 => (self.parts, part),
            _ if part == 0 => (1, 0),
            _ => return,
        };
        for phase in 0..gemm.phases() {
            for task in share(gemm.tasks(phase), parts, part) {
                // SAFETY: passed on to the caller. With two phases, only this task runs tasks of the matmul.
                unsafe { gemm.run_task_on(phase, task, operands) };
            }
        }
    }

    /// Copies the results of a segment to the rows of the call's result. The last task writes NaN to the rows without
    /// an expert.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn scatter(&self, task: usize, run: &RunCx, y: View<f32>) {
        let n = self.dims.n;
        // SAFETY: the scratch has the requested size, and every row is in at most one segment.
        unsafe {
            if task == self.groups.most_segments() {
                let places = self.groups.of_expert(run.shared, self.groups.experts());
                for &row in self.groups.order(run.shared, places) {
                    y.slice_mut(row as usize * n..(row as usize + 1) * n).fill(f32::NAN);
                }
                return;
            }
            let Some(segment) = self.groups.segment(run.shared, task) else {
                return;
            };
            let results = run.shared.add(self.begins[1] + segment.start * n);
            let order = self.groups.order(run.shared, segment.rows());
            for (place, &row) in order.iter().enumerate() {
                let to = y.slice_mut(row as usize * n..(row as usize + 1) * n);
                std::ptr::copy_nonoverlapping(results.add(place * n), to.as_mut_ptr(), n);
            }
        }
    }
}

/// A phase of a product.
struct Phase {
    tasks: usize,
    nanos: u64,
    product: Arc<Product>,
    run: unsafe fn(&Product, usize, &RunCx),
}

impl Kernel for Phase {
    fn tasks(&self) -> usize {
        self.tasks
    }

    fn nanos(&self) -> u64 {
        self.nanos
    }

    unsafe fn run(&self, task: usize, run: &RunCx) {
        // SAFETY: passed on to the caller.
        unsafe { (self.run)(&self.product, task, run) }
    }
}
