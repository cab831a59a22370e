//! How much work a search may do, and how much it has done.

use std::time::Instant;

use super::Budget;

/// Steps between two looks at the clock.
const CLOCK: u64 = 2048;

/// Counts steps against a budget.
pub(super) struct Meter {
    /// Steps of search done.
    pub steps: u64,
    /// Whether steps are counted now: those inside components. What is done once for the whole problem is
    /// near-linear and only the clock watches it.
    pub counting: bool,
    /// The budget is spent: whoever sees this stops where the state is sound.
    pub spent: bool,
    limit: u64,
    deadline: Option<Instant>,
    until_look: u64,
}

impl Meter {
    pub(super) fn new(budget: &Budget) -> Self {
        Meter {
            steps: 0,
            counting: false,
            spent: false,
            limit: budget.steps,
            deadline: budget.time.and_then(|t| Instant::now().checked_add(t)),
            until_look: 0,
        }
    }

    /// Counts steps, and looks at the clock now and then; false when the budget is spent.
    pub(super) fn tick(&mut self, steps: usize) -> bool {
        let steps = steps as u64;
        if self.counting {
            self.steps += steps;
            self.spent |= self.steps > self.limit;
        }
        if self.until_look <= steps {
            self.until_look = CLOCK;
            self.spent |= self.deadline.is_some_and(|d| Instant::now() >= d);
        } else {
            self.until_look -= steps;
        }
        !self.spent
    }
}
