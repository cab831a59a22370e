//! Measurements, as a file.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{BenchDevice, PeakRates, Roofline, Series, Sizes, Skipped, Suite, WorkloadCost};
use meganeura::files::{MAX_SETTINGS, read_text_limited};
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Version of the file format; raised with every incompatible change.
pub const RECORD_VERSION: u32 = 2;
/// What such files say they are.
const FORMAT: &str = "meganeura-bench";

/// The measurements of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: String,
    version: u32,
    /// Version of the library.
    pub meganeura: String,
    /// Operating system and processor architecture.
    pub system: String,
    /// Threads that the host runs at once.
    pub host_threads: usize,
    /// When it was taken: seconds since 1970, UTC.
    pub taken: u64,
    /// Size of the workloads.
    pub sizes: Sizes,
    /// The devices that took part.
    pub devices: Vec<RecordedDevice>,
    /// One for each workload, device and precision.
    pub results: Vec<Measurement>,
    /// Devices that failed a workload.
    pub skipped: Vec<Skipped>,
}

/// A device that took part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedDevice {
    /// Selector that named it.
    pub selector: String,
    /// Backend.
    pub backend: String,
    /// Name in the listing.
    pub name: String,
    /// Class.
    pub kind: String,
    /// Driver, if there is one.
    pub driver: Option<String>,
    /// Hash of the plugin that its backend is from, if it is from one.
    pub plugin_sha256: Option<String>,
    /// Measured peak rates.
    pub peak_rates: PeakRates,
}

/// A workload on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Suite of the workload.
    pub suite: Suite,
    /// Its name.
    pub workload: String,
    /// The series that it belongs to, if there is one.
    pub series: Option<Series>,
    /// Selector of the device.
    pub device: String,
    /// Precision of the plan.
    pub precision: Precision,
    /// Time per step (or other task of the workload), with steps submitted back to back.
    pub seconds: Spread,
    /// Time per step if the host synchronizes after each step.
    #[serde(rename = "waited_seconds")]
    pub synchronized_seconds: Option<f64>,
    /// Max. difference of its result from a reference in `f32`, relative to the largest number. The reference is the first
    /// device's result, which has no difference itself unless it is in mixed precision. Earlier records have none.
    #[serde(default)]
    pub difference: Option<f64>,
    /// Its cost: of transfers, the bytes transferred; of builds, nothing.
    pub cost: WorkloadCost,
    /// Roofline bound; builds and transfers have none.
    pub roofline: Option<Roofline>,
}

impl Measurement {
    /// Share of peak: roofline bound / time. It can exceed 1 where data stay in a cache.
    pub fn share(&self) -> Option<f64> {
        self.roofline.map(|roofline| roofline.seconds / self.seconds.median)
    }

    /// FLOP/s, if it has FLOPs.
    pub fn flops_per_second(&self) -> Option<f64> {
        (self.cost.flops > 0).then(|| self.cost.flops as f64 / self.seconds.median)
    }

    /// Bytes per second, if it moves some.
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.cost.bytes > 0).then(|| self.cost.bytes as f64 / self.seconds.median)
    }
}

/// Distribution of samples, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Spread {
    /// Of some samples; not a number if there is none.
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
        Spread {
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
            samples: sorted.len(),
        }
    }

    /// Half of the distance from low to high, of the median.
    pub fn scatter(&self) -> f64 {
        (self.high - self.low) / (2.0 * self.median)
    }
}

impl Record {
    /// One without results.
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
            // Before 1970 is no time for a measurement.
            taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            sizes,
            devices: devices.collect(),
            results: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// The record as JSON.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for numbers that JSON does not have; there are none in what was measured.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| Error::misuse(format!("the record cannot be written: {e}"), ""))
    }

    /// Reads a file that [`Record::to_json`] made.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, is something else, or has another version.
    pub fn read(path: &Path) -> Result<Self> {
        const REMEDY: &str = "give a file that `meganeura bench --suite ... --json` has written";
        let text = read_text_limited(path, MAX_SETTINGS)
            .map_err(|e| Error::file(path, format!("cannot be read: {e}"), REMEDY))?;
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| Error::file(path, format!("is no record of measurements: {e}"), REMEDY))?;
        if json["format"] != FORMAT {
            return Err(Error::file(path, "is JSON, but no record of measurements", REMEDY));
        }
        // What the rest means depends on it.
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

    /// The device of a result.
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
        let spread = Spread::of(&samples);
        assert_eq!(
            (spread.low, spread.median, spread.high, spread.samples),
            (2.0, 6.0, 10.0, 11)
        );
        assert!((spread.scatter() - 8.0 / 12.0).abs() < 1e-12);
        assert_eq!(Spread::of(&[3.0]).scatter(), 0.0);
        assert!(Spread::of(&[]).median.is_nan());
    }
}
