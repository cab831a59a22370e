//! Memory planning: offsets of buffers in a device's memory.
//!
//! Intermediates are live for a part of a step. Buffers whose lifetimes do not overlap share memory: all have offsets in one
//! arena. Parameters, inputs, constants, states, scalars, results and gradients outlive the step, so they share memory with
//! no other buffer.
//!
//! Time is counted in levels, since dispatches of one level run at the same time. A buffer takes its place from the level
//! that writes it up to the last level that reads it, both included, so neighbours in memory are never in use in one
//! level. Thus the levels that follow from the data are right for the memory too: sharing adds no hazard between
//! dispatches of a level, and costs no parallelism. Backends that run a step level by level need nothing else. One that
//! lets levels overlap, or begins a step before the last one has ended, takes two dispatches whose places overlap
//! ([`ExecutionPlan::place`]) for users of one buffer.

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

/// Offsets are multiples of this many bytes, which no device's binding asks more than.
pub const ALIGNMENT: usize = 256;

/// Places of all buffers in one arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLayout {
    /// Bytes of the arena.
    pub bytes: usize,
    /// Where the device binds no more than so many bytes: the arena is slabs of this size, and no buffer lies in two.
    pub slab: Option<usize>,
    /// Offset of each buffer. Empty for a plan whose buffers were not placed: each has memory of its own.
    pub offsets: Vec<usize>,
}

/// Bytes that a buffer takes.
fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

impl ExecutionPlan {
    /// Places the buffers so that they share memory where they can, for a device that binds at most so many bytes.
    ///
    /// # Errors
    /// [`Error::BufferTooLarge`] when a buffer alone is larger than that, [`Error::InvalidPlan`] when all together are more
    /// than can be counted.
    pub fn place_buffers(&mut self, max_buffer_bytes: Option<u64>) -> Result<()> {
        let slab = max_buffer_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let slab = slab.map(|bytes| (bytes - bytes % ALIGNMENT).max(ALIGNMENT));
        self.memory = place::place(self, slab)?;
        Ok(())
    }

    /// First and last byte (exclusive) of a buffer in the arena; `None` if the plan's buffers were not placed.
    pub fn place(&self, buffer: BufferRef) -> Option<(usize, usize)> {
        let offset = *self.memory.offsets.get(buffer.index())?;
        Some((offset, offset.checked_add(*self.buffers.get(buffer.index())?)?))
    }

    /// Every buffer lies in the arena, and none in the memory of another while that is needed.
    pub(super) fn verify_memory(&self) -> Result<()> {
        let memory = &self.memory;
        if memory.offsets.is_empty() {
            return Ok(());
        }
        if memory.offsets.len() != self.buffers.len() {
            return Err(Error::plan("its memory is laid out for another number of buffers"));
        }
        for (i, (&offset, &bytes)) in memory.offsets.iter().zip(&self.buffers).enumerate() {
            let end = offset.checked_add(bytes).filter(|&end| end <= memory.bytes);
            let straddles = |slab: usize| slab == 0 || bytes > 0 && offset / slab != (offset + bytes - 1) / slab;
            if !offset.is_multiple_of(ALIGNMENT) || end.is_none() || memory.slab.is_some_and(straddles) {
                return Err(Error::plan(format!(
                    "buffer b{i} does not lie within the memory of the plan"
                )));
            }
        }
        self.verify_sharing()
    }

    fn verify_sharing(&self) -> Result<()> {
        let lives = self.lifetimes();
        let mut events: Vec<(usize, bool, usize)> = Vec::new();
        for (i, life) in lives.iter().enumerate().filter(|(i, _)| self.buffers[*i] > 0) {
            // What ends at a level is in use there: ends come after the beginnings of their level.
            let (first, last) = life.map_or((0, usize::MAX), |life| (life.first, life.last));
            events.push((first, false, i));
            events.push((last, true, i));
        }
        events.sort_unstable();
        // Places in use, by their offset.
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, ends, i) in events {
            let start = self.memory.offsets[i];
            if ends {
                used.remove(&start);
                continue;
            }
            let end = start + self.buffers[i];
            // Of the places in use, which do not overlap, only the last that begins before the end may overlap this.
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
