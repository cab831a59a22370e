//! A check that a plan fits into a device's memory.

use super::MemoryForecast;
use crate::error::{Error, Result};
use crate::kernel::Capabilities;
use crate::plan::ExecutionPlan;

/// Returns an error for a plan that needs more memory than the device has, for its buffers and its
/// [workspace](crate::backend::Device::workspace_bytes). Backends call it before they allocate any.
///
/// # Errors
/// [`Error::OutOfMemory`], with a suggestion that would make it fit.
pub fn check_fit(plan: &ExecutionPlan, beside: u64, capabilities: &Capabilities) -> Result<()> {
    let Some(available) = capabilities.memory_bytes else {
        return Ok(());
    };
    let forecast = plan.memory_forecast();
    let requested = (forecast.planned as u64).saturating_add(beside);
    if requested <= available {
        return Ok(());
    }
    Err(Error::OutOfMemory {
        device: capabilities.name.clone(),
        requested: usize::try_from(requested).unwrap_or(usize::MAX),
        available: Some(available),
        remedy: remedy(&forecast, beside, available),
    })
}

/// Returns a suggestion for a change that makes the plan fit.
fn remedy(forecast: &MemoryForecast, beside: u64, available: u64) -> String {
    let mb = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    let available = available.saturating_sub(beside);
    let persistent = forecast.planned - forecast.transient;
    let parts = format!(
        "parameters take {}, gradients {}, the optimizer {}, inputs and results {}, activations {}, \
         workspace {}",
        mb(forecast.parameters),
        mb(forecast.gradients),
        mb(forecast.optimizer),
        mb(forecast.others),
        mb(forecast.transient),
        mb(usize::try_from(beside).unwrap_or(usize::MAX))
    );
    let room = available.saturating_sub(persistent as u64);
    let advice = if room > 0 && forecast.transient > 0 {
        // Activations grow with the batch size; the estimate assumes that the rest does not.
        let percent = (100.0 * room as f64 / forecast.transient as f64).floor();
        format!(
            "a batch of {percent:.0} % of these rows would fit; a memory budget, which recomputes activations, may \
             also help"
        )
    } else if forecast.optimizer > 0 && available >= (persistent - forecast.optimizer) as u64 {
        "no smaller batch fits; an optimizer without moments (`Sgd` without momentum) with a smaller batch may fit"
            .to_owned()
    } else {
        "no smaller batch fits; use a smaller model or a device with more memory".to_owned()
    };
    format!("{advice}: {parts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast() -> MemoryForecast {
        MemoryForecast {
            planned: 1_000_000_000,
            parameters: 100_000_000,
            prepared: 0,
            gradients: 100_000_000,
            optimizer: 200_000_000,
            transient: 600_000_000,
            ..MemoryForecast::default()
        }
    }

    #[test]
    fn the_remedy_fits_the_cause() {
        assert!(remedy(&forecast(), 0, 700_000_000).starts_with("a batch of 50 % of these rows"));
        assert!(remedy(&forecast(), 0, 300_000_000).contains("`Sgd` without momentum"));
        assert!(remedy(&forecast(), 0, 100_000_000).contains("a smaller model"));
    }

    /// The workspace of a device reduces the memory that is available for the buffers.
    #[test]
    fn memory_beside_the_buffers_counts() {
        let text = remedy(&forecast(), 60_000_000, 760_000_000);
        assert!(text.starts_with("a batch of 50 % of these rows"), "{text}");
        assert!(text.ends_with("workspace 60.0 MB"), "{text}");
    }
}
