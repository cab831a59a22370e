//! Replay of a plan: one CUDA graph per step, without waiting on the host. All work is enqueued in one stream.

mod finish;
mod frame;
mod replay;
mod submit;
mod timing;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use meganeura_core::backend::{DeviceBuffer, Executable, PassTiming, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, ExecutionPlan, check_fit};
use meganeura_core::{Error, Result};
use meganeura_shaders::host::{
    BufferLocation, CompileFailure, Copy, ExtraBuffers, FRAMES, Faults, HostValidated, LaunchPlan, MAX_EXPECTED,
    PendingWrites, Reporter, SavedRange, place_expected,
};
use meganeura_shaders::host::{Host as _, report_bytes};

use self::frame::Frame;
use self::replay::Replay;
use self::timing::{MeasuredGraph, Profile, Tag};
use crate::copies::Copier;
use crate::event::Event;
use crate::gpu::{Gpu, NAME};
use crate::graph::{Graph, Order, Signal};
use crate::handle::Handle;
use crate::kernels::Request;
use crate::memory::Arena;
use crate::program::{Access, ExtraBindings, Phase, batches, ready};

/// Maximum number of bytes per copy between host and device. When the collected writes reach it, they are submitted
/// without a step.
const STAGED: usize = 64 << 20;
/// Size of the scalar block that kernels read, in bytes. It does not depend on the number of scalars of the plan.
const SCALAR_BYTES: usize = 4 * meganeura_shaders::INLINE_SCALARS;
/// Maximum number of graphs in the cache, one for each combination of segments.
const MAX_GRAPHS: usize = 64;

