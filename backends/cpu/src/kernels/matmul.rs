//! Matmul kernels, which use the blocked multiply of [`crate::gemm`].

use std::sync::Arc;

use meganeura_core::TensorType;
use meganeura_core::ops::{Call, MatMulDims};

use super::strided::{broadcast_strides, row_major};
use crate::gemm::{Addend, Gemm, GemmSpec, Operands, Strides};
use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, OrderFn, RunCx, f32_only};
use crate::memory::{View, aligned};
use crate::order::Order;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.matmul",
        supports: f32_only,
        compile,
    },
    KernelDef {
        name: "core.matmul_add",
        supports: |k| {
            f32_only(k)?;
            match k.outputs {
                [matmul] => addend_of(k.inputs, matmul).map(|_| ()),
                _ => Err("has one result".into()),
            }
        },
        compile,
    },
];

/// Storage orders of matmuls. A right operand is best stored in the panels that tiles multiply.
pub(super) const ORDERS: [(&str, OrderFn); 2] = [("core.matmul", order), ("core.matmul_add", order)];

/// Returns the storage orders that a matmul supports for operand `i`.
pub(super) fn order(call: &Call, i: usize) -> Order {
    if i != 1 {
        return Order::Plain;
    }
    let panels = MatMulDims::of(call).ok().and_then(|dims| {
        let is_one = call.inputs[1].numel() == dims.k * dims.n;
        Gemm::panels([dims.k, dims.n], dims.transpose_b).filter(|_| is_one)
    });
    panels.map_or(Order::Plain, Order::Panels)
}

const NO_ADDEND: &str = "the CPU kernel adds rows as wide as the matmul's";

/// Returns the distance between the rows of an addend that is as wide as the result: 0 if all rows add the same
/// values. Returns `None` for other addends.
fn row_distance(d: &TensorType, matmul: &TensorType) -> Option<usize> {
    let [.., m, n] = matmul.shape.dims() else {
        return None;
    };
    match d.shape.dims() {
        [width] | [.., 1, width] if width == n => Some(0),
        [.., rows, width] if rows == m && width == n => Some(*n),
        _ => None,
    }
}

/// Expected number of floating-point operations per nanosecond of one thread.
const FLOPS_PER_NANO: u64 = 40;

/// A batch of matmuls of the same shape.
#[derive(Clone)]
pub(super) struct Batch {
    pub(super) gemm: Arc<Gemm>,
    a: View<f32>,
    b: View<f32>,
    c: View<f32>,
    /// Addend, and distance between its rows.
    addend: Option<(View<f32>, usize)>,
    /// Element offsets of the two operands and of the addend of each matmul.
    offsets: Arc<Vec<[usize; 3]>>,
    /// Number of `f32`s of the shared scratch of one matmul.
    shared: usize,
    /// Number of elements of the result of one matmul.
    pub(super) c_len: usize,
}

/// Returns the distance between the rows of the addend, the third operand of a call. Returns `None` if there is no
/// addend.
///
/// # Errors
/// The kernel cannot add this operand.
pub(super) fn addend_of(inputs: &[TensorType], matmul: &TensorType) -> Result<Option<usize>, String> {
    let distance = |d| row_distance(d, matmul).ok_or_else(|| NO_ADDEND.to_owned());
    inputs.get(2).map(distance).transpose()
}

impl Batch {
    /// Plans the matmuls of a call with its two or three operands and its result. With `in_panels`, the second
    /// operand is stored in the order that [`order`] returns.
    pub(super) fn new(call: &Call, operands: &[View<f32>], c: View<f32>, in_panels: bool) -> Result<Self, String> {
        let mut dims = MatMulDims::of(call)?;
        let &[a, b, ref addend @ ..] = operands else {
            return Err("takes two matrices".into());
        };
        let row = addend_of(call.inputs, &call.outputs[0])?;
        let addend = addend.first().copied().zip(row);
        let mut offsets = product_offsets(&dims, call.inputs);
        // If the whole batch has one right operand, the rows of all matmuls form one matrix.
        let shares_b = b.len() == dims.k * dims.n && !dims.transpose_a && a.len() == offsets.len() * dims.m * dims.k;
        // The addend must also allow this: it has one row for all rows, or one for each.
        let goes_on = addend.is_none_or(|(d, row)| d.len() == if row == 0 { dims.n } else { c.len() });
        if shares_b && goes_on && offsets.len() > 1 {
            dims.m *= offsets.len();
            offsets.truncate(1);
        }
        let strides = |rows_stride, transposed| {
            if transposed {
                Strides {
                    row: 1,
                    col: rows_stride,
                }
            } else {
                Strides {
                    row: rows_stride,
                    col: 1,
                }
            }
        };
        let plan = if in_panels { Gemm::by_panels } else { Gemm::new };
        let gemm = Arc::new(plan(GemmSpec {
            m: dims.m,
            n: dims.n,
            k: dims.k,
            a: strides(if dims.transpose_a { dims.m } else { dims.k }, dims.transpose_a),
            b: strides(if dims.transpose_b { dims.k } else { dims.n }, dims.transpose_b),
            ldc: dims.n,
            accumulate: false,
        }));
        Ok(Batch {
            shared: aligned(gemm.shared_len()),
            gemm,
            a,
            b,
            c,
            addend,
            offsets: Arc::new(offsets),
            c_len: dims.m * dims.n,
        })
    }

