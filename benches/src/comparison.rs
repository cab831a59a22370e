//! Comparison of devices that run the same workload in turns.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    BenchDevice, Distribution, Measurement, PreparedWorkload, Record, Roofline, Sizes, Suite, Task, Workload, workloads,
};
use meganeura::calibration::warm_up;
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Minimum duration of a sample, in seconds.
const SAMPLE: f64 = 0.02;
/// Maximum total time of the samples of one device and workload, in seconds, and the minimum number of samples.
const MAX_SECONDS: f64 = 1.0;
const MIN_SAMPLES: usize = 3;
/// Minimum pause that lets a device lower its clock.
const PAUSE: Duration = Duration::from_millis(100);

/// Options of [`run`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Suites to run; all if the list is empty.
    pub suites: Vec<Suite>,
    /// Text that the names of workloads must contain.
    pub only: Option<String>,
    /// Size of the workloads; the default is the one for the slowest class among the devices.
    pub sizes: Option<Sizes>,
    /// Precision; the default is that of the configuration or the device.
    pub precision: Option<Precision>,
    /// Number of samples for each device and workload; fewer for long workloads, but at least three.
    pub samples: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            suites: Vec::new(),
            only: None,
            sizes: None,
            precision: None,
            samples: 11,
        }
    }
}

impl Options {
    /// Returns the size of the workloads that suits all compared devices.
    pub fn sizes(&self, devices: &[BenchDevice]) -> Sizes {
        let least = devices.iter().map(|d| Sizes::of(d.info.kind)).min();
        self.sizes.or(least).unwrap_or(Sizes::Medium)
    }

    /// Returns the selected workloads.
    ///
    /// # Errors
    /// No workload has such a name.
    pub fn workloads(&self, devices: &[BenchDevice]) -> Result<Vec<Workload>> {
        let suites = if self.suites.is_empty() {
            &Suite::ALL[..]
        } else {
            &self.suites
        };
        let sizes = self.sizes(devices);
        let mut found: Vec<Workload> = suites.iter().flat_map(|&suite| workloads(suite, sizes)).collect();
        let Some(only) = &self.only else { return Ok(found) };
        let names: Vec<String> = found.iter().map(|workload| workload.name.clone()).collect();
        found.retain(|workload| workload.name.contains(only.as_str()));
        if found.is_empty() {
            Err(Error::misuse(
                format!("no workload has '{only}' in its name"),
                format!("the workloads of these suites are: {}", names.join("; ")),
            ))
        } else {
            Ok(found)
        }
    }
}

/// Device that failed in a workload, or whose result was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedDevice {
    /// Suite of the workload.
    pub suite: Suite,
    /// Its name.
    pub workload: String,
    /// Selector of the device.
    pub device: String,
    /// Precision.
    pub precision: Precision,
    /// Error message.
    pub reason: String,
}

/// Device with a workload in a precision, which takes part in a comparison.
pub struct Candidate<'a> {
    /// Device of the candidate.
    pub on: &'a BenchDevice,
    /// Prepared workload on the device.
    pub prepared: PreparedWorkload,
    /// Maximum difference of its result from the reference, relative to the largest number; `None` for the reference
    /// itself.
    pub difference: Option<f64>,
    /// Roofline bound, if the workload has one.
    pub roofline: Option<Roofline>,
    /// Number of runs per sample.
    pub times: u32,
    /// Samples, in seconds.
    pub samples: Vec<f64>,
    /// Time when the device last had its full clock rate.
    warm: Option<Instant>,
}

impl Candidate<'_> {
    /// Returns the candidate's id: device, precision, plugin and driver.
    pub fn label(&self) -> String {
        self.on.label_in(self.prepared.precision)
    }

    /// Takes a sample, and returns the seconds per run. After a pause, a GPU is warmed up first.
    fn sample(&mut self) -> Result<f64> {
        let is_paused = self.warm.is_none_or(|warm| warm.elapsed() > PAUSE);
        // Workloads without a roofline bound run on the host.
        if is_paused && self.prepared.has_roofline && !self.on.info.kind.is_host() {
            warm_up(|| -> Result<Duration> {
                let seconds = self.prepared.time(self.times)? * f64::from(self.times);
                Ok(Duration::from_secs_f64(seconds))
            })?;
            // The first estimate was too long.
            self.times = times_of_a_sample(self.prepared.time(self.times)?);
        }
        let seconds = self.prepared.time(self.times);
        self.warm = Some(Instant::now());
        seconds
    }
}

