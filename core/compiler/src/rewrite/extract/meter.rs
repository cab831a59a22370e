//! Work budget of a search, and the work done so far.

use std::time::Instant;

use super::extraction::Budget;

/// Number of steps between two checks of the clock.
const CLOCK: u64 = 2048;

/// Counter of steps, with a budget.
pub(super) struct Meter {
    /// Number of search steps taken.
    pub steps: u64,
    /// `true` while steps are counted: within components. Work on the whole problem is nearly
    /// linear and limited only by the clock.
    pub counting: bool,
    /// `true` if the budget is exhausted: every loop then stops at the next consistent state.
    pub spent: bool,
    limit: u64,
    deadline: Option<Instant>,
    until_check: u64,
}

impl Meter {
    pub(super) fn new(budget: &Budget) -> Self {
        Meter {
            steps: 0,
            counting: false,
            spent: false,
            limit: budget.steps,
            deadline: budget.time.and_then(|t| Instant::now().checked_add(t)),
            until_check: 0,
        }
    }

    /// Counts steps, and checks the clock now and then; returns `false` if the budget is exhausted.
    pub(super) fn tick(&mut self, steps: usize) -> bool {
        let steps = steps as u64;
        if self.counting {
            self.steps += steps;
            self.spent |= self.steps > self.limit;
        }
        if self.until_check <= steps {
            self.until_check = CLOCK;
            self.spent |= self.deadline.is_some_and(|d| Instant::now() >= d);
        } else {
            self.until_check -= steps;
        }
        !self.spent
    }
}
