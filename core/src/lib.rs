//! The hardware-agnostic core of Meganeura.
//!
//! One graph's journey, in one direction:
//!
//! ```text
//! Graph --verify--> optimize --> autodiff --> optimize --> plan --> Device::compile --> Session::step
//! ```
//!
//! Each arrow takes a value and returns a value. No stage depends on later ones, and no module here
//! depends on a GPU. See `ARCHITECTURE.md` in the repository.

pub mod attrs;
pub mod autodiff;
pub mod backend;
pub mod cache;
pub mod calibration;
pub mod config;
pub mod cost;
pub mod debug;
pub mod distributed;
pub mod dtype;
pub mod error;
pub mod fallback;
pub mod files;
pub mod graph;
pub mod host_memory;
pub mod init;
pub mod kernel;
pub mod loss_scaling;
pub mod memory_budget;
pub mod mode;
pub mod ops;
pub mod parallel;
pub mod pattern;
pub mod plan;
pub mod precision;
pub mod profiler;
pub mod program;
pub mod quantization;
pub mod random;
pub mod reference;
pub mod registry;
pub mod replay;
pub mod rule_set;
pub mod select;
pub mod session;
pub mod shape;
pub mod statistics;
mod storage;

pub use session as runtime;

pub use debug::DebugOptions;
pub use dtype::DType;
pub use error::{Error, Result};
pub use graph::{Graph, NodeId, Value};
pub use init::Init;
pub use loss_scaling::LossScaling;
pub use mode::Mode;
pub use plan::ExecutionPlan;
pub use plan::optimizer::{Adam, GradientClip, Optimizer, ParameterGroup, Sgd, Update};
pub use session::{LoadOptions, LoadReport, MemorySummary, NonFinite, Session, SharedWeights, Tensor, Weight, Weights};
pub use shape::{Shape, TensorType};
pub use statistics::TensorStatistics;
