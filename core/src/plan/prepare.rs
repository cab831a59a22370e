//! Segments that run once for many steps and compute prepared values, which depend only on
//! parameters, states and constants.

use std::collections::HashSet;

use super::{BufferRef, Dispatch, ExecutionPlan, Segment};
use crate::error::{Error, Result};

impl ExecutionPlan {
    /// Returns the segment that must run before another one, if there is one.
    pub fn prepared_by(&self, segment: usize) -> Option<usize> {
        let before = segment.checked_sub(1)?;
        self.segments.get(before).filter(|s| s.once).map(|_| before)
    }

    /// Iterates over the dispatches of every step, without segments that run once for many steps.
    pub fn step_dispatches(&self) -> impl Iterator<Item = &Dispatch> {
        let stepped = self.segments.iter().filter(|s| !s.once);
        stepped.flat_map(|s| &self.dispatches[s.range()])
    }

    /// Iterates over the dispatches that run once for many steps.
    pub fn prepared_dispatches(&self) -> impl Iterator<Item = &Dispatch> {
        let prepared = self.segments.iter().filter(|s| s.once);
        prepared.flat_map(|s| &self.dispatches[s.range()])
    }

    /// Returns the buffers that a segment reads but does not write: a change of them makes its
    /// results stale.
    pub fn sources_of(&self, segment: &Segment) -> HashSet<BufferRef> {
        let dispatches = &self.dispatches[segment.range()];
        let written = buffers(dispatches, |d| &d.outputs);
        let mut read = buffers(dispatches, |d| &d.inputs);
        read.retain(|buffer| !written.contains(buffer));
        read
    }

    /// Returns the buffers that dispatches write.
    pub fn written_buffers(&self) -> HashSet<BufferRef> {
        buffers(&self.dispatches, |d| &d.outputs)
    }

    /// Returns parameters, states and constants: the leaves that keep their contents between steps, unless a step writes them.
    pub(super) fn lasting_leaves(&self) -> HashSet<BufferRef> {
        let constants = self.constant_buffers.iter().map(|(b, _)| *b);
        let raw = self.raw_constant_buffers.iter().map(|(b, _)| *b);
        self.persistent().chain(constants).chain(raw).collect()
    }

    /// Returns the buffers that must stay in memory between steps: a segment that runs once writes them, and a segment
    /// that runs in every step reads them.
    pub(super) fn kept_between_steps(&self) -> HashSet<BufferRef> {
        let prepared = self.segments.iter().filter(|s| s.once);
        let written: HashSet<BufferRef> = prepared
            .flat_map(|s| buffers(&self.dispatches[s.range()], |d| &d.outputs))
            .collect();
        let stepped = self.segments.iter().filter(|s| !s.once);
        let read = stepped.flat_map(|s| buffers(&self.dispatches[s.range()], |d| &d.inputs));
        read.filter(|b| written.contains(b)).collect()
    }

    /// Makes all segments run in every step: dispatches of segments that run once become the first levels of the
    /// segment after them.
    #[must_use]
    pub fn without_prepare(mut self) -> Self {
        while let Some(at) = self.segments.iter().position(|s| s.once) {
            self.repeat(at);
        }
        self
    }

    /// Merges the segment at this index, which runs once, into the next one.
    fn repeat(&mut self, at: usize) {
        let prepare = self.segments.remove(at);
        let levels = self.levels(&prepare);
        let Some(next) = self.segments.get_mut(at) else { return };
        let own = next.range();
        (next.first, next.count) = (prepare.first, prepare.count + next.count);
        self.dispatches[own].iter_mut().for_each(|d| d.level += levels as u32);
    }

    /// Makes segments that run once run in every step if a dispatch writes a buffer that they read. In a merged plan,
    /// steps of one part may write data that another part only reads.
    pub(super) fn repeat_what_steps_change(&mut self) {
        let written = self.written_buffers();
        let is_changed = |plan: &Self, s: &Segment| s.once && !plan.sources_of(s).is_disjoint(&written);
        while let Some(at) = self.segments.iter().position(|s| is_changed(self, s)) {
            self.repeat(at);
        }
    }

    /// Checks the segments that run once: they read only persistent data that no step writes, and another segment
    /// follows them.
    pub(super) fn verify_prepare(&self) -> Result<()> {
        if self.segments.iter().all(|s| !s.once) {
            return Ok(());
        }
        let (lasting, written) = (self.lasting_leaves(), self.written_buffers());
        for (at, segment) in self.segments.iter().enumerate().filter(|(_, s)| s.once) {
            if self.segments.get(at + 1).is_none_or(|next| next.once) {
                return Err(Error::plan(format!(
                    "segment '{}' prepares nothing that follows",
                    segment.name
                )));
            }
            let sources = self.sources_of(segment);
            if let Some(buffer) = sources.iter().find(|b| !lasting.contains(b) || written.contains(b)) {
                return Err(Error::plan(format!(
                    "segment '{}' runs once, but {} changes from step to step",
                    segment.name,
                    self.describe(*buffer)
                )));
            }
        }
        Ok(())
    }
}

fn buffers(dispatches: &[Dispatch], operands: fn(&Dispatch) -> &Vec<super::Operand>) -> HashSet<BufferRef> {
    dispatches.iter().flat_map(operands).map(|o| o.buffer).collect()
}
