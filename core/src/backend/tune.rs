//! Tuning: a device measures the schedules of its kernels, and uses the fastest in later plans.
//!
//! A *schedule* determines how a device computes a call: the kernel, its tile sizes, splits and the like. A device that
//! has several schedules for a call implements [`Tune`] and returns it from
//! [`Device::tunable`](super::Device::tunable). Calls form a class if everything that determines their speed is equal;
//! a class gets one schedule.

use std::path::Path;
use std::time::Duration;

use crate::error::Result;
use crate::plan::ExecutionPlan;

/// A device whose schedules can be measured.
pub trait Tune {
    /// Measures the schedules of the calls of plans for this device, class by class; the classes with the most work
    /// come first. Calls `progress` after each class with its number (from 1), the number of classes, and the result.
    /// Plans that are compiled afterwards use the stored results. The device should be otherwise idle meanwhile.
    ///
    /// # Errors
    /// Plans without kernels; a file that cannot be written; a device that fails.
    fn tune(
        &self,
        plans: &[ExecutionPlan],
        options: &TuneOptions,
        progress: &mut dyn FnMut(usize, usize, &TunedClass),
    ) -> Result<Vec<TunedClass>>;

    /// Deletes the stored results for this device. Returns whether there were any.
    ///
    /// # Errors
    /// A file that cannot be deleted, or settings that disable the file.
    fn forget_tuned(&self) -> Result<bool>;

    /// Returns the file of stored results.
    ///
    /// # Errors
    /// Settings that disable the file.
    fn tuned_file(&self) -> Result<&Path>;
}

/// Options of tuning.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Total time for all classes, shared evenly. It may be exceeded, as compiling a kernel cannot
    /// be interrupted.
    pub time: Duration,
    /// Stores the results in the file if `true`.
    pub keep: bool,
}

/// Result of tuning a class of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedClass {
    /// The class: the computation and its sizes.
    pub class: String,
    /// Number of such calls in the plans.
    pub calls: usize,
    /// The default schedule.
    pub default: String,
    /// The fastest schedule, if it is not the default one.
    pub winner: Option<String>,
    /// Seconds per call with the default schedule; 0 if it could not be measured.
    pub default_seconds: f64,
    /// Seconds per call with the best schedule.
    pub best_seconds: f64,
    /// Number of schedules that were timed, without the default one.
    pub timed: usize,
    /// Number of schedules that were not tried for lack of time.
    pub untried: usize,
    /// Schedules with wrong results, or that the driver rejects.
    pub refused: Vec<RefusedSchedule>,
    /// Reason why the class was not measured; `None` if it was.
    pub skipped: Option<String>,
}

impl TunedClass {
    /// Returns the speedup of the best schedule over the default one.
    pub fn gain(&self) -> f64 {
        match &self.winner {
            Some(_) if self.best_seconds > 0.0 => self.default_seconds / self.best_seconds,
            _ => 1.0,
        }
    }
}

/// A schedule that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSchedule {
    /// The schedule.
    pub schedule: String,
    /// Reason why it is not used.
    pub reason: String,
    /// `true` if its results were wrong; `false` if no kernel could be made.
    pub wrong: bool,
}
