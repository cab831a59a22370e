//! Comparison of two records of measurements.

use super::{Measurement, Record, Suite};
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Minimum relative change that counts, even if samples scatter less, because machines vary by this much between two
/// runs.
const MIN_CHANGE: f64 = 0.05;

/// Change of a workload, compared with the scatter of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nine of ten samples are faster than nine of ten of the earlier ones.
    Faster,
    /// Nine of ten samples are slower than nine of ten of the earlier ones.
    Slower,
    /// Neither faster nor slower.
    Same,
}

/// Change of a workload that both records contain.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Suite of the workload.
    pub suite: Suite,
    /// Name of the workload.
    pub workload: String,
    /// Selector of the device.
    pub device: String,
    /// Precision of the plan.
    pub precision: Precision,
    /// Median seconds of the earlier record.
    pub before: f64,
    /// Median seconds of the later record.
    pub after: f64,
    /// Verdict about the change.
    pub verdict: Verdict,
}

impl Change {
    /// Returns `after / before`: below 1, the later record is faster.
    pub fn ratio(&self) -> f64 {
        self.after / self.before
    }

    /// Compares two measurements; `drift` is the relative change of the device's peak rates between the records.
    fn of(before: &Measurement, after: &Measurement, drift: f64) -> Self {
        let (old, new) = (before.seconds, after.seconds);
        // Both medians scatter, and the speed of the machine may have changed.
        let noise = MIN_CHANGE + old.scatter().max(0.0) + new.scatter().max(0.0) + drift;
        let verdict = if new.high < old.low && new.median * (1.0 + noise) < old.median {
            Verdict::Faster
        } else if new.low > old.high && new.median > old.median * (1.0 + noise) {
            Verdict::Slower
        } else {
            Verdict::Same
        };
        Change {
            suite: after.suite,
            workload: after.workload.clone(),
            device: after.device.clone(),
            precision: after.precision,
            before: old.median,
            after: new.median,
            verdict,
        }
    }
}

/// Change of a device's peak rates, from the earlier to the later record. All times change with them.
#[derive(Clone, Debug, PartialEq)]
pub struct PeakRateChange {
    /// Selector of the device.
    pub device: String,
    /// Earlier and later name and driver of the device, if they differ.
    pub replaced: Option<[String; 2]>,
    /// Ratio of the copy rates, later / earlier.
    pub copies: f64,
    /// Ratio of the matmul rates in `f32`, later / earlier.
    pub matmuls: f64,
    /// Ratio of the launch costs, later / earlier.
    pub launches: f64,
}

/// Returns the relative change of a device's peak rates between two records, or 0 if one has none.
fn drift(before: &Record, after: &Record, device: &str) -> f64 {
    let (Some(old), Some(new)) = (before.device(device), after.device(device)) else {
        return 0.0;
    };
    let (old, new) = (&old.peak_rates, &new.peak_rates);
    let pairs = [
        (old.bytes_per_second, new.bytes_per_second),
        (old.flops_per_second, new.flops_per_second),
    ];
    let changes = pairs.map(|(old, new)| (new / old).max(old / new) - 1.0);
    changes
        .into_iter()
        .filter(|change| change.is_finite())
        .fold(0.0, f64::max)
}

/// Comparison of two records.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordComparison {
    /// Changes of the devices in both records.
    pub peak_rates: Vec<PeakRateChange>,
    /// Changes of the workloads in both records, in the order of the later record.
    pub changes: Vec<Change>,
    /// Number of results that only the earlier record contains.
    pub only_before: usize,
    /// Number of results that only the later record contains.
    pub only_after: usize,
}

impl RecordComparison {
    /// Compares a record with an earlier one.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the records have nothing in common.
    pub fn new(before: &Record, after: &Record) -> Result<Self> {
        let same = |a: &Measurement, b: &Measurement| {
            (a.suite, &a.workload, &a.device, a.precision) == (b.suite, &b.workload, &b.device, b.precision)
        };
        let pairs = after.results.iter().filter_map(|new| {
            let old = before.results.iter().find(|old| same(old, new))?;
            Some(Change::of(old, new, drift(before, after, &new.device)))
        });
        let changes: Vec<Change> = pairs.collect();
        if changes.is_empty() {
            let names = |record: &Record| {
                let names: Vec<&str> = record.devices.iter().map(|d| d.selector.as_str()).collect();
                format!("{} workloads on {}", record.sizes, names.join(", "))
            };
            return Err(Error::misuse(
                format!(
                    "the records have no result in common: there are {} in the earlier one, {} in this",
                    names(before),
                    names(after)
                ),
                "compare the same suites and sizes on the same devices",
            ));
        }
        let peak_rates = after.devices.iter().filter_map(|new| {
            let old = before.device(&new.selector)?;
            let name = |d: &super::RecordedDevice| {
                let driver = d.driver.as_deref().unwrap_or("no driver");
                format!("{}, {driver}", d.name)
            };
            Some(PeakRateChange {
                device: new.selector.clone(),
                replaced: (name(old) != name(new)).then(|| [name(old), name(new)]),
                copies: new.peak_rates.bytes_per_second / old.peak_rates.bytes_per_second,
                matmuls: new.peak_rates.flops_per_second / old.peak_rates.flops_per_second,
                launches: new.peak_rates.launch_seconds / old.peak_rates.launch_seconds,
            })
        });
        Ok(RecordComparison {
            peak_rates: peak_rates.collect(),
            only_before: before.results.len().saturating_sub(changes.len()),
            only_after: after.results.len() - changes.len(),
            changes,
        })
    }

