//! Replay of a plan on a GPU: one submission per step, without waiting on the host.
//!
//! [`Replay`] owns everything that does not depend on the interface of the GPU: the order of submissions, writes that
//! wait for the next submission, results that the host is expected to read, and the rollback of steps with a fault. A
//! backend implements [`Driver`], which records and submits the work.

mod driver;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::backend::{DeviceBuffer, Executable, PassTiming, SharedBuffer, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::{Error, Result};

pub use driver::{Begin, Driver, Step};

use super::draft::{ExtraBuffers, FRAMES, LaunchPlan};
use super::faults::{Faults, Reporter, SavedRange, fault_in, report_bytes};
use super::host_validated::HostValidated;
use super::places::BufferLocation;
use super::transfers::{Copy, MAX_EXPECTED, PendingWrites, Transfer, place_expected};

/// Minimum number of bytes of a write that is submitted at once. Smaller writes wait for the next submission, because a
/// submission of its own takes longer than the copy that it saves.
const DIRECT: usize = 8 << 20;

/// The common state of a frame.
struct Frame {
    /// Results that the last submission copies to the staging memory.
    copied: Vec<Copy>,
    ticket: Ticket,
    /// `true` if the staging memory begins with a fault report that has not been read yet.
    unread_report: bool,
}

/// The session's scalars that the driver receives.
struct Scalars {
    buffers: Vec<BufferRef>,
    /// Values of the first scalars, 4 bytes each.
    bytes: Vec<u8>,
    /// `true` if the values have changed since the last submission.
    changed: bool,
}

impl Scalars {
    fn number(&self, buffer: BufferRef) -> Option<usize> {
        self.buffers.iter().position(|scalar| *scalar == buffer)
    }

    /// Returns the value of a scalar, if the driver receives it.
    fn word(&mut self, buffer: BufferRef) -> Option<&mut [u8]> {
        let number = self.number(buffer)?;
        self.bytes.get_mut(4 * number..4 * number + 4)
    }
}

/// A compiled plan with its memory.
pub struct Replay<D: Driver> {
    driver: D,
    extra: ExtraBuffers,
    plan_buffers: usize,
    scalars: Scalars,
    profiling: bool,
    reporters: Vec<Reporter>,
    /// Buffers that are stored as `f16` instead of `f32`.
    halves: HashSet<BufferRef>,
    host_validated: HostValidated,
    /// Parameters and states that a step writes while a fault can still occur.
    exposed: Vec<BufferRef>,
    /// Copies of the `exposed` buffers for each frame. The step of the frame saves them.
    saved: [Vec<SavedRange>; FRAMES],
    faults: Faults,
    frames: [Frame; FRAMES],
    /// Index of the frame of the last submission.
    current: usize,
    submissions: u64,
    /// Writes since the last submission.
    writes: PendingWrites,
    /// Reads of the host since the last step. The same reads are expected after the next step.
    expected: Vec<Copy>,
}

impl<D: Driver> Replay<D> {
    /// Creates an executable, and writes the initial contents of its memory: zeros, constants, initial values of
    /// states, and the tables that kernels read.
    ///
    /// # Errors
    /// Not enough memory; errors of the device.
    pub fn new(driver: D, plan: &ExecutionPlan, draft: LaunchPlan) -> Result<Self> {
        let scalars: Vec<BufferRef> = plan.scalar_buffers.iter().map(|(_, b)| *b).collect();
        let mut replay = Replay {
            saved: std::array::from_fn(|frame| draft.saved_by(frame, |buffer| driver.place(buffer))),
            driver,
            extra: draft.extra,
            plan_buffers: plan.buffers.len(),
            scalars: Scalars {
                bytes: vec![0; 4 * scalars.len().min(D::SCALARS)],
                buffers: scalars,
                changed: false,
            },
            profiling: false,
            reporters: draft.reporters,
            halves: draft.halves,
            host_validated: HostValidated::of(plan),
            exposed: draft.saved,
            faults: Faults::default(),
            frames: std::array::from_fn(|_| Frame {
                copied: Vec::new(),
                ticket: Ticket(0),
                unread_report: false,
            }),
            current: 0,
            submissions: 0,
            writes: PendingWrites::default(),
            expected: Vec::new(),
        };
        replay.fill(plan, &draft.tables)?;
        Ok(replay)
    }

