//! Compilation of a plan to an executable.

use super::watched::WatchedExecutable;
use crate::backend::{Device, SharedBuffers, Support};
use crate::debug::DebugOptions;
use crate::error::{Error, MissingKernel, Result};
use crate::plan::ExecutionPlan;
use crate::plan::memory::check_fit;

/// Compiles a plan with these options, after checking that the device has enough memory and all kernels. `shared`
/// contains the buffers that the plan borrows.
pub(super) fn prepare(
    device: &dyn Device,
    plan: &ExecutionPlan,
    debug: &DebugOptions,
    shared: &SharedBuffers,
) -> Result<Box<WatchedExecutable>> {
    let _span = tracing::debug_span!("prepare", dispatches = plan.dispatches.len()).entered();
    let plan = &*debug.applied(plan);
    // The backend determines its workspace only after it has generated its kernels.
    check_fit(plan, 0, device.capabilities())?;
    debug.dump_kernels(device, plan)?;
    let executable = device.compile_sharing(plan, shared)?;
    Ok(Box::new(WatchedExecutable::new(executable, plan)))
}

/// Checks that the device has all kernels of a plan.
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
