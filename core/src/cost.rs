//! Estimated cost of calls, in picoseconds, on a target: a device's rates and kernels.
//!
//! A call costs a launch plus the longer of moving its bytes and doing its arithmetic (the roofline
//! model of Williams, Waterman and Patterson, 2009). A call without a kernel costs as much as its
//! decomposition.

use std::time::Duration;

use crate::error::Result;
use crate::graph::Graph;
use crate::kernel::{CostModel, KernelDesc, widen};
use crate::ops::{Call, Cost, OpRef};
use crate::reference::expand_call;
use crate::shape::TensorType;

/// Rates and kernels of a device.
pub trait Target {
    /// Returns the rates of the device.
    fn cost_model(&self) -> CostModel;
    /// Returns the number of dependent launches of the kernel for a call; `None` if there is no
    /// kernel.
    fn launches(&self, kernel: &KernelDesc) -> Option<u32>;
    /// Returns the fraction of the device's rates that the kernel for a call reaches: see
    /// [`Device::efficiency`](crate::backend::Device::efficiency).
    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        let _ = kernel;
        1.0
    }
}

/// A device that is described only by its rates and has a kernel for every operator. It is for reports about hardware
/// that is not available, and for compilation without a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedDevice(pub CostModel);

impl SimulatedDevice {
    /// Returns the costs of a discrete GPU: 5 us per launch, 500 GB/s, 20 TFLOP/s in `f32`.
    pub fn discrete_gpu() -> Self {
        SimulatedDevice(CostModel {
            launch: Duration::from_micros(5),
            bytes_per_second: 500e9,
            flops_per_second: 20e12,
            half_flops_per_second: 80e12,
            free_views: true,
        })
    }
}

impl Target for SimulatedDevice {
    fn cost_model(&self) -> CostModel {
        self.0
    }

    fn launches(&self, _: &KernelDesc) -> Option<u32> {
        Some(1)
    }
}

/// Cost of a call that cannot be computed: more than that of any graph, and small enough that sums do not overflow.
pub const IMPOSSIBLE: u64 = u64::MAX >> 16;

/// Additional cost of decomposing a call, so that a tie goes to the call itself.
const DECOMPOSING: u64 = 1;

fn is_half(ty: &TensorType) -> bool {
    ty.dtype.is_half()
}

/// Returns the time of `launches` launches that do this work in total, at this fraction of the device's rates.
fn time(model: &CostModel, cost: Cost, half: bool, launches: u32, efficiency: f64) -> u64 {
    let flops = if half {
        model.half_flops_per_second
    } else {
        model.flops_per_second
    };
    let seconds = (cost.bytes as f64 / model.bytes_per_second).max(cost.flops as f64 / flops) / efficiency;
    let picoseconds = f64::from(launches) * model.launch.as_nanos() as f64 * 1e3 + seconds * 1e12;
    // The conversion saturates, also for rates of zero.
    (picoseconds as u64).min(IMPOSSIBLE)
}

/// Returns the cost of a call on a device, in picoseconds: that of its kernel, or of its
/// decomposition if it has none.
pub fn call_cost(target: &dyn Target, op: OpRef, call: &Call) -> u64 {
    let model = target.cost_model();
    if op.alias().is_some() || (model.free_views && op.entries(call).is_some()) {
        return 0;
    }
    let desc = KernelDesc {
        name: op.get().name(),
        version: op.version(),
        attrs: call.attrs,
        inputs: call.inputs,
        outputs: call.outputs,
    };
    let half = call.inputs.iter().any(is_half);
    if let Some(launches) = target.launches(&desc) {
        return time(&model, op.cost(call), half, launches, target.efficiency(&desc));
    }
    // The planner casts, computes in f32 and casts back. If the f32 call has no kernel either, the
    // cost may be high.
    if let Ok(Some((widened, _))) = widen(op, &desc) {
        return graph_cost(&widened, target)
            .unwrap_or(IMPOSSIBLE)
            .saturating_add(DECOMPOSING)
            .min(IMPOSSIBLE);
    }
    if half {
        let cost = op.cost(call);
        let bytes = 4 * cost.bytes;
        let launches = model.launch.as_nanos() as u64 * 1000 * (call.inputs.len() + call.outputs.len()) as u64;
        return time(&model, Cost { bytes, ..cost }, false, 1, 1.0).saturating_add(launches);
    }
    match expand_call(op, call.attrs, call.inputs, call.outputs) {
        Ok((graph, _)) => graph_cost(&graph, target)
            .unwrap_or(IMPOSSIBLE)
            .saturating_add(DECOMPOSING)
            .min(IMPOSSIBLE),
        Err(_) => IMPOSSIBLE,
    }
}

/// Cost of a call that is computed once for many steps: of two equal graphs, the one with fewer
/// such calls wins.
pub const INVARIANT_COST: u64 = 1;

/// Returns the cost of a graph: the sum over all calls that its results need.
///
/// # Errors
/// A cycle.
pub fn graph_cost(graph: &Graph, target: &dyn Target) -> Result<u64> {
    priced(graph, target, &vec![false; graph.nodes().len()])
}

/// Returns the cost of an inference step, in which [invariant calls](Graph::invariant_calls) cost
/// almost nothing.
///
/// # Errors
/// A cycle.
pub fn step_cost(graph: &Graph, target: &dyn Target) -> Result<u64> {
    priced(graph, target, &graph.invariant_calls()?)
}

fn priced(graph: &Graph, target: &dyn Target, invariant: &[bool]) -> Result<u64> {
    let order = graph.topological_order()?;
    let mut live = vec![false; graph.nodes().len()];
    graph.roots().for_each(|root| live[root.node.index()] = true);
    let mut total = 0u64;
    for id in order.iter().rev() {
        let node = &graph.nodes()[id.index()];
        if !live[id.index()] {
            continue;
        }
        node.inputs.iter().for_each(|v| live[v.node.index()] = true);
        if let Some((op, attrs)) = node.op() {
            let inputs: Vec<TensorType> = node.inputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
            let call = Call {
                attrs,
                inputs: &inputs,
                outputs: &node.outputs,
            };
            let price = if invariant[id.index()] {
                INVARIANT_COST
            } else {
                call_cost(target, op, &call)
            };
            total = total.saturating_add(price);
        }
    }
    Ok(total)
}
