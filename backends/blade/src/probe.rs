//! Device properties that blade does not report: limits, memory size, and whether a GPU has separate memory.
//!
//! They are queried from Vulkan without modifying any state. Without Vulkan (Metal), or if a query fails, devices are
//! assumed to have only the guaranteed minimum.

#[cfg(not(any(target_os = "ios", target_os = "macos")))]
use std::path::PathBuf;
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
use std::sync::OnceLock;

use meganeura_core::backend::Fact;

/// Storage buffer size that every Vulkan device supports, in bytes.
const MIN_BUFFER: u64 = 128 << 20;
/// Maximum buffer size in bytes, so that element counts fit into 32 bits.
const MAX_BUFFER: u64 = 4 << 30;
/// Granularity of buffer sizes in bytes, so that an allocation is not rounded up beyond the limit.
const GRAIN: u64 = 64 << 10;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum buffer size in bytes, for allocations and kernel bindings.
    pub(crate) buffer_bytes: u64,
    /// Size of the device-local memory in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Number of threads in a subgroup, if known.
    pub(crate) subgroup_size: Option<u32>,
    /// Subgroup size, if all subgroups of a kernel have this size and kernels may use subgroup reductions.
    pub(crate) uniform_subgroup_size: Option<u32>,
    /// Number of multiprocessors, if NVIDIA's driver reports it.
    pub(crate) multiprocessors: Option<u32>,
    /// Size of the shared memory of a workgroup in bytes; 0 if unknown.
    pub(crate) workgroup_bytes: u32,
    /// `true` if the GPU has separate memory; `None` if unknown.
    pub(crate) discrete: Option<bool>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            buffer_bytes: MIN_BUFFER,
            memory_bytes: None,
            subgroup_size: None,
            uniform_subgroup_size: None,
            multiprocessors: None,
            workgroup_bytes: 0,
            discrete: None,
        }
    }
}

/// A device as the driver reports it: names, limits and other properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbedDevice {
    pub(crate) device_id: u32,
    pub(crate) name: String,
    /// Identifier that is unique for each device: 16 bytes as hexadecimal digits.
    pub(crate) uuid: String,
    pub(crate) limits: Limits,
    /// Other properties that the driver reports.
    pub(crate) facts: Vec<Fact>,
}

pub(crate) fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Environment variables that select other drivers than the installed ones for the Vulkan loader.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
const DRIVER_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
/// Folders in which drivers are registered.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
const DRIVER_FOLDERS: [&str; 3] = [
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
];
/// Device extensions that determine the available features.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
const EXTENSIONS: [&std::ffi::CStr; 4] = [
    c"VK_KHR_cooperative_matrix",
    c"VK_KHR_shader_float16_int8",
    c"VK_KHR_16bit_storage",
    c"VK_EXT_memory_budget",
];

/// Returns information about Metal. It is a part of the system.
#[cfg(any(target_os = "ios", target_os = "macos"))]
pub(crate) fn environment() -> Vec<Fact> {
    vec![Fact::new("driver", "Metal, of the system")]
}

/// Returns information about the Vulkan loader and the drivers that are registered with it.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
pub(crate) fn environment() -> Vec<Fact> {
    // SAFETY: this only loads the system's Vulkan loader, as blade does.
    let loader = match unsafe { ash::Entry::load() } {
        // SAFETY: the loader was loaded above, and the call only queries a number.
        Ok(entry) => match unsafe { entry.try_enumerate_instance_version() } {
            Ok(version) => format!("version {}", version_text(version.unwrap_or(ash::vk::API_VERSION_1_0))),
            Err(error) => format!("loaded, but it does not report its version: {error}"),
        },
        Err(error) => format!("cannot be loaded: {error}"),
    };
    let mut facts = vec![Fact::new("Vulkan loader", loader)];
    let named = DRIVER_VARIABLES
        .iter()
        .find_map(|name| Some((*name, std::env::var_os(name)?)));
    match named {
        Some((name, value)) => facts.push(Fact::new(name, announced(std::env::split_paths(&value)))),
        None => {
            let folders = DRIVER_FOLDERS
                .iter()
                .filter_map(|folder| std::fs::read_dir(folder).ok());
            let mut files: Vec<PathBuf> = folders.flatten().flatten().map(|entry| entry.path()).collect();
            files.sort();
            // On Windows, drivers are registered in the registry.
            if !cfg!(windows) {
                facts.push(Fact::new("drivers", announced(files.into_iter())));
            }
        }
    }
    facts
}

