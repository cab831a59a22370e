//! NVIDIA's driver: its availability, and the devices that it lists.

use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::backend::{DeviceInfo, DeviceKind, Fact};
use sys::CUdevice_attribute as Attribute;

/// Oldest supported version of the driver: CUDA 12.0, which has all functions that the backend uses.
const MIN_VERSION: i32 = 12_000;
/// Minimum compute capability of a device, times ten: 7.0 (Volta).
const MIN_CAPABILITY: i32 = 70;

/// The initialised driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver {
    /// CUDA version of the driver: 1000 times the major number plus 10 times the minor number.
    pub(crate) version: i32,
}

impl Driver {
    /// Returns the driver. The first call loads and initialises it.
    ///
    /// # Errors
    /// The reason why no driver can be used.
    pub(crate) fn get() -> Result<Driver, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).clone()
    }

    fn load() -> Result<Driver, String> {
        // SAFETY: it only loads the driver's library.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "the NVIDIA driver is not installed (libcuda not found); install the driver of your GPU".into(),
            );
        }
        let mut version = 0;
        // SAFETY: the library is loaded, and the pointer is to a local.
        let found = unsafe { sys::cuDriverGetVersion(&mut version) };
        found
            .result()
            .map_err(|e| format!("the driver does not report its version: {}", text(e)))?;
        if version < MIN_VERSION {
            return Err(format!(
                "the driver supports CUDA {}, expected at least {}; update the driver",
                version_text(version),
                version_text(MIN_VERSION)
            ));
        }
        match result::init() {
            Ok(()) => Ok(Driver { version }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Err("the driver finds no NVIDIA GPU".into()),
            Err(error) => Err(format!("the driver does not start: {}", text(error))),
        }
    }

    /// Returns the version of the driver as text, such as 12.4.
    pub(crate) fn version_text(self) -> String {
        version_text(self.version)
    }

    /// Returns `true` if launches in a graph may begin before their predecessors have ended. This requires CUDA 12.3.
    pub(crate) fn has_programmatic_edges(self) -> bool {
        self.version >= 12_030
    }
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Formats an error with its name and the driver's description of it.
pub(crate) fn text(error: DriverError) -> String {
    let words =
        |found: Result<&std::ffi::CStr, DriverError>| found.map(|text| text.to_string_lossy().into_owned()).ok();
    match (words(error.error_name()), words(error.error_string())) {
        (Some(name), Some(what)) => format!("{name} ({what})"),
        _ => format!("error {}", error.0 as u32),
    }
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub(crate) struct Properties {
    pub(crate) device: sys::CUdevice,
    pub(crate) name: String,
    /// Identifier that is unique for each card: 16 bytes.
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
    /// Major and minor compute capability.
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    /// Clock of the multiprocessors, in Hz.
    clock: f64,
    /// Memory bandwidth in bytes per second.
    bandwidth: f64,
    pub(crate) integrated: bool,
    /// PCI bus address.
    bus: String,
}

/// Returns all devices of the driver.
///
/// # Errors
/// The driver does not list them.
pub(crate) fn devices() -> Result<Vec<Properties>, String> {
    Driver::get()?;
    let count = result::device::get_count().map_err(|e| format!("the driver lists no devices: {}", text(e)))?;
    (0..count).map(|ordinal| properties(ordinal).map_err(text)).collect()
}

fn properties(ordinal: i32) -> Result<Properties, DriverError> {
    let device = result::device::get(ordinal)?;
    // SAFETY: the device was listed by the driver.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let number = |which| attribute(which).map(|value| value.max(0) as u32);
    let uuid: String = result::device::get_uuid(device)?
        .bytes
        .iter()
        .map(|byte| format!("{:02x}", *byte as u8))
        .collect();
    let bus = [
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    ]
    .map(|which| number(which).unwrap_or_default());
    // The memory clock is in kHz, and the bus width in bits. The memory transfers data twice per cycle.
    let memory_clock = number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or_default();
    let memory_bits = number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or_default();
    Ok(Properties {
        device,
        name: result::device::get_name(device)?,
        uuid,
        // SAFETY: the device was listed by the driver.
        memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock: 1e3 * f64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or_default()),
        bandwidth: 2e3 * f64::from(memory_clock) * f64::from(memory_bits) / 8.0,
        integrated: number(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED).is_ok_and(|is| is != 0),
        bus: format!("{:04x}:{:02x}:{:02x}", bus[0], bus[1], bus[2]),
    })
}

impl Properties {
    /// Returns the architecture as NVIDIA's compiler names it, such as `sm_90`.
    pub(crate) fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }

    /// Returns `true` if tensor cores support the `f16` instructions of the kernels. This requires Ampere or later.
    pub(crate) fn has_tensor_cores(&self) -> bool {
        self.capability >= (8, 0)
    }

    /// Returns the memory bandwidth in bytes per second, computed from clock and bus width. Returns a default if they
    /// are unknown.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        if self.bandwidth > 0.0 { self.bandwidth } else { 500e9 }
    }

    /// Returns the `f32` operations per second that kernels reach: half of the peak. The peak is one addition and one
    /// multiplication per cycle in each of 128 lanes of a multiprocessor.
    pub(crate) fn flops_per_second(&self) -> f64 {
        let lanes = 128.0 * f64::from(self.multiprocessors);
        if self.clock > 0.0 {
            lanes * self.clock
        } else {
            lanes * 1.5e9
        }
    }

    /// Returns the description of the device for listings.
    pub(crate) fn describe(&self, index: usize, driver: Driver) -> DeviceInfo {
        let (major, minor) = self.capability;
        let too_old = 10 * major as i32 + (minor as i32) < MIN_CAPABILITY;
        let kind = if self.integrated {
            DeviceKind::IntegratedGpu
        } else {
            DeviceKind::DiscreteGpu
        };
        DeviceInfo {
            hardware: Some(self.uuid.clone()),
            memory_bytes: Some(self.memory_bytes),
            driver: Some(format!("CUDA {}", driver.version_text())),
            rejected: too_old.then(|| {
                format!(
                    "its compute capability is {major}.{minor}, expected at least {}.{}",
                    MIN_CAPABILITY / 10,
                    MIN_CAPABILITY % 10
                )
            }),
            details: vec![
                Fact::new("compute capability", format!("{major}.{minor}")),
                Fact::new("multiprocessors", self.multiprocessors.to_string()),
                Fact::new("UUID", self.uuid.clone()),
                Fact::new("PCI bus", self.bus.clone()),
                Fact::new("tensor cores, f16", if self.has_tensor_cores() { "yes" } else { "no" }),
            ],
            ..DeviceInfo::new(index, self.name.clone(), kind)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(12_040), "12.4");
        assert_eq!(version_text(13_000), "13.0");
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        if let Err(why) = Driver::get() {
            assert!(why.contains("driver"), "{why}");
            assert_eq!(devices().err(), Some(why));
        }
    }
}
