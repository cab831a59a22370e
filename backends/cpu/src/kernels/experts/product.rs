//! Rows by the matrix of their expert.

use std::sync::Arc;

use meganeura_core::ops::ExpertDims;
use meganeura_core::quantization::BLOCK;

use super::groups::{Groups, SEGMENT_ROWS, Segment, gather};
use crate::gemm::{Addend, Gemm, GemmSpec, Operands, PackedGemm, Rows, Storage, Strides};
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};
use crate::share::share;

/// Operations a nanosecond that one thread is expected to do.
const FLOPS_PER_NANO: u64 = 40;
/// Tasks that a product of few rows is cut into, so that threads share the matrices.
const TASKS: usize = 32;
/// The most tasks that share the columns of a segment.
const MOST_PARTS: usize = 16;

/// Matmuls of 1, 2, ... rows with a matrix.
enum Matmuls {
    Plain {
        gemms: Vec<Gemm>,
        weights: View<f32>,
    },
    Packed {
        gemms: Vec<PackedGemm>,
        storage: Storage,
        numbers: View<u8>,
        scales: View<u16>,
    },
}

struct Product {
    dims: ExpertDims,
    groups: Groups,
    matmuls: Matmuls,
    x: View<f32>,
    /// Tasks that share the columns of a segment.
    parts: usize,
    /// Where rows in the order of experts, their results and what is prepared of rows begin in shared scratch.
    begins: [usize; 3],
    /// `f32`s that are prepared of a segment beside those of its rows, and of each row.
    prepared: [usize; 2],
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = ExpertDims::of(&cx.call())?;
    let (x, indices, y): (View<f32>, View<u32>, View<f32>) = (cx.input(0), cx.input(1), cx.output(0));
    let groups = Groups::new(indices, dims.experts);
    if dims.rows == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let counts = 1..=dims.rows.min(SEGMENT_ROWS);
    let is_plain = cx.call().inputs.len() == 3 && cx.input_type(2).dtype == cx.input_type(0).dtype;
    let matmuls = match is_plain {
        true => Matmuls::Plain {
            gemms: counts.map(|rows| Gemm::new(spec(&dims, rows))).collect(),
            weights: cx.input(2),
        },
        false => {
            let storage = dims.format.map_or(Storage::F16, Storage::Blocks);
            let in_panels = cx.panels(2).is_some();
            let gemm = |rows| PackedGemm::new([rows, dims.n, dims.k], storage, in_panels);
            Matmuls::Packed {
                gemms: counts.map(gemm).collect(),
                storage,
                numbers: cx.input(2),
                // Plain weights have no scales.
                scales: cx.input(cx.call().inputs.len() - 1),
            }
        }
    };
    let prepared = matmuls.prepared_len();
    let sorted = groups.shared_len();
    let results = sorted + aligned(dims.rows * dims.k);
    let rounded = results + aligned(dims.rows * dims.n);
    let product = Arc::new(Product {
        dims,
        groups,
        x,
        parts: (TASKS / groups.most_segments().max(1)).clamp(1, MOST_PARTS),
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
            // Segments have results of their own; those of rows without an expert are one task more.
            tasks: groups.most_segments() + 1,
            nanos: stream_nanos(2 * y.len() * size_of::<f32>()),
            // SAFETY: the phases before have filled the scratch; every row is in one segment, or in none.
            body: move |task: usize, run: &RunCx| unsafe { product.scatter(task, run, y) },
        }),
    ];
    Ok(Compiled {
        phases,
        shared,
        private,
    })
}

/// The product of so many rows that follow each other with a plain matrix.
fn spec(dims: &ExpertDims, rows: usize) -> GemmSpec {
    let &ExpertDims { n, k, transpose_b, .. } = dims;
    GemmSpec {
        m: rows,
        n,
        k,
        a: Strides { row: k, col: 1 },
        b: match transpose_b {
            true => Strides { row: 1, col: k },
            false => Strides { row: n, col: 1 },
        },
        ldc: n,
        accumulate: false,
    }
}

