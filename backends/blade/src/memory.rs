//! Memory of an executable: its buffers in a few large ones.

use std::sync::Arc;

use blade_graphics as bg;
use meganeura_core::{Error, ExecutionPlan, Result};

use crate::gpu::Gpu;
use meganeura_shaders::host::{Place, lay_out};

/// Buffers of device-local memory.
pub(crate) struct Arena {
    gpu: Arc<Gpu>,
    slabs: Vec<bg::Buffer>,
    places: Vec<Place>,
}

impl Arena {
    /// Allocates buffers of these sizes, the first of them those of the plan, as it lays them out. Their contents are undefined.
    ///
    /// # Errors
    /// A buffer beyond the device's limit, memory that is not there.
    pub(crate) fn new(gpu: &Arc<Gpu>, device: &str, sizes: &[u64], plan: &ExecutionPlan, limit: u64) -> Result<Self> {
        let (slabs, places) = lay_out(sizes, plan, limit)?;
        let total: u64 = slabs.iter().sum();
        // Refused beforehand, because blade panics where the driver refuses.
        let stats = gpu.guard("reading the memory budget", bg::Context::memory_stats)?;
        let available = (stats.budget > 0).then(|| stats.budget.saturating_sub(stats.usage));
        let out_of_memory = || Error::OutOfMemory {
            device: device.to_owned(),
            requested: usize::try_from(total).unwrap_or(usize::MAX),
            available,
            remedy: "use a smaller batch or model, or end what else uses the device's memory".into(),
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

    /// Where a buffer is.
    pub(crate) fn place(&self, buffer: usize) -> Option<Place> {
        self.places.get(buffer).copied()
    }

    /// A byte of a buffer as blade takes it.
    pub(crate) fn piece(&self, place: Place, offset: u64) -> bg::BufferPiece {
        self.slabs[place.slab].at(place.offset + offset)
    }

    /// Writes zeros everywhere.
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

/// A buffer that the host sees, which grows; users keep it small by transferring in pieces.
pub(crate) struct HostBuffer {
    gpu: Arc<Gpu>,
    memory: bg::Memory,
    raw: Option<bg::Buffer>,
}

impl HostBuffer {
    /// Of memory [`bg::Memory::Upload`] or [`bg::Memory::Download`], with no bytes yet.
    pub(crate) fn new(gpu: &Arc<Gpu>, memory: bg::Memory) -> Self {
        HostBuffer {
            gpu: gpu.clone(),
            memory,
            raw: None,
        }
    }

    /// The buffer with at least so many bytes. The device must not be using it.
    ///
    /// # Errors
    /// Memory that is not there.
    pub(crate) fn with_capacity(&mut self, bytes: u64) -> Result<bg::Buffer> {
        if let Some(raw) = self.raw.filter(|raw| raw.size() >= bytes) {
            return Ok(raw);
        }
        self.release();
        let raw = create(&self.gpu, "staging", bytes.next_power_of_two().max(4096), self.memory)?;
        self.raw = Some(raw);
        Ok(raw)
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// Memory that is not there.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<bg::Buffer> {
        let raw = self.with_capacity(bytes.len() as u64)?;
        // SAFETY: memory of this kind is mapped for as long as the buffer lives, which has room for the bytes; the
        // device is not using it, by the contract above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), raw.data(), bytes.len()) };
        Ok(raw)
    }

    /// Copies bytes out of it, which the device has written and is done with.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let Some(raw) = self.raw else { return };
        assert!(
            offset + bytes.len() as u64 <= raw.size(),
            "a read leaves the staging buffer"
        );
        // SAFETY: within the mapped buffer by the assertion, and the device is done with it.
        unsafe { std::ptr::copy_nonoverlapping(raw.data().add(offset as usize), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Its size.
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
