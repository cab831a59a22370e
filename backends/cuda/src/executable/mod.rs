//! The driver of [`Replay`] for CUDA: one CUDA graph per step. All work is enqueued in one stream.

mod frame;
mod graph_choice;
mod steps;
mod timing;
mod transfer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};
use meganeura_core::backend::{DeviceBuffer, PassTiming, SharedBuffer, SharedBuffers, Ticket};
use meganeura_core::plan::{BufferRef, ExecutionPlan, check_fit};
use meganeura_core::{Error, Result};
use meganeura_shaders::host::{
    Begin, BufferLocation, CompileFailure, Driver, FRAMES, Host as _, LaunchPlan, Replay, Step, Transfer,
};

use self::frame::Frame;
use self::graph_choice::GraphChoice;
use self::timing::{MeasuredGraph, Profile};
use crate::copies::Copier;
use crate::event::Event;
use crate::gpu::{Gpu, NAME};
use crate::graph::{Order, Signal};
use crate::handle::Handle;
use crate::kernels::Request;
use crate::memory::Arena;
use crate::program::{Access, ExtraBindings, Phase, batches, ready};

/// Maximum number of bytes per copy between host and device.
const STAGED: usize = 64 << 20;
/// Size of the scalar block that kernels read, in bytes. It does not depend on the number of scalars of the plan.
const SCALAR_BYTES: usize = 4 * meganeura_shaders::INLINE_SCALARS;
/// Maximum number of graphs in the cache, one for each combination of segments.
const MAX_GRAPHS: usize = 64;

/// A compiled plan with its memory.
pub(crate) type CudaExecutable = Replay<CudaDriver>;

/// Creates an executable from the kernels of a plan.
///
/// # Errors
/// Not enough memory; kernels that the compiler or the driver rejects.
pub(crate) fn open(
    device: &Handle,
    plan: &ExecutionPlan,
    draft: LaunchPlan,
    shared: &SharedBuffers,
) -> Result<CudaExecutable, CompileFailure> {
    let driver = CudaDriver::new(device, plan, &draft, shared)?;
    Ok(Replay::new(driver, plan, draft)?)
}

/// A CUDA stream. Enqueued work runs in order.
struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: streams of CUDA belong to their context. They are not bound to a thread.
unsafe impl Send for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the driver created the stream.
        self.gpu.free(|| unsafe { result::stream::destroy(self.raw) });
    }
}

/// The launches and the memory of a plan, and its submissions.
pub(crate) struct CudaDriver {
    // Fields are dropped in this order: graphs must be dropped before the memory that they use.
    graphs: HashMap<Vec<usize>, GraphChoice>,
    /// Graphs with an event after each phase, by segments and frame.
    measured: HashMap<(Vec<usize>, usize), MeasuredGraph>,
    stream: Stream,
    /// Phases of each segment.
    segments: Vec<Vec<Phase>>,
    frames: [Frame; FRAMES],
    arena: Arena,
    gpu: Arc<Gpu>,
    extras: ExtraBindings,
    /// Location of the list of all scalars, for kernels that need more than the scalar block.
    scalar_list: Option<BufferLocation>,
    copier: Arc<Copier>,
    /// Events that each step records when it no longer uses certain buffers.
    signals: Vec<Signal>,
    /// Setting for the order of launches within a step.
    order: Order,
    /// `true` if launches begin before their predecessors have ended.
    programmatic: bool,
    /// Titles of the dispatches, for profiles.
    titles: Vec<String>,
    profile: Profile,
}

