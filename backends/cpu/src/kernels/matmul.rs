//! Matrix products by the blocked multiplication of [`crate::gemm`].

use std::sync::Arc;

use meganeura_core::TensorType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::MatMulDims;

use super::strided::{broadcast_strides, row_major};
use super::{CompileCx, Compiled, Kernel, KernelDef, f32_only};
use crate::executor::RunCx;
use crate::gemm::{Addend, Gemm, GemmSpec, Operands, Strides};
use crate::memory::{ALIGNMENT, View};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.matmul",
        supports: f32_only,
        compile: |cx| compile(cx, None),
    },
    KernelDef {
        name: "core.matmul_add",
        supports: |k| {
            f32_only(k)?;
            addend_row(k).map(|_| ())
        },
        compile: |cx| {
            let row = row_distance(cx.input_type(2), cx.output_type(0)).ok_or(NO_ADDEND)?;
            compile(cx, Some((cx.input(2), row)))
        },
    },
];

const NO_ADDEND: &str = "the CPU kernel adds rows as wide as the product's";

fn addend_row(k: &KernelDesc) -> Result<usize, String> {
    match (k.inputs, k.outputs) {
        ([_, _, d], [product]) => row_distance(d, product).ok_or_else(|| NO_ADDEND.into()),
        _ => Err("takes two matrices and an addend".into()),
    }
}

/// Distance between the rows of an addend, if they are as wide as the product's: 0 if all rows add the same.
fn row_distance(d: &TensorType, product: &TensorType) -> Option<usize> {
    let [.., m, n] = product.shape.dims() else {
        return None;
    };
    match d.shape.dims() {
        [width] | [.., 1, width] if width == n => Some(0),
        [.., rows, width] if rows == m && width == n => Some(*n),
        _ => None,
    }
}

/// Floating-point operations a nanosecond that one thread is expected to do.
const FLOPS_PER_NANO: u64 = 40;

/// One phase of a batch of products of one shape.
struct Phase {
    gemm: Arc<Gemm>,
    phase: usize,
    a: View<f32>,
    b: View<f32>,
    c: View<f32>,
    /// What is added, with the distance between its rows.
    addend: Option<(View<f32>, usize)>,
    /// Element offsets of the operands and the addend of each product.
    offsets: Arc<Vec<[usize; 3]>>,
    /// `f32`s of shared scratch of one product.
    shared: usize,
    c_len: usize,
}

impl Kernel for Phase {
    fn tasks(&self) -> usize {
        self.gemm.tasks(self.phase) * self.offsets.len()
    }

    fn nanos(&self) -> u64 {
        let flops = self.gemm.flops() * self.offsets.len() as u64 / FLOPS_PER_NANO;
        flops / self.gemm.phases() as u64
    }

    unsafe fn run(&self, task: usize, cx: &RunCx) {
        let tasks = self.gemm.tasks(self.phase);
        let (product, task) = (task / tasks, task % tasks);
        let [a, b, d] = self.offsets[product];
        // SAFETY: offsets and sizes come from the operands' shapes; tasks of a phase write disjoint parts of
        // the result and of the scratch, as the multiplication promises; scratch is as long as it asked.
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
                c: self.c.as_ptr().add(product * self.c_len),
                addend,
                shared: cx.shared.add(product * self.shared),
                worker: cx.private,
            };
            self.gemm.run_task_on(self.phase, task, operands);
        }
    }
}

fn compile(cx: &CompileCx, addend: Option<(View<f32>, usize)>) -> Result<Compiled, String> {
    let mut dims = MatMulDims::of(&cx.call())?;
    let (a, b, c) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0));
    let mut offsets = product_offsets(&dims, cx.call().inputs);
    // One right operand for the whole batch: the rows of all products are one matrix.
    let shares_b = b.len() == dims.k * dims.n && !dims.transpose_a && a.len() == offsets.len() * dims.m * dims.k;
    // An addend has to go on in the same way: one row for all, or one for each.
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
    let gemm = Arc::new(Gemm::new(GemmSpec {
        m: dims.m,
        n: dims.n,
        k: dims.k,
        a: strides(if dims.transpose_a { dims.m } else { dims.k }, dims.transpose_a),
        b: strides(if dims.transpose_b { dims.k } else { dims.n }, dims.transpose_b),
        ldc: dims.n,
        accumulate: false,
    }));
    let shared = gemm.shared_len().next_multiple_of(ALIGNMENT / size_of::<f32>());
    let offsets = Arc::new(offsets);
    let phases = (0..gemm.phases()).map(|phase| -> Box<dyn Kernel> {
        Box::new(Phase {
            gemm: gemm.clone(),
            phase,
            a,
            b,
            c,
            addend,
            offsets: offsets.clone(),
            shared,
            c_len: dims.m * dims.n,
        })
    });
    Ok(Compiled {
        phases: phases.collect(),
        shared: shared * offsets.len(),
        private: gemm.worker_len(),
    })
}

/// Where each product's operands start, and its addend if there is one, with batch axes broadcast.
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
        .map(|product| {
            let mut offset = [0; 3];
            for (axis, &size) in dims.batch.iter().enumerate() {
                let index = product / own[axis] as usize % size;
                for (offset, strides) in offset.iter_mut().zip(&strides) {
                    *offset += index * strides.get(axis).map_or(0, |&s| s as usize);
                }
            }
            [offset[0] * sizes[0], offset[1] * sizes[1], offset[2] * sizes[2]]
        })
        .collect()
}
