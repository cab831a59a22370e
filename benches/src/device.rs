//! Devices to measure.

use std::sync::Arc;

use super::PeakRates;
use meganeura::backend::{Device, DeviceInfo, DeviceKind};
use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::select::{self, Selected};
use meganeura::{Error, Result, plugins};

/// An open device with its description and its measured peak rates.
pub struct BenchDevice {
    /// Selector that names it.
    pub selector: String,
    /// Its backend's name.
    pub backend: String,
    /// Its entry in the listing.
    pub info: DeviceInfo,
    /// Hash of the plugin file that the backend is from, in hexadecimal; `None` if it is linked.
    pub plugin_sha256: Option<String>,
    /// Measured peak rates.
    pub peak_rates: PeakRates,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Settings of rewriting, those of the configuration.
    pub rewrite: RewriteConfig,
}

/// Devices that were found.
pub struct Found {
    /// Devices that can be measured; at least one.
    pub opened: Vec<BenchDevice>,
    /// Selectors of the others, each with the reason.
    pub skipped: Vec<(String, String)>,
}

impl BenchDevice {
    /// Opens and measures the device that a selector names, or the one in force if there is none; some seconds.
    ///
    /// # Errors
    /// [`Error::DeviceSelection`] with the listing; errors of opening or measuring the device.
    pub fn open(selector: Option<&str>, config: &Config) -> Result<Self> {
        let selected = select::select(selector, config)?;
        let device = selected.open(config)?;
        let peak_rates = PeakRates::of(&device)?;
        Ok(Self::with(&selected, device, peak_rates, config))
    }

    /// All devices, except those emulated in software.
    ///
    /// # Errors
    /// None is left.
    pub fn open_all(config: &Config) -> Result<Found> {
        let (mut opened, mut skipped) = (Vec::new(), Vec::new());
        for entry in &select::list(config) {
            for info in entry.devices.as_deref().unwrap_or_default() {
                let selector = select::selector_of(&entry.name, info);
                let reason = match (&info.rejected, info.kind) {
                    (Some(reason), _) => reason.clone(),
                    (None, DeviceKind::Software) => {
                        "devices emulated in software are used only if they are named".into()
                    }
                    (None, _) => match Self::open(Some(&selector), config) {
                        Ok(device) => {
                            opened.push(device);
                            continue;
                        }
                        Err(error) => error.to_string(),
                    },
                };
                skipped.push((selector, reason));
            }
        }
        match opened.is_empty() {
            true => Err(Error::misuse(
                "no device that was found can be measured",
                "`meganeura doctor` says what is wrong with each",
            )),
            false => Ok(Found { opened, skipped }),
        }
    }

    fn with(selected: &Selected, device: Arc<dyn Device>, peak_rates: PeakRates, config: &Config) -> Self {
        let backend = selected.backend.info().name;
        let plugin = plugins::loaded()
            .into_iter()
            .find(|report| report.name.as_deref() == Some(&backend));
        BenchDevice {
            selector: selected.selector.clone(),
            info: selected.info.clone(),
            plugin_sha256: plugin.and_then(|report| report.sha256),
            peak_rates,
            device,
            rewrite: config.rewrite.clone(),
            backend,
        }
    }

    /// Its identity: selector, the beginning of its plugin's hash, name, driver.
    pub fn label(&self) -> String {
        [vec![self.selector.clone()], self.identity()].concat().join(", ")
    }

    /// [`BenchDevice::label`] with a precision. What differs comes first, because criterion cuts long names.
    pub fn label_in(&self, precision: Precision) -> String {
        let first = vec![self.selector.clone(), precision.to_string()];
        [first, self.identity()].concat().join(", ")
    }

    fn identity(&self) -> Vec<String> {
        let sum = self.plugin_sha256.as_deref();
        let sum = sum.map(|sum| format!("sha256 {}", &sum[..8.min(sum.len())]));
        let parts = [sum, Some(self.info.name.clone()), self.info.driver.clone()];
        parts.into_iter().flatten().collect()
    }
}
