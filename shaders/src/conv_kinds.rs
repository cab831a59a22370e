//! Which operators are convolutions, and what they compute.

use meganeura_core::ops::{Conv2dDims, ImageLayout};

/// Which of the three tensors `x * w -> y` is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Output,
    InputGrad,
    WeightGrad,
}

/// The operators that are convolutions: what they compute, and how images lie in memory.
const CONVOLUTIONS: [(&str, Of, ImageLayout); 6] = [
    ("core.conv2d", Of::Output, ImageLayout::Nchw),
    ("core.conv2d_input_grad", Of::InputGrad, ImageLayout::Nchw),
    ("core.conv2d_weight_grad", Of::WeightGrad, ImageLayout::Nchw),
    ("core.conv2d_nhwc", Of::Output, ImageLayout::Nhwc),
    ("core.conv2d_nhwc_input_grad", Of::InputGrad, ImageLayout::Nhwc),
    ("core.conv2d_nhwc_weight_grad", Of::WeightGrad, ImageLayout::Nhwc),
];

pub(super) fn convolution(name: &str) -> Option<(Of, ImageLayout)> {
    let row = CONVOLUTIONS.iter().find(|(known, ..)| *known == name);
    row.map(|&(_, of, layout)| (of, layout))
}

/// Whether an operator is a convolution or one of its derivatives.
pub(super) fn is_convolution(name: &str) -> bool {
    convolution(name).is_some()
}

/// What a convolution computes, for the names of classes of products.
pub(super) fn kind(of: Of, dims: &Conv2dDims) -> String {
    let of = match of {
        Of::Output => "convolution",
        Of::InputGrad => "convolution's input gradient",
        Of::WeightGrad => "convolution's weight gradient",
    };
    let layout = match dims.layout {
        ImageLayout::Nchw => "",
        ImageLayout::Nhwc => " nhwc",
    };
    let ([kh, kw], [sh, sw]) = (dims.kernel, dims.stride);
    format!("{of}{layout} {kh}x{kw}/{sh}x{sw}")
}

/// Elements of a plane.
pub(super) fn plane(size: [usize; 2]) -> usize {
    size[0] * size[1]
}
