//! Replay of a plan: one submission per step, without waiting on the host.

mod finish;
mod frame;
mod measured;
mod record;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::Arc;
use std::time::Instant;

use blade_graphics as bg;
use meganeura_core::backend::{Executable, PassTiming, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, ExecutionPlan, check_fit};
use meganeura_core::{Error, Result};

use crate::gpu::{Gpu, NAME};
use crate::handle::Handle;
use crate::memory::Arena;
use crate::pipeline::Scalars;
use crate::program::{Phase, ready};
use crate::timing::{MeasuredSubmission, PassTag, Profile};
use frame::{Frame, Patience};
use meganeura_shaders::INLINE_SCALARS;
use meganeura_shaders::host::{
    BufferLocation, CompileFailure, Copy, ExtraBuffers, FRAMES, Faults, Host as _, HostValidated, LaunchPlan,
    PendingWrites, Reporter, SavedRange,
};

/// Maximum number of bytes per copy between host and device. When the collected writes reach it, they are submitted
/// without a step.
const STAGED: usize = 64 << 20;

fn outside(buffer: BufferRef, offset: u64, len: u64) -> Error {
    Error::backend(NAME, format!("{len} bytes at {offset} are outside of buffer {buffer}"))
}

/// A compiled plan with its memory.
pub(crate) struct BladeExecutable {
    gpu: Arc<Gpu>,
    arena: Arena,
    extra: ExtraBuffers,
    plan_buffers: usize,
    scalars: Vec<BufferRef>,
    /// Values of the first scalars. Launches receive them as an argument instead of reading them from a buffer.
    inline_scalars: Scalars,
    /// Phases of each segment.
    segments: Vec<Vec<Phase>>,
    /// Labels of the phases in profiles, by segment.
    tags: Vec<Vec<PassTag>>,
    profiling: bool,
    /// `true` if the current submission is part of a measured step.
    measuring: bool,
    profile: Profile,
    reporters: Vec<Reporter>,
    host_validated: HostValidated,
    /// Parameters and states that a step writes while a fault can still occur.
    exposed: Vec<BufferRef>,
    /// Copies of the `exposed` buffers for each frame. The step of the frame saves them.
    saved: [Vec<SavedRange>; FRAMES],
    faults: Faults,
    /// Maximum number of bytes per copy between host and device.
    staged: usize,
    frames: [Frame; FRAMES],
    patience: Patience,
    /// Index of the frame of the last submission.
    current: usize,
    submissions: u64,
    /// Writes since the last submission.
    writes: PendingWrites,
    /// Reads of the host since the last step. The same reads are expected after the next step.
    expected: Vec<Copy>,
}

impl BladeExecutable {
    /// Creates an executable from the kernels of a plan.
    ///
    /// # Errors
    /// Not enough memory; kernels that the driver rejects.
    pub(crate) fn of(device: &Handle, plan: &ExecutionPlan, draft: LaunchPlan) -> Result<Self, CompileFailure> {
        let gpu = device.gpu();
        check_fit(plan, draft.workspace_bytes(), device.capabilities())?;
        let pipelines = device.pipelines().of(gpu, &draft.labelled(plan));
        let pipelines = pipelines.map_err(|refused| draft.unmade(plan, refused))?;
        let limit = device.limits().buffer_bytes;
        let arena = Arena::new(gpu, device.name(), &draft.sizes, plan, limit)?;
        let segments = ready(&draft, plan, pipelines, &arena)?;
        let tags = segments
            .iter()
            .map(|phases| phases.iter().map(|p| PassTag::of(p, &draft.titles)).collect());
        let tags = tags.collect();
        let launches = segments.iter().flatten().map(Vec::len).sum();
        let mut executable = BladeExecutable {
            gpu: gpu.clone(),
            saved: [0, 1].map(|frame| draft.saved_by(frame, |buffer| arena.place(buffer))),
            arena,
            extra: draft.extra,
            plan_buffers: plan.buffers.len(),
            scalars: plan.scalar_buffers.iter().map(|(_, b)| *b).collect(),
            inline_scalars: [[0; 4]; INLINE_SCALARS],
            segments,
            reporters: draft.reporters,
            host_validated: HostValidated::of(plan),
            exposed: draft.saved,
            faults: Faults::default(),
            staged: usize::try_from(limit).map_or(STAGED, |limit| limit.min(STAGED)),
            tags,
            profiling: false,
            measuring: false,
            profile: Profile::default(),
            frames: [Frame::new(gpu, launches)?, Frame::new(gpu, launches)?],
            patience: Patience::new(device.is_software()),
            current: 0,
            submissions: 0,
            writes: PendingWrites::default(),
            expected: Vec::new(),
        };
        executable.fill(plan)?;
        executable.fill_tables(&draft.tables)?;
        Ok(executable)
    }

