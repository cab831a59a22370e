//! An executable that detects when segments that run once must run again.

use std::collections::HashSet;

use crate::backend::{DeviceBuffer, Executable, PassTiming, SharedBuffer, StepArgs, StepStats, Ticket};
use crate::error::{Error, Result};
use crate::plan::{BufferRef, ExecutionPlan, Part};

/// A segment that runs again only after one of the buffers that it reads was written.
struct UnchangedSegment {
    segment: usize,
    /// The buffers that the segment reads, sorted.
    sources: Vec<BufferRef>,
    is_stale: bool,
}

/// An executable that records all writes of buffers, to detect stale results of segments that run once.
pub(super) struct WatchedExecutable {
    inner: Box<dyn Executable>,
    once: Vec<UnchangedSegment>,
    /// Buffers that other executables read, too, so nothing may write them.
    frozen: HashSet<BufferRef>,
    /// Number of rolled-back steps at the last check. If it has changed, all segments that run once must run again.
    rolled_back: u64,
}

impl WatchedExecutable {
    pub(super) fn new(inner: Box<dyn Executable>, plan: &ExecutionPlan) -> Self {
        let once = plan.segments.iter().enumerate().filter(|(_, s)| s.once);
        let once = once.map(|(segment, s)| {
            let mut sources: Vec<BufferRef> = plan.sources_of(s).into_iter().collect();
            sources.sort_unstable();
            UnchangedSegment {
                segment,
                sources,
                is_stale: true,
            }
        });
        WatchedExecutable {
            once: once.collect(),
            frozen: plan.memory.borrowed.iter().copied().collect(),
            rolled_back: inner.rolled_back(),
            inner,
        }
    }

    /// Returns `true` if other executables read a buffer, too.
    pub(super) fn is_frozen(&self, buffer: BufferRef) -> bool {
        self.frozen.contains(&buffer)
    }

    /// Returns the segments that have to run before the values that they prepare are used.
    pub(super) fn stale_segments(&mut self) -> Vec<usize> {
        let all: Vec<usize> = self.once.iter().map(|once| once.segment).collect();
        all.into_iter().filter(|&segment| self.is_stale(segment)).collect()
    }

    /// Returns `true` if a segment has to run before its results are used.
    pub(super) fn is_stale(&mut self, segment: usize) -> bool {
        if self.once.is_empty() {
            return false;
        }
        let rolled_back = self.inner.rolled_back();
        if rolled_back != self.rolled_back {
            self.rolled_back = rolled_back;
            self.forget();
        }
        self.once.iter().any(|o| o.segment == segment && o.is_stale)
    }

    fn forget(&mut self) {
        self.once.iter_mut().for_each(|o| o.is_stale = true);
    }

    /// Checks and records a write.
    fn note_write(&mut self, buffer: BufferRef) -> Result<()> {
        if self.frozen.contains(&buffer) {
            return Err(Error::misuse(
                "this parameter is shared with other sessions, which may be reading it",
                "set parameters before the session shares its weights, or build a new session for other weights",
            ));
        }
        for once in &mut self.once {
            once.is_stale |= once.sources.binary_search(&buffer).is_ok();
        }
        Ok(())
    }
}

impl Executable for WatchedExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.note_write(buffer)?;
        self.inner.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.read(buffer, offset, bytes)
    }

    fn write_part(&mut self, buffer: BufferRef, part: &Part, bytes: &[u8]) -> Result<()> {
        self.note_write(buffer)?;
        self.inner.write_part(buffer, part, bytes)
    }

    fn read_part(&mut self, buffer: BufferRef, part: &Part, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_part(buffer, part, bytes)
    }

    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        if self.frozen.contains(&buffer) {
            // Other code could write to the address.
            return Ok(None);
        }
        self.inner.device_buffer(buffer)
    }

    fn share(&mut self, buffers: &[BufferRef]) -> Result<Vec<Option<SharedBuffer>>> {
        let shared = self.inner.share(buffers)?;
        let frozen = buffers.iter().zip(&shared).filter(|(_, shared)| shared.is_some());
        self.frozen.extend(frozen.map(|(buffer, _)| *buffer));
        // What is prepared from buffers that do not change stays valid, also if a step is rolled back.
        let frozen = &self.frozen;
        self.once
            .retain(|once| once.is_stale || !once.sources.iter().all(|b| frozen.contains(b)));
        Ok(shared)
    }

    fn signal_when_done(&mut self, groups: &[Vec<BufferRef>]) -> Result<Option<Vec<u64>>> {
        self.inner.signal_when_done(groups)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        let ticket = self.inner.run(args);
        for once in self.once.iter_mut().filter(|o| args.segments.contains(&o.segment)) {
            once.is_stale = ticket.is_err();
        }
        ticket
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        let stats = self.inner.wait(ticket);
        if stats.is_err() {
            self.forget();
        }
        stats
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn rolled_back(&self) -> u64 {
        self.inner.rolled_back()
    }

    fn set_profiling(&mut self, on: bool) {
        self.inner.set_profiling(on);
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        self.inner.take_timings()
    }
}
