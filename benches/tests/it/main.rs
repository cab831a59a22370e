//! The tests of this crate that need no device but the processor.

mod plan_counts;
