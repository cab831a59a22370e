//! Buffers in the memory of another executable.

use std::sync::Arc;

use meganeura_core::backend::{SharedBuffer, SharedBuffers};
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::{Error, Result};

use super::places::BufferLocation;

/// A buffer in an allocation of type `S`, which it keeps alive.
struct Lent<S> {
    slab: Arc<S>,
    offset: u64,
}

/// Returns a buffer of an executable, for other executables.
pub fn lend<S: Send + Sync + 'static>(slabs: &[Arc<S>], place: BufferLocation) -> Option<SharedBuffer> {
    let lent = Lent {
        slab: slabs.get(place.slab)?.clone(),
        offset: place.offset,
    };
    Some(SharedBuffer::new(place.bytes as usize, lent))
}

/// Returns the shared buffers that an executable of a plan can borrow: all of the same size.
pub fn borrowable<S: Send + Sync + 'static>(plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
    let fits = |(buffer, shared): &(&BufferRef, &SharedBuffer)| {
        plan.buffers.get(buffer.index()) == Some(&shared.bytes) && shared.memory::<Lent<S>>().is_some()
    };
    shared.iter().filter(fits).map(|(buffer, _)| *buffer).collect()
}

/// Sets the locations of the buffers that a plan borrows, and appends their allocations to `slabs`.
///
/// # Errors
/// A buffer is not shared by an executable of the same backend.
pub fn borrow_slabs<S: Send + Sync + 'static>(
    backend: &str,
    plan: &ExecutionPlan,
    shared: &SharedBuffers,
    places: &mut [BufferLocation],
    slabs: &mut Vec<Arc<S>>,
) -> Result<()> {
    for buffer in &plan.memory.borrowed {
        let found = shared.get(buffer);
        let lent = found.and_then(|shared| Some((shared.bytes, shared.memory::<Lent<S>>()?)));
        let place = places.get_mut(buffer.index());
        let (Some((bytes, lent)), Some(place)) = (lent, place) else {
            return Err(Error::backend(
                backend,
                format!("{} is not shared by a session of this backend", plan.describe(*buffer)),
            ));
        };
        if bytes as u64 != place.bytes {
            let message = format!("{} has {bytes} shared bytes", plan.describe(*buffer));
            return Err(Error::backend(backend, message));
        }
        let known = slabs.iter().position(|slab| Arc::ptr_eq(slab, &lent.slab));
        place.slab = known.unwrap_or_else(|| {
            slabs.push(lent.slab.clone());
            slabs.len() - 1
        });
        place.offset = lent.offset;
    }
    Ok(())
}
