//! Rewriting by equality saturation.

mod attr;
mod elaborate;
mod facts;
mod greedy;
mod matcher;
mod pattern;
pub mod problem;
pub mod rule;
mod rule_set;
#[cfg(test)]
mod rule_tests;
mod scalar;
mod target;
mod terms;
mod validate;

pub use rule_set::{Applies, RuleSet};
pub use target::{Modelled, Target};
