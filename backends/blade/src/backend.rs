//! The blade backend, which lists and opens the devices that blade-graphics finds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use blade_graphics as bg;
use meganeura_core::backend::{Backend, BackendInfo, Device, DeviceInfo, DeviceKind, Fact};
use meganeura_core::config::Config;
use meganeura_core::{Error, Result};

use crate::device::BladeDevice;
use crate::gpu::NAME;
use crate::probe::{self, ProbedDevice, yes_no};
use crate::settings;
use crate::tune::{self, Key, Tuning};
use meganeura_shaders::host::CoopSettings;

/// A backend for GPUs through Vulkan on Linux and Windows, and through Metal on macOS.
#[derive(Clone, Copy, Debug, Default)]
pub struct BladeBackend;

impl Backend for BladeBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            origin: format!("crate {}", env!("CARGO_PKG_NAME")),
        }
    }

    fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>> {
        // A missing driver is not an error. It is the reason why there are no devices.
        let reports = enumerate().unwrap_or_default();
        let probed = probe::probe();
        let mut all: Vec<DeviceInfo> = (0..reports.len()).map(|i| describe(&reports, i, &probed)).collect();
        // Invalid settings are reported when a device is opened.
        if let (Ok(folder), Ok(wanted)) = (tune::folder(config), settings::wanted(config)) {
            for (info, report) in all.iter_mut().zip(&reports).filter(|(info, _)| info.rejected.is_none()) {
                let tuned = tune::describe(folder.as_deref(), &tuning_key(report, wanted));
                info.details.push(Fact::new("tuned kernels", tuned));
            }
        }
        Ok(all)
    }

    fn unavailable_reason(&self) -> Option<String> {
        match enumerate() {
            Ok(reports) if reports.is_empty() => Some("the driver lists none".into()),
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }

    fn environment(&self) -> Vec<Fact> {
        probe::environment()
    }

    fn problems(&self) -> Vec<Error> {
        meganeura_shaders::host::problems(NAME)
    }

    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>> {
        Ok(self.open_device(index, config)?)
    }
}

impl BladeBackend {
    /// Opens a device like [`Backend::open`], but returns the concrete type with its additional methods. Concurrent
    /// callers share the device.
    ///
    /// # Errors
    /// As [`Backend::open`].
    pub fn open_device(&self, index: usize, config: &Config) -> Result<Arc<BladeDevice>> {
        let reports = enumerate().map_err(|why| Error::backend(NAME, why))?;
        let Some(report) = reports.get(index) else {
            return Err(Error::backend(
                NAME,
                format!("there are {} devices, so no index {index}", reports.len()),
            ));
        };
        let probed = probe::probe();
        if let Some(reason) = describe(&reports, index, &probed).rejected {
            return Err(Error::backend(NAME, format!("device {index} was rejected: {reason}")));
        }
        settings::check(config, &[tune::TUNE, tune::FOLDER])?;
        let (wanted, timed) = (settings::wanted(config)?, settings::timed(config)?);
        let tuned = (tune::folder(config)?, tuning_key(report, wanted));
        let limits = limits_of(report, &probed);
        open(index, report.device_id, timed, limits, wanted, tuned)
    }
}

/// Enumerates all devices, or returns the reason why that is impossible.
fn enumerate() -> Result<Vec<bg::DeviceReport>, String> {
    const REMEDY: &str = "install the Vulkan driver of your GPU, or Mesa's software driver";
    match std::panic::catch_unwind(bg::Context::enumerate) {
        Ok(Ok(reports)) => Ok(reports),
        Ok(Err(error)) => Err(format!("no usable Vulkan or Metal driver found ({error}); {REMEDY}")),
        Err(_) => Err("the driver failed while listing its devices".into()),
    }
}

fn limits_of(report: &bg::DeviceReport, probed: &[ProbedDevice]) -> Option<ProbedDevice> {
    let same = |p: &&ProbedDevice| p.device_id == report.device_id && p.name == report.information.device_name;
    probed.iter().find(same).cloned()
}

