//! From a plan to something that runs.

use super::watched::Watched;
use crate::backend::{Device, Support};
use crate::debug::DebugOptions;
use crate::error::{Error, MissingKernel, Result};
use crate::plan::ExecutionPlan;
use crate::plan::memory::check_fit;

/// Compiles a plan as the options want it, after checking that the device has room and kernels for it.
pub(super) fn prepare(device: &dyn Device, plan: &ExecutionPlan, debug: &DebugOptions) -> Result<Box<Watched>> {
    let _span = tracing::debug_span!("prepare", dispatches = plan.dispatches.len()).entered();
    let plan = &*debug.applied(plan);
    // Of what there is beside the buffers, only the backend knows, once it has its kernels.
    check_fit(plan, 0, device.capabilities())?;
    debug.dump_kernels(device, plan)?;
    Ok(Box::new(Watched::new(device.compile(plan)?, plan)))
}

/// A plan may list only kernels that the device has.
pub(crate) fn check_kernels(device: &dyn Device, plan: &ExecutionPlan) -> Result<()> {
    let mut missing: Vec<MissingKernel> = Vec::new();
    for d in &plan.dispatches {
        let types = d.types();
        let desc = d.kernel_desc(&types);
        if let Support::No(reason) = device.supports(&desc) {
            missing.push(MissingKernel {
                kernel: desc.to_string(),
                label: d.label.clone(),
                reason,
            });
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::MissingKernels {
        device: device.capabilities().name.clone(),
        missing,
    })
}
