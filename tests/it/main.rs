//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are separate.

mod architecture;
mod channels_last;
mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod debug_options;
mod debug_step;
mod errors;
mod external;
#[cfg(target_os = "linux")]
#[path = "../common/held.rs"]
mod held;
mod memory;
mod mixed_training;
mod newcomer;
mod on_device;
mod onnx_ranks;
mod packed;
mod packed_weights;
mod plain_language;
#[path = "../common/plain_language.rs"]
mod plain_language_markers;
#[path = "../common/plans.rs"]
mod plans;
mod porting;
mod precision;
mod prepared;
mod recompute;
mod semantics;
mod shared_weights;
#[cfg(target_os = "linux")]
mod soak;
mod two_devices;
mod two_graphs;
mod weights;
