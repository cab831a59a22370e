//! Times of passes, measured by the timestamps of the device.
//!
//! blade makes the device write the time at the beginning of each pass and at the end of a submission, for up to
//! [`MAX_PASSES`] passes per submission. A measured step therefore has a separate pass for every phase, and several
//! submissions if necessary. The time of a pass ends when the next pass begins, so it includes the barrier between
//! them.
//!
//! blade reports durations, not times of the host's clock. Passes are assumed to follow each other without a pause.
//! The first one begins at the time of submission, or when the previous submission was complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blade_graphics as bg;
use meganeura_core::backend::{PassTiming, Ticket, pass_label};

use crate::program::Phase;

/// Maximum number of measured passes of a submission.
pub(crate) const MAX_PASSES: usize = bg::limits::PASS_COUNT;

/// Label of a pass in profiles.
#[derive(Clone, Debug)]
pub(crate) struct PassTag {
    pub(crate) label: Arc<str>,
    dispatches: Arc<[u32]>,
}

impl PassTag {
    /// Creates the label of a pass that copies or clears.
    pub(crate) fn transfer(label: &str) -> Self {
        PassTag {
            label: label.into(),
            dispatches: Arc::new([]),
        }
    }

    /// Creates the label of a pass that runs the dispatches of a phase. `titles` contains the titles of all
    /// dispatches.
    pub(crate) fn of(phase: &Phase, titles: &[String]) -> Self {
        let titles = phase.iter().filter_map(|ready| titles.get(ready.dispatch as usize));
        PassTag {
            label: pass_label(titles.map(String::as_str)).into(),
            dispatches: phase.iter().map(|ready| ready.dispatch).collect(),
        }
    }
}

/// A submission whose passes are measured.
pub(crate) struct MeasuredSubmission {
    /// Labels of the passes, in order.
    pub(crate) tags: Vec<PassTag>,
    /// Ticket of the last submission of the step to which this submission belongs.
    pub(crate) step: Ticket,
    /// Host time of the submission to the device.
    pub(crate) submitted: Instant,
}

impl Default for MeasuredSubmission {
    fn default() -> Self {
        MeasuredSubmission {
            tags: Vec::new(),
            step: Ticket(0),
            submitted: Instant::now(),
        }
    }
}

/// The measured times of passes.
#[derive(Default)]
pub(crate) struct Profile {
    passes: Vec<PassTiming>,
    /// Host time of the end of the last pass.
    end: Option<Instant>,
    /// Ticket of the last measured step, and the total time of its passes.
    spent: Option<(Ticket, Duration)>,
}

impl Profile {
    /// Adds the passes of a submission that was complete at the host time `complete`. All earlier submissions must
    /// have been added.
    pub(crate) fn add(&mut self, measured: MeasuredSubmission, timings: &bg::Timings, complete: Instant) {
        let sum: Duration = timings.iter().map(|(_, duration)| *duration).sum();
        let mut start = self.end.map_or(measured.submitted, |end| end.max(measured.submitted));
        // The clocks of host and device differ slightly. The host time limits the end of the passes.
        if start + sum > complete {
            start = complete.checked_sub(sum).unwrap_or(start).max(measured.submitted);
        }
        let before = self.spent_on(measured.step).unwrap_or_default();
        self.spent = Some((measured.step, before + sum)).filter(|_| !timings.is_empty());
        for (tag, (_, duration)) in measured.tags.into_iter().zip(timings) {
            self.passes.push(PassTiming {
                label: tag.label,
                dispatches: tag.dispatches,
                submission: measured.step,
                start,
                duration: *duration,
            });
            start += *duration;
        }
        self.end = Some(start);
    }

    pub(crate) fn take(&mut self) -> Vec<PassTiming> {
        std::mem::take(&mut self.passes)
    }

    /// Returns the total time of the passes of a step if it is the last measured step.
    pub(crate) fn spent_on(&self, step: Ticket) -> Option<Duration> {
        self.spent.filter(|(last, _)| *last == step).map(|(_, time)| time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(profile: &mut Profile, step: u64, submitted: Instant, micros: &[u64], complete: Instant) {
        let measured = MeasuredSubmission {
            tags: micros.iter().map(|_| PassTag::transfer("pass")).collect(),
            step: Ticket(step),
            submitted,
        };
        let timings = micros
            .iter()
            .map(|&us| ("pass".to_owned(), Duration::from_micros(us)))
            .collect();
        profile.add(measured, &timings, complete);
    }

    #[test]
    fn passes_follow_each_other_within_what_the_host_knows() {
        let origin = Instant::now();
        let at = |us| origin + Duration::from_micros(us);
        let mut profile = Profile::default();
        submission(&mut profile, 1, at(10), &[5, 20], at(100));
        // This step was submitted in two parts, the first of them while the previous step ran.
        submission(&mut profile, 3, at(20), &[10], at(200));
        submission(&mut profile, 3, at(300), &[10], at(400));
        // The passes take longer by the device's clock than by the host's clock.
        submission(&mut profile, 4, at(500), &[50], at(540));
        let passes = profile.take();
        let starts: Vec<Duration> = passes.iter().map(|p| p.start - origin).collect();
        assert_eq!(starts, [10, 15, 35, 300, 500].map(Duration::from_micros));
        assert_eq!(passes[3].submission, Ticket(3));
        assert_eq!(profile.spent_on(Ticket(3)), None);
        assert_eq!(profile.spent_on(Ticket(4)), Some(Duration::from_micros(50)));
        assert!(profile.take().is_empty());
    }

    #[test]
    fn a_device_without_timestamps_has_no_passes() {
        let mut profile = Profile::default();
        let now = Instant::now();
        let measured = MeasuredSubmission {
            tags: vec![PassTag::transfer("upload")],
            step: Ticket(1),
            submitted: now,
        };
        profile.add(measured, &Vec::new(), now);
        assert!(profile.take().is_empty());
        assert_eq!(profile.spent_on(Ticket(1)), None);
    }
}
