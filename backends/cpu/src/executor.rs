//! Replay of a compiled plan: stages of independent tasks that run without any allocation.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use meganeura_core::backend::{
    Capabilities, DeviceBuffer, Executable, PassTiming, SharedBuffer, SharedBuffers, StepArgs, StepStats, Ticket,
    pass_label,
};
use meganeura_core::files::address_space_left;
use meganeura_core::ops::Call;
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, HostIndices, Part as Place, Segment, check_fit};
use meganeura_core::{Error, Result};

use crate::arena::{Arena, Lent};
use crate::faults::Faults;
use crate::kernel::{CompileCx, Kernel, RunCx};
use crate::kernels;
use crate::memory::{Block, aligned};
use crate::order::Orders;
use crate::pool::ThreadPool;
use crate::prefetch::Prefetch;
use crate::share::share;
use crate::transfer::{each_run, one_run, overwrite, place, placed, scatter, whole};
use crate::vmath;

/// A stage wakes other threads if it would take at least this time on one thread, in nanoseconds.
const PARALLEL_NANOS: u64 = 6_000;

/// A phase of a dispatch, with the offset of its shared scratch.
struct Entry {
    /// Name of the kernel.
    name: String,
    /// Index of the dispatch in the plan.
    dispatch: u32,
    kernel: Box<dyn Kernel>,
    shared_offset: usize,
}

/// Phases of dispatches whose tasks may run at the same time.
struct Stage {
    entries: Vec<Entry>,
    /// Index in `entries`, and number within the phase, of every task.
    tasks: Vec<(u32, u32)>,
    parallel: bool,
    /// Memory that each thread reads first in the next memory-bound stage.
    prefetch: Arc<[Prefetch]>,
    /// Names of the stage's kernels and dispatches, for profiles.
    label: Arc<str>,
    dispatches: Arc<[u32]>,
}

/// A compiled segment of the plan.
struct Part {
    stages: Vec<Stage>,
    /// `u32` in the arena that is not 0 if the segment must be skipped.
    skip_if: Option<BufferRef>,
}

/// A compiled plan with its memory.
pub(crate) struct CpuExecutable {
    arena: Arena,
    /// Scratch shared by the tasks of a level.
    shared: Block,
    /// Scratch of all threads, one thread after the other.
    private: Block,
    private_len: usize,
    segments: Vec<Part>,
    labels: Vec<String>,
    pool: Arc<ThreadPool>,
    faults: Faults,
    /// Storage orders of the parameters that are not stored row by row.
    orders: Orders,
    /// Inputs that contain indices, by segment. The indices are checked before anything is computed.
    fed: Vec<Vec<HostIndices>>,
    /// Parameters and states that a step writes before its last possible fault, with their values before the
    /// step.
    saved: Vec<(BufferRef, Vec<u8>)>,
    poisoned: bool,
    submissions: u64,
    /// Times of the stages; `None` unless profiling.
    timings: Option<Vec<PassTiming>>,
}

pub(crate) fn out_of_memory(bytes: usize) -> Error {
    Error::OutOfMemory {
        device: "cpu".into(),
        requested: bytes,
        available: None,
        remedy: "use a smaller batch or a smaller model".into(),
    }
}

/// Checks that the limit of the address space (`ulimit -v`) is large enough for host copies and for the
/// `kept` bytes of exposed buffers. Setting, reading and saving parameters makes host copies; if their
/// allocation failed, the process would abort.
fn check_address_space(plan: &ExecutionPlan, kept: usize, left: Option<u64>) -> Result<()> {
    /// Number of bytes for all other allocations: training examples, strings, thread stacks.
    const REST: usize = 32 << 20;
    let Some(left) = left else { return Ok(()) };
    let leaves = plan.param_buffers.iter().map(|(_, buffer)| *buffer);
    let leaves = leaves.chain(plan.state_buffers.iter().map(|state| state.buffer));
    let leaves = leaves.filter(|buffer| !plan.memory.is_borrowed(*buffer));
    let copies: usize = leaves.map(|buffer| plan.buffers[buffer.index()]).sum();
    // One copy for reading, and one for encoding.
    let requested = copies.saturating_mul(2).saturating_add(kept).saturating_add(REST);
    if requested as u64 <= left {
        return Ok(());
    }
    Err(Error::OutOfMemory {
        device: "cpu".into(),
        requested,
        available: Some(left),
        remedy: "raise the limit of the address space (`ulimit -v`), or use a smaller batch or a smaller model".into(),
    })
}

