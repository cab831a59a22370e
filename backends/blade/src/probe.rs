//! What blade does not tell of devices: limits, memory, whether a GPU has memory of its own.
//!
//! A read-only look through Vulkan. Where there is none (Metal), or it does not work, devices are taken to have what
//! every one has.

/// Bytes of a storage buffer that every Vulkan device binds.
const LEAST_BINDING: u64 = 128 << 20;
/// Bytes beyond which numbers of elements do not fit 32 bits.
const MOST_BINDING: u64 = 4 << 30;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most bytes that a kernel sees of a buffer.
    pub(crate) binding_bytes: u64,
    /// Bytes of device-local memory.
    pub(crate) memory_bytes: Option<u64>,
    /// Threads of a subgroup, if known.
    pub(crate) subgroup_size: Option<u32>,
    /// Whether the GPU has memory of its own, if known.
    pub(crate) discrete: Option<bool>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            binding_bytes: LEAST_BINDING,
            memory_bytes: None,
            subgroup_size: None,
            discrete: None,
        }
    }
}

/// A device as its driver names it, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probed {
    pub(crate) device_id: u32,
    pub(crate) name: String,
    pub(crate) limits: Limits,
}

#[cfg(any(target_os = "ios", target_os = "macos"))]
pub(crate) fn probe() -> Vec<Probed> {
    Vec::new()
}

/// Every device that Vulkan lists; none if it does not work.
#[cfg(not(any(target_os = "ios", target_os = "macos")))]
pub(crate) fn probe() -> Vec<Probed> {
    // SAFETY: loads the system's Vulkan loader, which blade does as well.
    let Ok(entry) = (unsafe { ash::Entry::load() }) else {
        return Vec::new();
    };
    let app = ash::vk::ApplicationInfo::default().api_version(ash::vk::API_VERSION_1_1);
    let info = ash::vk::InstanceCreateInfo::default().application_info(&app);
    // SAFETY: the structures live through the call and name no extensions or layers.
    let Ok(instance) = (unsafe { entry.create_instance(&info, None) }) else {
        return Vec::new();
    };
    // SAFETY: the instance was created above and is alive; devices are asked for properties only.
    let devices = unsafe { instance.enumerate_physical_devices() }.unwrap_or_default();
    let probed = devices.iter().map(|&device| describe(&instance, device)).collect();
    // SAFETY: nothing made from the instance is left.
    unsafe { instance.destroy_instance(None) };
    probed
}

#[cfg(not(any(target_os = "ios", target_os = "macos")))]
fn describe(instance: &ash::Instance, device: ash::vk::PhysicalDevice) -> Probed {
    use ash::vk;
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
    // SAFETY: the device was listed by the instance, which is alive; the structures live through the calls.
    let (properties, memory) = unsafe {
        instance.get_physical_device_properties2(device, &mut all);
        (all.properties, instance.get_physical_device_memory_properties(device))
    };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    let local = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let binding = u64::from(properties.limits.max_storage_buffer_range);
    let name = properties.device_name_as_c_str().unwrap_or_default();
    Probed {
        device_id: properties.device_id,
        name: name.to_string_lossy().into_owned(),
        limits: Limits {
            binding_bytes: binding.clamp(LEAST_BINDING, MOST_BINDING) / 256 * 256,
            memory_bytes: Some(local.map(|h| h.size).sum()),
            subgroup_size: Some(subgroup.subgroup_size).filter(|&size| size > 0),
            discrete: Some(properties.device_type == vk::PhysicalDeviceType::DISCRETE_GPU),
        },
    }
}