    /// Writes zeros, constants, and nonzero initial values of states.
    fn fill(&mut self, plan: &ExecutionPlan) -> Result<()> {
        self.begin()?;
        let arena = &self.arena;
        let encoder = self.frames[self.current].encoder();
        self.gpu
            .guard("clearing memory", |_| arena.clear(&mut encoder.transfer("clear")))?;
        self.submit()?;
        for (buffer, data) in plan.constants() {
            self.write(buffer, 0, &data)?;
        }
        for state in plan.state_buffers.iter().filter(|s| s.fill != 0.0) {
            let words = plan.buffers[state.buffer.index()] / size_of::<f32>();
            let bytes = state.fill.to_le_bytes().repeat(words);
            self.write(state.buffer, 0, &bytes)?;
        }
        Ok(())
    }

    /// Writes the constant tables that kernels read.
    fn fill_tables(&mut self, tables: &[Arc<[u32]>]) -> Result<()> {
        for (number, table) in (self.extra.tables..).zip(tables) {
            let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
            let buffer = BufferRef(number as u32);
            for (offset, piece) in (0..).step_by(self.staged).zip(bytes.chunks(self.staged)) {
                self.write_piece(buffer, offset, piece)?;
            }
        }
        Ok(())
    }

    /// Returns the arena location of a range in a plan buffer, and the offset of the range in this location.
    fn place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<(BufferLocation, u64)> {
        if buffer.index() < self.plan_buffers {
            self.any_place(buffer, offset, len)
        } else {
            Err(outside(buffer, offset, len))
        }
    }

    /// Returns the arena location of a range in any buffer, and the offset of the range in this location.
    fn any_place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<(BufferLocation, u64)> {
        let outside = || outside(buffer, offset, len);
        let scalar = self.scalars.iter().position(|s| *s == buffer);
        let own = self.arena.place(buffer.index()).ok_or_else(outside)?;
        if offset.checked_add(len).is_none_or(|end| end > own.bytes) {
            return Err(outside());
        }
        match scalar {
            // All scalars are stored in one buffer that kernels read.
            Some(number) => {
                let all = self.arena.place(self.extra.scalars).ok_or_else(outside)?;
                Ok((all, 4 * number as u64 + offset))
            }
            None => Ok((own, offset)),
        }
    }

    /// Returns the value, as bytes, of a scalar that launches receive as an argument. Returns `None` for scalars that
    /// kernels read from a buffer, and for other buffers.
    fn inline_scalar(&mut self, buffer: BufferRef) -> Option<&mut [u8; 4]> {
        let number = self.scalars.iter().position(|s| *s == buffer)?;
        self.inline_scalars.get_mut(number)
    }

    fn piece(&self, copy: &Copy) -> Result<bg::BufferPiece> {
        let (place, offset) = self.any_place(copy.buffer, copy.offset, copy.len)?;
        Ok(self.arena.piece(place, offset))
    }

    fn next(&self) -> usize {
        (self.current + 1) % FRAMES
    }

