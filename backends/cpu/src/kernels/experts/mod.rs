//! Matmuls with a separate matrix for each expert. Rows are sorted by expert, and one matmul computes the rows of an
//! expert.

mod groups;
mod matmuls;
mod product;
mod weight_grad;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::ExpertDims;

use crate::gemm::{PackedGemm, Storage};
use crate::kernel::{KernelDef, OrderFn};
use crate::order::{Order, Panels};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.expert_matmul",
        supports: |k| floats(k, 2, DType::F32),
        compile: product::compile,
    },
    KernelDef {
        name: "core.expert_matmul_weight_grad",
        supports: |k| floats(k, 2, DType::F32),
        compile: weight_grad::compile,
    },
    KernelDef {
        name: "core.quantized_expert_matmul",
        supports: |k| floats(k, k.inputs.len() - 1, DType::F16),
        compile: product::compile,
    },
];

/// Checks that rows are `f32`, and that `operand` (plain weights, or scales) has the type `dtype`.
fn floats(kernel: &KernelDesc, operand: usize, dtype: DType) -> Result<(), String> {
    for (ty, wanted) in [(&kernel.inputs[0], DType::F32), (&kernel.inputs[operand], dtype)] {
        if ty.dtype != wanted {
            return Err(format!("the CPU kernel expects {wanted} here, found {}", ty.dtype));
        }
    }
    Ok(())
}

/// Storage order of numbers and scales. If the rows of each expert begin at a panel, they are stored in panels like
/// one matrix with the rows of all experts.
pub(super) const ORDER: (&str, OrderFn) = ("core.quantized_expert_matmul", |call, i| {
    let panels = ExpertDims::of(call).ok().and_then(|d| panels_of(&d, i));
    panels.map_or(Order::Plain, Order::Panels)
});

fn panels_of(d: &ExpertDims, operand: usize) -> Option<Panels> {
    let rows = d.experts.checked_mul(d.n)?;
    let panels = PackedGemm::panels([rows, d.k], Storage::Blocks(d.format?))?;
    let fits = d.n.is_multiple_of(panels[0].rows);
    panels.get(operand.checked_sub(2)?).copied().filter(|_| fits)
}
