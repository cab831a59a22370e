//! Tests of this crate that may share a process, in one binary to save linking time. Other test
//! binaries state why they are separate.

mod channels_last;
mod clustering;
#[path = "../../../tests/common/dag.rs"]
mod dag;
mod extraction;
mod joined_writes;
mod projections;
