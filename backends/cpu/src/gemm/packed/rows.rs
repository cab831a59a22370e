//! Rows of few bits as they are stored.

use meganeura_core::quantization::{BLOCK, BlockFormat};

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// IEEE 754 binary16.
    F16,
    /// Blocks of integers with a scale each.
    Blocks(BlockFormat),
}

impl Storage {
    /// Bytes of so many numbers without scales, whole blocks where there are blocks.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Storage::F16 => 2 * count,
            Storage::Blocks(format) => count / BLOCK * format.bytes(),
        }
    }

    /// Scales of a block, minima among them.
    pub(crate) fn scales(self) -> usize {
        match self {
            Storage::F16 => 0,
            Storage::Blocks(format) => format.scales(),
        }
    }
}

/// Rows of a stored matrix, which follow each other, or lie in [`PackedGemm::panels`].
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// The first row's numbers.
    pub(crate) numbers: *const u8,
    /// The first row's scales.
    pub(crate) scales: *const u16,
    /// Numbers of a row.
    pub(crate) k: usize,
}

impl Rows {
    /// The rows from one on, the first one of a panel where there are panels.
    ///
    /// # Safety
    ///
    /// There are so many rows.
    pub(super) unsafe fn from(self, storage: Storage, row: usize) -> Rows {
        // SAFETY: passed on to the caller.
        unsafe {
            Rows {
                numbers: self.numbers.add(row * storage.bytes(self.k)),
                scales: self.scales.add(row * (self.k / BLOCK) * storage.scales()),
                k: self.k,
            }
        }
    }
}
