//! The blade backend, which runs plans on GPUs through [`blade_graphics`] (Vulkan on Linux and Windows, Metal on
//! macOS).
//!
//! WGSL kernels are generated for every dispatch, with its shapes as constants. A step is one submission, and the
//! host does not wait for it. A host application can share its context:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # fn run(context: Arc<blade_graphics::Context>, plan: meganeura_core::ExecutionPlan) -> meganeura_core::Result<()>
//! {
//! use meganeura_blade::WithContext;
//! use meganeura_core::Session;
//!
//! let session = Session::with_context(context, plan)?;
//! # Ok(())
//! # }
//! ```

mod backend;
mod compile;
mod device;
mod executable;
mod gpu;
mod handle;
mod memory;
mod pipeline;
mod probe;
mod program;
mod settings;
mod timing;
mod tune;

use std::sync::Arc;

pub use backend::BladeBackend;
pub use compile::WithContext;
pub use device::{BladeDevice, select_coop_config};
pub use meganeura_shaders::coop::{CoopConfig, MIN_COOP_WORKGROUPS, prefers_coop};

meganeura_core::register_plugin!(meganeura_core::registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &["blade"],
    ops: &[],
    rule_sets: &[],
});
meganeura_core::register_backend!(|| Arc::new(BladeBackend));