fn outside(buffer: BufferRef, offset: u64, len: u64) -> Error {
    Error::backend(NAME, format!("{len} bytes at {offset} are outside of buffer {buffer}"))
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

/// The host's copy of the session's scalars.
struct Scalars {
    buffers: Vec<BufferRef>,
    bytes: Vec<u8>,
    /// `true` if the values have changed since the last copy to the device.
    changed: bool,
}

impl Scalars {
    fn word(&mut self, buffer: BufferRef) -> Option<&mut [u8]> {
        let number = self.buffers.iter().position(|scalar| *scalar == buffer)?;
        self.bytes.get_mut(4 * number..4 * number + 4)
    }
}

/// A compiled plan with its memory.
pub(crate) struct CudaExecutable {
    // Fields are dropped in this order: graphs must be dropped before the memory that they use.
    graphs: HashMap<Vec<usize>, Replay>,
    /// Graphs with an event after each phase, by segments and frame.
    measured: HashMap<(Vec<usize>, usize), MeasuredGraph>,
    stream: Stream,
    /// Phases of each segment.
    segments: Vec<Vec<Phase>>,
    frames: [Frame; FRAMES],
    arena: Arena,
    gpu: Arc<Gpu>,
    extra: ExtraBuffers,
    extras: ExtraBindings,
    plan_buffers: usize,
    scalars: Scalars,
    copier: Arc<Copier>,
    /// Events that each step records when it no longer uses certain buffers.
    signals: Vec<Signal>,
    /// Setting for the order of launches within a step.
    order: Order,
    /// `true` if launches begin before their predecessors have ended.
    programmatic: bool,
    /// Titles of the dispatches, for profiles.
    titles: Vec<String>,
    profiling: bool,
    profile: Profile,
    reporters: Vec<Reporter>,
    host_validated: HostValidated,
    /// Parameters and states that a step writes while a fault can still occur.
    exposed: Vec<BufferRef>,
    /// Copies of the `exposed` buffers for each frame. The step of the frame saves them.
    saved: [Vec<SavedRange>; FRAMES],
    faults: Faults,
    /// Index of the frame of the last submission.
    current: usize,
    submissions: u64,
    writes: PendingWrites,
    /// Reads of the host since the last step. The same reads are expected after the next step.
    expected: Vec<Copy>,
}

impl CudaExecutable {
    /// Creates an executable from the kernels of a plan.
    ///
    /// # Errors
    /// Not enough memory; kernels that the compiler or the driver rejects.
    pub(crate) fn of(device: &Handle, plan: &ExecutionPlan, draft: LaunchPlan) -> Result<Self, CompileFailure> {
        let gpu = device.gpu();
        // Two more buffers follow the buffers of the draft: the scalar block of kernels, and a table of the numbers
        // from 0 on.
        let numbers = draft.reporters.len().max(1);
        let mut sizes = draft.sizes.clone();
        sizes.extend([SCALAR_BYTES as u64, 4 * numbers as u64]);
        let beside: u64 = sizes[draft.sizes.len()..].iter().sum();
        check_fit(plan, draft.workspace_bytes() + beside, device.capabilities())?;
        let batches = batches(&draft, plan, device.merge());
        let written = plan.dispatches.iter().flat_map(|dispatch| &dispatch.outputs);
        let written: HashSet<BufferRef> = written.map(|output| output.buffer).collect();
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
        let arena = Arena::new(gpu, device.name(), &sizes, plan, device.buffer_bytes())?;
        let missing = || Error::plan("a workspace has no place");
        let extras = ExtraBindings {
            scalars: arena.place(draft.sizes.len()).ok_or_else(missing)?,
            numbers: arena.place(draft.sizes.len() + 1).ok_or_else(missing)?,
        };
        let segments = gpu.within(|| ready(&draft, &batches, kernels, device.library(), &arena, &extras))?;
        let stream = gpu.call("making a stream", || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
        })?;
        let mut executable = CudaExecutable {
            graphs: HashMap::new(),
            measured: HashMap::new(),
            stream: Stream {
                gpu: gpu.clone(),
                raw: stream,
            },
            segments,
            frames: [Frame::new(gpu)?, Frame::new(gpu)?],
            gpu: gpu.clone(),
            saved: [0, 1].map(|frame| draft.saved_by(frame, |buffer| arena.place(buffer))),
            arena,
            extra: draft.extra,
            extras,
            plan_buffers: plan.buffers.len(),
            scalars: Scalars {
                buffers: plan.scalar_buffers.iter().map(|(_, b)| *b).collect(),
                bytes: vec![0; 4 * plan.scalar_buffers.len()],
                changed: false,
            },
            copier: device.copier()?,
            signals: Vec::new(),
            order: device.order(),
            programmatic: device.programmatic(),
            titles: draft.titles,
            profiling: false,
            profile: Profile::default(),
            reporters: draft.reporters,
            host_validated: HostValidated::of(plan),
            exposed: draft.saved,
            faults: Faults::default(),
            current: 0,
            submissions: 0,
            writes: PendingWrites::default(),
            expected: Vec::new(),
        };
        executable.fill(plan, &draft.tables)?;
        Ok(executable)
    }

    /// Writes the initial contents: zeros, constants, nonzero initial values of states, constant tables, and the
    /// table of the numbers from 0 on.
    fn fill(&mut self, plan: &ExecutionPlan, tables: &[Arc<[u32]>]) -> Result<()> {
        let (arena, stream) = (&self.arena, self.stream.raw);
        self.gpu.call("clearing memory", || arena.clear(stream))?;
        for (buffer, data) in plan.constants() {
            self.write(buffer, 0, &data)?;
        }
        for state in plan.state_buffers.iter().filter(|s| s.fill != 0.0) {
            let words = plan.buffers[state.buffer.index()] / size_of::<f32>();
            let bytes = state.fill.to_le_bytes().repeat(words);
            self.write(state.buffer, 0, &bytes)?;
        }
        for (number, table) in (self.extra.tables..).zip(tables) {
            let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.stage(BufferRef(number as u32), 0, &bytes)?;
        }
        let numbers: Vec<u8> = (0..self.extras.numbers.bytes as u32 / 4)
            .flat_map(u32::to_le_bytes)
            .collect();
        let address = self.arena.address(self.extras.numbers, 0);
        self.begin()?;
        // The driver copies this memory before the call returns.
        // SAFETY: the range is that of the buffer. The bytes are copied, or the stream is synchronized, before they
        // are dropped.
        self.gpu.call("uploading", || unsafe {
            result::memcpy_htod_async(address, &numbers, stream)?;
            result::stream::synchronize(stream)
        })?;
        self.submit()?;
        Ok(())
    }

    /// Returns the memory location of a range of a plan buffer.
    fn place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<BufferLocation> {
        if buffer.index() < self.plan_buffers {
            self.any_place(buffer, offset, len)
        } else {
            Err(outside(buffer, offset, len))
        }
    }

    /// Returns the memory location of a range of any buffer.
    fn any_place(&self, buffer: BufferRef, offset: u64, len: u64) -> Result<BufferLocation> {
        let outside = || outside(buffer, offset, len);
        let own = self.arena.place(buffer.index()).ok_or_else(outside)?;
        if offset.checked_add(len).is_none_or(|end| end > own.bytes) {
            Err(outside())
        } else {
            Ok(own)
        }
    }

    fn address(&self, copy: &Copy) -> Result<sys::CUdeviceptr> {
        let place = self.any_place(copy.buffer, copy.offset, copy.len)?;
        Ok(self.arena.address(place, copy.offset))
    }

    fn next(&self) -> usize {
        (self.current + 1) % FRAMES
    }

    /// Adds a write to the collected writes, in pieces that are small enough to be staged.
    fn stage(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        for (offset, piece) in (offset..).step_by(STAGED).zip(bytes.chunks(STAGED)) {
            if self.writes.add(buffer, offset, piece, STAGED).is_err() {
                self.begin()?;
                self.submit()?;
                // A single piece always fits into empty writes.
                let _ = self.writes.add(buffer, offset, piece, STAGED);
            }
        }
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
                self.begin()?;
                self.download(vec![wanted], false)?;
                self.submit()?;
                self.finish(self.current)?;
            }
        }
        self.frames[self.current].download.read(wanted.host, bytes);
        Ok(())
    }

    /// Enqueues the launches of a step.
    fn enqueue(&mut self, segments: &[usize]) -> Result<()> {
        let (gpu, stream, programmatic) = (self.gpu.clone(), self.stream.raw, self.programmatic);
        if self.profiling {
            self.enqueue_measured(segments)?;
            return self.signal();
        }
        if !self.graphs.contains_key(segments) {
            if self.graphs.len() >= MAX_GRAPHS {
                self.finish_all()?;
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
            self.graphs.insert(segments.to_vec(), Replay::new(graphs));
        }
        let Some((graph, measured)) = self.graphs.get_mut(segments).and_then(Replay::next) else {
            return Ok(());
        };
        let Some(number) = measured else {
            return gpu.call("launching a step", || graph.launch(stream));
        };
        let frame = &mut self.frames[self.current];
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

    /// Returns the size of a fault report in bytes.
    fn report_bytes(&self) -> usize {
        report_bytes(self.reporters.len())
    }
}

impl Executable for CudaExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.place(buffer, offset, bytes.len() as u64)?;
        if self.gpu.is_lost() {
            return Err(self.gpu.lose("it failed in an earlier call"));
        }
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
        for (offset, piece) in (offset..).step_by(STAGED).zip(bytes.chunks_mut(STAGED)) {
            self.read_piece(buffer, offset, piece)?;
        }
        Ok(())
    }

    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        let place = self.place(buffer, 0, 0)?;
        let is_scalar = self.scalars.buffers.contains(&buffer);
        // Data that is restored after a fault, or that the host reads, must be written through the executable.
        if is_scalar || self.host_validated.holds(buffer) || self.exposed.contains(&buffer) {
            return Ok(None);
        }
        if !self.writes.copies.is_empty() {
            self.begin()?;
            self.submit()?;
        }
        Ok(Some(DeviceBuffer {
            address: self.arena.address(place, 0),
            bytes: place.bytes,
            stream: Some(self.stream.raw as u64),
        }))
    }

    fn signal_when_done(&mut self, groups: &[Vec<BufferRef>]) -> Result<Option<Vec<u64>>> {
        // Graphs record the events.
        self.finish_all()?;
        self.graphs.clear();
        self.measured.clear();
        let of = |group: &Vec<BufferRef>| -> Result<Signal> {
            let places = group.iter().map(|&buffer| self.place(buffer, 0, 0));
            let accesses = places.map(|place| Ok(Access::of(place?, true)));
            Ok(Signal {
                accesses: accesses.collect::<Result<_>>()?,
                event: Event::new(&self.gpu, false)?,
            })
        };
        self.signals = groups.iter().map(of).collect::<Result<_>>()?;
        let events = self.signals.iter().map(|signal| signal.event.raw() as u64);
        Ok(Some(events.collect()))
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
        let first = self.report_bytes() as u64;
        let expected = place_expected(self.expected.drain(..), first);
        self.begin()?;
        self.save()?;
        self.enqueue(args.segments)?;
        self.download(expected, true)?;
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

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // The result of the steps cannot be reported here.
        let _ = self.finish_all();
    }
}
