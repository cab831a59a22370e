//! The list of families, and the lookup of kernels by the name of their operator.

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Call;

use crate::kernel::{KernelDef, OrderFn};
use crate::order::Order;

use super::{
    along_axis, arg_extreme, attention, batch_norm, cache_write, cast, channel_norm_grad, conv, decision_trees,
    experts, fused, gated, index, int8, matmul, movement, norm, norm_grad, optimizer, paged_cache_write, pointwise,
    pool2d, pool2d_nhwc, quantized, quantized_cache_write, random, recurrent, reduce, registered, rope,
    sampling_threshold, scan, scatter, softmax, sum_squares, top_k, triangle, upsample2d, variance,
};

/// Finds the kernel of an operator: built in, or registered by another crate.
pub(crate) fn find(name: &str) -> Option<&'static KernelDef> {
    built_in(name).or_else(|| registered::find(name))
}

/// Finds the kernel of this crate for an operator.
pub(super) fn built_in(name: &str) -> Option<&'static KernelDef> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|def| def.name == name)
}

/// Returns the fraction of the device's peak rates that the kernel of a call reaches, relative to the other kernels.
pub(crate) fn efficiency(kernel: &KernelDesc) -> f64 {
    conv::efficiency(kernel)
}

/// Returns the storage order that the kernel of a call supports for operand `i`.
pub(crate) fn order(name: &str, call: &Call, i: usize) -> Order {
    let of_kernel = ORDERS.iter().find(|(kernel, _)| *kernel == name);
    of_kernel.map_or(Order::Plain, |(_, order)| order(call, i))
}

/// Operators whose kernels also support operands that are not stored row by row.
const ORDERS: &[(&str, OrderFn)] = &[
    experts::ORDER,
    fused::ORDER,
    index::ORDER,
    int8::ORDERS[0],
    int8::ORDERS[1],
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
    decision_trees::KERNELS,
    experts::KERNELS,
    fused::KERNELS,
    gated::KERNELS,
    index::KERNELS,
    int8::KERNELS,
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
    quantized_cache_write::KERNELS,
    random::KERNELS,
    recurrent::KERNELS,
    reduce::KERNELS,
    rope::KERNELS,
    sampling_threshold::KERNELS,
    scan::KERNELS,
    scatter::KERNELS,
    softmax::KERNELS,
    sum_squares::KERNELS,
    top_k::KERNELS,
    triangle::KERNELS,
    upsample2d::KERNELS,
    variance::KERNELS,
];