/// The compiled kernels of a plan, and the memory that they need in addition to the plan's buffers.
pub(crate) struct Program {
    segments: Vec<Part>,
    scratch: Scratch,
    orders: Orders,
    fed: Vec<HostIndices>,
    /// Parameters and states that a step writes before its last possible fault.
    exposed: Vec<BufferRef>,
}

/// Returns the storage orders of a plan that borrows the `shared` buffers, and the borrowed buffers that its kernels
/// cannot read.
pub(crate) fn orders(plan: &ExecutionPlan, shared: &SharedBuffers) -> (Orders, HashSet<BufferRef>) {
    let given = shared
        .iter()
        .filter_map(|(buffer, shared)| Some((*buffer, shared.memory::<Lent>()?.panels)))
        .collect();
    let order = |dispatch: &Dispatch, i: usize| {
        let [inputs, outputs] = dispatch.types();
        let call = Call {
            attrs: &dispatch.attrs,
            inputs: &inputs,
            outputs: &outputs,
        };
        kernels::order(&dispatch.kernel.name, &call, i)
    };
    Orders::new(plan, order, &given)
}

/// Checks that all buffers that a plan borrows are shared, and that its kernels can read them.
fn check_borrowed(plan: &ExecutionPlan, shared: &SharedBuffers, unreadable: &HashSet<BufferRef>) -> Result<()> {
    for buffer in &plan.memory.borrowed {
        let bytes = plan.buffers.get(buffer.index()).copied();
        let lent = shared
            .get(buffer)
            .filter(|s| s.memory::<Lent>().is_some() && Some(s.bytes) == bytes);
        if lent.is_none() || unreadable.contains(buffer) {
            return Err(Error::backend(
                "cpu",
                format!(
                    "{} is not shared in a form that this plan can read",
                    plan.describe(*buffer)
                ),
            ));
        }
    }
    Ok(())
}

