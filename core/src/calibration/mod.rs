//! Measured rates of devices, saved in a file: the cost model uses them instead of the defaults for a class of devices.
//!
//! `meganeura doctor --calibrate FILE` measures and writes; `MEGANEURA_CALIBRATION=FILE`, or
//! `calibration = "FILE"` in the configuration, applies the file to every device that it has an
//! entry for. An entry is valid for one device with one driver. Rates are part of the key of cached
//! plans, so a new calibration invalidates them.

mod rates;
mod warm_up;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{
    Capabilities, CostModel, Device, DeviceInfo, Executable, KernelDesc, KernelSource, SharedBuffers, Support,
};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files;
use crate::plan::{BufferRef, ExecutionPlan};

pub use rates::Rates;
pub use warm_up::warm_up;

/// Environment variable with the path of the calibration file; it overrides the configuration.
pub const CALIBRATION_VARIABLE: &str = "MEGANEURA_CALIBRATION";

/// Measured rates of some devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// One entry for each device.
    pub devices: Vec<Calibrated>,
}

/// Measured rates of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// Backend of the device.
    pub backend: String,
    /// Name of the device in the listing.
    pub name: String,
    /// Driver of the device, as listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Time that one more dependent launch adds to a step, in nanoseconds.
    pub launch_ns: u64,
    /// Bytes read and written per second.
    pub bytes_per_second: f64,
    /// FLOP/s of a large matmul in `f32`.
    pub flops_per_second: f64,
}

impl Calibrated {
    /// Creates the entry of a device.
    pub fn new(backend: &str, info: &DeviceInfo, rates: &Rates) -> Self {
        Calibrated {
            backend: backend.to_owned(),
            name: info.name.clone(),
            driver: info.driver.clone(),
            launch_ns: u64::try_from(rates.launch.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_second: rates.bytes_per_second,
            flops_per_second: rates.flops_per_second,
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let all = [
            ("bytes_per_second", self.bytes_per_second),
            ("flops_per_second", self.flops_per_second),
        ];
        match all.iter().find(|(_, rate)| !(rate.is_finite() && *rate > 0.0)) {
            Some((what, rate)) => Err(format!(
                "{what} of '{}' is {rate}, expected a finite number above 0",
                self.name
            )),
            None => Ok(()),
        }
    }

    /// Returns the device's cost model with these rates. Half precision keeps its ratio to single
    /// precision.
    fn model(&self, class: CostModel) -> CostModel {
        let half = class.half_flops_per_second / class.flops_per_second;
        CostModel {
            launch: Duration::from_nanos(self.launch_ns),
            bytes_per_second: self.bytes_per_second,
            flops_per_second: self.flops_per_second,
            half_flops_per_second: self.flops_per_second * half,
            ..class
        }
    }
}

impl Calibration {
    /// Returns the calibration file in effect: that of the environment variable, else that of the configuration. A
    /// relative path in the configuration is relative to the folder of the configuration file.
    pub fn path(config: &Config) -> Option<PathBuf> {
        match std::env::var_os(CALIBRATION_VARIABLE).filter(|v| !v.is_empty()) {
            Some(path) => Some(path.into()),
            None => config.calibration.as_ref().map(|path| {
                let folder = config.path.as_deref().and_then(Path::parent);
                folder.map_or_else(|| path.clone(), |folder| folder.join(path))
            }),
        }
    }

    /// Reads a calibration file.
    ///
    /// # Errors
    /// [`Error::Config`] when it cannot be read or parsed, or a rate is invalid.
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |message: String| Error::Config {
            origin: path.display().to_string(),
            message: format!("{message}; `meganeura doctor --calibrate FILE` writes such a file"),
        };
        let text = files::read_text_limited(path, files::MAX_SETTINGS).map_err(|e| fail(e.to_string()))?;
        let calibration: Calibration = ron::from_str(&text).map_err(|e| fail(e.to_string()))?;
        calibration
            .devices
            .iter()
            .try_for_each(Calibrated::check)
            .map_err(fail)?;
        Ok(calibration)
    }

    /// Writes the calibration to a file, atomically.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = ron::ser::to_string_pretty(self, ron::ser::PrettyConfig::default()).map_err(|e| Error::Config {
            origin: path.display().to_string(),
            message: e.to_string(),
        })?;
        files::write_atomically(path, |file| {
            writeln!(file, "// Measured by `meganeura doctor --calibrate`.\n{text}")
        })
    }

    /// Adds an entry, or replaces the entry for the same device.
    pub fn set(&mut self, entry: Calibrated) {
        self.devices
            .retain(|d| (&d.backend, &d.name) != (&entry.backend, &entry.name));
        self.devices.push(entry);
    }

    /// Returns the entry for a device. An entry that was measured with another driver is ignored
    /// with a warning.
    pub fn entry(&self, backend: &str, info: &DeviceInfo) -> Option<&Calibrated> {
        let entry = self
            .devices
            .iter()
            .find(|d| d.backend == backend && d.name == info.name)?;
        if entry.driver != info.driver {
            let name = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".into());
            log::warn!(
                "{}: the calibration was measured with '{}', but the device now has '{}', so it is not used; measure \
                 again with `meganeura doctor --calibrate FILE`",
                info.name,
                name(&entry.driver),
                name(&info.driver)
            );
            return None;
        }
        Some(entry)
    }
}

