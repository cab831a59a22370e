//! Operators: an open set, one file each.
//!
//! Each operator is defined in its own file here: types, gradient, reference semantics or
//! decomposition, cost, sample cases and the builder method. Adding an operator takes a new file, its
//! `mod` line here and an entry in `builtin.rs`. `docs/where-to-add.md` also lists the tests and documents to change.
//! The trait [`Operator`] defines the interface.
//! Passes, planning and backends never match on an operator's name; a plugin's operator is
//! registered with [`register_op!`](crate::register_op) and treated in the same way.
//!
//! # Arguments of builder methods
//!
//! One order: the tensor that is read or written, then indices or a mask, then further tensors, then axes, then other
//! attributes. So `gather(x, indices)`, `scatter(x, indices, updates, axis)`, `scatter_add(updates, indices, rows)`,
//! `masked_fill(x, mask, value)`, `sum(x, axes, keep_dims)`, `split(x, axis, sizes)`. Exceptions
//! follow common usage: `select(condition, a, b)`, `embedding(indices, table)`, queries, keys and
//! values before their mask or position, `cache_write(new, cache, kv_pos)`.
//!
//! An axis is an `i32`, a list of them an `&[i32]`; negative ones count from the last. Sizes and numbers of elements
//! are `usize`, numbers of heads and groups `u32`, scalars `f32`.
//!
//! Names are NumPy's: `max`, `min`, `sum`, `mean` and `prod` reduce over axes, `maximum` and `minimum` compare two
//! tensors. An operator's name and the order of its operands (in rules, plans and kernels) may differ from its method,
//! as for `core.max_reduce` and `core.gather`: see [`Operator::signature`] and the operands in [`Operator::doc`].

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
mod builtin;
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
mod decision_trees;
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
mod int8;
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
mod quantized_cache_write;
mod random;
mod recurrent;
mod reduce;
mod reshape;
mod rms_norm;
mod rms_norm_matmul;
mod rope;
mod sampling_threshold;
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

pub use attention::{AttentionDims, AttentionOptions, PagedDims, attention_sinks, cache_scales};
pub use cache_write::CacheDims;
pub use composite::{Composite, Decompose, graph_flops};
pub use conv_transpose2d::ConvTranspose2dOptions;
pub use conv1d::Conv1dOptions;
pub use conv2d::{Conv2dDims, Conv2dOptions, ImageLayout};
pub use decision_trees::NAN_IS_TRUE;
pub use dropout::drop_threshold;
pub use expert_matmul::ExpertDims;
pub use fused::FUSED;
pub use fused_cache_write::{FUSED_CACHE_WRITE, FusedWriteDims};
pub use group_norm::GroupDims;
pub use int8::{Int8MatMulDims, int8_conv2d_dims};
pub use matmul::MatMulDims;
pub use optimizer::AdamScalars;
pub use paged_cache_write::PagedWriteDims;
pub use pool2d::{Pool2dDims, Pool2dOptions};
pub use quantized::QuantizedDims;
pub use quantized_cache_write::{QuantizedWriteDims, SequenceRows};
pub use random::{SEED_SCALAR, STEP_SCALAR, random_word};
pub use rope::{RopeDims, RopeScaling};
pub use upsample2d::AxisTaps;

/// Name of the result in which attention saves the log-sum-exp of its scores for the backward pass.
/// No other operator's result has this name: plans list these buffers
/// ([`ExecutionPlan::lse_buffers`](crate::plan::ExecutionPlan::lse_buffers)).
pub const ATTENTION_LSE: &str = "lse";

/// The operator whose kernel copies operand 1 over operand 0: the planner uses it to write
/// persistent data that cannot be computed in place.
pub(crate) const COPY: OpRef = OpRef::new(&write::Assign);

/// The operator that copies its operand when cast to the operand's own dtype: the planner uses it
/// to save contents before they are overwritten.
pub(crate) const SNAPSHOT: OpRef = OpRef::new(&cast::Cast);
