//! Tests of this crate that may share a process. They are one binary, because one is faster to link. Other test
//! binaries give their reason at the top.

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
