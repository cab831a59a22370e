//! Device memory, and host memory that the device can read and write.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::backend::{SharedBuffer, SharedBuffers};
use meganeura_core::{Error, ExecutionPlan, Result};
use meganeura_shaders::host::{BufferLocation, borrow_slabs, copy_to_staging, lay_out, lend};

use crate::gpu::{Gpu, NAME};

/// An allocation of device memory.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    first: sys::CUdeviceptr,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes. Their contents are undefined.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        // SAFETY: nothing refers to the memory yet.
        let first = gpu.call("allocating memory", || unsafe { result::malloc_sync(bytes) })?;
        Ok(DeviceMemory {
            gpu: gpu.clone(),
            first,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.first
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the driver allocated the memory. Its owner has waited until no enqueued work uses it.
        self.gpu.free(|| unsafe { result::free_sync(self.first) });
    }
}

/// All buffers of an executable, in a few allocations of device memory.
pub(crate) struct Arena {
    slabs: Vec<Arc<DeviceMemory>>,
    /// Sizes of the slabs that belong to this executable. Further slabs contain borrowed buffers.
    sizes: Vec<u64>,
    places: Vec<BufferLocation>,
}

impl Arena {
    /// Allocates buffers of these sizes. The first ones are the buffers of the plan, in the plan's layout. The
    /// contents are undefined. `shared` contains the buffers that the plan borrows.
    ///
    /// # Errors
    /// A buffer larger than `limit`; not enough memory.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        device: &str,
        (sizes, limit): (&[u64], u64),
        plan: &ExecutionPlan,
        shared: &SharedBuffers,
    ) -> Result<Self> {
        let (sizes, mut places) = lay_out(sizes, plan, limit)?;
        let total: u64 = sizes.iter().sum();
        let mut slabs = Vec::with_capacity(sizes.len());
        for &size in &sizes {
            // SAFETY: nothing refers to the memory yet.
            let made = gpu.attempt(|| unsafe { result::malloc_sync(size as usize) });
            let first = match made {
                Ok(first) => first,
                Err(Some(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))) => {
                    let free = gpu.attempt(result::mem_get_info).ok();
                    let taken: u64 = sizes[..slabs.len()].iter().sum();
                    return Err(Error::OutOfMemory {
                        device: device.to_owned(),
                        requested: usize::try_from(total).unwrap_or(usize::MAX),
                        available: free.map(|(free, _)| free as u64 + taken),
                        remedy: "use a smaller batch or model, or close other programs that use the device's memory"
                            .into(),
                    });
                }
                Err(error) => return gpu.call("allocating memory", || Err(error.unwrap_or(LOST))),
            };
            slabs.push(Arc::new(DeviceMemory {
                gpu: gpu.clone(),
                first,
            }));
        }
        borrow_slabs(NAME, plan, shared, &mut places, &mut slabs)?;
        Ok(Arena { slabs, sizes, places })
    }

    /// Returns the location of a buffer.
    pub(crate) fn place(&self, buffer: usize) -> Option<BufferLocation> {
        self.places.get(buffer).copied()
    }

    /// Returns the address of a byte of a buffer.
    pub(crate) fn address(&self, place: BufferLocation, offset: u64) -> sys::CUdeviceptr {
        self.slabs[place.slab].first + place.offset + offset
    }

    /// Returns a buffer for other executables.
    pub(crate) fn lend(&self, place: BufferLocation) -> Option<SharedBuffer> {
        lend(&self.slabs, place)
    }

    /// Enqueues writes of zeros to all buffers that are not borrowed.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn clear(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        for (memory, size) in self.slabs.iter().zip(&self.sizes) {
            // SAFETY: the range is the whole allocation.
            unsafe { result::memset_d8_async(memory.first, 0, *size as usize, stream) }?;
        }
        Ok(())
    }
}

/// Error of calls on a lost device. Users see the message of the device instead.
const LOST: DriverError = DriverError(sys::CUresult::CUDA_ERROR_DEINITIALIZED);

/// A growing block of page-locked host memory. The device copies to and from it asynchronously.
pub(crate) struct HostMemory {
    gpu: Arc<Gpu>,
    first: *mut c_void,
    bytes: usize,
}

// SAFETY: this exclusively owns the memory, and the memory is not bound to a thread.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Creates empty memory.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        HostMemory {
            gpu: gpu.clone(),
            first: std::ptr::null_mut(),
            bytes: 0,
        }
    }

    /// Returns the address of at least `bytes` bytes. The device must not be using the memory, because growing it
    /// discards the contents.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn with_capacity(&mut self, bytes: usize) -> Result<*mut c_void> {
        if self.bytes < bytes {
            self.release();
            let wanted = bytes.next_power_of_two().max(4096);
            // SAFETY: nothing refers to the memory yet.
            self.first = self.gpu.call("allocating memory of the host", || unsafe {
                result::malloc_host(wanted, 0)
            })?;
            self.bytes = wanted;
        }
        Ok(self.first)
    }

    /// Copies `bytes`, and `more` from the next multiple of 4 bytes on, into the memory. Returns the addresses of both.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn fill(&mut self, bytes: &[u8], more: &[u8]) -> Result<[u64; 2]> {
        let start = bytes.len().next_multiple_of(4);
        let first = self.with_capacity(start + more.len())?.cast::<u8>();
        // SAFETY: the memory is large enough, and the driver has mapped it. By the contract above, the device is not
        // using it.
        let staging = unsafe { std::slice::from_raw_parts_mut(first, start + more.len()) };
        copy_to_staging(bytes, &mut staging[..bytes.len()]);
        staging[start..].copy_from_slice(more);
        Ok([first as u64, first as u64 + start as u64])
    }

    /// Copies bytes from the memory. The device must have finished writing them.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= self.bytes, "a read leaves the staging memory");
        // SAFETY: the range is within the memory by the assertion, and the device has finished using it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.first.cast::<u8>().add(offset), bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn release(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the driver allocated the memory, and the device is not using it.
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
