//! Rewriting by equality saturation.

pub mod extract;
pub mod problem;
pub mod rule;
mod rule_set;
mod target;

pub use rule_set::{Applies, RuleSet};
pub use target::{Modelled, Target};