impl Matmuls {
    /// `f32`s of the worker. Where a plain matmul has two phases, one task does both, so that what they share is the worker's.
    fn private_len(&self) -> usize {
        let all = |len: &mut dyn Iterator<Item = usize>| len.max().unwrap_or(0);
        match self {
            Matmuls::Plain { gemms, .. } => {
                all(&mut gemms.iter().map(|gemm| aligned(gemm.worker_len()) + gemm.shared_len()))
            }
            Matmuls::Packed { gemms, .. } => all(&mut gemms.iter().map(PackedGemm::worker_len)),
        }
    }

    /// `f32`s that are prepared of a segment and of each of its rows, which are no less than what any number of rows takes:
    /// places follow from the rows in front then, whatever segments there are.
    fn prepared_len(&self) -> [usize; 2] {
        let Matmuls::Packed { gemms, .. } = self else {
            return [0, 0];
        };
        let of_row = gemms
            .last()
            .map_or(0, |gemm| aligned(gemm.shared_len().div_ceil(gemms.len())));
        let beside = gemms
            .iter()
            .zip(1..)
            .map(|(gemm, rows)| gemm.shared_len().saturating_sub(rows * of_row));
        [aligned(beside.max().unwrap_or(0)), of_row]
    }
}

impl Product {
    fn flops(&self) -> u64 {
        2 * (self.dims.rows as u64) * (self.dims.n as u64) * self.dims.k as u64
    }

    /// Bytes of the matrices that are read at most.
    fn bytes(&self) -> usize {
        let all = match &self.matmuls {
            Matmuls::Plain { weights, .. } => weights.len() * size_of::<f32>(),
            Matmuls::Packed { numbers, storage, .. } => match storage {
                Storage::F16 => numbers.len() * size_of::<u16>(),
                Storage::Blocks(_) => numbers.len() * size_of::<u32>(),
            },
        };
        let experts = self.dims.experts.max(1);
        all / experts * experts.min(self.dims.rows)
    }

    /// Brings the rows of a segment together, and prepares them.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn gather(&self, task: usize, run: &RunCx) {
        // SAFETY: the scratch is as long as asked for, and sorted; segments have places of their own in it.
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

    /// What is prepared of the segment of a number.
    ///
    /// # Safety
    /// The scratch is as long as asked for.
    unsafe fn prepared_at(&self, number: usize, segment: Segment, run: &RunCx) -> *mut f32 {
        let [of_segment, of_row] = self.prepared;
        // SAFETY: passed on to the caller.
        unsafe {
            run.shared
                .add(self.begins[2] + number * of_segment + segment.start * of_row)
        }
    }

    /// Computes some columns of a segment's results.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn multiply(&self, task: usize, run: &RunCx) {
        let (number, part) = (task / self.parts, task % self.parts);
        // SAFETY: as for `gather`; the rows of the segment are in their places.
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
                Matmuls::Packed { gemms, .. } => {
                    let gemm = &gemms[segment.len - 1];
                    let weights = self.matrix(segment);
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

    /// The tasks of a part, or all if they are in two phases.
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
                // SAFETY: passed on to the caller; with two phases this task alone does all of both.
                unsafe { gemm.run_task_on(phase, task, operands) };
            }
        }
    }

    /// The packed matrix of a segment's expert.
    fn matrix(&self, segment: Segment) -> Rows {
        let (ExpertDims { n, k, .. }, row) = (self.dims, segment.expert * self.dims.n);
        match &self.matmuls {
            Matmuls::Packed {
                storage,
                numbers,
                scales,
                ..
            } => {
                let blocks = row * (k / BLOCK);
                let bytes = n * segment.expert * storage.bytes(k);
                Rows {
                    numbers: numbers.as_ptr().wrapping_add(bytes),
                    scales: scales.as_ptr().wrapping_add(blocks * storage.scales()),
                    k,
                }
            }
            Matmuls::Plain { .. } => Rows {
                numbers: std::ptr::null(),
                scales: std::ptr::null(),
                k,
            },
        }
    }

    /// Brings the results of a segment to their rows; NaN to those of rows without an expert.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn scatter(&self, task: usize, run: &RunCx, y: View<f32>) {
        let n = self.dims.n;
        // SAFETY: the scratch is as long as asked for; rows are in one segment, or in none.
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
