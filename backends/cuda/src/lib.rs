//! The CUDA backend, which runs plans on NVIDIA's GPUs. Kernels of the crate `meganeura-shaders` are translated from
//! WGSL to CUDA C++, and NVRTC compiles them for the GPU. A step is a CUDA graph. The driver and NVRTC are loaded at
//! run time, so building does not require CUDA.
//!
//! The translation can be used separately, without a GPU:
//!
//! ```
//! use meganeura_cuda::{Options, read, write};
//!
//! let wgsl = "
//! var<storage, read> a: array<f32>;
//! var<storage, read_write> b: array<f32>;
//! @compute @workgroup_size(64)
//! fn main(@builtin(global_invocation_id) id: vec3<u32>) { b[id.x] = 2.0 * a[id.x]; }";
//! let (module, info) = read(wgsl).expect("valid WGSL");
//! let written = write(&module, &info, "main", &Options::default()).expect("CUDA has all of it");
//! assert_eq!(written.threads, [64, 1, 1]);
//! assert!(written.source.contains("extern \"C\" __global__"));
//! ```

mod backend;
mod copies;
mod cubins;
mod cublaslt;
mod cudnn;
mod device;
pub mod dlpack;
mod driver;
mod event;
mod executable;
mod gpu;
mod graph;
mod handle;
mod kernels;
mod libraries;
mod library;
mod memory;
mod merging;
pub mod nccl;
mod nvrtc;
mod program;
mod settings;
mod wgsl;
mod writer;

use std::sync::Arc;

pub use backend::CudaBackend;
pub use device::CudaDevice;
pub use nvrtc::{NVRTC_OPTIONS, Nvrtc};
pub use wgsl::read;
pub use writer::{Binding, Bounds, Call, CudaSource, MergedKernel, Options, WriteError, write, write_merged};

meganeura_core::register_plugin!(meganeura_core::registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &["cuda"],
    ops: &[],
    rule_sets: &[],
});
meganeura_core::register_backend!(|| Arc::new(CudaBackend));
