//! Tuning: a device measures the schedules of its kernels, and uses the fastest from then on.
//!
//! A *schedule* says how a kernel computes a call: which kernel, and its tile sizes, splits and the like. A device that has several
//! for a call implements [`Tune`], and says so by [`Device::tunable`](super::Device::tunable). Calls of one class, which are alike in
//! what decides their speed, get one schedule.

use std::path::Path;
use std::time::Duration;

use crate::error::Result;
use crate::plan::ExecutionPlan;

/// A device whose schedules can be measured.
pub trait Tune {
    /// Measures the schedules of the calls of plans that were made for this device, class by class, those with most to do first.
    /// `progress` is told of each class at once: its number from 1 on, how many there are, and what was found. Plans that are
    /// compiled afterwards use what was kept. Nothing else should use the device meanwhile.
    ///
    /// # Errors
    /// Plans without kernels; a file that cannot be written; a device that fails.
    fn tune(
        &self,
        plans: &[ExecutionPlan],
        options: &TuneOptions,
        progress: &mut dyn FnMut(usize, usize, &Tuned),
    ) -> Result<Vec<Tuned>>;

    /// Deletes the stored results for this device. Returns whether there were any.
    ///
    /// # Errors
    /// A file that cannot be deleted, or settings that disable the file.
    fn forget_tuned(&self) -> Result<bool>;

    /// The file of stored results.
    ///
    /// # Errors
    /// Settings that disable the file.
    fn tuned_file(&self) -> Result<&Path>;
}

/// Options of tuning.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Time for all classes together, shared evenly. Compiling one kernel, which nothing interrupts, may take longer.
    pub time: Duration,
    /// Whether results are stored in the file.
    pub keep: bool,
}

/// Result for a class of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The class: what is computed, and its sizes.
    pub class: String,
    /// Number of such calls in the plans.
    pub calls: usize,
    /// The default schedule.
    pub default: String,
    /// The schedule that is faster, if one is.
    pub winner: Option<String>,
    /// Seconds of a call with the default schedule; of one that could not be measured, 0.
    pub default_seconds: f64,
    /// Seconds of a call with the best schedule.
    pub best_seconds: f64,
    /// Schedules that were timed, beside the default one.
    pub timed: usize,
    /// Schedules that were not tried, because the time was over.
    pub untried: usize,
    /// Schedules with wrong results, or that the driver rejects.
    pub refused: Vec<RefusedSchedule>,
    /// Why the class was not measured, if it was not.
    pub skipped: Option<String>,
}

impl Tuned {
    /// How many times as fast as the default schedule the best one is.
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
    /// Why it is not used.
    pub reason: String,
    /// Whether its results were wrong; else there was no kernel.
    pub wrong: bool,
}
