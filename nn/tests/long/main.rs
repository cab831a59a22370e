//! Whole training runs, and models against the oracle.
// A binary of its own: `.ci/run` builds it with optimization, too, and runs those that are ignored.

#[path = "../common/mod.rs"]
mod common;
mod oracle;
mod train;
