//! Limits, results and errors of an extraction.

use std::time::Duration;

use crate::rewrite::problem::Selection;

/// Limits of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of steps. A step is one choice that is inspected while a component is searched, and takes some
    /// nanoseconds. Work on the whole problem is not counted.
    pub steps: u64,
    /// Maximum time of the extraction. If the limit is reached, the result depends on the machine.
    pub time: Option<Duration>,
}

impl Default for Budget {
    /// Returns the default limit of ten million steps: well below a second.
    fn default() -> Self {
        Budget {
            steps: 10_000_000,
            time: None,
        }
    }
}

/// Statistics of an extraction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of classes that are reachable from the roots, without classes that cost nothing.
    pub classes: usize,
    /// Number of these classes that every solution uses.
    pub forced: usize,
    /// Number of classes that are undecided after the reductions.
    pub open: usize,
    /// Number of components that the undecided classes form.
    pub components: usize,
    /// Number of classes of the largest component.
    pub largest: usize,
    /// Number of components that were searched, including components within searches.
    pub solved: u32,
    /// Number of components whose solution was found in the cache.
    pub reused: u32,
    /// Number of rounds of reduction of the whole problem.
    pub rounds: u32,
    /// Number of cycles across components that were resolved by joining components.
    pub joins: u32,
    /// Number of steps of the search; see [`Budget::steps`].
    pub steps: u64,
    /// `true` if the budget was exhausted.
    pub budget_spent: bool,
}

/// The selected computation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extraction {
    /// The chosen way to compute each class; `None` if the class is not needed.
    pub selection: Selection,
    /// Cost, in picoseconds.
    pub cost: u64,
    /// `true` if no solution is cheaper.
    pub exact: bool,
    /// Statistics of the extraction.
    pub stats: Stats,
}

/// Reason why nothing was extracted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// The problem contradicts itself.
    #[error("malformed extraction problem: {0}")]
    Malformed(String),
    /// A root cannot be computed without a cycle.
    #[error("root class {root} cannot be computed from the leaves without a cycle")]
    Ungrounded {
        /// The root.
        root: u32,
    },
    /// Every solution uses classes that exclude each other.
    #[error("every way to compute the roots uses classes that exclude each other")]
    Infeasible,
    /// No solution that respects the exclusive sets was found; there may be one.
    #[error("no solution found that respects the exclusive sets; a larger budget may find one")]
    NotFound,
}
