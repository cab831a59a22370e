//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

mod architecture;
mod checkpoints;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod debug_options;
mod debug_step;
mod errors;
mod external;
mod log_dir;
mod memory;
mod mixed_training;
mod newcomer;
mod packed;
mod packed_weights;
mod plan_counts;
#[path = "../common/plans.rs"]
mod plans;
mod precision;
mod recompute;
mod report;
mod retired_words;
mod semantics;
mod two_devices;
mod two_graphs;
