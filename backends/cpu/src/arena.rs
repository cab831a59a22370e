//! Memory of an executable: one zeroed allocation that contains all buffers, except buffers that it borrows from other
//! executables. Buffers do not share cache lines, except buffers that are not needed at the same time.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::backend::SharedBuffers;
use meganeura_core::plan::{BufferRef, ExecutionPlan};

use crate::memory::{ALIGNMENT, Block, View};
use crate::order::Panels;

/// A buffer in the block of an executable, for other executables.
pub(crate) struct Lent {
    /// Keeps the memory alive.
    block: Arc<Block>,
    start: View<u8>,
    /// Storage order of the buffer.
    pub(crate) panels: Option<Panels>,
}

/// All buffers of a plan.
pub(crate) struct Arena {
    /// Block of all buffers that are not borrowed.
    block: Arc<Block>,
    buffers: Vec<View<u8>>,
    /// Buffers that other executables read or own. Nothing writes them.
    frozen: HashSet<BufferRef>,
    /// Memory of the borrowed buffers.
    _borrowed: Vec<Arc<Block>>,
}

impl Arena {
    /// Allocates the buffers of a plan at the plan's offsets. If the plan has no offsets, buffers follow each other.
    /// `shared` contains the buffers that the plan borrows. The error is the number of bytes that could not be
    /// allocated.
    pub(crate) fn new(plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Self, usize> {
        let memory = &plan.memory;
        let own = |(i, &bytes): (usize, &usize)| {
            if memory.is_borrowed(BufferRef(i as u32)) {
                0
            } else {
                bytes
            }
        };
        let (offsets, bytes) = if !memory.offsets.is_empty() {
            (memory.offsets.clone(), memory.bytes)
        } else {
            let sizes: Vec<usize> = plan.buffers.iter().enumerate().map(own).collect();
            side_by_side(&sizes).ok_or(usize::MAX)?
        };
        let block = Arc::new(Block::new(bytes).ok_or(bytes)?);
        let mut borrowed = Vec::new();
        let buffers = plan
            .buffers
            .iter()
            .zip(offsets)
            .enumerate()
            .map(|(i, (&bytes, offset))| {
                let buffer = BufferRef(i as u32);
                if memory.is_borrowed(buffer)
                    && let Some(lent) = shared.get(&buffer).and_then(|shared| shared.memory::<Lent>())
                {
                    borrowed.push(lent.block.clone());
                    return lent.start;
                }
                // A borrowed buffer that is not there: its address only matters if the plan runs, which `compile` refuses.
                let offset = if memory.is_borrowed(buffer) { 0 } else { offset };
                // SAFETY: the offset is within the block, because the plan was verified, or it was computed above.
                View::new(unsafe { block.as_ptr().add(offset) }, bytes)
            });
        Ok(Arena {
            buffers: buffers.collect(),
            block,
            frozen: memory.borrowed.iter().copied().collect(),
            _borrowed: borrowed,
        })
    }

    /// Returns the number of bytes of a buffer.
    pub(crate) fn size(&self, buffer: BufferRef) -> Option<usize> {
        self.buffers.get(buffer.index()).map(View::len)
    }

    /// Returns the address of the first byte of a buffer, which must exist.
    pub(crate) fn pointer(&self, buffer: BufferRef) -> *mut u8 {
        self.buffers[buffer.index()].as_ptr()
    }

    /// Returns true if nothing may write a buffer.
    pub(crate) fn is_frozen(&self, buffer: BufferRef) -> bool {
        self.frozen.contains(&buffer)
    }

    /// Makes a buffer available to other executables. Nothing may write it any more.
    pub(crate) fn lend(&mut self, buffer: BufferRef, panels: Option<Panels>) -> Option<Lent> {
        let start = *self.buffers.get(buffer.index())?;
        // A borrowed buffer is in the memory of another executable.
        self.frozen.insert(buffer).then(|| Lent {
            block: self.block.clone(),
            start,
            panels,
        })
    }

    /// Returns the first word of a buffer. The buffer must exist and have at least one word, and no task may run
    /// meanwhile.
    pub(crate) fn word(&self, buffer: BufferRef) -> u32 {
        assert!(self.size(buffer) >= Some(size_of::<u32>()), "{buffer} has no word");
        // SAFETY: by the assertion, the buffer has four bytes, and its memory is initialised. The block and the
        // offset are aligned, and no code writes the buffer meanwhile.
        unsafe { self.pointer(buffer).cast::<u32>().read() }
    }

    /// Returns a range of bytes of a buffer, or `None` if the buffer does not contain it.
    pub(crate) fn read(&self, buffer: BufferRef, offset: u64, len: usize) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.size(buffer)? {
            return None;
        }
        // SAFETY: the range is within one buffer, whose memory is initialised. No kernel of this executable runs during
        // the borrow of the arena, and nothing writes a frozen buffer.
        Some(unsafe { std::slice::from_raw_parts(self.pointer(buffer).add(offset), len) })
    }

    /// Returns a range of bytes of a buffer for writing, or `None` if the buffer does not contain it, or is frozen.
    pub(crate) fn bytes(&mut self, buffer: BufferRef, offset: u64, len: usize) -> Option<&mut [u8]> {
        let offset = usize::try_from(offset).ok()?;
        if self.is_frozen(buffer) || offset.checked_add(len)? > self.size(buffer)? {
            return None;
        }
        // SAFETY: the range is within one buffer of the block, whose memory is initialised. No kernel runs during the
        // exclusive borrow of the arena, and no other executable uses the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pointer(buffer).add(offset), len) })
    }
}

/// Returns offsets at which buffers of these sizes follow each other, and the end of the last buffer.
fn side_by_side(sizes: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = Vec::with_capacity(sizes.len());
    let mut end = 0usize;
    for size in sizes {
        offsets.push(end);
        end = end.checked_add(size.checked_next_multiple_of(ALIGNMENT)?)?;
    }
    Some((offsets, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_impossible_sizes_have_no_places() {
        assert_eq!(side_by_side(&[3, 0, 65]), Some((vec![0, 64, 64], 192)));
        assert_eq!(side_by_side(&[64, usize::MAX]), None);
        assert_eq!(side_by_side(&[usize::MAX - 63, 64]), None);
    }
}
