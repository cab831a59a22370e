//! Kernels of plugins that plans may use, and the reasons why other kernels are disabled.
//! [`TrialResults`](super::custom_trial::TrialResults) runs their tests.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::CustomKernel;
use meganeura_core::Error;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{Shader, ShaderDevice, ShaderKernel};
use meganeura_core::ops::OpRef;

/// Kernels that plans may use, by the names of their operators.
pub type CustomKernels = HashMap<String, Arc<AcceptedKernel>>;

/// Maximum number of stored problems.
const MAX_PROBLEMS: usize = 100;

/// A kernel that has passed its test, or is being tested.
pub struct AcceptedKernel {
    kernel: Arc<dyn ShaderKernel>,
    device: ShaderDevice,
    /// Sources of this kernel that the driver rejected, for some sizes.
    refused: Mutex<HashSet<String>>,
    /// Error of the first rejected source.
    refusal: OnceLock<Error>,
}

impl AcceptedKernel {
    pub(super) fn new(kernel: Arc<dyn ShaderKernel>, device: ShaderDevice) -> Arc<Self> {
        Arc::new(AcceptedKernel {
            kernel,
            device,
            refused: Mutex::default(),
            refusal: OnceLock::new(),
        })
    }

    fn refused(&self) -> MutexGuard<'_, HashSet<String>> {
        // A panic cannot leave the set half changed.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why the kernel is not used for some calls, if any.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }

    /// Returns the plugin that registered the kernel.
    pub fn origin(&self) -> String {
        self.kernel.origin()
    }
}

impl CustomKernel for AcceptedKernel {
    fn op(&self) -> OpRef {
        self.kernel.op()
    }

    fn shader(&self, kernel: &KernelDesc) -> std::result::Result<Shader, String> {
        let shader = self.kernel.shader(kernel, &self.device)?;
        if self.refused().contains(&shader.source) {
            Err("the driver refuses it".into())
        } else {
            Ok(shader)
        }
    }
}

/// A backend and a device, as error messages name them.
#[derive(Clone, Copy)]
pub(super) struct NamedDevice<'a> {
    pub(super) backend: &'static str,
    pub(super) name: &'a str,
}

/// Problems of disabled kernels, by backend name.
static PROBLEMS: Mutex<BTreeMap<&'static str, Vec<Error>>> = Mutex::new(BTreeMap::new());

/// Returns the kernels that are disabled on some device of a backend, with the reasons.
pub fn problems(backend: &str) -> Vec<Error> {
    let all = PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(backend).cloned().unwrap_or_default()
}

/// Disables a kernel on a device, for all calls with the same generated `source`.
pub(super) fn refuse(device: NamedDevice, kernel: &AcceptedKernel, source: Option<String>, error: &Error) {
    kernel.refused().extend(source);
    let problem = tell(device, kernel, error);
    // The first error is kept.
    let _ = kernel.refusal.set(problem);
}

/// Returns the error of a plan that requires a disabled kernel.
pub(super) fn irreplaceable(device: NamedDevice, kernel: &AcceptedKernel, refusal: &Error, error: &Error) -> Error {
    Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' cannot be used on {} ({refusal}), and the plan has no alternative: {error}",
            kernel.op().name(),
            device.name
        ),
        remedy: "build the plan again for this device; if it was loaded from a file, delete the file".into(),
    }
}

/// Reports once that a kernel is disabled, and returns the error.
pub(super) fn tell(device: NamedDevice, kernel: &AcceptedKernel, error: &Error) -> Error {
    let problem = Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' is not used on {}, where the decomposition runs instead: {error}",
            kernel.op().name(),
            device.name
        ),
        remedy: "report this to its author; results are correct without it".into(),
    };
    let mut known = PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner);
    note(known.entry(device.backend).or_default(), problem.clone());
    problem
}

/// Adds a problem that is not yet listed, up to the maximum number.
fn note(known: &mut Vec<Error>, problem: Error) {
    let text = problem.to_string();
    if known.iter().all(|other| other.to_string() != text) {
        log::warn!("{text}");
        if known.len() < MAX_PROBLEMS {
            known.push(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_once_and_do_not_pile_up() {
        let mut known = Vec::new();
        for round in 0..3 {
            for number in 0..80 {
                note(&mut known, Error::backend("gpu", format!("{number}")));
            }
            assert_eq!(known.len(), 80, "in round {round}");
        }
        for number in 0..200 {
            note(&mut known, Error::backend("gpu", format!("another {number}")));
        }
        assert_eq!(known.len(), MAX_PROBLEMS);
    }
}
