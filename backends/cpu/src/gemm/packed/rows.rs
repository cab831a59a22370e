//! Rows of quantised weights, and their storage formats.

use meganeura_core::quantization::{BLOCK, BlockFormat};

/// The storage format of a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// IEEE 754 binary16.
    F16,
    /// Blocks of 32 integers with one or two scales each.
    Blocks(BlockFormat),
}

impl Storage {
    /// Returns the number of bytes of `count` numbers without scales. `count` must be a multiple of the block length.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Storage::F16 => 2 * count,
            Storage::Blocks(format) => count / BLOCK * format.bytes(),
        }
    }

    /// Returns the number of scales per block. The minimum of a block counts as a scale.
    pub(crate) fn scales(self) -> usize {
        match self {
            Storage::F16 => 0,
            Storage::Blocks(format) => format.scales(),
        }
    }
}

/// Consecutive rows of a stored matrix, row by row or in [`PackedGemm::panels`].
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// Address of the first row's numbers.
    pub(crate) numbers: *const u8,
    /// Address of the first row's scales.
    pub(crate) scales: *const u16,
    /// Number of columns.
    pub(crate) k: usize,
}

impl Rows {
    /// Returns the rows from `row` on. If the matrix is stored in panels, `row` must be the first row of a panel.
    ///
    /// # Safety
    ///
    /// The row must exist.
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
