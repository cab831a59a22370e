//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

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
mod packed;
mod packed_weights;
#[path = "../common/plans.rs"]
mod plans;
mod porting;
mod precision;
mod prepared;
mod recompute;
#[path = "../common/retired.rs"]
mod retired;
mod retired_words;
mod semantics;
#[cfg(target_os = "linux")]
mod soak;
mod two_devices;
mod two_graphs;
mod weights;
