//! Operators: an open set, one place each.
//!
//! Everything the library knows about an operator is in its own file here: types, gradient, reference
//! semantics or decomposition, cost, sample cases and the builder method. This file is the list: adding an
//! operator is a new file and its entry here. What an operator is, says the trait [`Operator`]. Passes, planning
//! and backends never match on an operator's name; a plugin's operator is registered with
//! [`register_op!`](crate::register_op) and is in no way different.
//!
//! # Arguments of builder methods
//!
//! One order: the tensor that is read or written, then indices or a mask, then further tensors, then axes, then other
//! attributes. So `gather(x, indices)`, `scatter(x, indices, updates, axis)`, `scatter_add(updates, indices, rows)`,
//! `masked_fill(x, mask, value)`, `sum(x, axes, keep_dims)`, `split(x, axis, sizes)`. Exceptions have the order that
//! everybody knows: `select(condition, a, b)`, `embedding(indices, table)`, queries, keys and values before their mask or
//! position, `cache_write(new, cache, kv_pos)`.
//!
//! An axis is an `i32`, a list of them an `&[i32]`; negative ones count from the last. Sizes and numbers of elements are
//! `usize`, numbers of heads and groups `u32`, scalars `f32`.
//!
//! Names are NumPy's: `max`, `min`, `sum`, `mean` and `prod` reduce over axes, `maximum` and `minimum` compare two tensors.
//! An operator's own name and the order of its operands (in rules, plans and kernels) may differ from its method, as those
//! of `core.max_reduce` and `core.gather` do: [`Operator::signature`] and the operands in [`Operator::doc`] say both.

pub mod document;
pub(crate) mod gradient;
mod operator;
pub(crate) mod registered;
pub mod sample;

mod adaptive_pool2d;
mod add_norm;
mod arg_min;
mod arg_reduce;
mod attention;
mod batch_norm;
mod bce;
mod cache_write;
mod cast;
mod categorical;
mod channels_last;
mod composite;
mod concat;
mod conv1d;
mod conv2d;
mod conv_transpose2d;
mod count_non_finite;
mod cross_entropy;
mod cumsum;
mod depthwise_conv2d;
mod dropout;
pub(crate) mod elementwise;
mod expand;
mod expert_matmul;
mod flip;
mod fused;
mod fused_cache_write;
mod gated;
mod gather;
mod group_norm;
mod group_norm_silu;
mod huber;
mod kl_div;
mod l1;
mod l2_normalize;
mod layer_norm;
mod loss;
mod loss_scale;
mod masked_fill;
mod masked_scatter;
mod matmul;
mod matmul_add;
mod max_pool2d_grad;
mod max_pool2d_nhwc;
mod min_reduce;
mod mse;
mod narrow;
mod nll;
mod norm_grad;
mod norm_grad_add;
mod one_hot;
mod optimizer;
mod pad;
mod paged_cache_write;
mod permute;
mod pool2d;
mod positions;
mod prod;
mod put_along_axis;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod reshape;
mod rms_norm;
mod rms_norm_matmul;
mod rope;
mod scatter;
mod scatter_add;
mod select;
mod slice;
mod softmax;
mod split;
mod stop_gradient;
mod sum_squares;
mod take_along_axis;
mod tile;
mod top_k;
mod triangle;
mod upsample2d;
mod variance;
mod write;

pub use operator::*;

pub use attention::{AttentionDims, AttentionOptions, PagedDims};
pub use cache_write::CacheDims;
pub use composite::{Composite, Decompose, graph_flops};
pub use conv_transpose2d::ConvTranspose2dOptions;
pub use conv1d::Conv1dOptions;
pub use conv2d::{Conv2dDims, Conv2dOptions, ImageLayout};
pub use dropout::drop_threshold;
pub use expert_matmul::ExpertDims;
pub use fused::FUSED;
pub use fused_cache_write::{FUSED_CACHE_WRITE, FusedWriteDims};
pub use group_norm::GroupDims;
pub use matmul::MatMulDims;
pub use optimizer::AdamScalars;
pub use paged_cache_write::PagedWriteDims;
pub use pool2d::{Pool2dDims, Pool2dOptions};
pub use quantized::QuantizedDims;
pub use random::{SEED_SCALAR, STEP_SCALAR, random_word};
pub use rope::{RopeDims, RopeScaling};
pub use upsample2d::AxisTaps;

macro_rules! ops {
    ($($op:expr),* $(,)?) => { vec![$(OpRef::new(&$op)),*] };
}

/// Name of the result in which attention saves the log-sum-exp of its scores for the backward pass. No other operator's
/// result has it: plans list these buffers ([`ExecutionPlan::lse_buffers`](crate::plan::ExecutionPlan::lse_buffers)).
pub const ATTENTION_LSE: &str = "lse";

/// The operator whose kernel copies operand 1 over operand 0: how the planner writes persistent data that
/// could not be computed in place.
pub(crate) const COPY: OpRef = OpRef::new(&write::Assign);

/// The operator that, given the operand's own dtype, copies its operand: how the planner keeps contents that
/// are about to be overwritten.
pub(crate) const SNAPSHOT: OpRef = OpRef::new(&cast::Cast);

