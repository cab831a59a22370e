//! Packing of blocks of A and B into the order in which tiles read them.

use super::spec::Strides;
use crate::simd::Vector;

/// Copies B[k, cols] into panels of `width` columns: element (p, j) goes to `to[(j / width) * k * width + p *
/// width + j % width]`. In the last panel, elements of columns from `cols` on stay unchanged; masked tiles do
/// not read them.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set. `b` must be valid for the block, and `to` for whole panels that
/// no other code accesses meanwhile. `width` must be a multiple of `V::LANES`.
#[inline(always)]
pub(super) unsafe fn panels<V: Vector>(
    b: *const f32,
    strides: Strides,
    k: usize,
    cols: usize,
    width: usize,
    to: *mut f32,
) {
    // SAFETY: panel `first / width` has columns `first..first + here` of the block and begins at offset
    // `first * k`.
    unsafe {
        if strides.col == 1 {
            rows::<V>(b, strides.row, k, cols, width, to);
            return;
        }
        for first in (0..cols).step_by(width) {
            let here = width.min(cols - first);
            let (from, to) = (b.add(first * strides.col), to.add(first * k));
            columns::<V>(from, strides, k, here, width, to);
        }
    }
}

/// Prefetch distance in rows of B. The rows are too short and too far apart for the hardware prefetcher.
pub(super) const AHEAD: usize = 8;

/// Packs all panels of a B with contiguous rows. It reads row by row, because that is the order in memory.
///
/// # Safety
///
/// As for [`panels`].
#[inline(always)]
unsafe fn rows<V: Vector>(b: *const f32, row: usize, k: usize, cols: usize, width: usize, to: *mut f32) {
    // SAFETY: reads and writes rows below `k` and columns below `cols`. The mask keeps the last vector within
    // `cols`.
    unsafe {
        let mask = V::mask(cols % V::LANES);
        for p in 0..k {
            let from = b.add(p * row);
            for first in (0..cols).step_by(width) {
                let to = to.add(first * k + p * width);
                V::prefetch(from.wrapping_add(AHEAD * row + first));
                let mut j = 0;
                while j < width && first + j + V::LANES <= cols {
                    V::load(from.add(first + j)).store(to.add(j));
                    j += V::LANES;
                }
                if j < width && first + j < cols {
                    V::load_masked(from.add(first + j), mask).store_masked(to.add(j), mask);
                }
            }
        }
    }
}

/// Packs one panel of any B. It is fast if the columns of B are contiguous.
///
/// # Safety
///
/// As for [`panels`], with `cols <= width`.
#[inline(always)]
unsafe fn columns<V: Vector>(b: *const f32, strides: Strides, k: usize, cols: usize, width: usize, to: *mut f32) {
    // SAFETY: reads and writes rows below `k` and columns below `cols`. Only squares that are entirely within
    // the panel are transposed as squares.
    unsafe {
        let mut j = 0;
        let mut squares = 0;
        if strides.row == 1 {
            squares = k / V::LANES;
            while j + V::LANES <= cols {
                let (from, to) = (b.add(j * strides.col), to.add(j));
                for p in 0..squares {
                    let (from, to) = (from.add(p * V::LANES), to.add(p * V::LANES * width));
                    V::transpose(from, strides.col, to, width);
                }
                j += V::LANES;
            }
        }
        let done_rows = squares * V::LANES;
        for column in 0..cols {
            let first = if column < j { done_rows } else { 0 };
            for p in first..k {
                *to.add(p * width + column) = *b.add(p * strides.row + column * strides.col);
            }
        }
    }
}

/// Copies A[rows, k] tile by tile. The heights of the tiles are [`super::share`]`(rows, tiles, _)`. If A's
/// rows are contiguous, the copy has rows of `k` f32s, else columns of a tile's height. The copy has `rows *
/// k` f32s.
///
/// The contiguous axis stays contiguous: tiles read single elements of A, in either order. Only the distance
/// between a tile's elements matters.
///
/// # Safety
///
/// `a` must be valid for the block, and `to` for the copy. No other code may access the copy meanwhile.
pub(super) unsafe fn tiles(a: *const f32, strides: Strides, rows: usize, k: usize, tiles: usize, to: *mut f32) {
    if strides.col == 1 {
        // In this case, the order of tiles is the order of rows.
        for i in 0..rows {
            // SAFETY: row `i` of the block and of the copy.
            unsafe {
                std::ptr::copy_nonoverlapping(a.add(i * strides.row), to.add(i * k), k);
            }
        }
        return;
    }
    // All tiles are copied at once, column by column, because a column is contiguous in memory.
    let (low, higher) = (rows / tiles, rows % tiles);
    for p in 0..k {
        let mut row = 0;
        for tile in 0..tiles {
            let height = low + usize::from(tile < higher);
            // SAFETY: column `p` of this tile and its position in the copy.
            unsafe {
                let from = a.add(row * strides.row + p * strides.col);
                line(from, strides.row, height, to.add(row * k + p * height));
            }
            row += height;
        }
    }
}

/// Copies `len` f32s that are `stride` apart to contiguous memory.
///
/// # Safety
///
/// Both pointers must be valid for `len` elements that do not overlap.
#[inline(always)]
unsafe fn line(from: *const f32, stride: usize, len: usize, to: *mut f32) {
    const CHUNK: usize = 4;
    let mut i = 0;
    // SAFETY: all indices are below `len`.
    unsafe {
        if stride == 1 {
            // With a constant length, the copy is not a call of a library function.
            while i + CHUNK <= len {
                std::ptr::copy_nonoverlapping(from.add(i), to.add(i), CHUNK);
                i += CHUNK;
            }
        }
        while i < len {
            *to.add(i) = *from.add(i * stride);
            i += 1;
        }
    }
}
