//! The fallback device: it runs the dispatches that the chosen device can neither run nor decompose.
//!
//! It is used only if the configuration names it (`fallback = "cpu"`); without one, such dispatches are an error. Their
//! operands and results are copied through the host. Both devices have all buffers, and no two buffers share memory.
//! The host synchronizes after each part of a step. The report of a build lists these dispatches
//! (`OptimizeReport::fallback_dispatches` in the crate `meganeura-compiler`).

mod both;

use std::sync::Arc;

use crate::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, Support};
use crate::error::{Error, Result};
use crate::kernel::is_widened;
use crate::ops::Semantics;
use crate::plan::memory::MemoryLayout;
use crate::plan::{BufferRef, Dispatch, ExecutionPlan, Segment};
use crate::registry;
use both::{Part, TwoDevicePlan};

/// A device with a fallback device.
pub struct WithFallback {
    first: Arc<dyn Device>,
    other: Arc<dyn Device>,
}

impl WithFallback {
    /// Combines a device with a fallback device.
    pub fn new(first: Arc<dyn Device>, other: Arc<dyn Device>) -> Self {
        WithFallback { first, other }
    }

    /// Returns `true` if the fallback device runs a dispatch.
    fn runs_on_fallback(&self, dispatch: &Dispatch) -> bool {
        self.first.supports(&dispatch.kernel_desc(&dispatch.types())) != Support::Yes
    }

    /// Returns the device of each dispatch: 0 for the first.
    fn owners(&self, plan: &ExecutionPlan) -> Vec<usize> {
        let owner = |d: &Dispatch| usize::from(self.runs_on_fallback(d));
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
        // Decompositions, and arithmetic in `f32` for half precision, take precedence.
        let takes = registry::op(kernel.name).is_some_and(|op| {
            matches!(op.get().semantics(), Semantics::Primitive(_))
                && !is_widened(op, kernel)
                && self.other.supports(kernel) == Support::Yes
        });
        if takes { Support::Yes } else { refused }
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.first.launches(kernel)
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        self.first.efficiency(kernel)
    }

    fn kernels(&self) -> String {
        let name = &self.other.capabilities().name;
        format!("{}; otherwise {name}: {}", self.first.kernels(), self.other.kernels())
    }

    fn has_mixed_precision(&self) -> bool {
        self.first.has_mixed_precision()
    }

    /// Returns the reason why the first device refused a plugin's kernel; the fallback device is not queried.
    fn refused_kernel(&self, op: &str) -> Option<Error> {
        self.first.refused_kernel(op)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let own: Vec<usize> = (0..plan.dispatches.len())
            .filter(|&i| !self.runs_on_fallback(&plan.dispatches[i]))
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
        let owners = self.owners(plan);
        if owners.iter().all(|owner| *owner == 0) {
            return self.first.kernel_sources(plan);
        }
        // The first device's plan numbers its own dispatches from 0, in the same order.
        let own = plan.segments.iter().flat_map(Segment::range);
        let own: Vec<usize> = own.filter(|&i| owners[i] == 0).collect();
        let mut sources = self.first.kernel_sources(&split(plan, &owners).1[0])?;
        for source in &mut sources {
            source.dispatch = own[source.dispatch];
        }
        Ok(sources)
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        let owners = self.owners(plan);
        if owners.iter().all(|owner| *owner == 0) {
            return self.first.workspace_bytes(plan);
        }
        // Buffers of the fallback device are not in the first device's memory.
        self.first.workspace_bytes(&split(plan, &owners).1[0])
    }

    fn fallback_dispatches(&self, plan: &ExecutionPlan) -> Vec<(usize, String)> {
        let name = &self.other.capabilities().name;
        let there = plan
            .dispatches
            .iter()
            .enumerate()
            .filter(|(_, d)| self.runs_on_fallback(d));
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
        let executables = [self.first.compile(&plans[0])?, self.other.compile(&plans[1])?];
        let name = &self.first.capabilities().name;
        Ok(Box::new(TwoDevicePlan::new(name, executables, parts, plan, &owners)))
    }
}

/// Splits a plan: returns the parts of each segment, and a plan for each device, in which every part is a segment.
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
                // A part of a segment that runs once: the executable of the whole plan decides when to run it.
                once: false,
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
