//! An executable that detects when segments that run once must run again.

use crate::backend::{DeviceBuffer, Executable, PassTiming, StepArgs, StepStats, Ticket};
use crate::error::Result;
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
            rolled_back: inner.rolled_back(),
            inner,
        }
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

    fn note_write(&mut self, buffer: BufferRef) {
        for once in &mut self.once {
            once.is_stale |= once.sources.binary_search(&buffer).is_ok();
        }
    }
}

impl Executable for WatchedExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.note_write(buffer);
        self.inner.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.read(buffer, offset, bytes)
    }

    fn write_part(&mut self, buffer: BufferRef, part: &Part, bytes: &[u8]) -> Result<()> {
        self.note_write(buffer);
        self.inner.write_part(buffer, part, bytes)
    }

    fn read_part(&mut self, buffer: BufferRef, part: &Part, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_part(buffer, part, bytes)
    }

    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        self.inner.device_buffer(buffer)
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
