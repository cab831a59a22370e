//! Launches of a step, as a graph that is captured when its segments run for the first time.

use std::time::Instant;

use cudarc::driver::result;
use meganeura_core::Result;
use meganeura_shaders::host::Step;

use super::graph_choice::GraphChoice;
use super::timing::{MeasuredGraph, MeasuredStep, Tag};
use super::{CudaDriver, MAX_GRAPHS};
use crate::event::Event;
use crate::graph::{Graph, Order, Signal};
use crate::program::Phase;

impl CudaDriver {
    /// Enqueues the launches of a step.
    pub(super) fn enqueue(&mut self, frame: usize, step: &Step) -> Result<()> {
        let (gpu, stream, programmatic) = (self.gpu.clone(), self.stream.raw, self.programmatic);
        let segments = step.segments;
        if step.measured {
            self.enqueue_measured(frame, step)?;
            return self.signal();
        }
        if !self.graphs.contains_key(segments) {
            if self.graphs.len() >= MAX_GRAPHS {
                self.synchronize()?;
                self.graphs.clear();
            }
            let phases = segments.iter().filter_map(|&s| self.segments.get(s)).flatten();
            let launches: Vec<_> = phases.flatten().collect();
            let graphs = gpu.call("capturing the graph of a step", || {
                let make = |chain| Graph::new(&gpu, stream, &launches, &self.signals, chain, programmatic);
                let (first, is_chain) = make(self.order == Order::Chain)?;
                Ok(if self.order == Order::Measured && !is_chain {
                    vec![first, make(true)?.0]
                } else {
                    vec![first]
                })
            })?;
            self.graphs.insert(segments.to_vec(), GraphChoice::new(graphs));
        }
        let Some((graph, measured)) = self.graphs.get_mut(segments).and_then(GraphChoice::next) else {
            return Ok(());
        };
        let Some(number) = measured else {
            return gpu.call("launching a step", || graph.launch(stream));
        };
        let frame = &mut self.frames[frame];
        let [before, behind] = frame.around(&gpu)?;
        gpu.call("launching a step", || {
            before.record(stream)?;
            graph.launch(stream)?;
            behind.record(stream)
        })?;
        frame.compared = Some((segments.to_vec(), number));
        Ok(())
    }

    /// Records all signals after the enqueued work.
    fn signal(&self) -> Result<()> {
        let record = |signal: &Signal| signal.event.record(self.stream.raw);
        self.gpu
            .call("recording events", || self.signals.iter().try_for_each(record))
    }

    /// Returns the label of a phase for profiles.
    fn tag(&self, phase: &Phase) -> Tag {
        let dispatches: Vec<u32> = phase
            .iter()
            .flat_map(|launch| launch.dispatches.iter().copied())
            .collect();
        Tag::of(&dispatches, &self.titles)
    }

    /// Enqueues the launches of a step with an event after each phase.
    fn enqueue_measured(&mut self, frame: usize, step: &Step) -> Result<()> {
        let (gpu, stream, segments) = (self.gpu.clone(), self.stream.raw, step.segments);
        let key = (segments.to_vec(), frame);
        if !self.measured.contains_key(&key) {
            if self.measured.len() >= MAX_GRAPHS {
                self.synchronize()?;
                self.profile.collect(&self.measured, step.ticket)?;
                self.measured.clear();
            }
            let phases: Vec<_> = segments
                .iter()
                .filter_map(|&s| self.segments.get(s))
                .flatten()
                .collect();
            let tags = phases.iter().map(|phase| self.tag(phase)).collect();
            let events: Vec<Event> = (0..=phases.len())
                .map(|_| Event::new(&gpu, true))
                .collect::<Result<_>>()?;
            let graph = gpu.call("capturing the graph of a step", || {
                Graph::measured(&gpu, stream, &phases, &events)
            })?;
            self.measured.insert(key.clone(), MeasuredGraph { graph, events, tags });
        }
        if let Some(measured) = self.measured.get(&key) {
            gpu.call("launching a step", || measured.graph.launch(stream))?;
        }
        self.frames[frame].step = step.ticket;
        self.profile.pending.push(MeasuredStep {
            graph: key,
            step: step.ticket,
            submitted: Instant::now(),
        });
        Ok(())
    }

    /// Waits for all enqueued work.
    fn synchronize(&self) -> Result<()> {
        // SAFETY: the driver created the stream.
        self.gpu
            .call("waiting", || unsafe { result::stream::synchronize(self.stream.raw) })
    }
}
