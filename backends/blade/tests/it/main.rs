//! Tests of this crate that may share a process, in one binary to save linking time. Other test
//! binaries state why they are separate.

mod attention_kernels;
#[path = "../common/case.rs"]
mod case;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod contexts;
mod experts;
mod faults;
mod kernels;
#[path = "../common/packed.rs"]
mod packed;
mod profiling;
mod quantized;
mod sessions;
