//! Storage of the faults (indices out of range) that kernels find while a step runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first fault of a step.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Dispatch index plus one in the upper half, the bad index in the lower; 0 if there is no fault.
    first: AtomicU64,
    rows: AtomicU64,
}

impl Faults {
    pub(crate) fn report(&self, dispatch: usize, index: u32, rows: usize) {
        let word = ((dispatch as u64 + 1) << 32) | u64::from(index);
        let stored = self
            .first
            .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
        if stored.is_ok() {
            self.rows.store(rows as u64, Ordering::Release);
        }
    }

    /// Returns true if there was a fault. Call it only after the tasks have ended: the pool waits for them.
    pub(crate) fn any(&self) -> bool {
        self.first.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn take(&self) -> Option<(usize, u32, usize)> {
        let word = self.first.swap(0, Ordering::AcqRel);
        let dispatch = (word >> 32).checked_sub(1)?;
        Some((
            dispatch as usize,
            word as u32,
            self.rows.load(Ordering::Acquire) as usize,
        ))
    }
}
