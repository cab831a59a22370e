//! Tests of this crate that may share a process. They are one binary, because one is faster to link. Other test
//! binaries give their reason at the top.

mod attention;
mod cached;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
#[path = "../../../../core/tests/common/dag.rs"]
mod dag;
mod faults;
mod fused;
mod hostile;
mod joined_plans;
mod kernels_basic;
#[path = "../../../../core/tests/common/mutation.rs"]
mod mutation;
mod orders;
mod parts;
mod quantized;
mod updates;
