//! Memory planning: offsets of buffers in a device's memory.
//!
//! Intermediates are live for a part of a step. Buffers whose lifetimes do not overlap share memory: all have offsets
//! in one arena. Parameters, inputs, constants, states, scalars, results and gradients outlive the step, so they share
//! memory with no other buffer.
//!
//! Time is counted in levels, since dispatches of one level run at the same time. A buffer occupies
//! its memory from the level that writes it up to the last level that reads it, both inclusive, so
//! buffers that share memory are never in use in the same level. Therefore the levels that follow
//! from data dependencies are also right for memory: sharing adds no hazard between dispatches of a
//! level, and costs no parallelism. Backends that run a step level by level need nothing more. A
//! backend that lets levels overlap, or begins a step before the last one has ended, must treat two
//! dispatches with overlapping memory ([`ExecutionPlan::place`]) as users of one buffer.

mod borrow;
mod budget;
mod fit;
mod forecast;
mod life;
mod place;
mod recompute;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::memory_budget::MemoryBudget;
pub use fit::check_fit;
pub use forecast::MemoryForecast;
pub use life::Lifetime;
pub use recompute::{Recomputation, fit_to_budget};

use super::{BufferRef, ExecutionPlan};
use crate::error::{Error, Result};

/// Alignment of offsets in bytes: a multiple of the alignment that any device requires for
/// bindings.
pub const ALIGNMENT: usize = 256;

/// Offsets of all buffers in one arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLayout {
    /// Bytes of the arena.
    pub bytes: usize,
    /// Slab size in bytes, if the device limits the bytes of a binding: the arena is divided into slabs of this size,
    /// and no buffer spans two of them.
    pub slab: Option<usize>,
    /// Offset of each buffer in bytes. Empty if no offsets were assigned: each buffer then has its own memory.
    pub offsets: Vec<usize>,
    /// Buffers that are in the memory of another executable, sorted; see
    /// [`Device::compile_sharing`](crate::backend::Device::compile_sharing). Their offsets are after the end of the
    /// arena, so that they overlap no other buffer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub borrowed: Vec<BufferRef>,
}

impl MemoryLayout {
    /// Returns `true` if a buffer is in the memory of another executable.
    pub fn is_borrowed(&self, buffer: BufferRef) -> bool {
        self.borrowed.binary_search(&buffer).is_ok()
    }
}

/// Returns the bytes that a buffer takes, rounded up to [`ALIGNMENT`].
fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

impl ExecutionPlan {
    /// Assigns offsets to the buffers so that they share memory if possible. `max_buffer_bytes` is the maximum size of
    /// a device's binding in bytes.
    ///
    /// # Errors
    /// [`Error::BufferTooLarge`] if a single buffer exceeds that limit, [`Error::InvalidPlan`] if
    /// the total size overflows.
    pub fn place_buffers(&mut self, max_buffer_bytes: Option<u64>) -> Result<()> {
        let slab = max_buffer_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let slab = slab.map(|bytes| (bytes - bytes % ALIGNMENT).max(ALIGNMENT));
        self.memory = place::place(self, slab)?;
        Ok(())
    }

    /// Returns the range of a buffer in the arena, from its first byte to the byte after its last; `None` if no offsets
    /// were assigned.
    pub fn place(&self, buffer: BufferRef) -> Option<(usize, usize)> {
        let offset = *self.memory.offsets.get(buffer.index())?;
        Some((offset, offset.checked_add(*self.buffers.get(buffer.index())?)?))
    }

    /// Checks that every buffer is in the arena, and that no two buffers overlap while both are in
    /// use.
    pub(super) fn verify_memory(&self) -> Result<()> {
        let memory = &self.memory;
        self.verify_borrowed()?;
        if memory.offsets.is_empty() {
            return Ok(());
        }
        if memory.offsets.len() != self.buffers.len() {
            return Err(Error::plan("its memory is laid out for another number of buffers"));
        }
        for (i, (&offset, &bytes)) in memory.offsets.iter().zip(&self.buffers).enumerate() {
            let is_borrowed = memory.is_borrowed(BufferRef(i as u32));
            let bounds = if is_borrowed {
                memory.bytes..=isize::MAX as usize
            } else {
                0..=memory.bytes
            };
            let end = offset
                .checked_add(bytes)
                .filter(|end| bounds.contains(&offset) && bounds.contains(end));
            let straddles = |slab: usize| slab == 0 || bytes > 0 && offset / slab != (offset + bytes - 1) / slab;
            let is_split = !is_borrowed && memory.slab.is_some_and(straddles);
            if !offset.is_multiple_of(ALIGNMENT) || end.is_none() || is_split {
                return Err(Error::plan(format!(
                    "buffer b{i} does not lie within the memory of the plan"
                )));
            }
        }
        self.verify_sharing()
    }

    /// Checks that nothing writes the buffers of another executable.
    fn verify_borrowed(&self) -> Result<()> {
        let borrowed = &self.memory.borrowed;
        if borrowed.is_empty() {
            return Ok(());
        }
        if !borrowed.is_sorted_by(|a, b| a < b) {
            return Err(Error::plan("its borrowed buffers are not sorted"));
        }
        let fed = self.input_buffers.iter().chain(&self.scalar_buffers).map(|(_, b)| *b);
        match self
            .written_buffers()
            .into_iter()
            .chain(fed)
            .find(|b| self.memory.is_borrowed(*b))
        {
            Some(buffer) => Err(Error::plan(format!(
                "{} is written, but it is in the memory of another executable",
                self.describe(buffer)
            ))),
            None => Ok(()),
        }
    }

    fn verify_sharing(&self) -> Result<()> {
        let lives = self.lifetimes();
        let mut events: Vec<(usize, bool, usize)> = Vec::new();
        for (i, life) in lives.iter().enumerate().filter(|(i, _)| self.buffers[*i] > 0) {
            // A buffer is still in use at its last level: starts of a level come before its ends.
            let (first, last) = life.map_or((0, usize::MAX), |life| (life.first, life.last));
            events.push((first, false, i));
            events.push((last, true, i));
        }
        events.sort_unstable();
        // Ranges in use, by their offset.
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, ends, i) in events {
            let start = self.memory.offsets[i];
            if ends {
                used.remove(&start);
                continue;
            }
            let end = start + self.buffers[i];
            // Ranges in use do not overlap, so only the last one that begins before the end can
            // overlap this one.
            let below = used.range(..end).next_back();
            if let Some((_, &other)) = below.filter(|(at, other)| *at + self.buffers[**other] > start) {
                return Err(Error::plan(format!(
                    "buffers b{other} and b{i} lie in the same memory at the same time"
                )));
            }
            used.insert(start, i);
        }
        Ok(())
    }
}
