//! Memory of an executable: its buffers in a few large allocations.

use std::sync::Arc;

use blade_graphics as bg;
use meganeura_core::backend::{SharedBuffer, SharedBuffers};
use meganeura_core::{Error, ExecutionPlan, Result};

use crate::gpu::{Gpu, NAME};
use meganeura_shaders::host::{BufferLocation, borrow_slabs, copy_to_staging, lay_out, lend};

/// An allocation of device-local memory.
pub(crate) struct Slab {
    gpu: Arc<Gpu>,
    raw: bg::Buffer,
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.gpu.free(|context| context.destroy_buffer(self.raw));
    }
}

/// All buffers of an executable, in device-local memory.
pub(crate) struct Arena {
    slabs: Vec<Arc<Slab>>,
    /// Number of slabs that belong to this executable. Further slabs contain borrowed buffers.
    own: usize,
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
        let (slabs, mut places) = lay_out(sizes, plan, limit)?;
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
        let mut made = Vec::with_capacity(slabs.len());
        for size in slabs {
            let raw = create(gpu, "plan", size, bg::Memory::Device).map_err(|_| out_of_memory())?;
            made.push(Arc::new(Slab { gpu: gpu.clone(), raw }));
        }
        let own = made.len();
        borrow_slabs(NAME, plan, shared, &mut places, &mut made)?;
        Ok(Arena {
            slabs: made,
            own,
            places,
        })
    }

    /// Returns the location of a buffer.
    pub(crate) fn place(&self, buffer: usize) -> Option<BufferLocation> {
        self.places.get(buffer).copied()
    }

    /// Returns the address of a byte of a buffer as a blade buffer piece.
    pub(crate) fn piece(&self, place: BufferLocation, offset: u64) -> bg::BufferPiece {
        self.slabs[place.slab].raw.at(place.offset + offset)
    }

    /// Returns a buffer for other executables.
    pub(crate) fn lend(&self, place: BufferLocation) -> Option<SharedBuffer> {
        lend(&self.slabs, place)
    }

    /// Records writes of zeros to all buffers that are not borrowed.
    pub(crate) fn clear(&self, pass: &mut bg::TransferCommandEncoder) {
        for slab in &self.slabs[..self.own] {
            pass.fill_buffer(slab.raw.at(0), slab.raw.size(), 0);
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
