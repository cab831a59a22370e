//! Convolutions as matmuls over columns of input patches.
//!
//! The windows of an image are cut into strips whose patches fit into the second-level cache. A task unfolds a strip
//! into a matrix with a row for each channel and tap and a column for each window. It multiplies this matrix at once,
//! so that patches are never written to memory. The matmuls of convolutions with one input channel per group would be
//! too small, so these have separate kernels ([`depthwise`]). Images with channels last are multiplied in place
//! ([`nhwc`]), or by tiles for 3x3 kernels ([`winograd`]).

mod depthwise;
pub(super) mod forward;
mod input_grad;
pub(super) mod nhwc;
pub(super) mod plane;
mod serial;
mod sizes;
mod weight_grad;
mod window;
mod winograd;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Conv2dDims;

use crate::kernel::{KernelDef, f32_only};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.conv2d",
        supports: f32_only,
        compile: forward::compile,
    },
    KernelDef {
        name: "core.conv2d_nhwc",
        supports: nhwc::supports,
        compile: nhwc::compile,
    },
    KernelDef {
        name: "core.conv2d_input_grad",
        supports: f32_only,
        compile: input_grad::compile,
    },
    KernelDef {
        name: "core.conv2d_weight_grad",
        supports: f32_only,
        compile: weight_grad::compile,
    },
];

/// Efficiency of convolutions with channels first, relative to channels last (as fast as a matmul). Measured on
/// ResNet-50 and MobileNetV2. Unfolding of patches and short rows of planes cause the loss.
const UNFOLDED: f64 = 0.85;
/// Efficiency of convolutions with channels first and one channel per group.
const PLANES: f64 = 0.4;

/// Returns the fraction of the device's peak rates that the kernel of a call reaches, relative to the other kernels.
pub(super) fn efficiency(kernel: &KernelDesc) -> f64 {
    let is_forward = kernel.name == "core.conv2d";
    match Conv2dDims::of_conv2d(&kernel.call()).ok().filter(|_| is_forward) {
        Some(dims) if dims.groups > 1 => PLANES,
        Some(dims) if dims.kernel != [1, 1] || dims.stride != [1, 1] => UNFOLDED,
        _ => 1.0,
    }
}