    /// Waits until the next frame is free, and starts recording its submission. First, it rolls back a faulty step and
    /// records the pending writes.
    fn begin(&mut self) -> Result<()> {
        self.finish(self.next())?;
        self.current = self.next();
        let targets: Vec<bg::BufferPiece> = self
            .writes
            .copies
            .iter()
            .map(|c| self.piece(c))
            .collect::<Result<_>>()?;
        let frame = &mut self.frames[self.current];
        frame.copied.clear();
        let staged = if self.writes.copies.is_empty() {
            None
        } else {
            Some(frame.upload.fill(&self.writes.bytes)?)
        };
        let fault = self.arena.place(self.extra.fault);
        let undone = self.faults.to_undo.take().zip(fault);
        let undone = undone.map(|(frame, fault)| (&self.saved[frame], self.arena.piece(fault, 0), fault.bytes));
        frame.measured = self.measuring.then(MeasuredSubmission::default);
        let (copies, arena) = (&self.writes.copies, &self.arena);
        self.gpu.guard("recording", |_| {
            frame.restart();
            let (encoder, measured) = frame.recorder();
            if let Some((saved, fault, bytes)) = undone {
                let mut pass = encoder.transfer("undo");
                if let Some(measured) = measured.as_mut() {
                    measured.tags.push(PassTag::transfer("undo"));
                }
                pass.fill_buffer(fault, bytes, 0);
                for part in saved {
                    pass.copy_buffer_to_buffer(arena.piece(part.copy, 0), arena.piece(part.own, 0), part.own.bytes);
                }
            }
            let Some(staged) = staged else { return };
            // Copies of one pass have no order, so copies to the same destination need separate passes.
            let mut first = 0;
            while first < copies.len() {
                let clash = |&end: &usize| copies[first..end].iter().any(|c| c.overlaps(&copies[end]));
                let end = (first + 1..copies.len()).find(clash).unwrap_or(copies.len());
                let mut pass = encoder.transfer("upload");
                if let Some(measured) = measured.as_mut() {
                    measured.tags.push(PassTag::transfer("upload"));
                }
                for (copy, target) in copies[first..end].iter().zip(&targets[first..end]) {
                    pass.copy_buffer_to_buffer(staged.at(copy.host), *target, copy.len);
                }
                first = end;
            }
        })?;
        self.writes.clear();
        Ok(())
    }

    fn submit(&mut self) -> Result<Ticket> {
        let frame = &mut self.frames[self.current];
        if let Some(measured) = &mut frame.measured {
            measured.submitted = Instant::now();
        }
        let encoder = frame.encoder();
        let sync = self.gpu.guard("submitting", |context| context.submit(encoder))?;
        self.submissions += 1;
        frame.sync = Some(sync);
        frame.ticket = Ticket(self.submissions);
        Ok(frame.ticket)
    }
}

impl Executable for BladeExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.place(buffer, offset, bytes.len() as u64)?;
        if self.gpu.is_lost() {
            return Err(self.gpu.lose("it failed in an earlier call"));
        }
        if let Some(word) = self.inline_scalar(buffer) {
            word[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        self.host_validated.write(buffer, offset, bytes);
        if self.exposed.contains(&buffer) {
            // A later rollback of a step must not revert this write.
            self.finish_all()?;
        }
        let pieces = (offset..).step_by(self.staged).zip(bytes.chunks(self.staged));
        for (offset, piece) in pieces {
            self.write_piece(buffer, offset, piece)?;
        }
        Ok(())
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.place(buffer, offset, bytes.len() as u64)?;
        if let Some(word) = self.inline_scalar(buffer) {
            bytes.copy_from_slice(&word[offset as usize..][..bytes.len()]);
            return Ok(());
        }
        self.finish_all()?;
        self.tell()?;
        let staged = self.staged;
        for (offset, piece) in (offset..).step_by(staged).zip(bytes.chunks_mut(staged)) {
            self.read_piece(buffer, offset, piece)?;
        }
        Ok(())
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        for (buffer, bytes) in args.scalars {
            // Write only the bytes of this scalar: `bytes` may be longer.
            let own = self.arena.place(buffer.index()).map_or(0, |place| place.bytes);
            let len = own.min(bytes.len() as u64) as usize;
            self.write(*buffer, 0, &bytes[..len])?;
        }
        self.finish(self.next())?;
        self.tell()?;
        self.host_validated.check(args.segments)?;
        let expected = self.expected_copies();
        self.measuring = self.profiling;
        let begun = self.begin();
        self.measuring = false;
        begun?;
        if self.profiling {
            self.record_measured(args)?
        } else {
            self.record_step(args)?
        }
        self.record_downloads(expected, true)?;
        self.submit()
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
            device_time: self.profile.spent_on(ticket),
        })
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        self.profile.take()
    }

    fn in_flight(&self) -> usize {
        self.frames.iter().filter(|frame| frame.unread_report).count()
    }

    fn rolled_back(&self) -> u64 {
        self.faults.rolled_back
    }
}

impl Drop for BladeExecutable {
    fn drop(&mut self) {
        // The result of the steps cannot be reported here.
        let _ = self.finish_all();
        for frame in &mut self.frames {
            frame.free(&self.gpu);
        }
    }
}