/// Result that the other results are compared with.
struct Reference {
    /// Id of its candidate: device, precision, plugin and driver.
    label: String,
    precision: Precision,
    result: Vec<f32>,
}

/// Workload with the devices that run it and have the same result.
pub struct Comparison<'a> {
    workload: &'a Workload,
    /// Result that the results of all candidates are compared with: the result of the first candidate. If that one is in
    /// mixed precision, its device computes the result again in `f32`, for the comparison only.
    reference: Option<Reference>,
    /// Devices that take part.
    pub candidates: Vec<Candidate<'a>>,
    /// Devices that were skipped.
    pub skipped: Vec<SkippedDevice>,
}

impl<'a> Comparison<'a> {
    /// Prepares the workload on every device, and compares each result with that of the first device, in `f32`. A device that
    /// fails or differs is skipped.
    pub fn new(workload: &'a Workload, devices: &'a [BenchDevice], precision: Option<Precision>) -> Self {
        let mut comparison = Comparison {
            workload,
            reference: None,
            candidates: Vec::new(),
            skipped: Vec::new(),
        };
        for on in devices {
            for precision in workload.precisions(precision.or(on.rewrite.precision), &*on.device) {
                let ready = contained(|| {
                    let mut prepared = workload.prepare(on, precision)?;
                    // The second run has no one-time costs.
                    let seconds = prepared.time(1)?.min(prepared.time(1)?);
                    Ok((prepared, seconds))
                });
                let compared = ready.and_then(|(prepared, seconds)| {
                    let difference = comparison.compare(on, &prepared)?;
                    Ok((prepared, seconds, difference))
                });
                match compared {
                    Ok((prepared, seconds, difference)) => comparison.candidates.push(Candidate {
                        difference,
                        roofline: prepared
                            .has_roofline
                            .then(|| on.peak_rates.floor(&prepared.cost, prepared.precision)),
                        on,
                        prepared,
                        times: times_of_a_sample(seconds),
                        samples: Vec::new(),
                        warm: None,
                    }),
                    Err(reason) => comparison.leave_out(on, precision, reason),
                }
            }
        }
        comparison
    }

    /// Takes a sample of every candidate. The order alternates, because each candidate affects the caches for the next.
    pub fn turn(&mut self) {
        let turn = self.candidates.first().map_or(0, |c| c.samples.len());
        let count = self.candidates.len();
        let mut failed = Vec::new();
        for place in 0..count {
            let at = if turn.is_multiple_of(2) {
                place
            } else {
                count - 1 - place
            };
            let candidate = &mut self.candidates[at];
            match contained(|| candidate.sample()) {
                Ok(seconds) => candidate.samples.push(seconds),
                Err(reason) => failed.push((at, reason)),
            }
        }
        failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, reason) in failed {
            let gone = self.candidates.remove(at);
            self.leave_out(gone.on, gone.prepared.precision, reason);
        }
    }

    /// Takes samples, and returns the measurements.
    pub fn measure(&mut self, samples: usize) -> Vec<Measurement> {
        let of_a_turn: f64 = self
            .candidates
            .iter_mut()
            .map(|c| contained(|| c.sample()).unwrap_or(0.0) * f64::from(c.times))
            .sum();
        let affordable = (MAX_SECONDS * self.candidates.len() as f64 / of_a_turn.max(1e-9)) as usize;
        let turns = affordable.max(MIN_SAMPLES).min(samples.max(1));
        (0..turns).for_each(|_| self.turn());
        self.measurements()
    }

    /// Returns the measurements of all candidates that have samples, and measures their synchronized times.
    pub fn measurements(&mut self) -> Vec<Measurement> {
        let synchronized: Vec<Option<f64>> = self.candidates.iter_mut().map(synchronized_seconds).collect();
        let measured = self.candidates.iter().zip(synchronized);
        measured
            .filter(|(c, _)| !c.samples.is_empty())
            .map(|(c, synchronized_seconds)| Measurement {
                suite: self.workload.suite,
                workload: self.workload.name.clone(),
                series: self.workload.series.clone(),
                device: c.on.selector.clone(),
                precision: c.prepared.precision,
                seconds: Distribution::of(&c.samples),
                synchronized_seconds,
                cost: c.prepared.cost,
                difference: c.difference,
                roofline: c.roofline,
            })
            .collect()
    }

    fn leave_out(&mut self, on: &BenchDevice, precision: Precision, reason: String) {
        self.skipped.push(SkippedDevice {
            suite: self.workload.suite,
            workload: self.workload.name.clone(),
            device: on.selector.clone(),
            precision,
            reason,
        });
    }

    /// Returns the difference from the reference's result, if it is accepted; `None` for the result that becomes the reference.
    fn compare(&mut self, on: &BenchDevice, prepared: &PreparedWorkload) -> Result<Option<f64>, String> {
        if prepared.result.iter().any(|x| !x.is_finite()) {
            return Err("its result is not finite".into());
        }
        // Transfers and builds do not round.
        let needs_reference = prepared.precision == Precision::Mixed && self.workload.task == Task::Step;
        let reference = match &self.reference {
            Some(reference) => reference,
            None if needs_reference => {
                let exact = contained(|| self.workload.prepare(on, Precision::F32))?;
                self.reference.insert(Reference::of(on, &exact))
            }
            None => {
                self.reference = Some(Reference::of(on, prepared));
                return Ok(None);
            }
        };
        let off = distance(&prepared.result, &reference.result);
        let mixed = [prepared.precision, reference.precision].contains(&Precision::Mixed);
        // Models accumulate the errors of their calls.
        let accepted = match (self.workload.suite, mixed) {
            (Suite::Models, false) => 1e-3,
            (Suite::Models, true) => 5e-2,
            (_, false) => 1e-4,
            (_, true) => 2e-2,
        };
        if off <= accepted {
            Ok(Some(f64::from(off)))
        } else {
            Err(format!(
                "its result has a max. relative error of {off:.1e} against {}; {accepted:.0e} is accepted",
                reference.label
            ))
        }
    }
}

