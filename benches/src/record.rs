//! Records of measurements, stored as files.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{BenchDevice, PeakRates, Roofline, Series, Sizes, SkippedDevice, Suite, WorkloadCost};
use meganeura::files::{MAX_SETTINGS, read_text_limited};
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Version of the file format, which increases with every incompatible change.
pub const RECORD_VERSION: u32 = 2;
/// Format name in the files.
const FORMAT: &str = "meganeura-bench";

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: String,
    version: u32,
    /// Version of the library.
    pub meganeura: String,
    /// Operating system and processor architecture.
    pub system: String,
    /// Number of threads that the host runs at once.
    pub host_threads: usize,
    /// Creation time of the record, in seconds since 1970 (UTC).
    pub taken: u64,
    /// Size of the workloads.
    pub sizes: Sizes,
    /// Measured devices.
    pub devices: Vec<RecordedDevice>,
    /// Measurements: one for each workload, device and precision.
    pub results: Vec<Measurement>,
    /// Devices that failed in a workload.
    pub skipped: Vec<SkippedDevice>,
}

/// Description of a measured device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedDevice {
    /// Selector of the device.
    pub selector: String,
    /// Name of the backend.
    pub backend: String,
    /// Name of the device in listings.
    pub name: String,
    /// Class of the device.
    pub kind: String,
    /// Driver, if there is one.
    pub driver: Option<String>,
    /// SHA-256 sum of the plugin file of its backend, if the backend is a plugin.
    pub plugin_sha256: Option<String>,
    /// Measured peak rates.
    pub peak_rates: PeakRates,
}

/// Measurement of a workload on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Suite of the workload.
    pub suite: Suite,
    /// Name of the workload.
    pub workload: String,
    /// Series that the workload belongs to, if any.
    pub series: Option<Series>,
    /// Selector of the device.
    pub device: String,
    /// Precision of the plan.
    pub precision: Precision,
    /// Time per step (or other task of the workload), with steps submitted back to back.
    pub seconds: Distribution,
    /// Time per step if the host synchronizes after each step.
    #[serde(rename = "waited_seconds")]
    pub synchronized_seconds: Option<f64>,
    /// Maximum difference of its result from a reference in `f32`, relative to the largest number. The reference is the first
    /// device's result, which has no difference itself unless it is in mixed precision. Earlier records have none.
    #[serde(default)]
    pub difference: Option<f64>,
    /// Cost of the workload: for transfers, the transferred bytes; for builds, zero.
    pub cost: WorkloadCost,
    /// Roofline bound; builds and transfers have none.
    pub roofline: Option<Roofline>,
}

impl Measurement {
    /// Returns the share of peak: roofline bound / time. It can exceed 1 if data stay in a cache.
    pub fn share(&self) -> Option<f64> {
        self.roofline.map(|roofline| roofline.seconds / self.seconds.median)
    }

    /// Returns the FLOP/s, if the workload has FLOPs.
    pub fn flops_per_second(&self) -> Option<f64> {
        (self.cost.flops > 0).then(|| self.cost.flops as f64 / self.seconds.median)
    }

    /// Returns the bytes per second, if the workload moves any.
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.cost.bytes > 0).then(|| self.cost.bytes as f64 / self.seconds.median)
    }
}

/// Distribution of samples, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Distribution {
    /// Computes the distribution of some samples; NaN if there are none.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = sorted.len().saturating_sub(1);
            sorted
                .get((last as f64 * part).round() as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        Distribution {
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
            samples: sorted.len(),
        }
    }

    /// Returns the scatter of the samples: half of the distance between the percentiles, relative to the median.
    pub fn scatter(&self) -> f64 {
        (self.high - self.low) / (2.0 * self.median)
    }
}

impl Record {
    /// Creates a record without results.
    pub fn new(devices: &[BenchDevice], sizes: Sizes) -> Self {
        let devices = devices.iter().map(|d| RecordedDevice {
            selector: d.selector.clone(),
            backend: d.backend.clone(),
            name: d.info.name.clone(),
            kind: d.info.kind.name().to_owned(),
            driver: d.info.driver.clone(),
            plugin_sha256: d.plugin_sha256.clone(),
            peak_rates: d.peak_rates,
        });
        Record {
            format: FORMAT.to_owned(),
            version: RECORD_VERSION,
            meganeura: env!("CARGO_PKG_VERSION").to_owned(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            host_threads: std::thread::available_parallelism().map_or(1, usize::from),
            // Times before 1970 are impossible.
            taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            sizes,
            devices: devices.collect(),
            results: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Returns the record as JSON.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for numbers that JSON does not support; measurements contain none.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| Error::misuse(format!("the record cannot be written: {e}"), ""))
    }

    /// Reads a file of [`Record::to_json`].
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, is not a record, or has another version.
    pub fn read(path: &Path) -> Result<Self> {
        const REMEDY: &str = "give a file that `meganeura bench --suite ... --json` has written";
        let text = read_text_limited(path, MAX_SETTINGS)
            .map_err(|e| Error::file(path, format!("cannot be read: {e}"), REMEDY))?;
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| Error::file(path, format!("is no record of measurements: {e}"), REMEDY))?;
        if json["format"] != FORMAT {
            return Err(Error::file(path, "is JSON, but no record of measurements", REMEDY));
        }
        // The meaning of the other fields depends on the version.
        if json["version"] != RECORD_VERSION {
            return Err(Error::file(
                path,
                format!(
                    "has version {} of the format, this program has {RECORD_VERSION}",
                    json["version"]
                ),
                "compare with the program that wrote it, or measure again",
            ));
        }
        serde_json::from_value(json).map_err(|e| Error::file(path, format!("is a damaged record: {e}"), REMEDY))
    }

    /// Returns the description of a device by its selector.
    pub fn device(&self, selector: &str) -> Option<&RecordedDevice> {
        self.devices.iter().find(|d| d.selector == selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_the_samples() {
        let samples: Vec<f64> = (1..=11).rev().map(f64::from).collect();
        let spread = Distribution::of(&samples);
        assert_eq!(
            (spread.low, spread.median, spread.high, spread.samples),
            (2.0, 6.0, 10.0, 11)
        );
        assert!((spread.scatter() - 8.0 / 12.0).abs() < 1e-12);
        assert_eq!(Distribution::of(&[3.0]).scatter(), 0.0);
        assert!(Distribution::of(&[]).median.is_nan());
    }
}
