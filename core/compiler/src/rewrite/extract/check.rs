//! Cost and validity of a selection.

use super::flat::{FlatClasses, NONE};
use super::walk::walk;
use crate::rewrite::problem::{Problem, Selection};

/// Reason why a selection is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The classes depend on each other.
    #[error("the classes {0:?} need each other")]
    Cycle(Vec<u32>),
    /// A class is needed, but no existing choice is selected for it.
    #[error("class {0} is needed, but no choice for it is selected")]
    Missing(u32),
    /// Several classes of one exclusive set are used.
    #[error("the classes {0:?} exclude each other")]
    Exclusive(Vec<u32>),
}

/// Returns the cost of a selection: the sum over the classes that its roots need, each counted
/// once.
///
/// # Errors
/// [`SelectionError`] if a needed class has no choice, classes need each other, or exclude each
/// other.
pub fn selection_cost(problem: &Problem, selection: &Selection) -> Result<u64, SelectionError> {
    let mut flat = FlatClasses::new();
    let mut missing = vec![true; problem.classes.len()];
    for (c, choices) in problem.classes.iter().enumerate() {
        let selected = selection.get(c).copied().flatten();
        if let Some(choice) = selected.and_then(|k| choices.get(k as usize)) {
            if let Some(&outside) = choice.children.iter().find(|x| **x as usize >= problem.classes.len()) {
                return Err(SelectionError::Missing(outside));
            }
            flat.push_choice(choice.cost, choice.label, c as u32, &choice.children);
            missing[c] = choice.children.contains(&(c as u32));
        }
        flat.close_class();
    }
    if let Some(&outside) = problem.roots.iter().find(|x| **x as usize >= problem.classes.len()) {
        return Err(SelectionError::Missing(outside));
    }
    flat.close(problem.roots.clone(), Vec::new());
    let walk = walk(&flat, &vec![true; flat.cost.len()], &vec![false; flat.len()]);
    let mut cost = 0u64;
    for &c in &walk.order {
        let choices = flat.choices(c);
        if choices.is_empty() {
            return Err(SelectionError::Missing(c));
        }
        if missing[c as usize] {
            return Err(SelectionError::Cycle(vec![c]));
        }
        if walk.cyclic(c) {
            let group = walk.group[c as usize];
            let mut classes = walk.order.clone();
            classes.retain(|&x| walk.group[x as usize] == group);
            classes.sort_unstable();
            return Err(SelectionError::Cycle(classes));
        }
        cost = flat.cost[choices].iter().fold(cost, |sum, &x| sum.saturating_add(x));
    }
    for set in &problem.exclusive {
        let used = |c: &u32| walk.position.get(*c as usize).is_some_and(|&p| p != NONE);
        let mut both: Vec<u32> = set.iter().copied().filter(used).collect();
        both.sort_unstable();
        both.dedup();
        if both.len() > 1 {
            return Err(SelectionError::Exclusive(both));
        }
    }
    Ok(cost)
}
