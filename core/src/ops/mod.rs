//! Operators: an open set, one place each.
//!
//! Everything the library knows about an operator is in its own file here: types, gradient, reference
//! semantics or decomposition, cost, sample cases and the builder method. This file is the list: adding an
//! operator is a new file and its entry here ([`operator`] says what an operator is). Passes,
//! planning and backends never match on an operator's name; a plugin's operator is registered with [`register_op!`](crate::register_op) and is in no way different.

mod operator;
pub mod sample;

mod arg_reduce;
mod attention;
mod batch_norm;
mod cast;
mod concat;
mod conv2d;
mod cross_entropy;
mod dropout;
pub(crate) mod elementwise;
mod expand;
mod gated;
mod gather;
mod layer_norm;
mod matmul;
mod mse;
mod optimizer;
mod pad;
mod permute;
mod pool2d;
mod random;
mod reduce;
mod reshape;
mod rope;
mod scatter_add;
mod select;
mod slice;
mod softmax;
mod stop_gradient;
mod write;

pub use operator::*;

pub use attention::{AttentionDims, AttentionOptions};
pub use conv2d::{Conv2dDims, Conv2dOptions};
pub use dropout::drop_threshold;
pub use matmul::MatMulDims;
pub use optimizer::AdamScalars;
pub use pool2d::{Pool2dDims, Pool2dOptions};
pub use random::{SEED_SCALAR, STEP_SCALAR, random_word};
pub use rope::RopeDims;

macro_rules! ops {
    ($($op:expr),* $(,)?) => { vec![$(OpRef::new(&$op)),*] };
}

/// The operator whose kernel copies operand 1 over operand 0: how the planner writes persistent data that
/// could not be computed in place.
pub(crate) const COPY: OpRef = OpRef::new(&write::Assign);

/// The operator that, given the operand's own dtype, copies its operand: how the planner keeps contents that
/// are about to be overwritten.
pub(crate) const SNAPSHOT: OpRef = OpRef::new(&cast::Cast);

/// The operators of this crate, one line each.
pub(crate) fn builtin() -> Vec<OpRef> {
    let mut ops: Vec<OpRef> = ops![
        arg_reduce::Argmax,
        attention::Attention,
        attention::AttentionGrad,
        batch_norm::BatchNorm,
        batch_norm::BatchNormInference,
        cast::Cast,
        concat::Concat,
        conv2d::Conv2d,
        conv2d::Conv2dInputGrad,
        conv2d::Conv2dWeightGrad,
        cross_entropy::CrossEntropy,
        cross_entropy::CrossEntropyIds,
        dropout::Dropout,
        expand::Expand,
        gated::Geglu,
        gated::GegluGrad,
        gated::Swiglu,
        gated::SwigluConcat,
        gated::SwigluConcatGrad,
        gated::SwigluGrad,
        gather::Gather,
        layer_norm::LayerNorm,
        matmul::MatMul,
        mse::Mse,
        optimizer::Adam,
        optimizer::Momentum,
        optimizer::Sgd,
        pad::Pad,
        permute::Permute,
        pool2d::AvgPool2d,
        pool2d::AvgPool2dGrad,
        pool2d::MaxPool2d,
        random::RandomBits,
        reduce::Max,
        reduce::Mean,
        reduce::Sum,
        reshape::Reshape,
        rope::Rope,
        scatter_add::ScatterAdd,
        select::Select,
        slice::Slice,
        softmax::LogSoftmax,
        softmax::Softmax,
        stop_gradient::StopGradient,
        write::Assign,
    ];
    ops.extend(elementwise::rows());
    ops
}
