//! Extraction: from an e-graph, the computation that costs least, each class counted once however often it is used.
//!
//! Exact where the budget allows, which on graphs of real models it does, for they are mostly decided without a
//! search:
//!
//! 1. Choices that can never be computed from the leaves up are dropped (`flat`), and classes that cost nothing are
//!    settled (`reduce`).
//! 2. In rounds: what every solution must use is **forced** (`forced`), so it is paid whatever else is chosen; a
//!    choice that another one can replace in every solution is **dominated** and dropped (`dominance`).
//! 3. What is left falls apart into independent **components** (`components`): they share only classes that are
//!    paid. Layers repeat, so components repeat: each pattern is solved once and remembered by its signature.
//! 4. A component is **searched** (`search`): to use the class that most could share, or not. Each side is a problem
//!    like the first, so it is reduced and split again. Bounds cut off what cannot win.
//! 5. Components can make a cycle together that none makes alone. Those are joined and solved again.
//!
//! When the budget is spent, what is not solved is chosen greedily (`greedy_dag`), and the result says so.
//!
//! Classes that exclude each other (two packings of one weight) are never free, never part of what a dominance
//! argument adds, lie in one component, and a forced one bans the others.
//!
//! Nothing recurses along the graph, and the same problem gives the same result (as long as no time limit strikes).

mod check;
mod components;
mod dominance;
mod flat;
mod forced;
mod greedy_dag;
mod meter;
mod reduce;
mod search;
pub mod synthetic;
mod walk;

use std::time::Duration;

pub use check::{SelectionError, selection_cost};

use self::flat::{Flat, NONE};
use self::meter::Meter;
use self::search::{Solver, whole};
use super::problem::{Problem, Selection};

/// How much search is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Steps: choices looked at while components are searched. A step takes some nanoseconds. What is done once for the
    /// whole problem does not count.
    pub steps: u64,
    /// Time, from the call on. A time limit that strikes makes the result depend on the machine.
    pub time: Option<Duration>,
}

impl Default for Budget {
    /// Ten million steps: well below a second.
    fn default() -> Self {
        Budget {
            steps: 10_000_000,
            time: None,
        }
    }
}

/// What an extraction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Classes in reach of the roots, those that cost nothing left out.
    pub classes: usize,
    /// Of those, classes that every solution uses.
    pub forced: usize,
    /// Classes that the reductions left to be decided.
    pub open: usize,
    /// Components that those fall apart into.
    pub components: usize,
    /// Classes of the largest one.
    pub largest: usize,
    /// Components searched, those within searches included.
    pub solved: u32,
    /// Components remembered instead.
    pub reused: u32,
    /// Rounds of reduction of the whole problem.
    pub rounds: u32,
    /// Cycles across components for which components were joined.
    pub joins: u32,
    /// Steps of search, see [`Budget::steps`].
    pub steps: u64,
    /// The budget was spent.
    pub budget_spent: bool,
}

/// The computation chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extraction {
    /// For each class the choice; `None` where the class is not needed.
    pub selection: Selection,
    /// Cost, in picoseconds.
    pub cost: u64,
    /// Whether nothing cheaper exists.
    pub exact: bool,
    /// How it was found.
    pub stats: Stats,
}

/// Why nothing was extracted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// The problem contradicts itself.
    #[error("malformed extraction problem: {0}")]
    Malformed(String),
    /// A root that no choices lead to without a cycle.
    #[error("class {root} is wanted, and no choice of it can be computed from the leaves up")]
    Ungrounded {
        /// The root.
        root: u32,
    },
    /// Every solution uses classes that exclude each other.
    #[error("every way to compute the roots uses classes that exclude each other")]
    Infeasible,
    /// No solution was found that keeps to the exclusive sets; there may be one.
    #[error("no way to compute the roots was found that keeps to the exclusive sets; a larger budget may find one")]
    NotFound,
}

/// Chooses the cheapest computation of the roots.
///
/// # Errors
/// [`ExtractError`] where the problem is malformed, a root cannot be computed, or every solution uses classes that
/// exclude each other. A budget that is spent is no error as long as a solution is known.
pub fn extract(problem: &Problem, budget: &Budget) -> Result<Extraction, ExtractError> {
    let flat = Flat::from_problem(problem)?;
    let grounded = flat.ground(&mut vec![true; flat.cost.len()], &vec![false; flat.len()]);
    if let Some(&root) = flat.roots.iter().find(|c| !grounded[**c as usize]) {
        return Err(ExtractError::Ungrounded { root });
    }
    let mut solver = Solver::new(Meter::new(budget));
    let answer = whole(&mut solver, &flat);
    let Some((cost, chosen)) = answer.best else {
        return Err(if answer.proven {
            ExtractError::Infeasible
        } else {
            ExtractError::NotFound
        });
    };
    let origin = |&k: &u32| (k != NONE).then(|| flat.origin[k as usize]);
    Ok(Extraction {
        selection: chosen.iter().map(origin).collect(),
        cost,
        exact: answer.proven,
        stats: Stats {
            steps: solver.meter.steps,
            budget_spent: solver.meter.spent,
            ..solver.stats
        },
    })
}

/// Chooses greedily what is left after the reductions: no search, whatever the problem.
///
/// # Errors
/// As [`extract`].
pub fn greedy_dag(problem: &Problem) -> Result<Extraction, ExtractError> {
    extract(problem, &Budget { steps: 0, time: None })
}
