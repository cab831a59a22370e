//! Kernels that others bring and that plans may use, and why some are not used. [`tried`](crate::custom_trial) decides which.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use meganeura_core::Error;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{Shader, ShaderDevice, ShaderKernel};
use meganeura_core::ops::OpRef;
use meganeura_shaders::CustomKernel;

/// Kernels that plans may use, by the names of their operators.
pub(crate) type CustomKernels = HashMap<String, Arc<Accepted>>;

/// Problems that are remembered.
const MAX_PROBLEMS: usize = 100;

/// A kernel that has passed its test, or is tested.
pub(crate) struct Accepted {
    kernel: Arc<dyn ShaderKernel>,
    device: ShaderDevice,
    /// Its texts, for some sizes, that the driver does not take.
    refused: Mutex<HashSet<String>>,
    /// The first refusal of one of them.
    refusal: OnceLock<Error>,
}

impl Accepted {
    pub(crate) fn new(kernel: Arc<dyn ShaderKernel>, device: ShaderDevice) -> Arc<Self> {
        Arc::new(Accepted {
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

    /// Why it is not used for some calls, if that is so.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }

    /// The plugin that it is from.
    pub(crate) fn origin(&self) -> String {
        self.kernel.origin()
    }
}

impl CustomKernel for Accepted {
    fn op(&self) -> OpRef {
        self.kernel.op()
    }

    fn shader(&self, kernel: &KernelDesc) -> std::result::Result<Shader, String> {
        let shader = self.kernel.shader(kernel, &self.device)?;
        match self.refused().contains(&shader.source) {
            true => Err("the driver refuses it".into()),
            false => Ok(shader),
        }
    }
}

/// Why kernels are not used.
static PROBLEMS: Mutex<Vec<Error>> = Mutex::new(Vec::new());

/// The kernels that are not used on some device, with the reason.
pub(crate) fn problems() -> Vec<Error> {
    PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Has a kernel not be used any more on a device, which is named, where it becomes this text.
pub(crate) fn refuse(device: &str, kernel: &Accepted, source: Option<String>, error: &Error) {
    kernel.refused().extend(source);
    let problem = tell(device, kernel, error);
    // The first one stays.
    let _ = kernel.refusal.set(problem);
}

/// Why a plan that was made with a kernel cannot do without it.
pub(crate) fn irreplaceable(device: &str, kernel: &Accepted, refusal: &Error, error: &Error) -> Error {
    Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' cannot be used on {device} ({refusal}), and the plan has nothing in its place: {error}",
            kernel.op().name()
        ),
        remedy: "make the plan anew for this device; if it is from a file, remove that".into(),
    }
}

/// Tells that a kernel is not used, once, and returns what it told.
pub(crate) fn tell(device: &str, kernel: &Accepted, error: &Error) -> Error {
    let problem = Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' is not used on {device}, where the decomposition runs instead: {error}",
            kernel.op().name()
        ),
        remedy: "tell its author; results are right without it".into(),
    };
    let mut known = PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner);
    note(&mut known, problem.clone());
    problem
}

/// Adds a problem that is not known, as long as there are not too many.
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
    use crate::gpu::NAME;

    #[test]
    fn problems_are_told_once_and_do_not_pile_up() {
        let mut known = Vec::new();
        for round in 0..3 {
            for number in 0..80 {
                note(&mut known, Error::backend(NAME, format!("{number}")));
            }
            assert_eq!(known.len(), 80, "in round {round}");
        }
        for number in 0..200 {
            note(&mut known, Error::backend(NAME, format!("another {number}")));
        }
        assert_eq!(known.len(), MAX_PROBLEMS);
    }
}
