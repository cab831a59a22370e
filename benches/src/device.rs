//! Devices to measure.

use std::sync::Arc;

use super::PeakRates;
use meganeura::backend::{Device, DeviceInfo, DeviceKind};
use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::select::{self, SelectedDevice};
use meganeura::{Error, Result, plugins};

/// An open device with its description and its measured peak rates.
pub struct BenchDevice {
    /// Selector of the device.
    pub selector: String,
    /// Name of its backend.
    pub backend: String,
    /// Description of the device.
    pub info: DeviceInfo,
    /// Hash of the plugin file of its backend, in hexadecimal; `None` if the backend is linked.
    pub plugin_sha256: Option<String>,
    /// Measured peak rates.
    pub peak_rates: PeakRates,
    /// Open device.
    pub device: Arc<dyn Device>,
    /// Rewriting settings from the configuration.
    pub rewrite: RewriteConfig,
}

/// Devices that were found, and reasons for the skipped ones.
pub struct FoundDevices {
    /// Devices that can be measured; at least one.
    pub opened: Vec<BenchDevice>,
    /// Selectors of skipped devices, with the reasons.
    pub skipped: Vec<(String, String)>,
}

impl BenchDevice {
    /// Opens and measures the selected device, or the default one if there is no selector; takes some seconds.
    ///
    /// # Errors
    /// [`Error::DeviceSelection`] with the listing; errors of opening or measuring the device.
    pub fn open(selector: Option<&str>, config: &Config) -> Result<Self> {
        let selected = select::select(selector, config)?;
        let device = selected.open(config)?;
        let peak_rates = PeakRates::of(&device)?;
        Ok(Self::with(&selected, device, peak_rates, config))
    }

    /// Opens all devices that are not emulated in software.
    ///
    /// # Errors
    /// No device can be measured.
    pub fn open_all(config: &Config) -> Result<FoundDevices> {
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
        if opened.is_empty() {
            Err(Error::misuse(
                "no device that was found can be measured",
                "`meganeura doctor` says what is wrong with each",
            ))
        } else {
            Ok(FoundDevices { opened, skipped })
        }
    }

    fn with(selected: &SelectedDevice, device: Arc<dyn Device>, peak_rates: PeakRates, config: &Config) -> Self {
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

    /// Returns its identity: selector, prefix of its plugin's hash, name, driver.
    pub fn label(&self) -> String {
        [vec![self.selector.clone()], self.identity()].concat().join(", ")
    }

    /// Returns [`BenchDevice::label`] with a precision. Distinctive parts come first, because criterion truncates long names.
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
