//! Device times of a session's passes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Session;
use crate::backend::{Executable, PassTiming};
use crate::plan::Dispatch;
use crate::profiler::{self, DeviceTrack};

/// Total times of passes with the same kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimingRow {
    /// Name of the pass, made from its kernels.
    pub label: String,
    /// Number of runs.
    pub count: usize,
    /// Total time of all runs.
    pub total: Duration,
    /// Size of the operands of all runs in bytes. A kernel may read only a part of a large operand, such as the filled
    /// rows of a cache.
    pub bytes: u64,
}

/// Measured times, the passes with the greatest total time first; `Display` formats a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// One row for all passes with the same kernels.
    pub rows: Vec<TimingRow>,
}

impl Timings {
    /// Adds up the times of passes with the same kernels. `bytes` returns the size of a dispatch's operands.
    fn of(passes: Vec<PassTiming>, bytes: impl Fn(u32) -> u64) -> Self {
        let mut rows: Vec<TimingRow> = Vec::new();
        let mut known: HashMap<Arc<str>, usize> = HashMap::new();
        for pass in passes {
            let at = *known.entry(pass.label.clone()).or_insert_with(|| {
                rows.push(TimingRow {
                    label: pass.label.to_string(),
                    count: 0,
                    total: Duration::ZERO,
                    bytes: 0,
                });
                rows.len() - 1
            });
            rows[at].count += 1;
            rows[at].total += pass.duration;
            rows[at].bytes += pass.dispatches.iter().map(|&dispatch| bytes(dispatch)).sum::<u64>();
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.total));
        Timings { rows }
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.rows.iter().map(|r| r.total).sum();
        writeln!(
            f,
            "{:>10} {:>6} {:>8} {:>10} {:>9} {:>7}  pass",
            "total ms", "share", "count", "mean us", "mean MB", "GB/s"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:>10.3} {:>5.1}% {:>8} {:>10.2} {:>9.3} {:>7.0}  {}",
                row.total.as_secs_f64() * 1e3,
                100.0 * row.total.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE),
                row.count,
                row.total.as_secs_f64() * 1e6 / row.count as f64,
                row.bytes as f64 * 1e-6 / row.count as f64,
                row.bytes as f64 * 1e-9 / row.total.as_secs_f64().max(f64::MIN_POSITIVE),
                row.label
            )?;
        }
        write!(f, "{:>10.3} ms in all", all.as_secs_f64() * 1e3)
    }
}

impl Session {
    /// Starts or stops measuring the time of every pass. Times of a step are available after a wait
    /// for it, or at the following step; measuring makes steps slower.
    pub fn set_profiling(&mut self, on: bool) {
        self.collect_passes();
        self.profiling = on;
        self.measure();
    }

    /// Returns the times measured since the last call, with equal passes combined.
    pub fn take_timings(&mut self) -> Timings {
        self.collect_passes();
        let dispatches = &self.plan.dispatches;
        let bytes = |dispatch: u32| dispatches.get(dispatch as usize).map_or(0, Dispatch::operand_bytes);
        Timings::of(std::mem::take(&mut self.passes), bytes)
    }

    /// Prints [`Session::take_timings`] to standard error.
    pub fn dump_gpu_timings(&mut self) {
        let timings = self.take_timings();
        if timings.rows.is_empty() {
            eprintln!("no timings: call `set_profiling(true)` before `step`, on a device that can measure");
        } else {
            eprintln!("{timings}");
        }
    }
}

/// Recording of measured passes in the trace of the program.
impl Session {
    /// Makes the device measure if a trace or profiling is active, and stops it otherwise.
    fn measure(&mut self) {
        self.executable.set_profiling(self.profiling || self.track.is_some());
    }

    /// Makes the device measure if a trace was started after the last step.
    pub(super) fn follow_trace(&mut self) {
        if self.track.is_none()
            && let Some(store) = profiler::store()
        {
            let device = &self.device.capabilities().name;
            self.track = Some(DeviceTrack::new(store, device, &self.plan));
            self.measure();
        }
    }

    /// Continues to measure after the executable was replaced.
    pub(super) fn measure_anew(&mut self) {
        if let Some(track) = &mut self.track {
            track.renew(&self.plan);
        }
        self.measure();
    }

    /// Fetches the device's measurements, and records them.
    pub(super) fn collect_passes(&mut self) {
        if !self.profiling && self.track.is_none() {
            return;
        }
        let passes = self.executable.take_timings();
        if let Some(track) = &self.track {
            track.record(&passes);
        }
        if self.profiling {
            self.passes.extend(passes);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.track.is_some() {
            // An error of the step cannot be reported here.
            let _ = self.try_wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_passes_are_added_and_the_costliest_comes_first() {
        let pass = |label: &str, us| PassTiming::new(label, Duration::from_micros(us));
        let timings = Timings::of(vec![pass("a", 10), pass("b", 50), pass("a", 20)], |_| 0);
        let rows: Vec<(&str, usize)> = timings.rows.iter().map(|r| (r.label.as_str(), r.count)).collect();
        assert_eq!(rows, [("b", 1), ("a", 2)]);
        let text = timings.to_string();
        assert!(text.contains("62.5%") && text.contains("0.080 ms in all"), "{text}");
    }
}
