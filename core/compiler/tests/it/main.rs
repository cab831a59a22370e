//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

mod channels_last;
mod clustering;
#[path = "../../../tests/common/dag.rs"]
mod dag;
mod extraction;
mod joined_writes;
mod projections;