impl Reference {
    fn of(on: &BenchDevice, prepared: &PreparedWorkload) -> Self {
        Reference {
            label: on.label_in(prepared.precision),
            precision: prepared.precision,
            result: prepared.result.clone(),
        }
    }
}

/// Returns the number of runs per sample for a workload that takes this number of seconds.
fn times_of_a_sample(seconds: f64) -> u32 {
    (SAMPLE / seconds.max(1e-9)).ceil().clamp(1.0, 1e6) as u32
}

/// Returns the mean time of a synchronized run, in seconds. The measurement takes less than a tenth of a second.
fn synchronized_seconds(candidate: &mut Candidate) -> Option<f64> {
    if candidate.samples.is_empty() {
        return None;
    }
    let one = Distribution::of(&candidate.samples).median;
    let times = (0.05 / one.max(1e-9)).ceil().clamp(1.0, 200.0) as u32;
    contained(|| {
        let mut total = 0.0;
        for _ in 0..times {
            total += candidate.prepared.time(1)?;
        }
        Ok(total / f64::from(times))
    })
    .ok()
}

/// Returns the largest difference of results, relative to the largest number; infinite if the lengths differ.
fn distance(found: &[f32], wanted: &[f32]) -> f32 {
    if found.len() != wanted.len() {
        return f32::INFINITY;
    }
    let size = wanted.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let pairs = found.iter().zip(wanted);
    pairs.fold(0.0, |m, (f, w)| m.max((f - w).abs() / size))
}

/// Converts errors and panics to text: a broken device must not end the run.
pub(super) fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T, String> {
    let text = |panic: Box<dyn Any + Send>| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it panicked: {}", said.unwrap_or("no message"))
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => Err(text(panic)),
    }
}

/// Progress of [`run`], passed to the callback.
pub enum Progress<'a> {
    /// A workload is about to be prepared.
    Begins(&'a Workload),
    /// The workload was measured on a device.
    Measured(&'a Measurement),
    /// A device was skipped for the workload.
    Skipped(&'a SkippedDevice),
}

/// Callback that receives progress, and decides whether to continue.
pub type ProgressCallback<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Measures workloads on devices in turns, until all are done or `tell` breaks; the record contains the results so far.
///
/// # Errors
/// [`Error::InvalidUse`] if no workload has the requested name. Devices that fail are not an error; the record contains them.
pub fn run(devices: &[BenchDevice], options: &Options, tell: &mut ProgressCallback) -> Result<Record> {
    let workloads = options.workloads(devices)?;
    let mut record = Record::new(devices, options.sizes(devices));
    for workload in &workloads {
        if tell(Progress::Begins(workload)).is_break() {
            break;
        }
        let mut comparison = Comparison::new(workload, devices, options.precision);
        let measured = comparison.measure(options.samples);
        let told = measured.iter().map(Progress::Measured);
        let mut told = told.chain(comparison.skipped.iter().map(Progress::Skipped));
        let outcome = told.try_for_each(&mut *tell);
        record.results.extend(measured);
        record.skipped.extend(comparison.skipped);
        if outcome.is_break() {
            break;
        }
    }
    Ok(record)
}