impl Program {
    pub(crate) fn new(plan: &ExecutionPlan, arena: &Arena, orders: Orders) -> Result<Self> {
        let mut scratch = Scratch::default();
        let segments = plan
            .segments
            .iter()
            .map(|segment| {
                Ok(Part {
                    stages: compile_segment(plan, segment, (arena, &orders), &mut scratch)?,
                    skip_if: segment.skip_if,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let fed = plan.host_indices();
        let proven = plan.proven_indices();
        let reads = |i: usize| {
            let is_fed = fed.iter().any(|f| f.dispatch == i);
            !is_fed && !proven.contains(&i) && plan.dispatches[i].index_bound().is_some()
        };
        Ok(Program {
            segments,
            scratch,
            orders,
            exposed: plan.exposed_to_faults(&reads),
            fed,
        })
    }

    /// Returns the number of bytes that `threads` threads need in addition to the plan's buffers.
    pub(crate) fn workspace_bytes(&self, plan: &ExecutionPlan, threads: usize) -> u64 {
        let floats = self.scratch.shared + aligned(self.scratch.private) * threads;
        let copies: usize = self.exposed.iter().map(|buffer| plan.buffers[buffer.index()]).sum();
        (floats * size_of::<f32>() + copies) as u64
    }
}

impl CpuExecutable {
    pub(crate) fn new(
        plan: &ExecutionPlan,
        pool: Arc<ThreadPool>,
        capabilities: &Capabilities,
        shared: &SharedBuffers,
    ) -> Result<Self> {
        let (orders, unreadable) = orders(plan, shared);
        check_borrowed(plan, shared, &unreadable)?;
        let mut arena = Arena::new(plan, shared).map_err(out_of_memory)?;
        // The program is compiled and checked before any page of the arena is accessed.
        let program = Program::new(plan, &arena, orders)?;
        check_fit(plan, program.workspace_bytes(plan, pool.threads()), capabilities)?;
        let own = |buffer: BufferRef| !plan.memory.is_borrowed(buffer);
        for (buffer, data) in plan.constants().filter(|(buffer, _)| own(*buffer)) {
            overwrite(&mut arena, buffer, &data)?;
        }
        for state in plan.state_buffers.iter().filter(|s| s.fill != 0.0 && own(s.buffer)) {
            let len = plan.buffers[state.buffer.index()];
            let bytes = arena.bytes(state.buffer, 0, len).unwrap_or_default();
            let words = bytes.chunks_exact_mut(size_of::<f32>());
            words.for_each(|word| word.copy_from_slice(&state.fill.to_le_bytes()));
        }
        let Program {
            mut segments,
            scratch,
            orders,
            fed,
            exposed,
        } = program;
        segments
            .iter_mut()
            .for_each(|part| look_ahead(&mut part.stages, pool.threads()));
        let block = |floats: usize| {
            let bytes = floats * size_of::<f32>();
            Block::new(bytes).ok_or_else(|| out_of_memory(bytes))
        };
        let private_len = aligned(scratch.private);
        let of_segment = |s: &Segment| {
            let own = fed.iter().copied().filter(|f| s.range().contains(&f.dispatch));
            HostIndices::distinct(own)
        };
        let (shared, private) = (block(scratch.shared)?, block(private_len * pool.threads())?);
        let kept = exposed.iter().map(|buffer| plan.buffers[buffer.index()]).sum();
        check_address_space(plan, kept, address_space_left())?;
        Ok(CpuExecutable {
            shared,
            private,
            private_len,
            arena,
            segments,
            labels: plan.dispatches.iter().map(|d| d.label.clone()).collect(),
            pool,
            faults: Faults::default(),
            orders,
            fed: plan.segments.iter().map(of_segment).collect(),
            saved: exposed
                .into_iter()
                .map(|buffer| (buffer, vec![0; plan.buffers[buffer.index()]]))
                .collect(),
            poisoned: false,
            submissions: 0,
            timings: None,
        })
    }

    fn run_stage(&self, stage: &Stage) {
        let task = |task: usize, worker: usize| {
            let (entry, number) = stage.tasks[task];
            let entry = &stage.entries[entry as usize];
            let cx = RunCx {
                shared: self.shared.as_ptr().cast::<f32>().wrapping_add(entry.shared_offset),
                private: self
                    .private
                    .as_ptr()
                    .cast::<f32>()
                    .wrapping_add(worker * self.private_len),
                faults: &self.faults,
            };
            // SAFETY: the memory lives as long as `self`. The plan was verified: no dispatch of a level
            // writes memory that another dispatch of the level accesses, and their shared scratch does not
            // overlap. The tasks of a phase are independent by the kernel's contract. No two threads have the
            // same worker number at a time, so only this task uses its private scratch.
            unsafe { entry.kernel.run(number as usize, &cx) }
        };
        if stage.parallel {
            self.pool.run_before(stage.tasks.len(), &task, &stage.prefetch);
        } else {
            (0..stage.tasks.len()).for_each(|t| task(t, 0));
        }
    }

    /// Returns true if the current step skips this segment.
    fn is_skipped(&self, part: &Part) -> bool {
        // The pool has already waited for the tasks of the previous stage.
        part.skip_if.is_some_and(|buffer| self.arena.word(buffer) != 0)
    }

    /// Finds the first input index that is out of range and reports it as the fault of the step.
    fn check_fed(&mut self, segments: &[usize]) {
        let fed = segments.iter().filter_map(|&s| self.fed.get(s)).flatten();
        for fed in fed {
            let bytes = self.arena.read(fed.buffer, 0, fed.count * size_of::<u32>());
            if let Some(index) = fed.first_outside(bytes.unwrap_or_default()) {
                return self.faults.report(fed.dispatch, index, fed.bound);
            }
        }
    }

    /// Returns the fault of a step as an error, if there was one.
    fn fault(&self) -> Option<Error> {
        let (dispatch, index, rows) = self.faults.take()?;
        Some(Error::IndexOutOfRange {
            label: self.labels.get(dispatch).cloned().unwrap_or_default(),
            index,
            rows,
        })
    }

    fn check_usable(&self) -> Result<()> {
        if self.poisoned {
            return Err(Error::backend(
                "cpu",
                "a kernel panicked in an earlier step, so the contents of this session are not reliable; build a new one",
            ));
        }
        Ok(())
    }
}

/// Largest scratch sizes of any level, in `f32`s.
#[derive(Default)]
struct Scratch {
    shared: usize,
    private: usize,
}

fn compile_segment(
    plan: &ExecutionPlan,
    segment: &Segment,
    (arena, orders): (&Arena, &Orders),
    scratch: &mut Scratch,
) -> Result<Vec<Stage>> {
    let level = vmath::detect();
    let mut stages = Vec::new();
    let range = segment.range();
    let mut next = range.start;
    while next < range.end {
        let current = plan.dispatches[next].level;
        // Phase p of every dispatch of the level runs at the same time.
        let mut phases: Vec<Vec<Entry>> = Vec::new();
        let mut shared_end = 0;
        while next < range.end && plan.dispatches[next].level == current {
            let dispatch = &plan.dispatches[next];
            let name = &dispatch.kernel.name;
            let fail = |m: String| Error::backend("cpu", format!("{}: {m}", dispatch.label));
            let def = kernels::find(name).ok_or_else(|| fail(format!("the CPU backend has no kernel {name}")))?;
            let compiled = def
                .compile_checked(&CompileCx::new(dispatch, next, arena, orders, level))
                .map_err(fail)?;
            for (p, kernel) in compiled.phases.into_iter().enumerate() {
                if phases.len() == p {
                    phases.push(Vec::new());
                }
                phases[p].push(Entry {
                    name: dispatch.title(),
                    dispatch: next as u32,
                    kernel,
                    shared_offset: shared_end,
                });
            }
            shared_end += aligned(compiled.shared);
            scratch.private = scratch.private.max(compiled.private);
            next += 1;
        }
        scratch.shared = scratch.shared.max(shared_end);
        stages.extend(phases.into_iter().map(Stage::new).filter(|s| !s.tasks.is_empty()));
    }
    Ok(stages)
}

impl Stage {
    fn new(entries: Vec<Entry>) -> Self {
        let tasks: Vec<(u32, u32)> = entries
            .iter()
            .enumerate()
            .flat_map(|(e, entry)| (0..entry.kernel.tasks()).map(move |t| (e as u32, t as u32)))
            .collect();
        let nanos: u64 = entries.iter().map(|e| e.kernel.nanos()).sum();
        Stage {
            label: pass_label(entries.iter().map(|e| e.name.as_str())).into(),
            dispatches: entries.iter().map(|e| e.dispatch).collect(),
            parallel: tasks.len() > 1 && nanos >= PARALLEL_NANOS,
            prefetch: Arc::default(),
            entries,
            tasks,
        }
    }

    /// Returns the memory that each of `threads` threads reads first in this stage.
    fn reads(&self, threads: usize) -> Arc<[Prefetch]> {
        let of_thread = |thread| {
            let mut prefetch = Prefetch::default();
            for &(entry, task) in &self.tasks[share(self.tasks.len(), threads, thread)] {
                if prefetch.is_full() {
                    break;
                }
                self.entries[entry as usize].kernel.reads(task as usize, &mut prefetch);
            }
            prefetch
        };
        (0..threads).map(of_thread).collect()
    }
}

/// Gives each parallel stage the reads of the next parallel stage that is memory-bound.
fn look_ahead(stages: &mut [Stage], threads: usize) {
    let mut next = Arc::default();
    for stage in stages.iter_mut().rev().filter(|stage| stage.parallel) {
        let reads = stage.reads(threads);
        stage.prefetch = Arc::clone(&next);
        if reads.iter().any(|prefetch| !prefetch.is_empty()) {
            next = reads;
        }
    }
}

impl Executable for CpuExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_part(buffer, &one_run(offset, bytes.len())?, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_part(buffer, &one_run(offset, bytes.len())?, bytes)
    }

    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        self.check_usable()?;
        let is_open = self.orders.of(buffer).is_none() && !self.arena.is_frozen(buffer);
        let known = self.arena.size(buffer).filter(|_| is_open);
        Ok(known.map(|bytes| DeviceBuffer {
            address: self.arena.pointer(buffer) as u64,
            bytes: bytes as u64,
            stream: None,
        }))
    }

    fn share(&mut self, buffers: &[BufferRef]) -> Result<Vec<Option<SharedBuffer>>> {
        self.check_usable()?;
        let (arena, orders) = (&mut self.arena, &self.orders);
        let share = |&buffer: &BufferRef| {
            let bytes = arena.size(buffer)?;
            Some(SharedBuffer::new(bytes, arena.lend(buffer, orders.of(buffer))?))
        };
        Ok(buffers.iter().map(share).collect())
    }

    fn write_part(&mut self, buffer: BufferRef, part: &Place, bytes: &[u8]) -> Result<()> {
        self.check_usable()?;
        let memory = place(&mut self.arena, buffer, part, bytes.len())?;
        match self.orders.of(buffer) {
            None => scatter(&self.pool, bytes, part, memory),
            Some(panels) => {
                let (pool, matrix) = (&self.pool, whole(&mut self.arena, buffer)?);
                each_run(part, |offset, run| panels.write(pool, &bytes[run], offset, matrix));
            }
        }
        Ok(())
    }

    fn read_part(&mut self, buffer: BufferRef, part: &Place, bytes: &mut [u8]) -> Result<()> {
        self.check_usable()?;
        let memory = placed(&self.arena, buffer, part, bytes.len())?;
        match self.orders.of(buffer) {
            None => part.gather(memory, bytes),
            Some(panels) => {
                let size = self.arena.size(buffer).unwrap_or(0);
                let matrix = self.arena.read(buffer, 0, size).unwrap_or_default();
                each_run(part, |offset, run| panels.read(matrix, offset, &mut bytes[run]));
            }
        }
        Ok(())
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.check_usable()?;
        for (buffer, bytes) in args.scalars {
            let size = self.arena.size(*buffer).unwrap_or(0).min(bytes.len());
            overwrite(&mut self.arena, *buffer, &bytes[..size])?;
        }
        self.check_fed(args.segments);
        if let Some(error) = self.fault() {
            self.submissions += 1;
            return Err(error);
        }
        for (buffer, saved) in &mut self.saved {
            let own = self.arena.read(*buffer, 0, saved.len()).unwrap_or_default();
            saved.copy_from_slice(own);
        }
        let mut timings = self.timings.take();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let parts = args.segments.iter().filter_map(|&s| self.segments.get(s));
            // The condition is evaluated when a segment begins, because earlier segments may write its value.
            let stages = parts.flat_map(|part| if self.is_skipped(part) { &[] } else { &part.stages[..] });
            for stage in stages {
                match &mut timings {
                    None => self.run_stage(stage),
                    Some(timings) => {
                        let start = Instant::now();
                        self.run_stage(stage);
                        timings.push(PassTiming {
                            label: stage.label.clone(),
                            dispatches: stage.dispatches.clone(),
                            submission: Ticket(self.submissions + 1),
                            start,
                            duration: start.elapsed(),
                        });
                    }
                }
                // A kernel replaced a missing row by a substitute. Nothing may be computed from the
                // substitute, especially no update.
                if self.faults.any() {
                    break;
                }
            }
        }));
        self.timings = timings;
        if outcome.is_err() {
            self.poisoned = true;
            self.check_usable()?;
        }
        self.submissions += 1;
        let Some(error) = self.fault() else {
            return Ok(Ticket(self.submissions));
        };
        for (buffer, saved) in &self.saved {
            overwrite(&mut self.arena, *buffer, saved)?;
        }
        Err(error)
    }

    fn wait(&mut self, _: Ticket) -> Result<StepStats> {
        // Steps are complete when `run` returns.
        Ok(StepStats::default())
    }

    fn set_profiling(&mut self, on: bool) {
        self.timings = on.then(|| self.timings.take().unwrap_or_default());
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        self.timings.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
