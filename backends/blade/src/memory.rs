//! Memory of an executable: its buffers in a few large allocations.

use std::sync::Arc;

use blade_graphics as bg;
use meganeura_core::{Error, ExecutionPlan, Result};

use crate::gpu::Gpu;
use meganeura_shaders::host::{BufferLocation, copy_to_staging, lay_out};

/// All buffers of an executable, in device-local memory.
pub(crate) struct Arena {
    gpu: Arc<Gpu>,
    slabs: Vec<bg::Buffer>,
    places: Vec<BufferLocation>,
}

impl Arena {
    /// Allocates buffers of these sizes. The first ones are the buffers of the plan, in the plan's layout. The
    /// contents are undefined.
    ///
    /// # Errors
    /// A buffer larger than `limit`; not enough memory.
    pub(crate) fn new(gpu: &Arc<Gpu>, device: &str, sizes: &[u64], plan: &ExecutionPlan, limit: u64) -> Result<Self> {
        let (slabs, places) = lay_out(sizes, plan, limit)?;
        let total: u64 = slabs.iter().sum();
        // The available memory is checked beforehand, because blade panics if the driver rejects an allocation.
        let stats = gpu.guard("reading the memory budget", bg::Context::memory_stats)?;
        let available = (stats.budget > 0).then(|| stats.budget.saturating_sub(stats.usage));
        let out_of_memory = || Error::OutOfMemory {
            device: device.to_owned(),
            requested: usize::try_from(total).unwrap_or(usize::MAX),
            available,
            remedy: "use a smaller batch or model, or close other programs that use the device's memory".into(),
        };
        if available.is_some_and(|available| total > available) {
            return Err(out_of_memory());
        }
        let mut arena = Arena {
            gpu: gpu.clone(),
            slabs: Vec::new(),
            places,
        };
        for size in slabs {
            let buffer = create(gpu, "plan", size, bg::Memory::Device).map_err(|_| out_of_memory())?;
            arena.slabs.push(buffer);
        }
        Ok(arena)
    }

    /// Returns the location of a buffer.
    pub(crate) fn place(&self, buffer: usize) -> Option<BufferLocation> {
        self.places.get(buffer).copied()
    }

    /// Returns the address of a byte of a buffer as a blade buffer piece.
    pub(crate) fn piece(&self, place: BufferLocation, offset: u64) -> bg::BufferPiece {
        self.slabs[place.slab].at(place.offset + offset)
    }

    /// Records writes of zeros to all buffers.
    pub(crate) fn clear(&self, pass: &mut bg::TransferCommandEncoder) {
        for slab in &self.slabs {
            pass.fill_buffer(slab.at(0), slab.size(), 0);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for &slab in &self.slabs {
            self.gpu.free(|context| context.destroy_buffer(slab));
        }
    }
}

fn create(gpu: &Gpu, name: &str, size: u64, memory: bg::Memory) -> Result<bg::Buffer> {
    gpu.guard(&format!("allocating {size} bytes"), |context| {
        context.create_buffer(bg::BufferDesc { name, size, memory })
    })
}

/// A growing host-visible buffer. It stays small, because its users transfer data in pieces.
pub(crate) struct HostBuffer {
    gpu: Arc<Gpu>,
    memory: bg::Memory,
    raw: Option<bg::Buffer>,
}

impl HostBuffer {
    /// Creates an empty buffer in memory [`bg::Memory::Upload`] or [`bg::Memory::Download`].
    pub(crate) fn new(gpu: &Arc<Gpu>, memory: bg::Memory) -> Self {
        HostBuffer {
            gpu: gpu.clone(),
            memory,
            raw: None,
        }
    }

    /// Returns a buffer with at least `bytes` bytes. The device must not be using the current buffer.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn with_capacity(&mut self, bytes: u64) -> Result<bg::Buffer> {
        if let Some(raw) = self.raw.filter(|raw| raw.size() >= bytes) {
            return Ok(raw);
        }
        self.release();
        let raw = create(&self.gpu, "staging", bytes.next_power_of_two().max(4096), self.memory)?;
        self.raw = Some(raw);
        Ok(raw)
    }

    /// Copies bytes into the buffer.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<bg::Buffer> {
        let raw = self.with_capacity(bytes.len() as u64)?;
        // SAFETY: memory of this kind is mapped as long as the buffer exists, and the buffer has room for the bytes.
        // By the contract above, the device is not using it.
        let staging = unsafe { std::slice::from_raw_parts_mut(raw.data(), bytes.len()) };
        copy_to_staging(bytes, staging);
        Ok(raw)
    }

    /// Copies bytes from the buffer. The device must have finished writing them.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let Some(raw) = self.raw else { return };
        assert!(
            offset + bytes.len() as u64 <= raw.size(),
            "a read leaves the staging buffer"
        );
        // SAFETY: the range is within the mapped buffer by the assertion, and the device has finished using it.
        unsafe { std::ptr::copy_nonoverlapping(raw.data().add(offset as usize), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Returns the size of the buffer in bytes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u64 {
        self.raw.map_or(0, |raw| raw.size())
    }

    fn release(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.gpu.free(|context| context.destroy_buffer(raw));
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.release();
    }
}
