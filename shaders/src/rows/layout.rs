//! How the threads of a workgroup share rows and columns.

use super::{Rows, THREADS, THREADS_THRESHOLD};

/// Rows side by side where neighbouring rows are neighbours in memory.
const WIDE_ROWS: usize = 32;
/// Fewest lanes of neighbouring columns: what they read together is a line of memory.
const MIN_LANES: usize = 32;
/// Columns of a thread that are better than more threads, if there are enough of these.
const FEW_COLUMNS: usize = 8;

/// How a workgroup is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Rows of a workgroup.
    pub(crate) width: usize,
    /// Threads of a row, a power of two.
    pub(crate) lanes: usize,
    /// Whether neighbouring threads have neighbouring rows rather than columns.
    pub(crate) rows_first: bool,
}

impl Layout {
    pub(super) fn of(rows: &Rows) -> Self {
        let last = (0..rows.domain.rank()).rev().find(|&a| rows.domain[a] > 1);
        let layout = Layout::new(rows.columns, last.is_some_and(|a| !rows.reduced[a]));
        let mut lanes = layout.lanes;
        // Where there are threads enough, several columns each: there is less to put together.
        while !layout.rows_first
            && lanes > MIN_LANES
            && rows.columns.div_ceil(lanes / 2) <= FEW_COLUMNS
            && rows.rows * lanes / 2 >= THREADS_THRESHOLD
        {
            lanes /= 2;
        }
        Layout::of_lanes(lanes, layout.rows_first)
    }

    /// For rows of so many columns; `rows_first` where neighbouring rows are neighbours in memory.
    pub(crate) fn new(columns: usize, rows_first: bool) -> Self {
        let lanes = columns.next_power_of_two().clamp(1, Layout::most_lanes(rows_first));
        // A few columns are no work for several threads.
        let lanes = if columns <= 8 { 1 } else { lanes };
        Layout::of_lanes(lanes, rows_first)
    }

    /// Most threads of a row.
    pub(super) fn most_lanes(rows_first: bool) -> usize {
        if rows_first { THREADS / WIDE_ROWS } else { THREADS }
    }

    /// For so many threads of a row.
    pub(super) fn of_lanes(lanes: usize, rows_first: bool) -> Self {
        Layout {
            width: THREADS / lanes,
            lanes,
            rows_first,
        }
    }

    /// All threads for the one row.
    pub(super) fn of_one_row() -> Self {
        Layout::of_lanes(THREADS, false)
    }
}
