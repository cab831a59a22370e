//! The compiler from a graph to a session.
//!
//! ```text
//! Graph -> optimize -> differentiate -> optimize -> plan -> Session
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`rewrite`] | rule sets, equality saturation, extraction, verification of rules |
//! | [`cluster`] | elementwise calls, merged into one kernel |
//! | [`optimize`] | the passes over a graph in their order, each usable separately |
//! | [`mod@compile`] | compilation of an optimized graph to a plan |
//! | [`builder`] | all stages in one call |
//! | [`model`] | models for inference with inputs of any size, used by several threads |
//!
//! The graph, autodiff, plans and sessions are in `meganeura-core`: backends and layers do not need
//! this crate.

pub mod builder;
mod channels_last;
pub mod cluster;
pub mod compile;
pub mod link;
mod measure;
pub mod model;
pub mod optimize;
pub mod rewrite;

pub use builder::{
    Builder, SessionConfig, build, build_inference_session, build_session, build_session_cached,
    build_session_with_report,
};
pub use measure::measure_rates;
pub use meganeura_core::mode::Mode;
pub use model::{InferenceModel, InputShapes, ModelOptions};
pub use optimize::OptimizeReport;
