//! What a session counts, and how it takes back steps that turn out to have met a fault.

use std::collections::VecDeque;

use super::Session;

/// Most steps whose outcome may be open. A device that lets more come together is waited for; so what is kept for them
/// stays small, also where it says nonsense.
pub(super) const MAX_IN_FLIGHT: usize = 1024;

/// Numbers that the next step depends on, beside what is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Steps made.
    pub(super) steps: u64,
    /// Updates made by the optimizer.
    pub(super) updates: u64,
    /// Steps since the last update whose gradients were accumulated.
    pub(super) accumulated: u32,
}

/// Steps whose outcome is not known.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// The counters before each, the last step's last.
    before: VecDeque<Counters>,
    /// Steps that the executable gave up, as far as they have been taken back.
    given_up: u64,
}

impl Unsettled {
    /// Notes a step: the counters before it, and how many of the last steps may yet be given up.
    fn push(&mut self, before: Counters, unsettled: usize) {
        let unsettled = unsettled.min(MAX_IN_FLIGHT);
        if unsettled > 0 {
            self.before.push_back(before);
        }
        while self.before.len() > unsettled {
            self.before.pop_front();
        }
    }

    /// The counters before the oldest of the steps that the executable gave up, if it did, and forgets these.
    fn take_back(&mut self, given_up: u64) -> Option<Counters> {
        let counters = self.first_given_up(given_up)?;
        let kept = self.before.len().saturating_sub((given_up - self.given_up) as usize);
        self.before.truncate(kept);
        self.given_up = given_up;
        Some(counters)
    }

    fn first_given_up(&self, given_up: u64) -> Option<Counters> {
        let count = given_up.checked_sub(self.given_up).filter(|&count| count > 0)?;
        let at = self.before.len().saturating_sub(count as usize);
        self.before.get(at).copied()
    }

    /// Steps in flight were accumulated for an average that goes on no more.
    pub(super) fn forget_average(&mut self) {
        self.before.iter_mut().for_each(|counters| counters.accumulated = 0);
    }
}

impl Session {
    /// The counters without the steps that were given up. Steps in flight count.
    pub(super) fn counters(&self) -> Counters {
        let before = self.unsettled.first_given_up(self.executable.given_up());
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

    /// Takes back the steps that were given up.
    pub(super) fn settle(&mut self) {
        if let Some(before) = self.unsettled.take_back(self.executable.given_up()) {
            self.steps = before.steps;
            if let Some(active) = &mut self.optimizer {
                active.go_on(before.updates, before.accumulated);
            }
        }
    }

    /// Whether no more steps should be submitted before the last one was waited for.
    pub(super) fn has_too_many_unsettled(&self) -> bool {
        self.executable.unsettled() >= MAX_IN_FLIGHT
    }

    /// Counts a step that was submitted.
    pub(super) fn count_step(&mut self) {
        self.unsettled.push(self.counted(), self.executable.unsettled());
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
        let mut unsettled = Unsettled::default();
        for step in 0..5 {
            unsettled.push(at(step), 2);
        }
        assert_eq!(unsettled.first_given_up(0), None);
        assert_eq!(unsettled.first_given_up(1), Some(at(4)));
        assert_eq!(unsettled.take_back(2), Some(at(3)));
        assert_eq!(unsettled.take_back(2), None, "once");
        unsettled.push(at(3), 1);
        assert_eq!(unsettled.take_back(3), Some(at(3)));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut unsettled = Unsettled::default();
        (0..5000).for_each(|step| unsettled.push(at(step), usize::MAX));
        assert_eq!(unsettled.before.len(), MAX_IN_FLIGHT);
        // The latest ones are kept, and a count that makes no sense goes back to the oldest of these.
        assert_eq!(unsettled.first_given_up(1), Some(at(4999)));
        assert_eq!(unsettled.take_back(u64::MAX), Some(at(5000 - MAX_IN_FLIGHT as u64)));
        assert!(unsettled.before.is_empty());
    }

    #[test]
    fn settled_steps_are_not_kept() {
        let mut unsettled = Unsettled::default();
        (0..9).for_each(|step| unsettled.push(at(step), 0));
        assert_eq!(unsettled.before.capacity(), 0);
        unsettled.push(at(9), 1);
        unsettled.push(at(10), 0);
        assert!(unsettled.before.is_empty());
    }
}
