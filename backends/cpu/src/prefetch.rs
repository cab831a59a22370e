//! Memory that a thread will read next, for it to ask for while it has nothing else to do.
//!
//! Stages that are bound by memory leave it idle between them: while one thread is done before the others, and while a
//! short stage runs on one. A list says where the next such stage begins to read; asking for a line costs nothing that
//! anybody waits for.

use crate::simd::{LINE, prefetch_line};

/// Ranges that a list has room for: numbers and scales of four products that share a stage.
const RANGES: usize = 8;
/// Lines that are asked for between two looks at whether there is something to do.
const LINES: usize = 4;

/// Addresses, lowest first in each range. What lies there is not looked at, so that nothing has to: memory that was given
/// back is asked for in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefetch {
    /// Where each range begins and ends.
    ranges: [[usize; 2]; RANGES],
    bytes: usize,
}

impl Prefetch {
    /// Bytes that are asked for, at most. Threads wait for some microseconds, and a second-level cache has room for more.
    pub(crate) const MAX: usize = 96 << 10;

    /// Adds memory that follows what was added before, or lies elsewhere; what there is no room for is left out.
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

    /// Whether there is nothing to ask for.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether nothing more can be added.
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

    /// Asks for the next few lines; false if none is left.
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

    /// Nothing has to be there.
    #[test]
    fn memory_of_nobody() {
        let mut prefetch = Prefetch::default();
        prefetch.push(std::ptr::without_provenance(64), 1024);
        prefetch.push(std::ptr::without_provenance(usize::MAX - 100), 100);
        assert!((0..5).all(|_| prefetch.prefetch_line()));
        assert!(!prefetch.prefetch_line());
    }
}
