//! Distribution of rows and columns over the threads of a workgroup.

use super::{Rows, THREADS, THREADS_THRESHOLD};

/// Number of adjacent rows of a workgroup, if adjacent rows are neighbours in memory.
const WIDE_ROWS: usize = 32;
/// Minimum number of lanes with adjacent columns. Together they read a cache line.
const MIN_LANES: usize = 32;
/// Maximum number of columns of a thread for which fewer lanes are better, provided that enough threads remain.
const FEW_COLUMNS: usize = 8;

/// Division of a workgroup into rows and lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Number of rows of a workgroup.
    pub(crate) width: usize,
    /// Number of threads of a row, a power of two.
    pub(crate) lanes: usize,
    /// True if adjacent threads have adjacent rows rather than adjacent columns.
    pub(crate) rows_first: bool,
}

impl Layout {
    pub(super) fn of(rows: &Rows) -> Self {
        let last = (0..rows.domain.rank()).rev().find(|&a| rows.domain[a] > 1);
        let layout = Layout::new(rows.columns, last.is_some_and(|a| !rows.reduced[a]));
        let mut lanes = layout.lanes;
        // If there are enough threads, each thread gets several columns, so that fewer partial results have to be
        // combined.
        while !layout.rows_first
            && lanes > MIN_LANES
            && rows.columns.div_ceil(lanes / 2) <= FEW_COLUMNS
            && rows.rows * lanes / 2 >= THREADS_THRESHOLD
        {
            lanes /= 2;
        }
        Layout::of_lanes(lanes, layout.rows_first)
    }

    /// Creates the layout for rows of `columns` columns. `rows_first` is true if adjacent rows are neighbours in
    /// memory.
    pub(crate) fn new(columns: usize, rows_first: bool) -> Self {
        let lanes = columns.next_power_of_two().clamp(1, Layout::most_lanes(rows_first));
        // A few columns are not enough work for several threads.
        let lanes = if columns <= 8 { 1 } else { lanes };
        Layout::of_lanes(lanes, rows_first)
    }

    /// Returns the maximum number of threads of a row.
    pub(super) fn most_lanes(rows_first: bool) -> usize {
        if rows_first { THREADS / WIDE_ROWS } else { THREADS }
    }

    /// Creates the layout with `lanes` threads for each row.
    pub(super) fn of_lanes(lanes: usize, rows_first: bool) -> Self {
        Layout {
            width: THREADS / lanes,
            lanes,
            rows_first,
        }
    }

    /// Creates the layout with all threads for a single row.
    pub(super) fn of_one_row() -> Self {
        Layout::of_lanes(THREADS, false)
    }
}
