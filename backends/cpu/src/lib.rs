//! The CPU backend of Meganeura. It runs on every machine and is optimized for speed.
//!
//! A plan is compiled to stages of independent tasks. A persistent thread pool runs them without any allocation. The
//! division of work depends only on shapes, so results are the same for any number of threads.
//!
//! Other crates register kernels for their operators with [`register_kernel!`].

mod arena;
mod backend;
mod executor;
mod faults;
mod few_bits;
pub mod gemm;
mod kernel;
mod kernels;
mod memory;
mod order;
pub mod pool;
mod prefetch;
mod share;
mod simd;
mod transfer;
mod vmath;

use std::sync::Arc;

pub use backend::{CpuBackend, CpuDevice, THREADS_VARIABLE};
pub use kernels::{CpuKernel, Elementwise, register_kernel, registered_kernels};

// For `register_kernel!`.
#[doc(hidden)]
pub use kernels::KernelEntry;
#[doc(hidden)]
pub use meganeura_core::registry::inventory;

/// Registers a kernel for an operator of another crate:
/// `register_kernel!(CpuKernel::elementwise(..));`
#[macro_export]
macro_rules! register_kernel {
    ($kernel:expr) => {
        $crate::inventory::submit! { $crate::KernelEntry($kernel) }
    };
}

meganeura_core::register_plugin!(meganeura_core::registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &["cpu"],
    ops: &[],
    rule_sets: &[],
});
meganeura_core::register_backend!(|| Arc::new(CpuBackend));
