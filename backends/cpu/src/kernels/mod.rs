//! The kernels, one file for each family, and the list of families.
//!
//! A kernel compiles a dispatch to one or more phases. Phases run one after the other. The tasks of a phase are
//! independent and may run on any thread in any order. The division into tasks depends only on shapes, so results do
//! not depend on the number of threads.

mod along_axis;
mod arg_extreme;
mod attention;
mod batch_norm;
mod builtin;
mod cache_write;
mod cached_rows;
mod cast;
mod channel_norm_grad;
mod conv;
mod decision_trees;
mod experts;
mod fused;
mod gated;
mod index;
mod int8;
mod matmul;
mod movement;
mod norm;
mod norm_grad;
mod optimizer;
mod paged_cache_write;
mod pointwise;
mod pool2d;
mod pool2d_nhwc;
mod quantized;
mod quantized_cache_write;
mod random;
mod recurrent;
mod reduce;
mod registered;
mod rope;
mod sampling_threshold;
mod scan;
mod scatter;
mod softmax;
mod strided;
mod sum_squares;
mod top_k;
mod transpose;
mod triangle;
mod upsample2d;
mod variance;

pub(crate) use builtin::{efficiency, find, order};
pub(crate) use registered::problems;
pub use registered::{CpuKernel, Elementwise, KernelEntry, register_kernel, registered_kernels};
