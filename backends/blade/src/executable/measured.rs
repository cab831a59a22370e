//! Recording of steps whose passes are measured.

use std::time::Instant;

use meganeura_core::Result;
use meganeura_core::backend::Ticket;
use meganeura_shaders::host::{Driver as _, FRAMES, Step};

use super::BladeDriver;
use super::record::record_phase;
use crate::timing::MAX_PASSES;

/// Maximum number of measured phases of a submission. The copies at the end of the submission need one more pass.
const MAX_PHASES: usize = MAX_PASSES - 1;

impl BladeDriver {
    /// Records a step with a separate pass for each phase. If there are more phases than a submission can time, the
    /// step is submitted in parts, and the host waits for each part. Returns the number of parts that were submitted.
    pub(super) fn record_measured(&mut self, at: usize, step: &Step) -> Result<u64> {
        let segments = step.segments.iter().filter(|&&s| s < self.segments.len());
        let phases: Vec<(usize, usize)> = segments
            .flat_map(|&s| (0..self.segments[s].len()).map(move |p| (s, p)))
            .collect();
        let begun = self.frames[at].measured.as_ref().map_or(0, |m| m.tags.len());
        let mut room = MAX_PHASES.saturating_sub(begun);
        let parts = phases.len().saturating_sub(room).div_ceil(MAX_PHASES) as u64;
        // The step is identified by the ticket of its last part.
        let ticket = Ticket(step.ticket.0 + parts);
        for (segment, number) in phases {
            if room == 0 {
                self.submit_part(at, ticket)?;
                room = MAX_PHASES;
            }
            room -= 1;
            let (phase, tag) = (&self.segments[segment][number], &self.tags[segment][number]);
            let frame = &mut self.frames[at];
            if let Some(measured) = &mut frame.measured {
                measured.tags.push(tag.clone());
            }
            let (encoder, scalars) = (frame.encoder(), &self.scalars);
            self.gpu.guard("recording", |_| {
                record_phase(&mut encoder.compute(&tag.label), phase, scalars);
            })?;
        }
        if let Some(measured) = &mut self.frames[at].measured {
            measured.step = ticket;
        }
        Ok(parts)
    }

    /// Submits the recorded part of a step, waits for it, and continues recording in the same frame.
    fn submit_part(&mut self, at: usize, step: Ticket) -> Result<()> {
        if let Some(measured) = &mut self.frames[at].measured {
            measured.step = step;
        }
        self.submit(at)?;
        self.collect(at)?;
        let frame = &mut self.frames[at];
        // `collect` has already restarted the encoder to read its times.
        frame.started = false;
        frame.measured = Some(Default::default());
        Ok(())
    }

    /// Reads the times of a frame's completed submission. All earlier submissions must have been collected.
    pub(super) fn collect(&mut self, frame: usize) -> Result<()> {
        let last = self.frames[frame].submission;
        loop {
            let measured = |f: &usize| self.frames[*f].measured.is_some() && self.frames[*f].submission <= last;
            let first = (0..FRAMES).filter(measured).min_by_key(|&f| self.frames[f].submission);
            let Some(first) = first else { return Ok(()) };
            self.wait_for(first)?;
            let frame = &mut self.frames[first];
            self.gpu.guard("reading times", |_| frame.encoder().start())?;
            frame.started = true;
            if let Some(measured) = frame.measured.take() {
                self.profile.add(measured, frame.encoder().timings(), Instant::now());
            }
        }
    }
}
