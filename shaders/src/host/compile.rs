//! Compiling a plan on a device whose driver may refuse kernels that others registered, or schedules that were measured.

use meganeura_core::backend::Executable;
use meganeura_core::{Error, ExecutionPlan, Result};

use super::custom::{self, CustomKernels, Named};
use super::device::Host;
use super::draft::{Draft, Unmade};
use crate::Class;

/// An executable of a plan. A schedule that the driver refuses is given to `refuse_schedule`, which has to see to it that `draft`
/// does without it; a registered kernel that it refuses is not used any more.
///
/// # Errors
/// What the device has no kernel or no memory for.
pub fn compile(
    host: &dyn Host,
    plan: &ExecutionPlan,
    custom: &CustomKernels,
    draft: impl Fn() -> Result<Draft>,
    refuse_schedule: impl Fn(&Class, &Error),
) -> Result<Box<dyn Executable>> {
    let named = Named {
        backend: host.backend(),
        name: host.name(),
    };
    let mut refusal = None;
    loop {
        let made = draft().map_err(Unmade::from);
        let unmade = match made.and_then(|draft| host.executable(plan, draft)) {
            Ok(executable) => return Ok(executable),
            Err(unmade) => unmade,
        };
        // There is always the default schedule.
        if let Some(class) = &unmade.chosen {
            refuse_schedule(class, &unmade.error);
            continue;
        }
        // Only for a plan of another driver, say from a file: this one was asked while its plans were made.
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
