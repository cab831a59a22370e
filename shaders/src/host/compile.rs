//! Compilation of a plan on a device whose driver may reject registered kernels or measured schedules.

use meganeura_core::backend::{Executable, SharedBuffers};
use meganeura_core::{Error, ExecutionPlan, Result};

use super::custom::{self, CustomKernels, NamedDevice};
use super::device::Host;
use super::draft::{CompileFailure, LaunchPlan};
use crate::Class;

/// Compiles the executable of a plan, which may borrow `shared` buffers. If the driver rejects a schedule, it calls `refuse_schedule`, which must
/// exclude the schedule from later calls of `draft`. If the driver rejects a registered kernel, the kernel is
/// disabled.
///
/// # Errors
/// The device has no kernel for a dispatch, or not enough memory.
pub fn compile(
    host: &dyn Host,
    plan: &ExecutionPlan,
    shared: &SharedBuffers,
    custom: &CustomKernels,
    draft: impl Fn() -> Result<LaunchPlan>,
    refuse_schedule: impl Fn(&Class, &Error),
) -> Result<Box<dyn Executable>> {
    let named = NamedDevice {
        backend: host.backend(),
        name: host.name(),
    };
    let mut refusal = None;
    loop {
        let made = draft().map_err(CompileFailure::from);
        let unmade = match made.and_then(|draft| host.executable(plan, draft, shared)) {
            Ok(executable) => return Ok(executable),
            Err(unmade) => unmade,
        };
        // The default schedule always exists, so this ends.
        if let Some(class) = &unmade.chosen {
            refuse_schedule(class, &unmade.error);
            continue;
        }
        // This happens only for a plan for another driver, for example from a file. For this driver, the kernel would
        // have been checked during planning.
        let kernel = unmade.custom.as_ref().and_then(|(op, _)| custom.get(op));
        match (kernel, unmade.custom.as_ref(), refusal) {
            (Some(kernel), Some((_, source)), _) => {
                custom::refuse(named, kernel, Some(source.clone()), &unmade.error);
                refusal = Some((kernel, *unmade.error));
            }
            (_, _, Some((kernel, refusal))) => {
                return Err(custom::irreplaceable(named, kernel, &refusal, &unmade.error));
            }
            _ => return Err(*unmade.error),
        }
    }
}
