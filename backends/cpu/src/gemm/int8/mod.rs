//! Products of unsigned bytes (activations) and signed bytes (weights), with sums in `i32`.
//!
//! The rows of the left operand are bytes in units of four. A row may consist of several parts, the *taps* of a
//! convolution, that are at different addresses. The rows of the weights are stored in [`Panels`] of [`PANEL`] rows,
//! in which one vector register contains a unit of each row; the rows after the last whole panel are stored row by row.

#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use crate::order::Panels;

/// Maximum number of rows of the left operand in a tile.
pub(crate) const ROWS: usize = 8;
/// Number of rows of the weights in a panel.
const PANEL: usize = 16;
/// Maximum number of columns of a tile: two panels.
pub(crate) const COLUMNS: usize = 2 * PANEL;
/// Number of bytes of a unit.
pub(crate) const UNIT: usize = 4;
/// Maximum number of terms of a sum, so that sums of products of a byte and a signed byte fit in `i32`.
pub(crate) const MAX_TERMS: usize = 1 << 16;

/// Sums of the products of a tile: `[row][column]`.
pub(crate) type Sums = [[i32; COLUMNS]; ROWS];

/// The rows of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Taps<'a> {
    /// Address that the offsets refer to.
    pub(crate) base: *const u8,
    /// Offset of each row's part for each tap, in bytes.
    pub(crate) offsets: &'a [[u32; ROWS]],
    /// Number of units of a part.
    pub(crate) units: usize,
}

/// Computes the products of `M` rows and `P` panels. Arguments: rows, the first panel, bytes of a panel, sums.
type TileFn = unsafe fn(&Taps, *const u8, usize, &mut Sums);

/// Kernels of one instruction set.
pub(crate) struct Int8Kernels {
    /// `tiles[rows - 1][panels - 1]`.
    tiles: [[TileFn; 2]; ROWS],
}

macro_rules! kernels {
    ($tile:ident) => {
        Int8Kernels {
            tiles: [
                [$tile::<1, 1>, $tile::<1, 2>],
                [$tile::<2, 1>, $tile::<2, 2>],
                [$tile::<3, 1>, $tile::<3, 2>],
                [$tile::<4, 1>, $tile::<4, 2>],
                [$tile::<5, 1>, $tile::<5, 2>],
                [$tile::<6, 1>, $tile::<6, 2>],
                [$tile::<7, 1>, $tile::<7, 2>],
                [$tile::<8, 1>, $tile::<8, 2>],
            ],
        }
    };
}

impl Int8Kernels {
    /// Returns the kernels for this CPU. Returns `None` if it multiplies `f32` as fast as bytes.
    pub(crate) fn fastest() -> Option<&'static Int8Kernels> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw") {
            use vnni::tile;
            static VNNI: Int8Kernels = kernels!(tile);
            return Some(&VNNI);
        }
        None
    }

    /// Returns kernels that every CPU can run, for tests.
    pub(crate) fn portable() -> &'static Int8Kernels {
        static PORTABLE: Int8Kernels = kernels!(portable_tile);
        &PORTABLE
    }
}

/// # Safety
///
/// As for [`Int8Weights::products`].
unsafe fn portable_tile<const M: usize, const P: usize>(
    taps: &Taps,
    panel: *const u8,
    panel_bytes: usize,
    sums: &mut Sums,
) {
    for (i, row) in sums.iter_mut().enumerate().take(M) {
        for (column, sum) in row.iter_mut().enumerate().take(P * PANEL) {
            *sum = 0;
            for (tap, offsets) in taps.offsets.iter().enumerate() {
                for unit in 0..taps.units {
                    // SAFETY: units of the tap, and of the row of the panel.
                    let (a, w) = unsafe {
                        let at = (tap * taps.units + unit) * PANEL + column % PANEL;
                        let a = taps.base.add(offsets[i] as usize + UNIT * unit);
                        let w = panel.add(column / PANEL * panel_bytes + UNIT * at);
                        (a.cast::<[u8; UNIT]>().read(), w.cast::<[i8; UNIT]>().read())
                    };
                    *sum += a.iter().zip(w).map(|(&a, w)| i32::from(a) * i32::from(w)).sum::<i32>();
                }
            }
        }
    }
}

