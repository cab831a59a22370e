//! The driver of [`Replay`] for blade: command encoders, staging buffers and measured passes.

mod frame;
mod measured;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura_core::Result;
use meganeura_core::backend::{PassTiming, SharedBuffer, SharedBuffers, Ticket};
use meganeura_core::plan::{ExecutionPlan, check_fit};

use crate::gpu::{Gpu, NAME};
use crate::handle::Handle;
use crate::memory::Arena;
use crate::pipeline::Scalars;
use crate::program::{Phase, ready};
use crate::timing::{MeasuredSubmission, PassTag, Profile};
use frame::{Frame, Patience};
use meganeura_shaders::INLINE_SCALARS;
use meganeura_shaders::host::{
    Begin, BufferLocation, CompileFailure, Driver, FRAMES, Host as _, LaunchPlan, Replay, Step, Transfer,
};

/// Maximum number of bytes per copy between host and device.
const STAGED: usize = 64 << 20;

/// A compiled plan with its memory.
pub(crate) type BladeExecutable = Replay<BladeDriver>;

/// Creates an executable from the kernels of a plan.
///
/// # Errors
/// Not enough memory; kernels that the driver rejects.
pub(crate) fn open(
    device: &Handle,
    plan: &ExecutionPlan,
    draft: LaunchPlan,
    shared: &SharedBuffers,
) -> Result<BladeExecutable, CompileFailure> {
    let driver = BladeDriver::new(device, plan, &draft, shared)?;
    Ok(Replay::new(driver, plan, draft)?)
}

/// The launches and the memory of a plan, and its submissions.
pub(crate) struct BladeDriver {
    gpu: Arc<Gpu>,
    arena: Arena,
    /// Values of the first scalars. Launches receive them as an argument instead of reading them from a buffer.
    scalars: Scalars,
    /// Phases of each segment.
    segments: Vec<Vec<Phase>>,
    /// Labels of the phases in profiles, by segment.
    tags: Vec<Vec<PassTag>>,
    profile: Profile,
    /// Maximum number of bytes per copy between host and device.
    staged: usize,
    frames: [Frame; FRAMES],
    patience: Patience,
    submissions: u64,
}

impl BladeDriver {
    fn new(
        device: &Handle,
        plan: &ExecutionPlan,
        draft: &LaunchPlan,
        shared: &SharedBuffers,
    ) -> Result<Self, CompileFailure> {
        let gpu = device.gpu();
        check_fit(plan, draft.workspace_bytes(), device.capabilities())?;
        let pipelines = device.pipelines().of(gpu, &draft.labelled(plan));
        let pipelines = pipelines.map_err(|refused| draft.unmade(plan, refused))?;
        let limit = device.limits().buffer_bytes;
        let arena = Arena::new(gpu, device.name(), (&draft.sizes, limit), plan, shared)?;
        let segments = ready(draft, plan, pipelines, &arena)?;
        let tags = segments
            .iter()
            .map(|phases| phases.iter().map(|p| PassTag::of(p, &draft.titles)).collect());
        let tags = tags.collect();
        let launches = segments.iter().flatten().map(Vec::len).sum();
        Ok(BladeDriver {
            gpu: gpu.clone(),
            arena,
            scalars: [[0; 4]; INLINE_SCALARS],
            segments,
            tags,
            profile: Profile::default(),
            staged: usize::try_from(limit).map_or(STAGED, |limit| limit.min(STAGED)),
            frames: [Frame::new(gpu, launches)?, Frame::new(gpu, launches)?],
            patience: Patience::new(device.is_software()),
            submissions: 0,
        })
    }

    /// Waits for the submission of a frame, without reading the times of its passes.
    fn wait_for(&mut self, frame: usize) -> Result<()> {
        let Some(sync) = self.frames[frame].sync.take() else {
            return Ok(());
        };
        self.patience.wait(&self.gpu, &sync)
    }
}

impl Driver for BladeDriver {
    const NAME: &'static str = NAME;
    const SCALARS: usize = INLINE_SCALARS;

    fn check(&self) -> Result<()> {
        if self.gpu.is_lost() {
            return Err(self.gpu.lose("it failed in an earlier call"));
        }
        Ok(())
    }

    fn place(&self, buffer: usize) -> Option<BufferLocation> {
        self.arena.place(buffer)
    }

    fn staged(&self) -> usize {
        self.staged
    }

    fn lend(&self, place: BufferLocation) -> Option<SharedBuffer> {
        self.arena.lend(place)
    }

    fn begin(&mut self, frame: usize, begin: Begin) -> Result<()> {
        if let Some(values) = begin.scalars {
            for (own, value) in self.scalars.iter_mut().zip(values.chunks_exact(4)) {
                own.copy_from_slice(value);
            }
        }
        let frame = &mut self.frames[frame];
        let staged = if begin.writes.is_empty() {
            None
        } else {
            Some(frame.upload.fill(begin.bytes)?)
        };
        frame.measured = begin.measured.then(MeasuredSubmission::default);
        let (arena, copies) = (&self.arena, begin.writes);
        self.gpu.guard("recording", |_| {
            frame.restart();
            if let Some((fault, saved)) = begin.undo {
                let mut pass = frame.transfer("undo");
                pass.fill_buffer(arena.piece(fault, 0), fault.bytes, 0);
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
                let mut pass = frame.transfer("upload");
                for copy in &copies[first..end] {
                    pass.copy_buffer_to_buffer(staged.at(copy.host), arena.piece(copy.place, copy.offset), copy.len);
                }
                first = end;
            }
        })
    }

    fn clear(&mut self, frame: usize) -> Result<()> {
        let encoder = self.frames[frame].encoder();
        self.gpu
            .guard("clearing memory", |_| self.arena.clear(&mut encoder.transfer("clear")))
    }

    fn launch(&mut self, frame: usize, step: &Step) -> Result<u64> {
        self.record_save(frame, step.saved)?;
        if step.measured {
            self.record_measured(frame, step)
        } else {
            self.record_step(frame, step.segments)?;
            Ok(0)
        }
    }

    fn download(&mut self, frame: usize, bytes: u64, copies: &[Transfer]) -> Result<()> {
        let frame = &mut self.frames[frame];
        let target = frame.download.with_capacity(bytes)?;
        self.gpu.guard("recording", |_| {
            let mut pass = frame.transfer("download");
            for copy in copies {
                let source = self.arena.piece(copy.place, copy.offset);
                pass.copy_buffer_to_buffer(source, target.at(copy.host), copy.len);
            }
        })
    }

    fn submit(&mut self, frame: usize) -> Result<()> {
        let frame = &mut self.frames[frame];
        if let Some(measured) = &mut frame.measured {
            measured.submitted = Instant::now();
        }
        let encoder = frame.encoder();
        let sync = self.gpu.guard("submitting", |context| context.submit(encoder))?;
        self.submissions += 1;
        frame.sync = Some(sync);
        frame.submission = self.submissions;
        Ok(())
    }

    fn wait(&mut self, frame: usize) -> Result<()> {
        self.wait_for(frame)?;
        self.collect(frame)
    }

    fn downloaded(&self, frame: usize, offset: u64, bytes: &mut [u8]) {
        self.frames[frame].download.read(offset, bytes);
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        self.profile.take()
    }

    fn spent_on(&self, step: Ticket) -> Option<Duration> {
        self.profile.spent_on(step)
    }
}

impl Drop for BladeDriver {
    fn drop(&mut self) {
        for frame in &mut self.frames {
            frame.free(&self.gpu);
        }
    }
}