    /// Returns the change of a result, if the earlier record contains it.
    pub fn change(&self, of: &Measurement) -> Option<&Change> {
        let wanted = (of.suite, &of.workload, &of.device, of.precision);
        let mut changes = self.changes.iter();
        changes.find(|c| (c.suite, &c.workload, &c.device, c.precision) == wanted)
    }

    /// Returns the number of workloads with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.changes.iter().filter(|c| c.verdict == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Distribution, Sizes, WorkloadCost};

    fn record(times: &[(&str, [f64; 3])]) -> Record {
        let mut record = Record::new(&[], Sizes::Small);
        record
            .results
            .extend(times.iter().map(|(workload, [low, median, high])| Measurement {
                suite: Suite::Matmul,
                workload: (*workload).to_owned(),
                series: None,
                device: "cpu".into(),
                precision: Precision::F32,
                seconds: Distribution {
                    low: *low,
                    median: *median,
                    high: *high,
                    samples: 9,
                },
                synchronized_seconds: None,
                difference: None,
                cost: WorkloadCost::default(),
                roofline: None,
            }));
        record
    }

    #[test]
    fn changes_beyond_the_scatter_are_marked() {
        let before = record(&[
            ("much", [1.0, 1.1, 1.2]),
            ("within", [1.0, 1.1, 1.3]),
            ("little", [1.0, 1.0, 1.0]),
            ("less", [1.0, 1.1, 1.2]),
            ("gone", [1.0; 3]),
        ]);
        let after = record(&[
            ("much", [1.3, 1.4, 1.5]),
            ("within", [1.2, 1.4, 1.5]),
            ("little", [1.01, 1.01, 1.01]),
            ("less", [0.5, 0.6, 0.7]),
            ("new", [1.0; 3]),
        ]);
        let comparison = RecordComparison::new(&before, &after).expect("four in common");
        let verdicts: Vec<Verdict> = comparison.changes.iter().map(|c| c.verdict).collect();
        assert_eq!(
            verdicts,
            [Verdict::Slower, Verdict::Same, Verdict::Same, Verdict::Faster]
        );
        assert!((comparison.changes[0].ratio() - 1.4 / 1.1).abs() < 1e-12);
        assert_eq!((comparison.only_before, comparison.only_after), (1, 1));
        assert_eq!(comparison.count(Verdict::Same), 2);
        assert!(comparison.change(&after.results[4]).is_none());
    }

    #[test]
    fn changes_of_the_machine_are_no_regressions() {
        let device = |rate: f64| crate::RecordedDevice {
            selector: "cpu".into(),
            backend: "cpu".into(),
            name: "cpu".into(),
            kind: "cpu".into(),
            driver: None,
            plugin_sha256: None,
            peak_rates: crate::PeakRates {
                step_seconds: 1e-6,
                launch_seconds: 1e-6,
                bytes_per_second: rate,
                flops_per_second: rate,
                mixed_flops_per_second: None,
            },
        };
        let verdict = |then: f64, now: f64, seconds: f64| {
            let (mut before, mut after) = (record(&[("w", [0.99, 1.0, 1.01])]), record(&[("w", [seconds; 3])]));
            before.devices.push(device(then));
            after.devices.push(device(now));
            RecordComparison::new(&before, &after).expect("in common").changes[0].verdict
        };
        assert_eq!(verdict(1e9, 1e9, 1.2), Verdict::Slower);
        assert_eq!(
            verdict(1e9, 0.8e9, 1.2),
            Verdict::Same,
            "the machine is slower by as much"
        );
        assert_eq!(verdict(1e9, 0.8e9, 1.5), Verdict::Slower);
        assert_eq!(verdict(1e9, 1e9, 1.04), Verdict::Same);
        assert_eq!(verdict(1e9, 1e9, 0.8), Verdict::Faster);
    }

    #[test]
    fn records_without_a_common_result_are_refused() {
        let error = RecordComparison::new(&record(&[("a", [1.0; 3])]), &record(&[("b", [1.0; 3])]));
        assert!(error.is_err_and(|e| e.to_string().contains("no result in common")));
    }
}
