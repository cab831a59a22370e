//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are
//! separate.

mod fallback;
mod fallback_steps;
mod limits;
mod mixed_precision;
mod pairs;
mod reference_backend;
mod replay;
