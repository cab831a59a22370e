//! Tests of whole training runs, and of models against the oracle.
// A separate binary: `.ci/long` also builds it with optimization, and runs its ignored tests.

#[path = "../common/mod.rs"]
mod common;
mod oracle;
mod train;
