//! Kernels that others bring and that plans may use, and why some are not used. [`Tried`](super::custom_trial::Tried) decides which.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::CustomKernel;
use meganeura_core::Error;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{Shader, ShaderDevice, ShaderKernel};
use meganeura_core::ops::OpRef;

/// Kernels that plans may use, by the names of their operators.
pub type CustomKernels = HashMap<String, Arc<Accepted>>;

/// Problems that are remembered.
const MAX_PROBLEMS: usize = 100;

/// A kernel that has passed its test, or is tested.
pub struct Accepted {
    kernel: Arc<dyn ShaderKernel>,
    device: ShaderDevice,
    /// Its texts, for some sizes, that the driver does not take.
    refused: Mutex<HashSet<String>>,
    /// The first refusal of one of them.
    refusal: OnceLock<Error>,
}

impl Accepted {
    pub(super) fn new(kernel: Arc<dyn ShaderKernel>, device: ShaderDevice) -> Arc<Self> {
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
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }

    /// The plugin that it is from.
    pub fn origin(&self) -> String {
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

/// A device as messages name it.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) backend: &'static str,
    pub(super) name: &'a str,
}

/// Why kernels are not used, by the names of backends.
static PROBLEMS: Mutex<BTreeMap<&'static str, Vec<Error>>> = Mutex::new(BTreeMap::new());

/// The kernels that are not used on some device of a backend, with the reason.
pub fn problems(backend: &str) -> Vec<Error> {
    let all = PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(backend).cloned().unwrap_or_default()
}

/// Has a kernel not be used any more on a device where it becomes this text.
pub(super) fn refuse(device: Named, kernel: &Accepted, source: Option<String>, error: &Error) {
    kernel.refused().extend(source);
    let problem = tell(device, kernel, error);
    // The first one stays.
    let _ = kernel.refusal.set(problem);
}

/// Why a plan that was made with a kernel cannot do without it.
pub(super) fn irreplaceable(device: Named, kernel: &Accepted, refusal: &Error, error: &Error) -> Error {
    Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' cannot be used on {} ({refusal}), and the plan has nothing in its place: {error}",
            kernel.op().name(),
            device.name
        ),
        remedy: "make the plan anew for this device; if it is from a file, remove that".into(),
    }
}

/// Tells that a kernel is not used, once, and returns what it told.
pub(super) fn tell(device: Named, kernel: &Accepted, error: &Error) -> Error {
    let problem = Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' is not used on {}, where the decomposition runs instead: {error}",
            kernel.op().name(),
            device.name
        ),
        remedy: "tell its author; results are right without it".into(),
    };
    let mut known = PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner);
    note(known.entry(device.backend).or_default(), problem.clone());
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