    /// Returns the driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns the driver, for tests that change its settings.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Waits for all submissions, the oldest first.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish_all(&mut self) -> Result<()> {
        (1..=FRAMES).try_for_each(|i| self.finish((self.current + i) % FRAMES))
    }

    fn fill(&mut self, plan: &ExecutionPlan, tables: &[Arc<[u32]>]) -> Result<()> {
        self.begin(false)?;
        self.driver.clear(self.current)?;
        self.submit(0)?;
        let own = |buffer: BufferRef| !plan.memory.is_borrowed(buffer);
        for (buffer, data) in plan.constants().filter(|(buffer, _)| own(*buffer)) {
            self.write(buffer, 0, &data)?;
        }
        for state in plan.state_buffers.iter().filter(|s| s.fill != 0.0 && own(s.buffer)) {
            let words = plan.buffers[state.buffer.index()] / size_of::<f32>();
            let bytes = state.fill.to_le_bytes().repeat(words);
            self.write(state.buffer, 0, &bytes)?;
        }
        for (number, table) in (self.extra.tables..).zip(tables) {
            let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.stage(BufferRef(number as u32), 0, &bytes)?;
        }
        Ok(())
    }

    /// Returns the location of a range in a plan buffer, and the offset of the range in this location.
    fn place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<(BufferLocation, u64)> {
        if buffer.index() < self.plan_buffers {
            self.any_place(buffer, offset, len)
        } else {
            Err(outside::<D>(buffer, offset, len))
        }
    }

    /// Returns the location of a range in any buffer, and the offset of the range in this location.
    fn any_place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<(BufferLocation, u64)> {
        let outside = || outside::<D>(buffer, offset, len);
        let own = self.driver.place(buffer.index()).ok_or_else(outside)?;
        if offset.checked_add(len).is_none_or(|end| end > own.bytes) {
            return Err(outside());
        }
        match self.scalars.number(buffer) {
            // All scalars are stored in one buffer that kernels read.
            Some(number) => {
                let all = self.driver.place(self.extra.scalars).ok_or_else(outside)?;
                Ok((all, 4 * number as u64 + offset))
            }
            None => Ok((own, offset)),
        }
    }

    fn transfers(&self, copies: &[Copy]) -> Result<Vec<Transfer>> {
        let transfer = |copy: &Copy| {
            let (place, offset) = self.any_place(copy.buffer, copy.offset, copy.len)?;
            Ok(Transfer {
                place,
                offset,
                host: copy.host,
                len: copy.len,
            })
        };
        copies.iter().map(transfer).collect()
    }

    fn next(&self) -> usize {
        (self.current + 1) % FRAMES
    }

    /// Waits until the next frame is free, and starts its submission. First, it rolls back a step with a fault and
    /// records the pending writes.
    fn begin(&mut self, measured: bool) -> Result<()> {
        let writes = std::mem::take(&mut self.writes);
        let begun = self.begin_with(&writes.bytes, &writes.copies, measured);
        self.writes = writes;
        begun?;
        self.writes.clear();
        Ok(())
    }

    /// Begins like [`Replay::begin`], but with these writes instead of the pending ones.
    fn begin_with(&mut self, bytes: &[u8], copies: &[Copy], measured: bool) -> Result<()> {
        self.finish(self.next())?;
        self.current = self.next();
        let writes = self.transfers(copies)?;
        self.frames[self.current].copied.clear();
        let fault = self.driver.place(self.extra.fault);
        let undo = self.faults.to_undo.take().zip(fault);
        let begin = Begin {
            undo: undo.map(|(frame, fault)| (fault, &self.saved[frame][..])),
            bytes,
            writes: &writes,
            scalars: self.scalars.changed.then_some(&self.scalars.bytes[..]),
            measured,
        };
        self.driver.begin(self.current, begin)?;
        self.scalars.changed = false;
        Ok(())
    }

    /// Submits the current frame, of which `parts` parts were submitted before.
    fn submit(&mut self, parts: u64) -> Result<Ticket> {
        self.driver.submit(self.current)?;
        self.submissions += 1 + parts;
        let frame = &mut self.frames[self.current];
        frame.ticket = Ticket(self.submissions);
        Ok(frame.ticket)
    }

