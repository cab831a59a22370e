//! Lists of the memory that a thread will read next. The thread prefetches this memory while it is idle.
//!
//! The memory bus is idle between memory-bound stages: while a thread that has finished waits for other threads, and
//! while a short stage runs on one thread. A list contains the first ranges that the next memory-bound stage reads.
//! Idle threads prefetch them at no cost.

use crate::simd::{LINE, prefetch_line};

/// Maximum number of ranges in a list: the numbers and scales of four matmuls in a stage.
const RANGES: usize = 8;
/// Number of cache lines that are prefetched between two checks for work.
const LINES: usize = 4;

/// A list of address ranges. Addresses are not dereferenced, so they need not be valid: prefetching freed memory has
/// no effect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefetch {
    /// Start and end address of each range.
    ranges: [[usize; 2]; RANGES],
    bytes: usize,
}

impl Prefetch {
    /// Maximum number of bytes to prefetch. It is limited because threads wait only for some microseconds. A
    /// second-level cache would have room for more.
    pub(crate) const MAX: usize = 96 << 10;

    /// Adds memory to the list. If the memory follows the last range, extends this range, else begins a new range.
    /// Ignores bytes beyond the capacity of the list.
    pub(crate) fn push(&mut self, start: *const u8, bytes: usize) {
        let bytes = bytes.min(Self::MAX - self.bytes);
        let start = start.addr();
        let follows = |range: &&mut [usize; 2]| range[1] == start || range[0] == range[1];
        if let Some(range) = self.ranges.iter_mut().find(follows) {
            if range[0] == range[1] {
                *range = [start, start];
            }
            range[1] = range[1].saturating_add(bytes);
            self.bytes += bytes;
        }
    }

    /// Returns true if there is nothing to prefetch.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns true if nothing more can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes == Self::MAX
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.iter().filter(|range| range[0] < range[1]).count()
    }

    /// Prefetches the next few cache lines. Returns false if none is left.
    pub(crate) fn prefetch_line(&mut self) -> bool {
        let Some(range) = self.ranges.iter_mut().find(|range| range[0] < range[1]) else {
            return false;
        };
        for line in 0..LINES {
            prefetch_line(range[0].wrapping_add(line * LINE));
        }
        range[0] = range[0].saturating_add(LINES * LINE).min(range[1]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range_and_there_is_a_limit() {
        let memory = vec![0u8; 4 << 10];
        let at = |offset: usize| memory.as_ptr().wrapping_add(offset);
        let mut prefetch = Prefetch::default();
        prefetch.push(at(0), 512);
        prefetch.push(at(2048), 64);
        prefetch.push(at(512), 512);
        prefetch.push(at(2112), 64);
        let asked = |mut prefetch: Prefetch| (0..).take_while(|_| prefetch.prefetch_line()).count();
        assert_eq!((prefetch.bytes, asked(prefetch)), (1152, 5));
        prefetch.push(at(3000), Prefetch::MAX);
        assert!(prefetch.is_full());
        assert_eq!(prefetch.bytes, Prefetch::MAX);
        prefetch.push(at(0), 64);
        assert_eq!(prefetch.bytes, Prefetch::MAX);
        assert_eq!(asked(Prefetch::default()), 0);
    }

    #[test]
    fn more_ranges_than_there_is_room_for() {
        let memory = vec![0u8; 4 << 10];
        let mut prefetch = Prefetch::default();
        for i in 0..2 * RANGES {
            prefetch.push(memory.as_ptr().wrapping_add(200 * i), 100);
        }
        assert_eq!(prefetch.bytes, 100 * RANGES);
    }

    /// Memory that does not exist can be added and prefetched.
    #[test]
    fn memory_of_nobody() {
        let mut prefetch = Prefetch::default();
        prefetch.push(std::ptr::without_provenance(64), 1024);
        prefetch.push(std::ptr::without_provenance(usize::MAX - 100), 100);
        assert!((0..5).all(|_| prefetch.prefetch_line()));
        assert!(!prefetch.prefetch_line());
    }
}
