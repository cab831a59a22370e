//! Kernels: one file a family. This file is the list of families.
//!
//! A kernel is compiled from a dispatch to one or more phases; the tasks of a phase are independent and may
//! run on any thread in any order, phases run one after the other. The division into tasks depends on
//! shapes alone, so results do not depend on the number of threads.

mod along_axis;
mod arg_extreme;
mod attention;
mod batch_norm;
mod cache_write;
mod cached_rows;
mod cast;
mod channel_norm_grad;
mod conv;
mod experts;
mod fused;
mod gated;
mod index;
mod matmul;
mod movement;
mod norm;
mod norm_grad;
mod optimizer;
mod paged_cache_write;
mod pointwise;
mod pool2d;
mod pool2d_nhwc;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod registered;
mod rope;
mod scan;
mod scatter;
mod softmax;
mod strided;
mod sum_squares;
mod top_k;
mod transpose;
mod triangle;
mod upsample2d;
mod variance;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Call;

use crate::kernel::{KernelDef, OrderFn};
use crate::order::Order;

pub(crate) use registered::problems;
pub use registered::{CpuKernel, Elementwise, KernelEntry, register_kernel, registered_kernels};

/// The kernel of an operator: of this crate, or registered by another.
pub(crate) fn find(name: &str) -> Option<&'static KernelDef> {
    built_in(name).or_else(|| registered::find(name))
}

/// The kernel of this crate for an operator.
fn built_in(name: &str) -> Option<&'static KernelDef> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|def| def.name == name)
}

/// The share of the device's rates that the kernel for a call reaches beside others.
pub(crate) fn efficiency(kernel: &KernelDesc) -> f64 {
    conv::efficiency(kernel)
}

/// In which orders a kernel can read operand `i` of a call.
pub(crate) fn order(name: &str, call: &Call, i: usize) -> Order {
    let of_kernel = ORDERS.iter().find(|(kernel, _)| *kernel == name);
    of_kernel.map_or(Order::Plain, |(_, order)| order(call, i))
}

/// The kernels that read operands not by rows alone.
const ORDERS: &[(&str, OrderFn)] = &[
    experts::ORDER,
    fused::ORDER,
    index::ORDER,
    matmul::ORDERS[0],
    matmul::ORDERS[1],
    quantized::ORDER,
];

const TABLES: &[&[KernelDef]] = &[
    along_axis::KERNELS,
    arg_extreme::KERNELS,
    attention::KERNELS,
    batch_norm::KERNELS,
    cache_write::KERNELS,
    paged_cache_write::KERNELS,
    cast::KERNELS,
    channel_norm_grad::KERNELS,
    conv::KERNELS,
    experts::KERNELS,
    fused::KERNELS,
    gated::KERNELS,
    index::KERNELS,
    matmul::KERNELS,
    movement::KERNELS,
    norm::KERNELS,
    norm_grad::KERNELS,
    optimizer::KERNELS,
    pointwise::BINARY,
    pointwise::BITS,
    pointwise::COMPARE,
    pointwise::LOGICAL_NOT,
    pointwise::SELECT,
    pointwise::SIGNED,
    pointwise::UNARY,
    pool2d::KERNELS,
    pool2d_nhwc::KERNELS,
    quantized::KERNELS,
    random::KERNELS,
    recurrent::KERNELS,
    reduce::KERNELS,
    rope::KERNELS,
    scan::KERNELS,
    scatter::KERNELS,
    softmax::KERNELS,
    sum_squares::KERNELS,
    top_k::KERNELS,
    triangle::KERNELS,
    upsample2d::KERNELS,
    variance::KERNELS,
];
