//! A device whose missing primitives another one computes, where that was asked for.
//!
//! A device that lacks a kernel gets the decomposition. What even that does not cover is an error, unless the
//! configuration names a device to leave it to (`fallback = "cpu"`): then dispatches without a decomposition run there,
//! and what they read and write goes through the host. Both devices have all buffers, and no two share memory. Steps are
//! waited for, part by part. The report of a build says what runs elsewhere ([`OptimizeReport::elsewhere`]).
//!
//! [`OptimizeReport::elsewhere`]: crate::OptimizeReport::elsewhere

use std::sync::Arc;

use crate::backend::{
    Capabilities, Device, Executable, KernelDesc, KernelSource, StepArgs, StepStats, Support, Ticket,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::Semantics;
use crate::plan::memory::MemoryLayout;
use crate::plan::{BufferRef, Dispatch, ExecutionPlan, Segment};
use crate::registry;

/// A device, and the one that it leaves what it lacks to.
pub struct WithFallback {
    first: Arc<dyn Device>,
    other: Arc<dyn Device>,
}

impl WithFallback {
    /// A device with another behind it.
    pub fn new(first: Arc<dyn Device>, other: Arc<dyn Device>) -> Self {
        WithFallback { first, other }
    }

    /// Whether a dispatch runs on the other device.
    fn is_elsewhere(&self, dispatch: &Dispatch) -> bool {
        self.first.supports(&dispatch.kernel_desc(&dispatch.types())) != Support::Yes
    }

    /// The device of each dispatch: 0 for the first.
    fn owners(&self, plan: &ExecutionPlan) -> Vec<usize> {
        let owner = |d: &Dispatch| usize::from(self.is_elsewhere(d));
        plan.dispatches.iter().map(owner).collect()
    }
}

impl Device for WithFallback {
    fn capabilities(&self) -> &Capabilities {
        self.first.capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let refused = match self.first.supports(kernel) {
            Support::Yes => return Support::Yes,
            refused => refused,
        };
        // Decompositions, and arithmetic in `f32` for half precision, come first.
        let is_primitive =
            registry::op(kernel.name).is_some_and(|op| matches!(op.get().semantics(), Semantics::Primitive(_)));
        let mut types = kernel.inputs.iter().chain(kernel.outputs);
        let is_half = types.any(|ty| matches!(ty.dtype, DType::F16 | DType::BF16));
        match is_primitive && !is_half && self.other.supports(kernel) == Support::Yes {
            true => Support::Yes,
            false => refused,
        }
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.first.launches(kernel)
    }

    fn kernels(&self) -> String {
        let name = &self.other.capabilities().name;
        format!("{}; otherwise {name}: {}", self.first.kernels(), self.other.kernels())
    }

    fn has_mixed_precision(&self) -> bool {
        self.first.has_mixed_precision()
    }

    /// Of the dispatches that are the first device's.
    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let own: Vec<usize> = (0..plan.dispatches.len())
            .filter(|&i| !self.is_elsewhere(&plan.dispatches[i]))
            .collect();
        if own.len() == plan.dispatches.len() {
            return self.first.finalize(plan);
        }
        let mut part = plan.clone();
        part.dispatches = own.iter().map(|&i| plan.dispatches[i].clone()).collect();
        self.first.finalize(&mut part)?;
        for (i, dispatch) in own.into_iter().zip(part.dispatches) {
            plan.dispatches[i] = dispatch;
        }
        Ok(())
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        // The numbers of dispatches in parts of a plan would be others.
        match self.elsewhere(plan).is_empty() {
            true => self.first.kernel_sources(plan),
            false => Ok(Vec::new()),
        }
    }

    fn memory_beside(&self, plan: &ExecutionPlan) -> Result<u64> {
        let owners = self.owners(plan);
        if owners.iter().all(|owner| *owner == 0) {
            return self.first.memory_beside(plan);
        }
        // What the other device keeps is not in the first one's memory.
        self.first.memory_beside(&split(plan, &owners).1[0])
    }

    fn elsewhere(&self, plan: &ExecutionPlan) -> Vec<(usize, String)> {
        let name = &self.other.capabilities().name;
        let there = plan.dispatches.iter().enumerate().filter(|(_, d)| self.is_elsewhere(d));
        there.map(|(i, _)| (i, name.clone())).collect()
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let owners = self.owners(plan);
        if owners.iter().all(|owner| *owner == 0) {
            return self.first.compile(plan);
        }
        let (parts, plans) = split(plan, &owners);
        for (device, plan) in [&self.first, &self.other].into_iter().zip(&plans) {
            crate::plan::memory::check_fit(plan, 0, device.capabilities())?;
        }
        let reads = |i: usize| plan.dispatches[i].index_bound().is_some();
        let executables = [self.first.compile(&plans[0])?, self.other.compile(&plans[1])?];
        Ok(Box::new(Both {
            name: self.first.capabilities().name.clone(),
            executables,
            parts,
            sizes: plan.buffers.clone(),
            valid: vec![[true; 2]; plan.buffers.len()],
            exposed: plan.exposed_to_faults(&reads),
        }))
    }
}

