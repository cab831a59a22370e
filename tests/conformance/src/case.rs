//! A test case of the suite, and its result.

use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_core::error::{Error, Result};

/// Result of a case that passed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Check {
    /// Largest error of the case.
    pub(crate) error: f64,
    /// Largest accepted error of the case.
    pub(crate) tolerance: f64,
}

impl Check {
    /// Returns the result whose error is closer to its tolerance.
    pub(crate) fn worse(self, other: Check) -> Check {
        if other.error * self.tolerance > self.error * other.tolerance || self.tolerance == 0.0 {
            other
        } else {
            self
        }
    }
}

/// Reason why a case did not pass.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// A wrong result.
    Wrong(String),
    /// The device lacks kernels.
    Unsupported {
        reason: String,
        /// Names of the missing kernels, each once.
        kernels: Vec<String>,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::MissingKernels { ref missing, .. } => {
                let name = |kernel: &str| kernel.split([' ', '(']).next().unwrap_or_default().to_owned();
                let mut kernels: Vec<String> = missing.iter().map(|m| name(&m.kernel)).collect();
                kernels.sort_unstable();
                kernels.dedup();
                Failure::Unsupported {
                    reason: error.to_string(),
                    kernels,
                }
            }
            _ => Failure::Wrong(error.to_string()),
        }
    }
}

pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(message.into()))
}

/// Fails the case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        // Not negated, so that a comparison with NaN fails the case.
        if $condition {
        } else {
            return $crate::case::fail(format!($($message)*));
        }
    };
}
pub(crate) use ensure;

pub(crate) type CaseRun = Result<Check, Failure>;
pub(crate) type SharedDevice = Arc<dyn Device>;

/// A case that has not run yet.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) run: Box<dyn FnOnce(&SharedDevice) -> CaseRun + Send>,
}

impl Case {
    pub(crate) fn new(id: impl Into<String>, run: impl FnOnce(&SharedDevice) -> CaseRun + Send + 'static) -> Self {
        Case {
            id: id.into(),
            run: Box::new(run),
        }
    }
}
