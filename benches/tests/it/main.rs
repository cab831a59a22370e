//! Tests of this crate that need only the CPU.

mod plan_counts;