/// Consecutive dispatches of a segment that run on one device.
struct Part {
    /// Which one.
    device: usize,
    /// The number of the segment in that device's plan.
    segment: usize,
    /// What it needs, the old contents of what it writes included.
    needs: Vec<BufferRef>,
    /// What it writes.
    writes: Vec<BufferRef>,
}

/// The parts of each segment, and the plan of each device. In these every part is a segment.
fn split(plan: &ExecutionPlan, owners: &[usize]) -> (Vec<Vec<Part>>, [ExecutionPlan; 2]) {
    let empty = || ExecutionPlan {
        dispatches: Vec::new(),
        segments: Vec::new(),
        memory: MemoryLayout::default(),
        recomputation: None,
        ..plan.clone()
    };
    let mut plans = [empty(), empty()];
    let mut parts = Vec::with_capacity(plan.segments.len());
    for segment in &plan.segments {
        let mut of_segment = Vec::new();
        let mut first = segment.first;
        for run in owners[segment.range()].chunk_by(|a, b| a == b) {
            let (device, dispatches) = (run[0], &plan.dispatches[first..first + run.len()]);
            first += run.len();
            let own = &mut plans[device];
            own.segments.push(Segment {
                first: own.dispatches.len(),
                count: run.len(),
                ..segment.clone()
            });
            own.dispatches.extend_from_slice(dispatches);
            let mut writes: Vec<BufferRef> = dispatches.iter().flat_map(|d| &d.outputs).map(|o| o.buffer).collect();
            let reads = dispatches.iter().flat_map(|d| &d.inputs).map(|o| o.buffer);
            let mut needs: Vec<BufferRef> = reads.chain(writes.iter().copied()).chain(segment.skip_if).collect();
            for list in [&mut writes, &mut needs] {
                list.sort_unstable();
                list.dedup();
            }
            of_segment.push(Part {
                device,
                segment: own.segments.len() - 1,
                needs,
                writes,
            });
        }
        parts.push(of_segment);
    }
    (parts, plans)
}

/// A plan on two devices.
struct Both {
    name: String,
    executables: [Box<dyn Executable>; 2],
    parts: Vec<Vec<Part>>,
    sizes: Vec<usize>,
    /// On which devices the contents of a buffer are what they should be.
    valid: Vec<[bool; 2]>,
    /// What a faulty step has to put back.
    exposed: Vec<BufferRef>,
}

impl Both {
    /// The contents of a buffer.
    fn contents(&mut self, buffer: BufferRef) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.sizes[buffer.index()]];
        let device = usize::from(!self.valid[buffer.index()][0]);
        self.executables[device].read(buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn run_part(&mut self, segment: usize, part: usize, scalars: &[(BufferRef, [u8; 4])]) -> Result<()> {
        let device = self.parts[segment][part].device;
        for i in 0..self.parts[segment][part].needs.len() {
            let buffer = self.parts[segment][part].needs[i];
            if !self.valid[buffer.index()][device] {
                let bytes = self.contents(buffer)?;
                self.executables[device].write(buffer, 0, &bytes)?;
                self.valid[buffer.index()][device] = true;
            }
        }
        let part = &self.parts[segment][part];
        for buffer in &part.writes {
            self.valid[buffer.index()] = [device == 0, device == 1];
        }
        let ticket = self.executables[device].run(&StepArgs {
            segments: &[part.segment],
            scalars,
        })?;
        self.executables[device].wait(ticket)?;
        Ok(())
    }

    fn run_all(&mut self, args: &StepArgs) -> Result<()> {
        for &segment in args.segments {
            for part in 0..self.parts.get(segment).map_or(0, Vec::len) {
                self.run_part(segment, part, args.scalars)?;
            }
        }
        Ok(())
    }
}

impl Executable for Both {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(valid) = self.valid.get(buffer.index()).copied() else {
            return Err(Error::backend(&self.name, format!("there is no buffer {buffer}")));
        };
        for (executable, valid) in self.executables.iter_mut().zip(valid) {
            // What is not valid is copied as a whole when it is needed.
            if valid {
                executable.write(buffer, offset, bytes)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(valid) = self.valid.get(buffer.index()) else {
            return Err(Error::backend(&self.name, format!("there is no buffer {buffer}")));
        };
        self.executables[usize::from(!valid[0])].read(buffer, offset, bytes)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        // Scalars go with each part; to a device that runs none they are of no use.
        for (buffer, bytes) in args.scalars {
            let len = self.sizes.get(buffer.index()).map_or(0, |size| bytes.len().min(*size));
            self.write(*buffer, 0, &bytes[..len])?;
        }
        let before = self
            .exposed
            .clone()
            .into_iter()
            .map(|buffer| Ok((buffer, self.contents(buffer)?)));
        let before = before.collect::<Result<Vec<_>>>()?;
        let outcome = self.run_all(args);
        if outcome.is_err() {
            // A step that fails is as if it had not been made; the parts before the fault were.
            for (buffer, bytes) in before {
                self.valid[buffer.index()] = [true; 2];
                self.write(buffer, 0, &bytes)?;
            }
        }
        outcome?;
        Ok(Ticket(0))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepStats> {
        // Parts were waited for, one after the other.
        Ok(StepStats::default())
    }
}