    /// Submits the pending writes without a step.
    fn flush(&mut self) -> Result<()> {
        self.begin(false)?;
        self.submit(0)?;
        Ok(())
    }

    /// Adds a write to the collected writes, in pieces that are small enough to be staged. Large pieces are submitted
    /// at once, which saves a copy.
    fn stage(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        let staged = self.driver.staged();
        for (offset, piece) in (offset..).step_by(staged).zip(bytes.chunks(staged)) {
            if piece.len() >= DIRECT.min(staged) {
                self.write_directly(buffer, offset, piece)?;
                continue;
            }
            if self.writes.add(buffer, offset, piece, staged).is_err() {
                self.flush()?;
                // A single piece always fits into empty writes.
                let _ = self.writes.add(buffer, offset, piece, staged);
            }
        }
        Ok(())
    }

    /// Submits a write, after the pending writes.
    fn write_directly(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.writes.copies.is_empty() {
            self.flush()?;
        }
        let copy = Copy {
            buffer,
            offset,
            len: bytes.len() as u64,
            host: 0,
        };
        self.begin_with(bytes, &[copy], false)?;
        self.submit(0)?;
        Ok(())
    }

    /// Records copies to the staging memory of the current frame, after the fault report if `report` is set.
    fn download(&mut self, copies: Vec<Copy>, report: bool) -> Result<()> {
        let report_bytes = report_bytes(self.reporters.len()) as u64;
        let fault = self.driver.place(self.extra.fault);
        let fault = fault.filter(|_| report && report_bytes > 0).map(|place| Transfer {
            place,
            offset: 0,
            host: 0,
            len: report_bytes,
        });
        let has_report = fault.is_some();
        let transfers: Vec<Transfer> = fault.into_iter().chain(self.transfers(&copies)?).collect();
        if transfers.is_empty() {
            return Ok(());
        }
        let end = transfers.iter().map(|copy| copy.host + copy.len).max().unwrap_or(0);
        self.driver.download(self.current, end, &transfers)?;
        let frame = &mut self.frames[self.current];
        frame.unread_report = has_report;
        frame.copied = copies;
        Ok(())
    }

    /// Reads a range that is small enough to be staged. All submissions must be finished.
    fn read_piece(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut wanted = Copy {
            buffer,
            offset,
            len: bytes.len() as u64,
            host: 0,
        };
        if wanted.len <= MAX_EXPECTED && !self.expected.iter().any(|c| c.is_same(&wanted)) {
            self.expected.push(wanted);
        }
        let changed = self.writes.change(&wanted);
        let mut copied = self.frames[self.current].copied.iter();
        match copied.find(|c| c.is_same(&wanted)).filter(|_| !changed) {
            Some(copy) => wanted = *copy,
            None => {
                self.begin(false)?;
                self.download(vec![wanted], false)?;
                self.submit(0)?;
                self.finish(self.current)?;
            }
        }
        self.driver.downloaded(self.current, wanted.host, bytes);
        Ok(())
    }

    /// Waits for the submission of a frame, and records its fault, if any (see [`fault_in`]). Older submissions must
    /// already be finished.
    fn finish(&mut self, at: usize) -> Result<()> {
        self.driver.wait(at)?;
        if !std::mem::take(&mut self.frames[at].unread_report) {
            return Ok(());
        }
        let mut report = vec![0; report_bytes(self.reporters.len())];
        self.driver.downloaded(at, 0, &mut report);
        let Some(error) = fault_in(&report, &self.reporters) else {
            return Ok(());
        };
        self.faults.rolled_back += 1;
        // Later submissions have detected the fault and have done nothing.
        for later in (1..FRAMES).map(|i| (at + i) % FRAMES) {
            if self.frames[later].ticket > self.frames[at].ticket {
                self.driver.wait(later)?;
                let is_step = std::mem::take(&mut self.frames[later].unread_report);
                self.faults.rolled_back += u64::from(is_step);
            }
        }
        // Discard results that were copied before the rollback.
        self.frames.iter_mut().for_each(|frame| frame.copied.clear());
        self.faults.to_undo = Some(at);
        self.faults.untold = Some(error);
        Ok(())
    }

    /// Returns a recorded fault as an error, once.
    fn tell(&mut self) -> Result<()> {
        self.faults.untold.take().map_or(Ok(()), Err)
    }
}

