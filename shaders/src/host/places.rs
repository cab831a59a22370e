//! Layout of the buffers of an executable in a few large allocations.

use meganeura_core::plan::memory::MemoryLayout;
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::{Error, Result};

/// Alignment of offsets that every device accepts for storage buffers.
pub const ALIGNMENT: u64 = 256;

/// Location of a buffer of an executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLocation {
    /// Index of the allocation.
    pub slab: usize,
    /// Offset of the first byte of the buffer, a multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// Size of the buffer in bytes.
    pub bytes: u64,
}

impl BufferLocation {
    /// Returns the union of both locations if the other one begins at the next aligned offset after this one. The
    /// padding between them must be unused.
    pub(super) fn joined(&self, other: &BufferLocation) -> Option<BufferLocation> {
        let len = self.bytes.next_multiple_of(ALIGNMENT);
        let follows = self.slab == other.slab && self.offset + len == other.offset;
        follows.then(|| BufferLocation {
            bytes: len + other.bytes,
            ..*self
        })
    }
}

/// Lays out the buffers of a [`LaunchPlan`](super::LaunchPlan) in allocations of at most `limit` bytes. Returns the
/// sizes of the allocations and the locations of the buffers. The buffers of the plan come first. They keep the
/// offsets of the plan if its layout fits the device. The other buffers follow. Borrowed buffers get no memory: their
/// locations are set by [`borrow_slabs`](super::borrow_slabs).
///
/// # Errors
/// [`Error::BufferTooLarge`] for a buffer that exceeds the limit.
pub fn lay_out(sizes: &[u64], plan: &ExecutionPlan, limit: u64) -> Result<(Vec<u64>, Vec<BufferLocation>)> {
    place_all(sizes, &plan.memory, limit).map_err(|buffer| Error::BufferTooLarge {
        tensor: if plan.buffers.len() > buffer {
            plan.describe(BufferRef(buffer as u32))
        } else {
            "workspace of a kernel".to_owned()
        },
        bytes: sizes[buffer],
        limit,
    })
}

/// Lays out buffers of these sizes in slabs of at most `limit` bytes. Returns the sizes of the slabs and the
/// locations of the buffers. The first buffers keep the offsets of the plan's layout if it fits the device. The other
/// buffers follow.
///
/// # Errors
/// Returns the index of a buffer that exceeds the limit.
fn place_all(
    sizes: &[u64],
    planned: &MemoryLayout,
    limit: u64,
) -> std::result::Result<(Vec<u64>, Vec<BufferLocation>), usize> {
    let slab_bytes = planned
        .slab
        .map_or(planned.bytes as u64, |bytes| bytes as u64)
        .max(ALIGNMENT);
    let planned_for = if slab_bytes <= limit { &planned.offsets[..] } else { &[] };
    let mut slabs: Vec<u64> = if planned_for.is_empty() {
        Vec::new()
    } else {
        (0..planned.bytes as u64)
            .step_by(slab_bytes as usize)
            .map(|start| slab_bytes.min(planned.bytes as u64 - start))
            .collect()
    };
    let mut places = Vec::with_capacity(sizes.len());
    for (buffer, &bytes) in sizes.iter().enumerate() {
        if planned.is_borrowed(BufferRef(buffer as u32)) {
            places.push(BufferLocation {
                slab: usize::MAX,
                offset: 0,
                bytes,
            });
            continue;
        }
        // A buffer without elements needs no memory, but a binding needs a location with some bytes.
        if let Some(&offset) = planned_for.get(buffer).filter(|_| bytes > 0) {
            let (slab, offset) = (offset as u64 / slab_bytes, offset as u64 % slab_bytes);
            places.push(BufferLocation {
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
        places.push(BufferLocation {
            slab,
            offset: slabs[slab],
            bytes,
        });
        slabs[slab] += room;
    }
    Ok((slabs, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_apart_within_slabs() {
        let none = MemoryLayout::default();
        let (slabs, places) = place_all(&[4, 300, 0, 1024, 512], &none, 1024).expect("they fit");
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
            borrowed: Vec::new(),
        };
        // The fourth buffer is empty, and the last two do not belong to the plan.
        let (slabs, places) = place_all(&[256, 200, 512, 0, 256, 8, 500], &planned, 512).expect("they fit");
        let of = |i: usize| (places[i].slab, places[i].offset, places[i].bytes);
        assert_eq!(
            [of(0), of(1), of(2), of(4)],
            [(0, 0, 256), (0, 256, 200), (1, 0, 512), (2, 0, 256)]
        );
        assert_eq!([of(3), of(5), of(6)], [(2, 256, 0), (3, 0, 8), (4, 0, 500)]);
        assert_eq!(slabs, [512, 512, 512, 256, 512]);
        // The layout is for a device with a larger limit, so it is not used here.
        assert_eq!(place_all(&[256, 200, 512, 0, 256], &planned, 256), Err(2));
    }

    #[test]
    fn borrowed_buffers_take_no_memory() {
        let planned = MemoryLayout {
            bytes: 256,
            slab: None,
            offsets: vec![256, 0],
            borrowed: vec![BufferRef(0)],
        };
        let (slabs, places) = place_all(&[1000, 200, 8], &planned, 2048).expect("they fit");
        assert_eq!(slabs.iter().sum::<u64>(), 512);
        assert_eq!((places[0].slab, places[0].bytes), (usize::MAX, 1000));
        assert_eq!((places[1].slab, places[1].offset), (0, 0));
    }

    #[test]
    fn a_buffer_beyond_the_limit_is_refused() {
        let none = MemoryLayout::default();
        assert_eq!(place_all(&[16, 2000], &none, 1024), Err(1));
        assert_eq!(place_all(&[u64::MAX], &none, 1024), Err(0));
    }
}
