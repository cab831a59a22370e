//! Measured steps: device events between launches measure their times.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura_core::Result;
use meganeura_core::backend::{PassTiming, Ticket, pass_label};

use crate::event::Event;
use crate::graph::Graph;

/// The label of a launch, or of a phase of launches, in profiles.
#[derive(Clone)]
pub(super) struct Tag {
    label: Arc<str>,
    dispatches: Arc<[u32]>,
}

impl Tag {
    /// Creates the label for dispatches. `titles` contains the titles of all dispatches.
    pub(super) fn of(dispatches: &[u32], titles: &[String]) -> Self {
        let titles = dispatches.iter().filter_map(|&dispatch| titles.get(dispatch as usize));
        Tag {
            label: pass_label(titles.map(String::as_str)).into(),
            dispatches: dispatches.into(),
        }
    }
}

/// A graph of a step with an event before the first phase, and an event after each phase.
pub(super) struct MeasuredGraph {
    pub(super) graph: Graph,
    pub(super) events: Vec<Event>,
    pub(super) tags: Vec<Tag>,
}

/// A step whose times are measured.
pub(super) struct MeasuredStep {
    /// Segments and frame of the step's graph. The graph is not launched again until its times are read.
    pub(super) graph: (Vec<usize>, usize),
    pub(super) step: Ticket,
    pub(super) submitted: Instant,
}

/// The measured times of steps.
#[derive(Default)]
pub(super) struct Profile {
    /// Steps whose times have not been read yet. They may be incomplete.
    pub(super) pending: Vec<MeasuredStep>,
    passes: Vec<PassTiming>,
    /// Ticket of the last measured step, and the total time of its launches.
    spent: Option<(Ticket, Duration)>,
}

impl Profile {
    /// Reads the times of all measured steps up to `last`.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn collect(&mut self, graphs: &HashMap<(Vec<usize>, usize), MeasuredGraph>, last: Ticket) -> Result<()> {
        while let Some(first) = self.pending.first()
            && first.step <= last
        {
            let measured = self.pending.remove(0);
            let Some(graph) = graphs.get(&measured.graph) else {
                continue;
            };
            let mut start = measured.submitted;
            let mut sum = Duration::ZERO;
            for (tag, pair) in graph.tags.iter().zip(graph.events.windows(2)) {
                let duration = pair[0].until(&pair[1])?;
                self.passes.push(PassTiming {
                    label: tag.label.clone(),
                    dispatches: tag.dispatches.clone(),
                    submission: measured.step,
                    start,
                    duration,
                });
                start += duration;
                sum += duration;
            }
            self.spent = Some((measured.step, sum));
        }
        Ok(())
    }

    pub(super) fn take(&mut self) -> Vec<PassTiming> {
        std::mem::take(&mut self.passes)
    }

    /// Returns the total time of a step's launches if it is the last measured step.
    pub(super) fn spent_on(&self, step: Ticket) -> Option<Duration> {
        self.spent.filter(|(last, _)| *last == step).map(|(_, time)| time)
    }
}
