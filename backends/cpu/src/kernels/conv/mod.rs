//! Convolutions as matmuls over columns of input patches.
//!
//! The windows of an image are cut into strips whose patches fit into the second-level cache. A task unfolds a strip
//! into a matrix with a row for each channel and tap and a column for each window, and multiplies it at once, so that
//! patches are never written to memory. Convolutions with one input channel per group have too small matmuls and use
//! separate kernels ([`depthwise`]). Images with channels last are multiplied in place ([`nhwc`]), for 3x3 kernels by
//! tiles ([`winograd`]).

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
/// ResNet-50 and MobileNetV2. The loss is due to unfolding of patches and to short rows of planes.
const UNFOLDED: f64 = 0.85;
/// Efficiency of convolutions with channels first and a group for each channel.
const PLANES: f64 = 0.4;

/// Returns the fraction of the device's rates that the kernel of a call reaches, relative to other
/// kernels.
pub(super) fn efficiency(kernel: &KernelDesc) -> f64 {
    let is_forward = kernel.name == "core.conv2d";
    match Conv2dDims::of_conv2d(&kernel.call()).ok().filter(|_| is_forward) {
        Some(dims) if dims.groups > 1 => PLANES,
        Some(dims) if dims.kernel != [1, 1] || dims.stride != [1, 1] => UNFOLDED,
        _ => 1.0,
    }
}
