//! Attention to the blocks of a paged cache: where the rows of each sequence are.

use meganeura_core::ops::PagedDims;

use super::cached::{Cached, ROWS, TASKS_THRESHOLD, Unit, compile_call, heads_in_a_run};
use crate::kernel::{CompileCx, Compiled, RunCx};
use crate::memory::View;

/// Where the rows of sequences are.
#[derive(Clone, Copy)]
pub(super) struct Paged {
    /// Blocks of the sequence of each row of queries, `[rows, table_len]`.
    table: View<u32>,
    table_len: usize,
    pub(super) block_rows: usize,
}

/// Attention to the blocks of a paged cache: keys and values lie where a block table says. The rows of a call are tokens of any
/// sequences; neighbours that follow each other in one sequence, as those of a prompt do, are found when the step runs, and go over
/// their keys together.
pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let PagedDims {
        dims,
        block_rows,
        table_len,
        ..
    } = PagedDims::of(&cx.call())?;
    let paged = Paged {
        table: cx.input(4),
        table_len,
        block_rows,
    };
    // Rows are together in a task only where there are enough tasks without dividing keys: whatever shares the keys of a task
    // has one row then.
    let row_block = |together: usize| dims.rows_q * dims.kv_heads.div_ceil(together) / TASKS_THRESHOLD;
    let together = heads_in_a_run(&dims);
    let [rows, heads] = match row_block(together) {
        0 | 1 => [1, together],
        _ => [row_block(1).min(ROWS), 1],
    };
    compile_call(cx, dims, [rows, heads], Some(paged))
}

impl Paged {
    /// The blocks of a row's sequence.
    ///
    /// # Safety
    /// The table is not written meanwhile.
    unsafe fn blocks<'a>(&self, row: usize) -> &'a [u32] {
        // SAFETY: forwarded.
        unsafe { self.table.slice(row * self.table_len..(row + 1) * self.table_len) }
    }

    /// A block of a row's sequence, by its place there.
    ///
    /// # Safety
    /// As for [`Paged::blocks`].
    pub(super) unsafe fn block(&self, row: usize, place: usize) -> usize {
        // SAFETY: forwarded.
        let blocks = unsafe { self.blocks(row) };
        blocks[place] as usize
    }

    /// See [`Cached::sequences`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn sequences(
        &self,
        call: &Cached,
        positions: &[u32],
        unit: Unit,
        cx: &RunCx,
        mut attend: impl FnMut(Unit, usize),
    ) {
        let rows = unit.first..unit.first + unit.rows;
        // SAFETY: forwarded.
        let blocks = |row| unsafe { self.blocks(row) };
        let bad = rows
            .clone()
            .flat_map(blocks)
            .find(|&&block| block as usize >= call.bound);
        if let Some(&bad) = bad {
            return cx.index_out_of_range(call.dispatch, bad, call.bound);
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
            let rows = end - first;
            attend(Unit { first, rows, ..unit }, position(first));
            first = end;
        }
    }
}
