//! Table of the convolution operators and the tensors that they compute.

use meganeura_core::ops::{Conv2dDims, ImageLayout};

/// The computed one of the three tensors in `x * w -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvTensor {
    /// The result `y`, from `x` and `w`.
    Output,
    /// The gradient by the images, from `dy` and `w`.
    InputGrad,
    /// The gradient by the weights, from `x` and `dy`.
    WeightGrad,
}

/// A convolution of NHWC images whose operands are in memory.
pub(super) struct StoredConvolution {
    pub(super) tensor: ConvTensor,
    pub(super) dims: Conv2dDims,
    /// Indices of the operands of the dispatch: `x, w`, or `dy, w`, or `x, dy`.
    pub(super) operands: [usize; 2],
}

/// The convolution operators, each with its computed tensor and the memory layout of its images.
const CONVOLUTIONS: [(&str, ConvTensor, ImageLayout); 6] = [
    ("core.conv2d", ConvTensor::Output, ImageLayout::Nchw),
    ("core.conv2d_input_grad", ConvTensor::InputGrad, ImageLayout::Nchw),
    ("core.conv2d_weight_grad", ConvTensor::WeightGrad, ImageLayout::Nchw),
    ("core.conv2d_nhwc", ConvTensor::Output, ImageLayout::Nhwc),
    ("core.conv2d_nhwc_input_grad", ConvTensor::InputGrad, ImageLayout::Nhwc),
    (
        "core.conv2d_nhwc_weight_grad",
        ConvTensor::WeightGrad,
        ImageLayout::Nhwc,
    ),
];

pub(super) fn convolution(name: &str) -> Option<(ConvTensor, ImageLayout)> {
    let row = CONVOLUTIONS.iter().find(|(known, ..)| *known == name);
    row.map(|&(_, of, layout)| (of, layout))
}

/// Returns true if an operator is a convolution or one of its derivatives.
pub(super) fn is_convolution(name: &str) -> bool {
    convolution(name).is_some()
}

/// Returns the kind of a convolution for the names of schedule classes.
pub(super) fn kind(of: ConvTensor, dims: &Conv2dDims) -> String {
    let of = match of {
        ConvTensor::Output => "convolution",
        ConvTensor::InputGrad => "convolution's input gradient",
        ConvTensor::WeightGrad => "convolution's weight gradient",
    };
    let layout = match dims.layout {
        ImageLayout::Nchw => "",
        ImageLayout::Nhwc => " nhwc",
    };
    let ([kh, kw], [sh, sw]) = (dims.kernel, dims.stride);
    format!("{of}{layout} {kh}x{kw}/{sh}x{sw}")
}

/// Returns the number of elements of a plane.
pub(super) fn plane(size: [usize; 2]) -> usize {
    size[0] * size[1]
}