impl CudaDriver {
    fn new(
        device: &Handle,
        plan: &ExecutionPlan,
        draft: &LaunchPlan,
        shared: &SharedBuffers,
    ) -> Result<Self, CompileFailure> {
        let gpu = device.gpu();
        // Two more buffers follow the buffers of the draft: the scalar block of kernels, and a table of the numbers
        // from 0 on.
        let numbers = draft.reporters.len().max(1);
        let mut sizes = draft.sizes.clone();
        sizes.extend([SCALAR_BYTES as u64, 4 * numbers as u64]);
        let beside: u64 = sizes[draft.sizes.len()..].iter().sum();
        check_fit(plan, draft.workspace_bytes() + beside, device.capabilities())?;
        let batches = batches(draft, plan, device.merge());
        let written = plan.written_buffers();
        let buffers = (0..plan.buffers.len()).map(|number| BufferRef(number as u32));
        let unwritten: HashSet<BufferRef> = buffers.filter(|buffer| !written.contains(buffer)).collect();
        let all = batches.iter().flatten().flatten();
        let requests = all.filter(|batch| batch[0].1.library.is_none()).map(|batch| Request {
            label: &plan.dispatches[batch[0].0].label,
            launches: batch.iter().map(|(_, launch)| *launch).collect(),
            unwritten: &unwritten,
        });
        let kernels = device.kernels().of(gpu, &requests.collect::<Vec<_>>());
        let kernels = kernels.map_err(|refused| draft.unmade(plan, refused))?;
        let arena = Arena::new(gpu, device.name(), (&sizes, device.buffer_bytes()), plan, shared)?;
        let missing = || Error::plan("a workspace has no place");
        let extras = ExtraBindings {
            scalars: arena.place(draft.sizes.len()).ok_or_else(missing)?,
            numbers: arena.place(draft.sizes.len() + 1).ok_or_else(missing)?,
        };
        let segments = gpu.within(|| ready(draft, &batches, kernels, device.libraries(), &arena, &extras))?;
        let stream = gpu.call("making a stream", || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
        })?;
        Ok(CudaDriver {
            graphs: HashMap::new(),
            measured: HashMap::new(),
            stream: Stream {
                gpu: gpu.clone(),
                raw: stream,
            },
            segments,
            frames: [Frame::new(gpu)?, Frame::new(gpu)?],
            gpu: gpu.clone(),
            scalar_list: arena.place(draft.extra.scalars),
            arena,
            extras,
            copier: device.copier()?,
            signals: Vec::new(),
            order: device.order(),
            programmatic: device.programmatic(),
            titles: draft.titles.clone(),
            profile: Profile::default(),
        })
    }

    fn address(&self, copy: &Transfer) -> sys::CUdeviceptr {
        self.arena.address(copy.place, copy.offset)
    }
}

impl Driver for CudaDriver {
    const NAME: &'static str = NAME;
    const SCALARS: usize = usize::MAX;

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
        STAGED
    }

    fn lend(&self, place: BufferLocation) -> Option<SharedBuffer> {
        self.arena.lend(place)
    }

    fn begin(&mut self, frame: usize, begin: Begin) -> Result<()> {
        self.restore_and_upload(frame, begin)
    }

    /// Also writes the table of the numbers from 0 on.
    fn clear(&mut self, _frame: usize) -> Result<()> {
        let (arena, stream) = (&self.arena, self.stream.raw);
        let numbers: Vec<u8> = (0..self.extras.numbers.bytes as u32 / 4)
            .flat_map(u32::to_le_bytes)
            .collect();
        let address = arena.address(self.extras.numbers, 0);
        self.gpu.call("clearing memory", || {
            arena.clear(stream)?;
            // SAFETY: the range is that of the buffer. The stream is synchronized before the bytes are dropped.
            unsafe {
                result::memcpy_htod_async(address, &numbers, stream)?;
                result::stream::synchronize(stream)
            }
        })
    }

    fn launch(&mut self, frame: usize, step: &Step) -> Result<u64> {
        self.save(step.saved)?;
        self.enqueue(frame, step)?;
        Ok(0)
    }

    fn download(&mut self, frame: usize, bytes: u64, copies: &[Transfer]) -> Result<()> {
        self.copy_to_host(frame, bytes, copies)
    }

    fn submit(&mut self, frame: usize) -> Result<()> {
        let (frame, stream) = (&mut self.frames[frame], self.stream.raw);
        self.gpu.call("submitting", || frame.complete.record(stream))?;
        frame.running = true;
        Ok(())
    }

    fn wait(&mut self, frame: usize) -> Result<()> {
        let frame = &mut self.frames[frame];
        if std::mem::take(&mut frame.running) {
            frame.complete.wait()?;
        }
        if let Some((segments, number, time)) = frame.take_compared()?
            && let Some(choice) = self.graphs.get_mut(&segments)
        {
            choice.note(number, time);
        }
        self.profile.collect(&self.measured, frame.step)
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

    fn device_buffer(&self, place: BufferLocation) -> Option<DeviceBuffer> {
        Some(DeviceBuffer {
            address: self.arena.address(place, 0),
            bytes: place.bytes,
            stream: Some(self.stream.raw as u64),
        })
    }

    fn signal_when_done(&mut self, groups: &[Vec<BufferLocation>]) -> Result<Option<Vec<u64>>> {
        // Graphs record the events.
        self.graphs.clear();
        self.measured.clear();
        let signal = |group: &Vec<BufferLocation>| -> Result<Signal> {
            Ok(Signal {
                accesses: group.iter().map(|&place| Access::of(place, true)).collect(),
                event: Event::new(&self.gpu, false)?,
            })
        };
        self.signals = groups.iter().map(signal).collect::<Result<_>>()?;
        let events = self.signals.iter().map(|signal| signal.event.raw() as u64);
        Ok(Some(events.collect()))
    }
}
