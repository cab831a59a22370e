//! FLOPs, bytes and launches of a step, as its operators declare them.

use serde::{Deserialize, Serialize};

use meganeura::backend::Device;
use meganeura::{ExecutionPlan, registry};

/// FLOPs, bytes and launches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadCost {
    /// FLOPs; a multiplication and an addition are two.
    pub flops: u64,
    /// Number of bytes that dispatches read and write.
    pub bytes: u64,
    /// Number of launches on the longest chain of dependent launches.
    pub launches: u64,
    /// Number of dispatches of the plan.
    pub dispatches: u64,
}

impl WorkloadCost {
    /// Returns the cost of a step of a plan on a device, including the update, but not prepared values (they are
    /// computed once for many steps).
    pub fn of(plan: &ExecutionPlan, device: &dyn Device) -> Self {
        let mut cost = WorkloadCost::default();
        for segment in plan.segments.iter().filter(|s| !s.once) {
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

    /// Returns the arithmetic intensity: FLOPs per byte.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes.max(1) as f64
    }
}