fn outside<D: Driver>(buffer: BufferRef, offset: u64, len: u64) -> Error {
    Error::backend(
        D::NAME,
        format!("{len} bytes at {offset} are outside of buffer {buffer}"),
    )
}

impl<D: Driver> Executable for Replay<D> {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.place(buffer, offset, bytes.len() as u64)?;
        self.driver.check()?;
        if let Some(word) = self.scalars.word(buffer) {
            word[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            self.scalars.changed = true;
            return Ok(());
        }
        self.host_validated.write(buffer, offset, bytes);
        if self.exposed.contains(&buffer) {
            // A later rollback of a step must not revert this write.
            self.finish_all()?;
        }
        self.stage(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.place(buffer, offset, bytes.len() as u64)?;
        if let Some(word) = self.scalars.word(buffer) {
            bytes.copy_from_slice(&word[offset as usize..][..bytes.len()]);
            return Ok(());
        }
        self.finish_all()?;
        self.tell()?;
        let staged = self.driver.staged();
        for (offset, piece) in (offset..).step_by(staged).zip(bytes.chunks_mut(staged)) {
            self.read_piece(buffer, offset, piece)?;
        }
        Ok(())
    }

    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        let (place, _) = self.place(buffer, 0, 0)?;
        let is_scalar = self.scalars.number(buffer).is_some();
        // Data that is restored after a fault, or that the host reads, must be written through the executable.
        if is_scalar || self.host_validated.holds(buffer) || self.exposed.contains(&buffer) {
            return Ok(None);
        }
        let found = self.driver.device_buffer(place);
        if found.is_some() && !self.writes.copies.is_empty() {
            self.flush()?;
        }
        Ok(found)
    }

    fn share(&mut self, buffers: &[BufferRef]) -> Result<Vec<Option<SharedBuffer>>> {
        if !self.writes.copies.is_empty() {
            self.flush()?;
        }
        self.finish_all()?;
        self.tell()?;
        let share = |buffer: &BufferRef| {
            let (place, _) = self.place(*buffer, 0, 0)?;
            // Other plans read these numbers in full precision.
            let is_plain = !self.halves.contains(buffer) && self.scalars.number(*buffer).is_none();
            Ok(if is_plain { self.driver.lend(place) } else { None })
        };
        buffers.iter().map(share).collect()
    }

    fn signal_when_done(&mut self, groups: &[Vec<BufferRef>]) -> Result<Option<Vec<u64>>> {
        self.finish_all()?;
        let place = |buffer: &BufferRef| Ok(self.place(*buffer, 0, 0)?.0);
        let groups = groups.iter().map(|group| group.iter().map(place).collect());
        let groups = groups.collect::<Result<Vec<_>>>()?;
        self.driver.signal_when_done(&groups)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        for (buffer, bytes) in args.scalars {
            // Write only the bytes of this scalar: `bytes` may be longer.
            let own = self.driver.place(buffer.index()).map_or(0, |place| place.bytes);
            let len = own.min(bytes.len() as u64) as usize;
            self.write(*buffer, 0, &bytes[..len])?;
        }
        self.finish(self.next())?;
        self.tell()?;
        self.host_validated.check(args.segments)?;
        let first = report_bytes(self.reporters.len()) as u64;
        let expected = place_expected(self.expected.drain(..), first);
        self.begin(self.profiling)?;
        let step = Step {
            segments: args.segments,
            saved: &self.saved[self.current],
            ticket: Ticket(self.submissions + 1),
            measured: self.profiling,
        };
        let parts = self.driver.launch(self.current, &step)?;
        self.download(expected, true)?;
        self.submit(parts)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        for i in 1..=FRAMES {
            let frame = (self.current + i) % FRAMES;
            if self.frames[frame].ticket <= ticket {
                self.finish(frame)?;
            }
        }
        self.tell()?;
        Ok(StepStats {
            device_time: self.driver.spent_on(ticket),
        })
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        self.driver.take_timings()
    }

    fn in_flight(&self) -> usize {
        self.frames.iter().filter(|frame| frame.unread_report).count()
    }

    fn rolled_back(&self) -> u64 {
        self.faults.rolled_back
    }
}

impl<D: Driver> Drop for Replay<D> {
    fn drop(&mut self) {
        // The result of the steps cannot be reported here.
        let _ = self.finish_all();
    }
}
