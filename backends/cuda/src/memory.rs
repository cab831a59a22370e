//! Memory of the device, and memory of the host that the device reads and writes.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::{Error, ExecutionPlan, Result};
use meganeura_shaders::host::{Place, lay_out};

use crate::gpu::Gpu;

/// Memory of the device.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    first: sys::CUdeviceptr,
}

impl DeviceMemory {
    /// Allocates bytes, whose contents are undefined.
    ///
    /// # Errors
    /// Memory that is not there.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        // SAFETY: memory that nothing refers to yet.
        let first = gpu.call("allocating memory", || unsafe { result::malloc_sync(bytes) })?;
        Ok(DeviceMemory {
            gpu: gpu.clone(),
            first,
        })
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.first
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by the driver, and nothing that is enqueued uses it: whoever owns it has waited.
        self.gpu.free(|| unsafe { result::free_sync(self.first) });
    }
}

/// Buffers of an executable in a few allocations of the device.
pub(crate) struct Arena {
    slabs: Vec<(DeviceMemory, u64)>,
    places: Vec<Place>,
}

impl Arena {
    /// Allocates buffers of these sizes, the first of them those of the plan, as it lays them out. Their contents are undefined.
    ///
    /// # Errors
    /// A buffer beyond the limit, memory that is not there.
    pub(crate) fn new(gpu: &Arc<Gpu>, device: &str, sizes: &[u64], plan: &ExecutionPlan, limit: u64) -> Result<Self> {
        let (slabs, places) = lay_out(sizes, plan, limit)?;
        let total: u64 = slabs.iter().sum();
        let mut arena = Arena {
            slabs: Vec::with_capacity(slabs.len()),
            places,
        };
        for size in slabs {
            // SAFETY: memory that nothing refers to yet.
            let made = gpu.attempt(|| unsafe { result::malloc_sync(size as usize) });
            let first = match made {
                Ok(first) => first,
                Err(Some(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))) => {
                    let free = gpu.attempt(result::mem_get_info).ok();
                    let taken: u64 = arena.slabs.iter().map(|(_, size)| size).sum();
                    return Err(Error::OutOfMemory {
                        device: device.to_owned(),
                        requested: usize::try_from(total).unwrap_or(usize::MAX),
                        available: free.map(|(free, _)| free as u64 + taken),
                        remedy: "use a smaller batch or model, or end what else uses the device's memory".into(),
                    });
                }
                Err(error) => return gpu.call("allocating memory", || Err(error.unwrap_or(LOST))),
            };
            let memory = DeviceMemory {
                gpu: gpu.clone(),
                first,
            };
            arena.slabs.push((memory, size));
        }
        Ok(arena)
    }

    /// Where a buffer is.
    pub(crate) fn place(&self, buffer: usize) -> Option<Place> {
        self.places.get(buffer).copied()
    }

    /// The address of a byte of a buffer.
    pub(crate) fn address(&self, place: Place, offset: u64) -> sys::CUdeviceptr {
        self.slabs[place.slab].0.first + place.offset + offset
    }

    /// Writes zeros everywhere, in the order of a stream.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn clear(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        for (memory, size) in &self.slabs {
            // SAFETY: the range is that of the allocation.
            unsafe { result::memset_d8_async(memory.first, 0, *size as usize, stream) }?;
        }
        Ok(())
    }
}

/// What a call on a lost device is given to fail with, which says so itself.
const LOST: DriverError = DriverError(sys::CUresult::CUDA_ERROR_DEINITIALIZED);

/// Memory of the host that the device copies from and to without stopping; it grows.
pub(crate) struct HostMemory {
    gpu: Arc<Gpu>,
    first: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to this alone and to no thread.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Of no bytes yet.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        HostMemory {
            gpu: gpu.clone(),
            first: std::ptr::null_mut(),
            bytes: 0,
        }
    }

    /// The memory with at least so many bytes. The device must not be using it; what was in it is gone where it grows.
    ///
    /// # Errors
    /// Memory that is not there.
    pub(crate) fn with_capacity(&mut self, bytes: usize) -> Result<*mut c_void> {
        if self.bytes < bytes {
            self.release();
            let wanted = bytes.next_power_of_two().max(4096);
            // SAFETY: memory that nothing refers to yet.
            self.first = self.gpu.call("allocating memory of the host", || unsafe {
                result::malloc_host(wanted, 0)
            })?;
            self.bytes = wanted;
        }
        Ok(self.first)
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// Memory that is not there.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<*const c_void> {
        let first = self.with_capacity(bytes.len())?;
        // SAFETY: there is room for the bytes; the device is not using it, by the contract above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first.cast(), bytes.len()) };
        Ok(first)
    }

    /// Copies bytes out of it, which the device has written and is done with.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= self.bytes, "a read leaves the staging memory");
        // SAFETY: within the memory by the assertion, and the device is done with it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.first.cast::<u8>().add(offset), bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn release(&mut self) {
        if !self.first.is_null() {
            // SAFETY: it was allocated by the driver, and the device is not using it.
            self.gpu.free(|| unsafe { result::free_host(self.first) });
            (self.first, self.bytes) = (std::ptr::null_mut(), 0);
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.release();
    }
}