    /// Returns the number of `f32`s of the shared scratch.
    pub(super) fn shared_len(&self) -> usize {
        self.shared * self.offsets.len()
    }

    /// Runs a task of a phase. Returns the index of its matmul, and the task's index within that matmul.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn run(&self, phase: usize, task: usize, cx: &RunCx) -> (usize, usize) {
        let tasks = self.gemm.tasks(phase);
        let (matmul, task) = (task / tasks, task % tasks);
        let [a, b, d] = self.offsets[matmul];
        // SAFETY: offsets and sizes come from the operands' shapes. By the contract of [`Gemm`], tasks of a phase
        // write disjoint parts of the result and of the scratch. Scratch has the requested size.
        unsafe {
            let addend = match self.addend {
                Some((view, row)) => Addend {
                    start: view.as_ptr().add(d),
                    row,
                },
                None => Addend::NONE,
            };
            let operands = Operands {
                a: self.a.as_ptr().add(a),
                b: self.b.as_ptr().add(b),
                c: self.c.as_ptr().add(matmul * self.c_len),
                addend,
                shared: cx.shared.add(matmul * self.shared),
                worker: cx.private,
            };
            self.gemm.run_task_on(phase, task, operands);
        }
        (matmul, task)
    }
}

/// A phase of a batch of matmuls, as a kernel.
pub(super) struct Phase {
    pub(super) batch: Batch,
    pub(super) phase: usize,
}

impl Phase {
    /// Runs a task. Returns the index of its matmul, and the task's index within that matmul.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    pub(super) unsafe fn run_task(&self, task: usize, cx: &RunCx) -> (usize, usize) {
        // SAFETY: forwarded.
        unsafe { self.batch.run(self.phase, task, cx) }
    }
}

impl Kernel for Phase {
    fn tasks(&self) -> usize {
        self.batch.gemm.tasks(self.phase) * self.batch.offsets.len()
    }

    fn nanos(&self) -> u64 {
        let gemm = &self.batch.gemm;
        let flops = gemm.flops() * self.batch.offsets.len() as u64 / FLOPS_PER_NANO;
        flops / gemm.phases() as u64
    }

    unsafe fn run(&self, task: usize, cx: &RunCx) {
        // SAFETY: forwarded.
        unsafe { self.run_task(task, cx) };
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let call = cx.call();
    let operands: Vec<View<f32>> = (0..call.inputs.len()).map(|i| cx.input(i)).collect();
    let batch = Batch::new(&call, &operands, cx.output(0), cx.panels(1).is_some())?;
    let phase = |phase| -> Box<dyn Kernel> {
        Box::new(Phase {
            batch: batch.clone(),
            phase,
        })
    };
    Ok(Compiled {
        phases: (0..batch.gemm.phases()).map(phase).collect(),
        shared: batch.shared_len(),
        private: batch.gemm.worker_len(),
    })
}

/// Returns the offsets of the operands and of the addend of each matmul. Batch axes are broadcast.
fn product_offsets(dims: &MatMulDims, operands: &[TensorType]) -> Vec<[usize; 3]> {
    let mut strides = [const { Vec::new() }; 3];
    let mut sizes = [0; 3];
    for (i, ty) in operands.iter().enumerate().take(3) {
        let (batch, matrix) = ty.shape.split_at(ty.shape.rank().saturating_sub(2));
        strides[i] = broadcast_strides(batch, &dims.batch);
        sizes[i] = matrix.iter().product();
    }
    let own = row_major(&dims.batch);
    let count: usize = dims.batch.iter().product();
    (0..count)
        .map(|matmul| {
            let mut offset = [0; 3];
            for (axis, &size) in dims.batch.iter().enumerate() {
                let index = matmul / own[axis] as usize % size;
                for (offset, strides) in offset.iter_mut().zip(&strides) {
                    *offset += index * strides.get(axis).map_or(0, |&s| s as usize);
                }
            }
            [offset[0] * sizes[0], offset[1] * sizes[1], offset[2] * sizes[2]]
        })
        .collect()
}
