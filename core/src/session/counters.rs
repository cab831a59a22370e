//! Counters of a session, and the rollback of steps with a fault.

use std::collections::VecDeque;

use super::Session;
use crate::backend::Executable;

/// Maximum number of steps in flight, so that the memory for them is bounded. Before it submits more steps, the session
/// waits for the device.
pub(super) const MAX_IN_FLIGHT: usize = 1024;

/// Numbers that the next step depends on, in addition to tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Number of steps made.
    pub(super) steps: u64,
    /// Number of updates made by the optimizer.
    pub(super) updates: u64,
    /// Number of steps since the last update whose gradients were accumulated.
    pub(super) accumulated: u32,
}

/// Steps whose outcome is open: they may still be rolled back.
#[derive(Debug, Default)]
pub(super) struct OpenSteps {
    /// Counters before each open step, oldest first.
    before: VecDeque<Counters>,
    /// Number of steps that the executable rolled back and that are already reverted here.
    rolled_back: u64,
}

impl OpenSteps {
    /// Adds a step with the counters before it, and removes all but the latest `in_flight` steps, because only these
    /// may still be rolled back.
    fn push(&mut self, before: Counters, in_flight: usize) {
        let in_flight = in_flight.min(MAX_IN_FLIGHT);
        if in_flight > 0 {
            self.before.push_back(before);
        }
        while self.before.len() > in_flight {
            self.before.pop_front();
        }
    }

    /// Removes the steps that the executable rolled back, and returns the counters before the oldest of them; `None` if
    /// there are none.
    fn take_back(&mut self, rolled_back: u64) -> Option<Counters> {
        let counters = self.first_rolled_back(rolled_back)?;
        let kept = self
            .before
            .len()
            .saturating_sub((rolled_back - self.rolled_back) as usize);
        self.before.truncate(kept);
        self.rolled_back = rolled_back;
        Some(counters)
    }

    fn first_rolled_back(&self, rolled_back: u64) -> Option<Counters> {
        let count = rolled_back.checked_sub(self.rolled_back).filter(|&count| count > 0)?;
        let at = self.before.len().saturating_sub(count as usize);
        self.before.get(at).copied()
    }

    /// Sets the number of accumulated steps to 0 in the counters of all steps in flight, because their average is not
    /// continued.
    pub(super) fn forget_average(&mut self) {
        self.before.iter_mut().for_each(|counters| counters.accumulated = 0);
    }
}

impl Session {
    /// Returns the counters without rolled-back steps, but with the steps in flight.
    pub(super) fn counters(&self) -> Counters {
        let before = self.in_flight.first_rolled_back(self.executable.rolled_back());
        before.unwrap_or_else(|| self.counted())
    }

    fn counted(&self) -> Counters {
        let active = self.optimizer.as_ref();
        Counters {
            steps: self.steps,
            updates: active.map_or(0, |active| active.updates()),
            accumulated: active.map_or(0, |active| active.accumulated()),
        }
    }

    /// Reverts the counters of rolled-back steps.
    pub(super) fn settle(&mut self) {
        if let Some(before) = self.in_flight.take_back(self.executable.rolled_back()) {
            self.steps = before.steps;
            if let Some(active) = &mut self.optimizer {
                active.go_on(before.updates, before.accumulated);
            }
        }
    }

    /// Returns `true` if the last step must be awaited before more steps are submitted.
    pub(super) fn has_too_many_in_flight(&self) -> bool {
        self.executable.in_flight() >= MAX_IN_FLIGHT
    }

    /// Records a submission with the current counters, so that they can be restored if the submission is rolled back. A
    /// step has one or several submissions; it is counted after the last one.
    pub(super) fn note_submission(&mut self) {
        self.in_flight.push(self.counted(), self.executable.in_flight());
    }

    /// Counts a submitted step.
    pub(super) fn count_step(&mut self) {
        self.steps += 1;
        if let Some(active) = self.optimizer.as_mut().filter(|active| !active.paused) {
            active.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(steps: u64) -> Counters {
        Counters {
            steps,
            ..Counters::default()
        }
    }

    #[test]
    fn steps_are_taken_back_to_the_first_that_was_given_up() {
        let mut in_flight = OpenSteps::default();
        for step in 0..5 {
            in_flight.push(at(step), 2);
        }
        assert_eq!(in_flight.first_rolled_back(0), None);
        assert_eq!(in_flight.first_rolled_back(1), Some(at(4)));
        assert_eq!(in_flight.take_back(2), Some(at(3)));
        assert_eq!(in_flight.take_back(2), None, "once");
        in_flight.push(at(3), 1);
        assert_eq!(in_flight.take_back(3), Some(at(3)));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut in_flight = OpenSteps::default();
        (0..5000).for_each(|step| in_flight.push(at(step), usize::MAX));
        assert_eq!(in_flight.before.len(), MAX_IN_FLIGHT);
        // The latest steps are kept, and an invalid count reverts to the oldest of them.
        assert_eq!(in_flight.first_rolled_back(1), Some(at(4999)));
        assert_eq!(in_flight.take_back(u64::MAX), Some(at(5000 - MAX_IN_FLIGHT as u64)));
        assert!(in_flight.before.is_empty());
    }

    #[test]
    fn settled_steps_are_not_kept() {
        let mut in_flight = OpenSteps::default();
        (0..9).for_each(|step| in_flight.push(at(step), 0));
        assert_eq!(in_flight.before.capacity(), 0);
        in_flight.push(at(9), 1);
        in_flight.push(at(10), 0);
        assert!(in_flight.before.is_empty());
    }
}
