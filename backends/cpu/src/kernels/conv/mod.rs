//! Convolution as matmuls over columns of input patches.
//!
//! The windows of an image are cut into strips whose patches fit into the second-level cache. A task
//! unfolds a strip to a matrix with a row for each channel and tap and a column for each window, and
//! multiplies at once, so that patches never travel to memory. Convolutions with one input channel per
//! group have no matmul worth the name and go their own way ([`depthwise`]).

mod depthwise;
pub(super) mod forward;
mod input_grad;
pub(super) mod plane;
mod serial;
mod sizes;
mod weight_grad;
mod window;

use crate::kernel::{KernelDef, f32_only};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.conv2d",
        supports: f32_only,
        compile: forward::compile,
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
