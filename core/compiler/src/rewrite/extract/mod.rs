//! Extraction: selects the cheapest computation from an e-graph. A *class* is a set of equal values, a *choice*
//! (e-node) one way to compute a class, and the *children* of a choice are the classes of its operands. Each class counts
//! only once, regardless of its number of users.
//!
//! It is exact if the budget allows. On graphs of real models it does, because they are mostly
//! decided without a search:
//!
//! 1. Choices that can never be computed from the leaves up are dropped (`flat`), and classes that cost nothing are
//!    settled (`reduce`).
//! 2. In rounds: classes that every solution must use are **forced** (`forced`), so they are paid
//!    in any case; a choice that another one can replace in every solution is **dominated** and
//!    dropped (`dominance`).
//! 3. The rest is split into independent **components** (`components`): they share only classes that
//!    are paid. Layers repeat, so components repeat: each pattern is solved once and cached by its
//!    signature.
//! 4. A component is **searched** (`search`) by branching on the class with the most possible
//!    users: use it, or not. Each branch is a problem like the first, so it is reduced and split
//!    again. Bounds prune branches that cannot win.
//! 5. Several components can form a cycle that none forms by itself. They are joined and solved
//!    again.
//!
//! If the budget is exhausted, unsolved parts are selected greedily (`greedy_dag`), and the result
//! records that.
//!
//! Classes that exclude each other (two packings of one weight) are never free and never part of
//! the classes that a dominance argument adds; they are in one component, and a forced one bans all
//! others in its set.
//!
//! Nothing recurses along the graph, and the same problem gives the same result (unless the time
//! limit is reached).

mod check;
mod components;
mod dominance;
mod extraction;
mod flat;
mod forced;
mod greedy_dag;
mod meter;
mod reduce;
mod search;
pub mod synthetic;
mod walk;

pub use check::{SelectionError, selection_cost};
pub use extraction::{Budget, ExtractError, Extraction, Stats};

use self::flat::{FlatClasses, NONE};
use self::meter::Meter;
use self::search::{Solver, whole};
use super::problem::Problem;

/// Chooses the cheapest computation of the roots.
///
/// # Errors
/// [`ExtractError`] if the problem is malformed, a root cannot be computed, or every solution uses
/// classes that exclude each other. An exhausted budget is not an error if a solution was found.
pub fn extract(problem: &Problem, budget: &Budget) -> Result<Extraction, ExtractError> {
    let flat = FlatClasses::from_problem(problem)?;
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

/// Selects greedily after the reductions, without any search.
///
/// # Errors
/// As [`extract`].
pub fn greedy_dag(problem: &Problem) -> Result<Extraction, ExtractError> {
    extract(problem, &Budget { steps: 0, time: None })
}