/// The operators of this crate, one line each.
pub(crate) fn builtin() -> Vec<OpRef> {
    let mut ops: Vec<OpRef> = ops![
        adaptive_pool2d::AdaptiveAvgPool2d,
        adaptive_pool2d::AdaptiveMaxPool2d,
        add_norm::ADD_LAYER_NORM,
        add_norm::ADD_RMS_NORM,
        arg_min::Argmin,
        arg_reduce::Argmax,
        attention::Attention,
        attention::AttentionGrad,
        attention::CachedAttention,
        attention::PagedAttention,
        batch_norm::BatchNorm,
        batch_norm::BatchNormAffine,
        batch_norm::BatchNormInference,
        bce::BceLoss,
        bce::BceWithLogitsLoss,
        cache_write::CacheWrite,
        cast::Cast,
        categorical::AddGumbelNoise,
        concat::Concat,
        conv1d::Conv1d,
        conv2d::CONV2D,
        conv2d::CONV2D_INPUT_GRAD,
        conv2d::CONV2D_NHWC,
        conv2d::CONV2D_NHWC_INPUT_GRAD,
        conv2d::CONV2D_NHWC_WEIGHT_GRAD,
        conv2d::CONV2D_WEIGHT_GRAD,
        conv_transpose2d::ConvTranspose2d,
        count_non_finite::CountNonFinite,
        cross_entropy::CrossEntropy,
        cross_entropy::CrossEntropyGrad,
        cross_entropy::CrossEntropyIds,
        cross_entropy::CrossEntropyIdsGrad,
        cumsum::Cumsum,
        dropout::Dropout,
        expand::Expand,
        expert_matmul::ExpertMatMul,
        expert_matmul::ExpertMatMulWeightGrad,
        expert_matmul::QuantizedExpertMatMul,
        flip::Flip,
        fused::Fused,
        fused_cache_write::FusedCacheWrite,
        gated::GEGLU,
        gated::GEGLU_GRAD,
        gated::SWIGLU,
        gated::SWIGLU_GRAD,
        gated::SwigluConcat,
        gated::SwigluConcatGrad,
        gather::Gather,
        group_norm::GroupNorm,
        group_norm_silu::GroupNormSilu,
        huber::HuberLoss,
        kl_div::KlDivLoss,
        l1::L1Loss,
        layer_norm::LayerNorm,
        loss_scale::BIAS_CORRECTION,
        loss_scale::LossScale,
        masked_fill::MaskedFill,
        masked_scatter::MaskedScatter,
        matmul::MatMul,
        matmul_add::MatMulAdd,
        max_pool2d_grad::MaxPool2dGrad,
        max_pool2d_nhwc::MaxPool2dNhwc,
        min_reduce::Min,
        mse::Mse,
        narrow::Narrow,
        nll::NllLoss,
        norm_grad::BatchNormGrad,
        norm_grad::GroupNormGrad,
        norm_grad::LayerNormGrad,
        norm_grad::RmsNormGrad,
        norm_grad_add::LAYER_NORM_GRAD_ADD,
        norm_grad_add::RMS_NORM_GRAD_ADD,
        one_hot::OneHot,
        optimizer::Accumulate,
        optimizer::Adam,
        optimizer::Momentum,
        optimizer::Sgd,
        pad::Pad,
        paged_cache_write::PagedCacheWrite,
        permute::Permute,
        pool2d::AVG_POOL2D,
        pool2d::AVG_POOL2D_GRAD,
        pool2d::AVG_POOL2D_NHWC,
        pool2d::AVG_POOL2D_NHWC_GRAD,
        pool2d::MaxPool2d,
        prod::Prod,
        put_along_axis::PutAlongAxis,
        quantized::Dequantize,
        quantized::QuantizedMatMul,
        quantized::QuantizedMatMulAdd,
        random::RandomBits,
        recurrent::Gru,
        recurrent::GruGrad,
        recurrent::Lstm,
        recurrent::LstmGrad,
        recurrent::Rnn,
        recurrent::RnnGrad,
        reduce::Max,
        reduce::Mean,
        reduce::Sum,
        reshape::Reshape,
        rms_norm::RmsNorm,
        rms_norm_matmul::RmsNormMatMul,
        rms_norm_matmul::RmsNormQuantizedMatMul,
        rope::Rope,
        rope::RopeCacheWrite,
        rope::RopeDynamicOffset,
        scatter::Scatter,
        scatter_add::ScatterAdd,
        select::Select,
        slice::Slice,
        softmax::LogSoftmax,
        softmax::Softmax,
        split::Split,
        stop_gradient::StopGradient,
        sum_squares::SumSquares,
        take_along_axis::TakeAlongAxis,
        tile::Tile,
        top_k::TopK,
        triangle::TRIL,
        triangle::TRIU,
        upsample2d::UpsampleBilinear2d,
        upsample2d::UpsampleBilinear2dGrad,
        upsample2d::UpsampleNearest2d,
        upsample2d::UpsampleNearest2dGrad,
        variance::Variance,
        write::Assign,
    ];
    ops.extend(elementwise::rows());
    ops
}
