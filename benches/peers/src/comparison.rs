//! Comparison of candidates that run in turns.

use std::fmt::Display;
use std::time::{Duration, Instant};

use meganeura::calibration::warm_up;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Implementation of a workload in one framework.
pub(crate) trait Peer {
    /// Runs the workload once, and returns its result.
    fn result(&mut self) -> Result<Vec<f32>>;

    /// Runs the workload `times` times in a row, and returns the seconds per run.
    fn time(&mut self, times: u32) -> Result<f64> {
        timed(times, || self.result())
    }
}

/// Runs `work` `times` times in a row, and returns the seconds per run.
pub(crate) fn timed<T>(times: u32, mut work: impl FnMut() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..times {
        work()?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(times))
}

/// A workload that reads back its result in each run.
impl<F: FnMut() -> Result<Vec<f32>>> Peer for F {
    fn result(&mut self) -> Result<Vec<f32>> {
        self()
    }
}

/// Workload that reads back its result only on request.
pub(crate) struct ReadsBack<F>(F);

impl<F: FnMut(bool) -> Result<Vec<f32>>> ReadsBack<F> {
    /// Creates the workload. The argument of the function is true if the result is needed.
    pub(crate) fn new(workload: F) -> Self {
        ReadsBack(workload)
    }
}

impl<F: FnMut(bool) -> Result<Vec<f32>>> Peer for ReadsBack<F> {
    fn result(&mut self) -> Result<Vec<f32>> {
        (self.0)(true)
    }

    fn time(&mut self, times: u32) -> Result<f64> {
        timed(times, || (self.0)(false))
    }
}

/// Minimum duration of a turn, in seconds.
const TURN: f64 = 0.01;

struct Candidate<'a> {
    name: String,
    /// Maximum difference from the first candidate's result, relative to its largest number.
    tolerance: f32,
    workload: Box<dyn Peer + 'a>,
    /// Number of runs per turn.
    times: u32,
}

impl Candidate<'_> {
    fn warm_up(&mut self) -> Result<()> {
        let times = self.times;
        warm_up(|| Ok(Duration::from_secs_f64(self.workload.time(times)? * f64::from(times)))).map(drop)
    }
}

/// Measured time of a candidate.
pub(crate) struct CandidateTime {
    pub(crate) name: String,
    /// Median time, divided by that of the first candidate.
    pub(crate) ratio: f64,
}

/// Several implementations of one workload.
pub(crate) struct Comparison<'a> {
    title: String,
    candidates: Vec<Candidate<'a>>,
    /// Candidates that cannot take part, with the reasons.
    skipped: Vec<(String, String)>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Comparison {
            title: title.into(),
            candidates: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, tolerance: f32, workload: Box<dyn Peer + 'a>) {
        self.candidates.push(Candidate {
            name: name.into(),
            tolerance,
            workload,
            times: 1,
        });
    }

    /// Records that a candidate cannot take part.
    pub(crate) fn leave_out(&mut self, name: impl Into<String>, why: &(impl Display + ?Sized)) {
        self.skipped.push((name.into(), why.to_string()));
    }

    /// Compares the results, then measures times. Returns the candidates whose results agree. With `warms`, each
    /// candidate warms up its device before every turn, because a GPU lowers its clock while other candidates run.
    pub(crate) fn run(mut self, turns: usize, warms: bool) -> Vec<CandidateTime> {
        println!("\n{}", self.title);
        for (name, why) in &self.skipped {
            println!("{name:28} left out: {why}");
        }
        let mut reference: Option<Vec<f32>> = None;
        let mut errors = Vec::new();
        self.candidates.retain_mut(|c| {
            let result = match c.workload.result() {
                Ok(result) => result,
                Err(e) => {
                    println!("{:28} left out: {e}", c.name);
                    return false;
                }
            };
            let error = reference
                .as_ref()
                .map_or(0.0, |reference| difference(reference, &result));
            reference.get_or_insert(result);
            // A NaN is rejected, too.
            let agrees = error <= c.tolerance;
            if agrees {
                errors.push(error);
            } else {
                println!(
                    "{:28} left out: max. relative error {error:.2e}, accepted is {:.0e}",
                    c.name, c.tolerance
                );
            }
            agrees
        });
        for c in &mut self.candidates {
            // One-time compilation is complete after the second run.
            let once = (0..2)
                .filter_map(|_| c.workload.time(1).ok())
                .fold(f64::INFINITY, f64::min);
            c.times = (TURN / once).ceil().clamp(1.0, 1e5) as u32;
        }
        let mut times = vec![Vec::with_capacity(turns); self.candidates.len()];
        for _ in 0..turns.max(1) {
            for (c, times) in self.candidates.iter_mut().zip(&mut times) {
                let warm = if warms { c.warm_up() } else { Ok(()) };
                match warm.and_then(|()| c.workload.time(c.times)) {
                    Ok(seconds) => times.push(seconds),
                    Err(e) => println!("{:28} failed: {e}", c.name),
                }
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let first = medians.first().copied().unwrap_or_default();
        println!("{:28} {:>10} {:>8} {:>10}", "", "ms", "ratio", "error");
        let rows = self.candidates.into_iter().zip(medians).zip(errors);
        rows.map(|((c, time), error)| {
            let (name, ratio) = (c.name, time / first);
            println!("{name:28} {:>10.3} {ratio:>8.2} {error:>10.1e}", time * 1e3);
            CandidateTime { name, ratio }
        })
        .collect()
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns the largest difference, relative to the largest number of the reference.
fn difference(reference: &[f32], result: &[f32]) -> f32 {
    if reference.len() != result.len() {
        return f32::INFINITY;
    }
    let size = reference.iter().fold(f32::MIN_POSITIVE, |a, x| a.max(x.abs()));
    let differences = reference.iter().zip(result).map(|(a, b)| (a - b).abs() / size);
    // A maximum would ignore NaN.
    differences.fold(0.0, |a, b| if b <= a { a } else { b })
}
