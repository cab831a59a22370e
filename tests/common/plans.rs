//! Shared code of the tests of plans and their memory.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura::backend::{Capabilities, Device, Executable, KernelDesc, Support};
use meganeura::cpu::CpuDevice;
use meganeura::{ExecutionPlan, Result, Session, Update};

/// CPU device with changed limits.
pub(crate) struct LimitedCpu {
    device: CpuDevice,
    capabilities: Capabilities,
}

impl LimitedCpu {
    pub(crate) fn device(memory_bytes: Option<u64>, max_buffer_bytes: Option<u64>) -> Arc<dyn Device> {
        let device = CpuDevice::new(2);
        let capabilities = Capabilities {
            memory_bytes,
            max_buffer_bytes,
            ..device.capabilities().clone()
        };
        Arc::new(LimitedCpu { device, capabilities })
    }
}

impl Device for LimitedCpu {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn supports(&self, kernel: &KernelDesc) -> Support {
        self.device.supports(kernel)
    }
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.device.compile(plan)
    }
}

pub(crate) fn cpu() -> Arc<dyn Device> {
    LimitedCpu::device(None, None)
}

/// Returns the buffers with live contents at each level, computed without the library's lifetimes: buffers that are filled or
/// read from outside, and buffers that are written at or before this level and read at or after it.
fn live(plan: &ExecutionPlan) -> Vec<HashSet<usize>> {
    let mut levels: Vec<(HashSet<usize>, HashSet<usize>)> = Vec::new();
    for segment in &plan.segments {
        let dispatches = &plan.dispatches[segment.first..segment.first + segment.count];
        let first = levels.len();
        for d in dispatches {
            levels.resize(levels.len().max(first + d.level as usize + 1), Default::default());
            let (reads, writes) = &mut levels[first + d.level as usize];
            reads.extend(d.inputs.iter().map(|o| o.buffer.index()));
            writes.extend(d.outputs.iter().map(|o| o.buffer.index()));
        }
    }
    let mut always: HashSet<usize> = HashSet::new();
    always.extend(plan.param_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.input_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.scalar_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.gradient_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.constants().map(|(b, _)| b.index()));
    always.extend(plan.state_buffers.iter().map(|s| s.buffer.index()));
    always.extend(plan.output_buffers.iter().map(|b| b.index()));
    // Values that a segment computes once are read in every step.
    for segment in plan.segments.iter().filter(|s| s.once) {
        let (own, others) = (
            segment.first..segment.first + segment.count,
            segment.first + segment.count..,
        );
        let written = plan.dispatches[own].iter().flat_map(|d| &d.outputs).map(|o| o.buffer);
        let read: HashSet<_> = plan.dispatches[others]
            .iter()
            .flat_map(|d| &d.inputs)
            .map(|o| o.buffer)
            .collect();
        always.extend(written.filter(|b| read.contains(b)).map(|b| b.index()));
    }
    // Backwards: a buffer that is read later is live if it was written before.
    let mut needed_after: Vec<HashSet<usize>> = vec![HashSet::new(); levels.len()];
    let mut later: HashSet<usize> = HashSet::new();
    for (i, (reads, _)) in levels.iter().enumerate().rev() {
        needed_after[i] = later.clone();
        later.extend(reads);
    }
    let mut written: HashSet<usize> = HashSet::new();
    let mut live = Vec::new();
    for (i, (reads, writes)) in levels.iter().enumerate() {
        let mut now: HashSet<usize> = reads.union(writes).copied().collect();
        now.extend(written.intersection(&needed_after[i]));
        now.extend(&always);
        written.extend(writes);
        live.push(now);
    }
    live
}

/// Returns the size in bytes of the largest set of buffers that are live together. Also checks that live buffers do not
/// overlap in memory.
pub(crate) fn lower_bound(plan: &ExecutionPlan) -> usize {
    let mut most = 0;
    for (level, set) in live(plan).into_iter().enumerate() {
        most = most.max(set.iter().map(|&b| plan.buffers[b]).sum());
        let mut places: Vec<(usize, usize)> = set
            .iter()
            .map(|&b| (plan.memory.offsets[b], plan.memory.offsets[b] + plan.buffers[b]))
            .filter(|(start, end)| start < end)
            .collect();
        places.sort_unstable();
        let clash = places.windows(2).find(|w| w[0].1 > w[1].0);
        assert!(clash.is_none(), "level {level}: {clash:?}");
        assert!(places.iter().all(|(_, end)| *end <= plan.memory.bytes));
    }
    most
}

/// Creates a session and sets its parameters and inputs: numbers for `x`, and ids below 5 for other inputs.
fn fed(device: &Arc<dyn Device>, plan: ExecutionPlan) -> Session {
    let inputs = plan.input_buffers.clone();
    let bytes: Vec<usize> = inputs.iter().map(|(_, b)| plan.buffers[b.index()]).collect();
    let mut session = Session::on(device.clone(), plan).expect("fits");
    session.initialize_parameters(3);
    session.set_seed(5);
    for ((name, _), bytes) in inputs.iter().zip(bytes) {
        let words = bytes / 4;
        if name == "x" {
            session.set_input(name, &(0..words).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>())
        } else {
            session.set_input_u32(name, &(0..words as u32).map(|i| i * 3 % 5).collect::<Vec<_>>())
        }
    }
    session
}

/// Runs some training steps. Returns their losses, and the parameters, gradients and states afterwards, as bits.
pub(crate) fn trained_bits(device: &Arc<dyn Device>, plan: ExecutionPlan, update: &Update, steps: usize) -> Vec<u32> {
    let mut session = fed(device, plan);
    session.set_optimizer(update.clone());
    let mut bits = Vec::new();
    for _ in 0..steps {
        session.step();
        bits.push(session.read_loss().to_bits());
    }
    for view in session.plan().parameters() {
        bits.extend(session.read_parameter(&view.name).iter().map(|v| v.to_bits()));
        bits.extend(session.read_grad(&view.name).iter().map(|v| v.to_bits()));
    }
    for view in session.plan().states() {
        bits.extend(session.read_state(&view.name).iter().map(|v| v.to_bits()));
    }
    bits
}