/// Lists the files that register drivers, and marks missing ones.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
fn announced(files: impl Iterator<Item = PathBuf>) -> String {
    let text = |file: PathBuf| {
        if file.exists() {
            file.display().to_string()
        } else {
            format!("{} (no such file)", file.display())
        }
    };
    let list: Vec<String> = files.map(text).collect();
    if list.is_empty() {
        "none".into()
    } else {
        list.join(", ")
    }
}

#[cfg(not(any(target_os = "ios", target_os = "macos")))]
fn version_text(version: u32) -> String {
    use ash::vk;
    let parts = [
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version),
    ];
    parts.map(|part| part.to_string()).join(".")
}

#[cfg(any(target_os = "ios", target_os = "macos"))]
pub(crate) fn probe() -> Vec<ProbedDevice> {
    Vec::new()
}

/// Returns every device that Vulkan lists. Returns none if Vulkan does not work.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
pub(crate) fn probe() -> Vec<ProbedDevice> {
    // SAFETY: this only loads the system's Vulkan loader, as blade does.
    let Ok(entry) = (unsafe { ash::Entry::load() }) else {
        return Vec::new();
    };
    let app = ash::vk::ApplicationInfo::default().api_version(ash::vk::API_VERSION_1_1);
    let info = ash::vk::InstanceCreateInfo::default().application_info(&app);
    // SAFETY: the structures outlive the call, and contain no extensions or layers.
    let Ok(instance) = (unsafe { entry.create_instance(&info, None) }) else {
        return Vec::new();
    };
    // SAFETY: the instance was created above and is alive. Only properties of devices are queried.
    let devices = unsafe { instance.enumerate_physical_devices() }.unwrap_or_default();
    let probed = devices.iter().map(|&device| describe(&instance, device)).collect();
    // The first instance is kept. Without an instance, the loader unloads the drivers, and some drivers cannot be
    // loaded repeatedly: after a few times, NVIDIA's driver is rejected as incompatible, or ends the program.
    static FIRST: OnceLock<(ash::Entry, ash::Instance)> = OnceLock::new();
    if let Err((_, instance)) = FIRST.set((entry, instance)) {
        // SAFETY: no object that was created from the instance is left.
        unsafe { instance.destroy_instance(None) };
    }
    probed
}