fn describe(reports: &[bg::DeviceReport], index: usize, probed: &[ProbedDevice]) -> DeviceInfo {
    let report = &reports[index];
    let known = limits_of(report, probed);
    let limits = known.as_ref().map(|p| p.limits);
    let kind = match (report.information.is_software_emulated, limits.and_then(|l| l.discrete)) {
        (true, _) => DeviceKind::Software,
        (_, Some(true)) => DeviceKind::DiscreteGpu,
        _ => DeviceKind::IntegratedGpu,
    };
    let same_id = |r: &bg::DeviceReport| r.device_id == report.device_id;
    let first = reports[..index].iter().position(same_id);
    let rejected = match (&report.status, first) {
        (bg::DeviceReportStatus::Rejected(reason), _) => Some(reason.clone()),
        (_, Some(first)) => Some(format!(
            "it has the same Vulkan device id 0x{:x} as {NAME}:{first}, which is always opened instead; hide that \
             device from the driver to use this one",
            report.device_id
        )),
        _ => None,
    };
    let twins = reports.iter().filter(|r| same_id(r)).count() > 1;
    let driver = driver_of(report);
    DeviceInfo {
        numeric_id: Some(u64::from(report.device_id)),
        hardware: known.as_ref().map(|p| p.uuid.clone()),
        memory_bytes: limits.and_then(|l| l.memory_bytes),
        driver: (!driver.is_empty()).then_some(driver),
        note: twins.then(|| "another device has the same id, so they cannot be distinguished".into()),
        rejected,
        details: details(report, known.as_ref()),
        ..DeviceInfo::new(index, report.information.device_name.clone(), kind)
    }
}

/// Returns the driver's name and version, if available.
fn driver_of(report: &bg::DeviceReport) -> String {
    let driver = [&report.information.driver_name, &report.information.driver_info];
    let driver: Vec<&str> = driver.iter().map(|s| s.as_str()).filter(|s| !s.is_empty()).collect();
    driver.join(" ")
}

/// Returns the storage key of the measurements of a device.
fn tuning_key(report: &bg::DeviceReport, wanted: CoopSettings) -> Key {
    Key {
        device: report.information.device_name.clone(),
        driver: driver_of(report),
        backend: env!("CARGO_PKG_VERSION").into(),
        settings: format!("{wanted:?}"),
    }
}

/// Returns the properties of a device that blade-graphics and the driver report.
fn details(report: &bg::DeviceReport, probed: Option<&ProbedDevice>) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let bg::DeviceReportStatus::Available { caps, .. } = &report.status {
        let tile = |size: u32| match size {
            0 => "none".to_owned(),
            size => format!("{size}x{size}"),
        };
        let tiles = caps.cooperative_matrix;
        facts.extend([
            Fact::new("half precision in shaders", yes_no(caps.shader_float16)),
            Fact::new("cooperative tiles, f16", tile(tiles.f16_tile)),
            Fact::new("cooperative tiles, f32", tile(tiles.f32_tile)),
        ]);
    }
    facts.extend(probed.into_iter().flat_map(|p| p.facts.iter().cloned()));
    facts
}

/// Opens a device, or returns the device that is already open.
fn open(
    index: usize,
    device_id: u32,
    timing: bool,
    probed: Option<ProbedDevice>,
    wanted: CoopSettings,
    (folder, key): (Option<PathBuf>, Key),
) -> Result<Arc<BladeDevice>> {
    /// Key of an open device: Vulkan device id, true if passes can be timed, requested cooperative matrices, and
    /// folder of stored measurements.
    type DeviceKey = (u32, bool, CoopSettings, Option<PathBuf>);
    static OPEN: Mutex<BTreeMap<DeviceKey, Weak<BladeDevice>>> = Mutex::new(BTreeMap::new());
    // A panic cannot leave the map half changed.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = (device_id, timing, wanted, folder);
    if let Some(device) = open.get(&opened).and_then(Weak::upgrade)
        && !device.handle().gpu().is_lost()
    {
        return Ok(device);
    }
    let desc = bg::ContextDesc {
        validation: cfg!(debug_assertions),
        timing,
        device_id: Some(device_id),
        ..bg::ContextDesc::default()
    };
    // SAFETY: the function is unsafe only because it loads a driver. blade states no other requirement.
    let context = std::panic::catch_unwind(|| unsafe { bg::Context::init(desc) });
    let context = context
        .map_err(|_| {
            Error::backend(
                NAME,
                format!("the driver of device {index} failed while opening the device"),
            )
        })?
        .map_err(|e| Error::backend(NAME, format!("device {index} cannot be opened: {e}")))?;
    let name = format!("{NAME}:{index}");
    let tuning = Tuning::open(opened.3.as_deref(), key);
    let device = Arc::new(BladeDevice::named(Arc::new(context), name, probed, wanted, tuning));
    open.insert(opened, Arc::downgrade(&device));
    Ok(device)
}
