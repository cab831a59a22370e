//! Matrix products by the blocked multiplication of [`crate::gemm`].

use std::sync::Arc;

use meganeura_core::ops::MatMulDims;

use super::strided::{broadcast_strides, row_major};
use super::{CompileCx, Compiled, Kernel, KernelDef, f32_only};
use crate::executor::RunCx;
use crate::gemm::{Gemm, GemmSpec, Strides};
use crate::memory::{ALIGNMENT, View};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.matmul",
    supports: f32_only,
    compile,
}];

/// Floating-point operations a nanosecond that one thread is expected to do.
const FLOPS_PER_NANO: u64 = 40;

/// One phase of a batch of products of one shape.
struct Phase {
    gemm: Arc<Gemm>,
    phase: usize,
    a: View<f32>,
    b: View<f32>,
    c: View<f32>,
    /// Element offsets of the operands of each product.
    offsets: Arc<Vec<[usize; 2]>>,
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
        let [a, b] = self.offsets[product];
        // SAFETY: offsets and sizes come from the operands' shapes; tasks of a phase write disjoint parts of
        // the result and of the scratch, as the multiplication promises; scratch is as long as it asked.
        unsafe {
            self.gemm.run_task(
                self.phase,
                task,
                self.a.as_ptr().add(a),
                self.b.as_ptr().add(b),
                self.c.as_ptr().add(product * self.c_len),
                cx.shared.add(product * self.shared),
                cx.private,
            );
        }
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let mut dims = MatMulDims::of(&cx.call())?;
    let (a, b, c) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0));
    let batch_of = |i: usize| {
        let shape = cx.input_type(i).shape.dims();
        shape[..shape.len() - 2].to_vec()
    };
    let mut offsets = product_offsets(&dims, &batch_of(0), &batch_of(1));
    // One right operand for the whole batch: the rows of all products are one matrix.
    let shares_b = b.len() == dims.k * dims.n && !dims.transpose_a && a.len() == offsets.len() * dims.m * dims.k;
    if shares_b && offsets.len() > 1 {
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

/// Where each product's operands start, with batch axes broadcast.
fn product_offsets(dims: &MatMulDims, batch_a: &[usize], batch_b: &[usize]) -> Vec<[usize; 2]> {
    let strides = [
        broadcast_strides(batch_a, &dims.batch),
        broadcast_strides(batch_b, &dims.batch),
    ];
    let sizes = [dims.m * dims.k, dims.k * dims.n];
    let own = row_major(&dims.batch);
    let count: usize = dims.batch.iter().product();
    (0..count)
        .map(|product| {
            let mut offset = [0; 2];
            for (axis, &size) in dims.batch.iter().enumerate() {
                let index = product / own[axis] as usize % size;
                for o in 0..2 {
                    offset[o] += index * strides[o][axis] as usize;
                }
            }
            [offset[0] * sizes[0], offset[1] * sizes[1]]
        })
        .collect()
}