#[cfg(not(any(target_os = "ios", target_os = "macos")))]
fn describe(instance: &ash::Instance, device: ash::vk::PhysicalDevice) -> ProbedDevice {
    use ash::vk;
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut identity = vk::PhysicalDeviceIDProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut subgroup)
        .push_next(&mut identity);
    // SAFETY: the instance listed the device and is alive, and the structures outlive the calls.
    let (properties, memory) = unsafe {
        instance.get_physical_device_properties2(device, &mut all);
        (all.properties, instance.get_physical_device_memory_properties(device))
    };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    let local = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let mut limits = vec![u64::from(properties.limits.max_storage_buffer_range)];
    limits.extend(allocation_limits(instance, device, properties.api_version));
    let buffer_bytes = largest_buffer(&limits);
    let name = properties.device_name_as_c_str().unwrap_or_default();
    // SAFETY: as above.
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.unwrap_or_default();
    let counts = |e: &vk::ExtensionProperties| e.extension_name_as_c_str() == Ok(vk::NV_SHADER_SM_BUILTINS_NAME);
    let multiprocessors = extensions.iter().any(counts).then(|| {
        let mut builtins = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut builtins);
        // SAFETY: as above; the device has the extension that defines the structure.
        unsafe { instance.get_physical_device_properties2(device, &mut all) };
        builtins.shader_sm_count
    });
    let sizes_are_known = properties.api_version >= vk::API_VERSION_1_3
        || extensions
            .iter()
            .any(|e| e.extension_name_as_c_str() == Ok(vk::EXT_SUBGROUP_SIZE_CONTROL_NAME));
    let adds = subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
        && subgroup
            .supported_operations
            .contains(vk::SubgroupFeatureFlags::ARITHMETIC);
    let uniform_subgroup_size = (sizes_are_known && adds).then(|| {
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
        // SAFETY: as above; the device has the version or the extension that defines the structure.
        unsafe { instance.get_physical_device_properties2(device, &mut all) };
        (sizes.min_subgroup_size == sizes.max_subgroup_size).then_some(sizes.min_subgroup_size)
    });
    let driver = &properties.limits;
    let timestamps = if driver.timestamp_compute_and_graphics == vk::TRUE {
        format!("yes, of {} ns", driver.timestamp_period)
    } else {
        "no, so passes are not measured".into()
    };
    let mut facts = vec![
        Fact::new("Vulkan version", version_text(properties.api_version)),
        Fact::new("timestamps", timestamps),
        Fact::new("largest buffer", format!("{buffer_bytes} bytes")),
        Fact::new(
            "workgroup memory",
            format!("{} bytes", driver.max_compute_shared_memory_size),
        ),
        Fact::new(
            "workgroup threads",
            driver.max_compute_work_group_invocations.to_string(),
        ),
    ];
    facts.extend(multiprocessors.map(|count| Fact::new("multiprocessors", count.to_string())));
    facts.extend(EXTENSIONS.map(|wanted| {
        let found = extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(wanted));
        Fact::new(wanted.to_string_lossy(), yes_no(found))
    }));
    ProbedDevice {
        facts,
        device_id: properties.device_id,
        name: name.to_string_lossy().into_owned(),
        uuid: identity.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        limits: Limits {
            buffer_bytes,
            memory_bytes: Some(local.map(|h| h.size).sum()),
            subgroup_size: Some(subgroup.subgroup_size).filter(|&size| size > 0),
            uniform_subgroup_size: uniform_subgroup_size.flatten(),
            multiprocessors,
            workgroup_bytes: driver.max_compute_shared_memory_size,
            discrete: Some(properties.device_type == vk::PhysicalDeviceType::DISCRETE_GPU),
        },
    }
}

/// Returns the largest buffer size that all limits allow. A limit below the guaranteed minimum is replaced by this
/// minimum.
fn largest_buffer(limits: &[u64]) -> u64 {
    let least = limits.iter().copied().min().unwrap_or(MIN_BUFFER);
    least.clamp(MIN_BUFFER, MAX_BUFFER) / GRAIN * GRAIN
}

/// Returns the maximum numbers of bytes of an allocation and of a buffer, as far as a device of this version reports
/// them.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
fn allocation_limits(instance: &ash::Instance, device: ash::vk::PhysicalDevice, version: u32) -> Vec<u64> {
    use ash::vk;
    if version < vk::API_VERSION_1_1 {
        return Vec::new();
    }
    let mut allocation = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut buffer = vk::PhysicalDeviceMaintenance4Properties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut allocation);
    if version >= vk::API_VERSION_1_3 {
        all = all.push_next(&mut buffer);
    }
    // SAFETY: the instance listed the device, is alive and has version 1.1. The structures outlive the call, and a
    // device of this version supports them.
    unsafe { instance.get_physical_device_properties2(device, &mut all) };
    // A value is 0 if the driver does not set it.
    let found = [allocation.max_memory_allocation_size, buffer.max_buffer_size];
    found.into_iter().filter(|&bytes| bytes > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        assert_eq!(largest_buffer(&[u64::MAX, 1 << 30, 2 << 30]), 1 << 30);
        assert_eq!(largest_buffer(&[u64::from(u32::MAX), 1 << 40]), (4 << 30) - GRAIN);
        assert_eq!(largest_buffer(&[1 << 33]), MAX_BUFFER);
        assert_eq!(largest_buffer(&[3]), MIN_BUFFER, "a driver's mistake");
        assert_eq!(largest_buffer(&[]), MIN_BUFFER);
    }
}
