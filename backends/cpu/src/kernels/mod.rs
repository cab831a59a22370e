//! Kernels: one file a family. This file is the list of families.
//!
//! A kernel is compiled from a dispatch to one or more phases; the tasks of a phase are independent and may
//! run on any thread in any order, phases run one after the other. The division into tasks depends on
//! shapes alone, so results do not depend on the number of threads.

mod attention;
mod cast;
mod conv;
mod gated;
mod index;
mod kernel;
mod matmul;
mod movement;
mod norm;
mod optimizer;
mod pointwise;
mod pool2d;
mod random;
mod reduce;
mod rope;
mod softmax;
mod strided;

pub(crate) use kernel::*;

/// The kernel of an operator.
pub(crate) fn find(name: &str) -> Option<&'static KernelDef> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|def| def.name == name)
}

const TABLES: &[&[KernelDef]] = &[
    attention::KERNELS,
    cast::KERNELS,
    conv::KERNELS,
    gated::KERNELS,
    index::KERNELS,
    matmul::KERNELS,
    movement::KERNELS,
    norm::KERNELS,
    optimizer::KERNELS,
    pointwise::UNARY,
    pointwise::SIGNED,
    pointwise::BINARY,
    pointwise::COMPARE,
    pointwise::SELECT,
    pool2d::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    rope::KERNELS,
    softmax::KERNELS,
];
