//! What a step has to do, as its operators declare it.

use serde::{Deserialize, Serialize};

use crate::backend::Device;
use crate::{ExecutionPlan, registry};

/// Operations, bytes and launches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadCost {
    /// Operations; a multiplication and an addition are two.
    pub flops: u64,
    /// Bytes that are read and written at least once, by each dispatch for itself.
    pub bytes: u64,
    /// Launches on the longest chain of those that wait for each other.
    pub launches: u64,
    /// Dispatches of the plan.
    pub dispatches: u64,
}

impl WorkloadCost {
    /// What a step of a plan asks of a device, its update included.
    pub fn of(plan: &ExecutionPlan, device: &dyn Device) -> Self {
        let mut cost = WorkloadCost::default();
        for segment in &plan.segments {
            let mut chain = vec![0u64; plan.levels(segment)];
            for dispatch in &plan.dispatches[segment.range()] {
                let types = dispatch.types();
                let kernel = dispatch.kernel_desc(&types);
                let launches = u64::from(device.launches(&kernel));
                let level = &mut chain[dispatch.level as usize];
                *level = (*level).max(launches);
                if let Some(op) = registry::op(&dispatch.kernel.name) {
                    let own = op.cost(&kernel.call());
                    cost.flops = cost.flops.saturating_add(own.flops);
                    cost.bytes = cost.bytes.saturating_add(own.bytes);
                }
                cost.dispatches += 1;
            }
            cost.launches += chain.iter().sum::<u64>();
        }
        cost
    }

    /// Operations a byte.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes.max(1) as f64
    }
}
