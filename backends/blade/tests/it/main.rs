//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

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
mod profiling;
mod quantized;
mod sessions;
