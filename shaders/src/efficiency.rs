//! Efficiency of kernels relative to the peak rates of a device. It determines the image layout.

use meganeura_core::backend::KernelDesc;

use super::conv_kinds::convolution;
use meganeura_core::ops::ImageLayout;

/// Rate of NCHW convolutions relative to NHWC convolutions, which load vectors of adjacent channels. Measured with
/// ResNet-50 on an H100 (docs/experiments/convolution.md).
const CHANNELS_FIRST: f64 = 0.7;
/// The same rate if a library computes NHWC convolutions. Measured with training steps of ResNet-50 on an H200.
const CHANNELS_FIRST_BESIDE_LIBRARY: f64 = 0.25;
/// Rate of batch norms of matrices relative to other kernels. They add up columns, and one thread computes a column,
/// so few threads run. Columns are not split, because the results of each element depend on the sums. In the same
/// measurement, such a batch norm takes 349 us, and 18 us with NCHW.
const BATCH_NORM_BY_COLUMNS: f64 = 0.05;

/// Returns the relative rate of the kernels of a call: see [`Device::efficiency`](meganeura_core::backend::Device::efficiency).
/// `has_library` is true if a [library](crate::DeviceLibrary) computes NHWC convolutions.
pub fn efficiency(kernel: &KernelDesc, has_library: bool) -> f64 {
    let is_matrix = kernel.inputs.first().is_some_and(|ty| ty.shape.rank() == 2);
    match (kernel.name, convolution(kernel.name)) {
        // With groups, no layout is faster.
        (_, Some((_, ImageLayout::Nchw))) if kernel.attrs.int("groups") == Ok(1) => {
            if has_library {
                CHANNELS_FIRST_BESIDE_LIBRARY
            } else {
                CHANNELS_FIRST
            }
        }
        ("core.batch_norm" | "core.batch_norm_grad", _) if is_matrix => BATCH_NORM_BY_COLUMNS,
        _ => 1.0,
    }
}
