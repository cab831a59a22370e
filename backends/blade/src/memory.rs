//! Memory of an executable: its buffers in a few large ones.

use std::sync::Arc;

use blade_graphics as bg;
use meganeura_core::plan::memory::MemoryLayout;
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::{Error, Result};

use crate::gpu::Gpu;

/// Alignment of offsets that every device accepts for storage buffers.
pub(crate) const ALIGNMENT: u64 = 256;

/// Where a logical buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    slab: usize,
    offset: u64,
    pub(crate) bytes: u64,
}

/// Lays out buffers of these sizes in slabs of at most `limit` bytes. Returns the sizes of the slabs and the places.
/// The first buffers are where the plan's layout has them, if it has one that fits the device; the others come after
/// these.
///
/// # Errors
/// The number of a buffer that exceeds the limit.
fn lay_out(sizes: &[u64], planned: &MemoryLayout, limit: u64) -> Result<(Vec<u64>, Vec<Place>), usize> {
    let slab_bytes = planned
        .slab
        .map_or(planned.bytes as u64, |bytes| bytes as u64)
        .max(ALIGNMENT);
    let planned_for = match slab_bytes <= limit {
        true => &planned.offsets[..],
        false => &[],
    };
    let mut slabs: Vec<u64> = match planned_for.is_empty() {
        true => Vec::new(),
        false => (0..planned.bytes as u64)
            .step_by(slab_bytes as usize)
            .map(|start| slab_bytes.min(planned.bytes as u64 - start))
            .collect(),
    };
    let mut places = Vec::with_capacity(sizes.len());
    for (buffer, &bytes) in sizes.iter().enumerate() {
        // A buffer without elements lies nowhere, but bindings want a place with some bytes.
        if let Some(&offset) = planned_for.get(buffer).filter(|_| bytes > 0) {
            let (slab, offset) = (offset as u64 / slab_bytes, offset as u64 % slab_bytes);
            places.push(Place {
                slab: slab as usize,
                offset,
                bytes,
            });
            continue;
        }
        let room = bytes.max(4).checked_next_multiple_of(ALIGNMENT).filter(|&r| r <= limit);
        let room = room.ok_or(buffer)?;
        let slab = match slabs.iter().position(|&used| used + room <= limit) {
            Some(slab) => slab,
            None => {
                slabs.push(0);
                slabs.len() - 1
            }
        };
        places.push(Place {
            slab,
            offset: slabs[slab],
            bytes,
        });
        slabs[slab] += room;
    }
    Ok((slabs, places))
}

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
        let (slabs, places) = lay_out(sizes, &plan.memory, limit).map_err(|buffer| Error::BufferTooLarge {
            tensor: match plan.buffers.len() > buffer {
                true => plan.describe(BufferRef(buffer as u32)),
                false => "workspace of a kernel".to_owned(),
            },
            bytes: sizes[buffer],
            limit,
        })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_apart_within_slabs() {
        let none = MemoryLayout::default();
        let (slabs, places) = lay_out(&[4, 300, 0, 1024, 512], &none, 1024).expect("they fit");
        assert_eq!(slabs, [1024 + 256 - 256, 1024, 512]);
        let of = |i: usize| (places[i].slab, places[i].offset);
        assert_eq!([of(0), of(1), of(2)], [(0, 0), (0, 256), (0, 768)]);
        assert_eq!([of(3), of(4)], [(1, 0), (2, 0)]);
    }

    #[test]
    fn buffers_lie_where_the_plan_has_them_and_others_behind() {
        let planned = MemoryLayout {
            bytes: 1280,
            slab: Some(512),
            offsets: vec![0, 256, 512, 1280, 1024],
        };
        // The fourth is empty; the last two are not the plan's.
        let (slabs, places) = lay_out(&[256, 200, 512, 0, 256, 8, 500], &planned, 512).expect("they fit");
        let of = |i: usize| (places[i].slab, places[i].offset, places[i].bytes);
        assert_eq!(
            [of(0), of(1), of(2), of(4)],
            [(0, 0, 256), (0, 256, 200), (1, 0, 512), (2, 0, 256)]
        );
        assert_eq!([of(3), of(5), of(6)], [(2, 256, 0), (3, 0, 8), (4, 0, 500)]);
        assert_eq!(slabs, [512, 512, 512, 256, 512]);
        // A layout for a device that binds more is of no use here.
        assert_eq!(lay_out(&[256, 200, 512, 0, 256], &planned, 256), Err(2));
    }

    #[test]
    fn a_buffer_beyond_the_limit_is_refused() {
        let none = MemoryLayout::default();
        assert_eq!(lay_out(&[16, 2000], &none, 1024), Err(1));
        assert_eq!(lay_out(&[u64::MAX], &none, 1024), Err(0));
    }
}
