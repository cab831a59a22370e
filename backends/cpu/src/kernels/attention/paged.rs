//! Lookup of the rows of each sequence in a paged cache.

use std::ops::Range;

use meganeura_core::ops::PagedDims;

use crate::kernel::CompileCx;
use crate::memory::View;

/// The block tables of the sequences in a paged cache.
#[derive(Clone, Copy)]
pub(super) struct Paged {
    /// Block numbers of the sequence of each query row, `[rows, table_len]`.
    table: View<u32>,
    table_len: usize,
    pub(super) block_rows: usize,
}

impl Paged {
    /// Creates the lookup from a call's table operand.
    pub(super) fn of(cx: &CompileCx, dims: &PagedDims) -> Self {
        Paged {
            table: cx.input(4),
            table_len: dims.table_len,
            block_rows: dims.block_rows,
        }
    }

    /// Returns the block numbers of a row's sequence.
    ///
    /// # Safety
    /// The table must not be written meanwhile.
    unsafe fn blocks<'a>(&self, row: usize) -> &'a [u32] {
        // SAFETY: forwarded.
        unsafe { self.table.slice(row * self.table_len..(row + 1) * self.table_len) }
    }

    /// Returns the number of a block of a row's sequence. `place` is the index in the block table.
    ///
    /// # Safety
    /// As for [`Paged::blocks`].
    pub(super) unsafe fn block(&self, row: usize, place: usize) -> usize {
        // SAFETY: forwarded.
        let blocks = unsafe { self.blocks(row) };
        blocks[place] as usize
    }

    /// Calls `attend` for each range of rows that are consecutive in one sequence, with the position of the first
    /// row. All block numbers must be below `bound`. Otherwise returns the first invalid number and does not call
    /// `attend`.
    ///
    /// # Safety
    /// As for [`Paged::blocks`].
    pub(super) unsafe fn sequences(
        &self,
        positions: &[u32],
        rows: Range<usize>,
        bound: usize,
        mut attend: impl FnMut(Range<usize>, usize),
    ) -> Result<(), u32> {
        // SAFETY: forwarded.
        let blocks = |row| unsafe { self.blocks(row) };
        if let Some(&bad) = rows.clone().flat_map(blocks).find(|&&block| block as usize >= bound) {
            return Err(bad);
        }
        let last = self.table_len * self.block_rows - 1;
        let position = |row: usize| (positions[row] as usize).min(last);
        let follows = |row: usize| {
            let places = position(row) / self.block_rows + 1;
            position(row) == position(row - 1) + 1 && blocks(row)[..places] == blocks(row - 1)[..places]
        };
        let mut first = rows.start;
        for end in rows.start + 1..=rows.end {
            if end < rows.end && follows(end) {
                continue;
            }
            attend(first..end, position(first));
            first = end;
        }
        Ok(())
    }
}
