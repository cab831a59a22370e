//! Gradient of expert matmuls with respect to the matrices.

use std::sync::Arc;

use meganeura_core::ops::ExpertDims;

use super::groups::{Groups, SEGMENT_ROWS, gather};
use crate::gemm::{Addend, Gemm, GemmSpec, Operands, Strides};
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};

/// Expected number of floating-point operations per nanosecond of one thread.
const FLOPS_PER_NANO: u64 = 40;
/// Number of matrix rows that a task computes. Matmuls with at most this number of rows have one phase.
const MATRIX_ROWS: usize = 128;

/// Matmuls that compute `rows` rows of the gradient of a matrix. They sum over 1, 2, ... rows of the operands.
struct Sums {
    rows: usize,
    /// Matmuls for the first segment of an expert, and matmuls that add the following segments.
    gemms: [Vec<Gemm>; 2],
}

impl Sums {
    fn new(dims: &ExpertDims, rows: usize) -> Self {
        let &ExpertDims { n, k, .. } = dims;
        let gemms = [false, true].map(|accumulate| {
            let gemm = |count| {
                Gemm::new(GemmSpec {
                    m: rows,
                    n: k,
                    k: count,
                    a: Strides { row: 1, col: n },
                    b: Strides { row: k, col: 1 },
                    ldc: k,
                    accumulate,
                })
            };
            (1..=dims.rows.min(SEGMENT_ROWS)).map(gemm).collect()
        });
        Sums { rows, gemms }
    }

    fn private_len(&self) -> usize {
        let all = self.gemms.iter().flatten();
        all.map(|gemm| aligned(gemm.worker_len()) + gemm.shared_len())
            .max()
            .unwrap_or(0)
    }
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = ExpertDims::of_weight_grad(&cx.call())?;
    let ExpertDims {
        rows, experts, n, k, ..
    } = dims;
    let (a, indices, b): (View<f32>, View<u32>, View<f32>) = (cx.input(0), cx.input(1), cx.input(2));
    let y: View<f32> = cx.output(0);
    let groups = Groups::new(indices, experts);
    let begins = [groups.shared_len(), groups.shared_len() + aligned(rows * n)];
    let last = n % MATRIX_ROWS;
    let sums =
        [MATRIX_ROWS.min(n), if last == 0 { MATRIX_ROWS } else { last }].map(|of| Arc::new(Sums::new(&dims, of)));
    let private = sums.iter().map(|sums| sums.private_len()).max().unwrap_or(0);
    let parts = n.div_ceil(MATRIX_ROWS);
    let phases: Vec<Box<dyn Kernel>> = vec![
        groups.phase(cx.index),
        Box::new(Task {
            tasks: groups.most_segments(),
            nanos: stream_nanos(2 * (a.len() + b.len()) * size_of::<f32>()),
            // SAFETY: the previous phase has sorted the rows, and segments do not overlap in the scratch.
            body: move |task: usize, run: &RunCx| unsafe {
                if let Some(segment) = groups.segment(run.shared, task) {
                    let order = groups.order(run.shared, segment.rows());
                    gather(a, order, n, run.shared.add(begins[0] + segment.start * n));
                    gather(b, order, k, run.shared.add(begins[1] + segment.start * k));
                }
            },
        }),
        Box::new(Task {
            tasks: experts * parts,
            nanos: (2 * rows as u64 * n as u64 * k as u64 / FLOPS_PER_NANO)
                .max(stream_nanos(y.len() * size_of::<f32>())),
            body: move |task: usize, run: &RunCx| {
                let (expert, part) = (task / parts, task % parts);
                let sums = &sums[usize::from(part + 1 == parts)];
                let first = part * MATRIX_ROWS;
                let c = (expert * n + first) * k;
                // SAFETY: the previous phases have filled the scratch, and each task writes its own rows of a matrix.
                unsafe {
                    let c = y.slice_mut(c..c + sums.rows * k);
                    let places = groups.of_expert(run.shared, expert);
                    if places.is_empty() {
                        c.fill(0.0);
                    }
                    for start in places.clone().step_by(SEGMENT_ROWS) {
                        let count = SEGMENT_ROWS.min(places.end - start);
                        let gemm = &sums.gemms[usize::from(start > places.start)][count - 1];
                        let operands = Operands {
                            a: run.shared.add(begins[0] + start * n + first),
                            b: run.shared.add(begins[1] + start * k),
                            c: c.as_mut_ptr(),
                            addend: Addend::NONE,
                            shared: run.private.add(aligned(gemm.worker_len())),
                            worker: run.private,
                        };
                        for phase in 0..gemm.phases() {
                            for task in 0..gemm.tasks(phase) {
                                gemm.run_task_on(phase, task, operands);
                            }
                        }
                    }
                }
            },
        }),
    ];
    Ok(Compiled {
        phases,
        shared: begins[1] + aligned(rows * k),
        private,
    })
}
