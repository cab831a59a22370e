//! Tests of this crate that may share a process, in one binary to save linking time. Other test
//! binaries state why they are separate.

mod mutations;
mod operators;
mod refusals;
mod router;