/// Returns the device with its measured rates, if the file in effect has some.
///
/// # Errors
/// As [`Calibration::read`].
pub fn apply(device: Arc<dyn Device>, backend: &str, info: &DeviceInfo, config: &Config) -> Result<Arc<dyn Device>> {
    let Some(path) = Calibration::path(config) else {
        return Ok(device);
    };
    let calibration = Calibration::read(&path)?;
    Ok(match calibration.entry(backend, info) {
        Some(entry) => Arc::new(CalibratedDevice::new(device, entry)),
        None => device,
    })
}

/// A device with measured rates.
struct CalibratedDevice {
    inner: Arc<dyn Device>,
    capabilities: Capabilities,
}

impl CalibratedDevice {
    fn new(inner: Arc<dyn Device>, entry: &Calibrated) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.cost = entry.model(capabilities.cost);
        CalibratedDevice { inner, capabilities }
    }
}

impl Device for CalibratedDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        self.inner.supports(kernel)
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.inner.launches(kernel)
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        self.inner.efficiency(kernel)
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        self.inner.workspace_bytes(plan)
    }

    fn kernels(&self) -> String {
        self.inner.kernels()
    }

    fn has_mixed_precision(&self) -> bool {
        self.inner.has_mixed_precision()
    }

    fn refused_kernel(&self, op: &str) -> Option<Error> {
        self.inner.refused_kernel(op)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        self.inner.finalize(plan)
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        self.inner.kernel_sources(plan)
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.inner.compile(plan)
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }

    fn usable_buffers(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
        self.inner.usable_buffers(plan, shared)
    }

    fn compile_sharing(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Box<dyn Executable>> {
        self.inner.compile_sharing(plan, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DeviceKind;

    fn info(driver: &str) -> DeviceInfo {
        DeviceInfo {
            driver: Some(driver.to_owned()),
            ..DeviceInfo::new(0, "Card", DeviceKind::DiscreteGpu)
        }
    }

    fn entry(driver: &str) -> Calibrated {
        let rates = Rates {
            step: Duration::from_micros(40),
            launch: Duration::from_nanos(2_900),
            bytes_per_second: 2e12,
            edge: 4096,
            flops_per_second: 25e12,
            mixed_flops_per_second: None,
        };
        Calibrated::new("blade", &info(driver), &rates)
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rates.ron");
        let mut calibration = Calibration::default();
        calibration.set(entry("old"));
        calibration.set(entry("new"));
        calibration.write(&path).expect("writes");
        let read = Calibration::read(&path).expect("reads");
        assert_eq!(read, calibration);
        assert_eq!(read.devices.len(), 1, "one entry a device");
        assert!(read.entry("blade", &info("new")).is_some());
        assert!(read.entry("blade", &info("newer")).is_none(), "another driver");
        assert!(read.entry("cpu", &info("new")).is_none());
    }

    #[test]
    fn rates_replace_those_of_the_class() {
        let class = CostModel {
            launch: Duration::from_micros(5),
            bytes_per_second: 1e12,
            flops_per_second: 20e12,
            half_flops_per_second: 80e12,
            free_views: true,
        };
        let model = entry("d").model(class);
        assert_eq!(model.launch, Duration::from_nanos(2_900));
        assert_eq!((model.flops_per_second, model.half_flops_per_second), (25e12, 100e12));
        assert!(model.free_views);
    }

    #[test]
    fn bad_files_say_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rates.ron");
        let one = |rest: &str| {
            format!("(devices: [(backend: \"cpu\", name: \"x\", launch_ns: 1, flops_per_second: 1.0, {rest})])")
        };
        let cases = [
            ("(devices: [(backend: \"cpu\")])".to_owned(), "name"),
            (one("bytes_per_second: 0.0"), "bytes_per_second of 'x' is 0"),
            (one("bytes_per_second: NaN"), "is NaN"),
            (one("bytes_per_second: 1.0, colour: 1"), "colour"),
            ("not a file".to_owned(), "doctor --calibrate"),
        ];
        for (text, expected) in cases {
            std::fs::write(&path, text).expect("writes");
            let error = Calibration::read(&path).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Calibration::read(&folder.path().join("none.toml")).expect_err("no file");
        assert!(error.to_string().contains("none.toml"), "{error}");
    }
}
