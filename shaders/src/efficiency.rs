//! How far kernels are from a device's rates, for the choice of the layout of images.

use meganeura_core::backend::KernelDesc;

use super::conv_kinds::convolution;
use meganeura_core::ops::ImageLayout;

/// The share of a device's rates that convolutions with channels first reach beside those with channels last, which read
/// neighbouring channels by vectors. Measured with ResNet-50 on an H100 (docs/experiments/convolution.md).
const CHANNELS_FIRST: f64 = 0.7;
/// The same of batch norms of matrices, which add up columns: few threads have a column each, and rows are not cut, as results
/// for each element follow from the sums. There a batch norm takes 349 us where it takes 18 with channels first.
const BATCH_NORM_BY_COLUMNS: f64 = 0.05;

/// The share of a device's rates that the kernels for a call reach beside others: see
/// [`Device::efficiency`](meganeura_core::backend::Device::efficiency).
pub fn efficiency(kernel: &KernelDesc) -> f64 {
    let is_matrix = kernel.inputs.first().is_some_and(|ty| ty.shape.rank() == 2);
    match (kernel.name, convolution(kernel.name)) {
        // With groups there is no faster form.
        (_, Some((_, ImageLayout::Nchw))) if kernel.attrs.int("groups") == Ok(1) => CHANNELS_FIRST,
        ("core.batch_norm" | "core.batch_norm_grad", _) if is_matrix => BATCH_NORM_BY_COLUMNS,
        _ => 1.0,
    }
}