/// The weights of a product: `rows` rows of `taps * units` units.
#[derive(Clone, Copy)]
pub(crate) struct Int8Weights {
    kernels: &'static Int8Kernels,
    /// Number of rows, the columns of the product.
    rows: usize,
    /// Number of bytes of a row.
    row_bytes: usize,
    /// Number of panels. Later rows are stored row by row.
    panels: usize,
}

/// Returns the panels of a matrix of `rows` rows of `words` words.
pub(crate) fn panels(rows: usize, words: usize) -> Option<Panels> {
    Panels::new(rows, UNIT * words, PANEL, UNIT)
}

impl Int8Weights {
    /// Describes weights of `rows` rows of `words` words, in panels or row by row.
    pub(crate) fn new(kernels: &'static Int8Kernels, [rows, words]: [usize; 2], panels: Option<Panels>) -> Self {
        Int8Weights {
            kernels,
            rows,
            row_bytes: UNIT * words,
            panels: panels.map_or(0, |panels| panels.count),
        }
    }

    /// Returns the number of groups of columns.
    pub(crate) fn groups(&self) -> usize {
        self.panels.div_ceil(2) + (self.rows - self.panels * PANEL).div_ceil(COLUMNS)
    }

    /// Returns the columns of a group, at most [`COLUMNS`].
    pub(crate) fn columns(&self, group: usize) -> Range<usize> {
        let (pairs, in_panels) = (self.panels.div_ceil(2), self.panels * PANEL);
        if group < pairs {
            return group * COLUMNS..((group + 1) * COLUMNS).min(in_panels);
        }
        let first = in_panels + (group - pairs) * COLUMNS;
        first..(first + COLUMNS).min(self.rows)
    }

    /// Computes the sums of products of `count` rows (1 to [`ROWS`]) with the weights of a group.
    ///
    /// # Safety
    ///
    /// The rows must have the parts that `taps` describes, and `weights` must be the address of the weights.
    pub(crate) unsafe fn products(&self, taps: &Taps, count: usize, weights: *const u8, group: usize, sums: &mut Sums) {
        let columns = self.columns(group);
        if group < self.panels.div_ceil(2) {
            let panel_bytes = PANEL * self.row_bytes;
            let tile = self.kernels.tiles[count - 1][columns.len() / PANEL - 1];
            // SAFETY: the panels of the group; kernels are selected only if the CPU can run them.
            unsafe { tile(taps, weights.add(columns.start * self.row_bytes), panel_bytes, sums) };
            return;
        }
        for (i, row) in sums.iter_mut().enumerate().take(count) {
            for (column, sum) in columns.clone().zip(row) {
                // SAFETY: a row of the weights after the panels, and the parts of a row.
                *sum = unsafe { dot(taps, i, weights.add(column * self.row_bytes)) };
            }
        }
    }
}

/// Returns the product of row `i` and a row of weights that is stored as such.
///
/// # Safety
///
/// Both rows must have the parts that `taps` describes.
unsafe fn dot(taps: &Taps, i: usize, weights: *const u8) -> i32 {
    let bytes = UNIT * taps.units;
    let parts = taps.offsets.iter().enumerate().map(|(tap, offsets)| {
        // SAFETY: by contract.
        let (a, w) = unsafe {
            let a = std::slice::from_raw_parts(taps.base.add(offsets[i] as usize), bytes);
            (
                a,
                std::slice::from_raw_parts(weights.add(tap * bytes).cast::<i8>(), bytes),
            )
        };
        a.iter().zip(w).map(|(&a, &w)| i32::from(a) * i32::from(w)).sum::<i32>()
    });
    parts.sum()
}
