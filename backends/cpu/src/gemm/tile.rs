//! The innermost multiply: a few rows of A times a few vectors of B's columns.

use super::pack::AHEAD;
use crate::simd::{Vector, prefetch_line};

/// Operands of one tile: C[rows, cols] = A[rows, k] · B[k, cols], plus a base.
///
/// The number of rows is that of the kernel called. Distances are in f32s.
pub(super) struct Tile {
    /// A's element (0, 0), the distance between its rows and between its columns,
    /// of which the kernel takes one for granted to be 1.
    pub a: *const f32,
    pub a_row: usize,
    pub a_col: usize,
    /// B's element (0, 0) and the distance between its rows; columns are adjacent.
    pub b: *const f32,
    pub b_row: usize,
    /// C's element (0, 0) and the distance between its rows; columns are adjacent.
    pub c: *mut f32,
    pub c_row: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub cols: usize,
    /// Added to the result: element (0, 0), or null; it may be C's own. And the
    /// distance between its rows.
    pub base: *const f32,
    pub base_row: usize,
    /// Where kernels that copy B leave its lines, and the distance between them there.
    pub copy: *mut f32,
    pub copy_row: usize,
    /// A line, not necessarily a valid one, that is asked for meanwhile, and the distance to the next one.
    pub prefetch: *const f32,
    pub ahead_row: usize,
}

/// A kernel for tiles of one size. Unsafe to call: the CPU must have the
/// kernel's instruction set, the operands must be valid, and nobody else may
/// access the tile of C meanwhile.
pub(super) type TileFn = unsafe fn(&Tile);

/// The kernels for one number of rows and one of the orders of A.
pub(super) struct TileRow<F = TileFn> {
    /// All columns of the widest tile.
    pub full: F,
    /// More than one vector less than that.
    pub wide: F,
    /// At most one vector of columns.
    pub narrow: F,
}

/// A left operand whose rows are in pieces anywhere in memory, each of as many elements as [`Tile::k`] says: piece `p` of row
/// `i` begins at `pointers[p * step + i]`. Rows of B follow each other, those for one piece after those for the one before.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    pub(crate) pointers: *const *const f32,
    /// Distance between the pointers of a row's pieces.
    pub(crate) step: usize,
    pub(crate) count: usize,
}

/// A kernel for tiles of one size and an A in pieces; unsafe to call as [`TileFn`].
pub(super) type PiecesFn = unsafe fn(&Tile, &Pieces);

/// [`multiply`] for an A in pieces; `tile.a` and its distances mean nothing.
///
/// # Safety
///
/// As for [`multiply`]; every pointer of a row of the tile must be valid for `tile.k` elements.
#[inline(always)]
pub(super) unsafe fn multiply_pieces<V: Vector, const ROWS: usize, const VECTORS: usize, const MASKED: bool>(
    tile: &Tile,
    pieces: &Pieces,
) {
    // SAFETY: all reads and writes are within the operands that the caller vouches for: pieces below their count, rows below
    // ROWS, k steps below tile.k, columns below tile.cols.
    unsafe {
        let mask = V::mask(tile.cols - (VECTORS - 1) * V::LANES);
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        let mut line = Line {
            b: tile.b,
            copy: tile.copy,
        };
        for piece in 0..pieces.count {
            let pointers = pieces.pointers.add(piece * pieces.step);
            let mut rows = [tile.b; ROWS];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = *pointers.add(i);
            }
            for _ in 0..tile.k / V::STEPS {
                for p in 0..V::STEPS {
                    step::<V, ROWS, VECTORS, MASKED, true, false>(tile, mask, &rows, p, &mut line, &mut sums);
                }
                advance::<ROWS, true>(tile, &mut rows, V::STEPS);
            }
            for _ in 0..tile.k % V::STEPS {
                step::<V, ROWS, VECTORS, MASKED, true, false>(tile, mask, &rows, 0, &mut line, &mut sums);
                advance::<ROWS, true>(tile, &mut rows, 1);
            }
        }
        finish::<V, ROWS, VECTORS, MASKED>(tile, &sums);
    }
}

/// Multiplies a tile of `ROWS` rows and `VECTORS` vectors of columns, the last of
/// them cut off at `tile.cols` if `MASKED`. A's rows are contiguous if `BY_ROWS`,
/// else its columns are. B goes to `tile.copy`, too, if `COPY`: whole vectors, with
/// zeros beyond `tile.cols`.
///
/// # Safety
///
/// As for [`TileFn`], and `tile.cols` must end in the last vector: exactly at its
/// end unless `MASKED`.
#[inline(always)]
pub(super) unsafe fn multiply<
    V: Vector,
    const ROWS: usize,
    const VECTORS: usize,
    const MASKED: bool,
    const BY_ROWS: bool,
    const COPY: bool,
>(
    tile: &Tile,
) {
    // SAFETY: all reads and writes are within the operands that the caller
    // vouches for: rows below ROWS, k steps below tile.k, columns below tile.cols.
    unsafe {
        let mask = V::mask(tile.cols - (VECTORS - 1) * V::LANES);
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        // The addresses of A's elements must not depend on multiplications or on
        // each other, or computing them takes longer than the arithmetic: either
        // a pointer per row, or one pointer and constant offsets.
        let mut rows = [tile.a; ROWS];
        if BY_ROWS {
            for (i, row) in rows.iter_mut().enumerate() {
                *row = tile.a.add(i * tile.a_row);
            }
        }
        // C may come from far: ask for it now, so that it is there at the end.
        for i in 0..ROWS {
            let row = tile.c.wrapping_add(i * tile.c_row);
            V::prefetch(row);
            V::prefetch(row.wrapping_add(tile.cols - 1));
            if !tile.base.is_null() {
                V::prefetch(tile.base.wrapping_add(i * tile.base_row));
            }
        }
        let mut prefetch = tile.prefetch;
        let mut line = Line {
            b: tile.b,
            copy: tile.copy,
        };
        for _ in 0..tile.k / V::STEPS {
            for p in 0..V::STEPS {
                step::<V, ROWS, VECTORS, MASKED, BY_ROWS, COPY>(tile, mask, &rows, p, &mut line, &mut sums);
            }
            advance::<ROWS, BY_ROWS>(tile, &mut rows, V::STEPS);
            for j in 0..VECTORS {
                prefetch_line(prefetch.wrapping_add(j * V::LANES).addr());
            }
            prefetch = prefetch.wrapping_add(tile.ahead_row);
        }
        for _ in 0..tile.k % V::STEPS {
            step::<V, ROWS, VECTORS, MASKED, BY_ROWS, COPY>(tile, mask, &rows, 0, &mut line, &mut sums);
            advance::<ROWS, BY_ROWS>(tile, &mut rows, 1);
        }
        finish::<V, ROWS, VECTORS, MASKED>(tile, &sums);
    }
}

/// The next line of B, and where its copy goes.
struct Line {
    b: *const f32,
    copy: *mut f32,
}

/// Adds one step along k to the sums: a line of B, times column `p` of A counted from `rows`. Goes on to the next line.
///
/// A function, not a closure: a closure cannot be forced inline, and out of line it would lack the kernel's
/// instruction set, so that every multiplication became a call.
///
/// # Safety
///
/// As for [`multiply`].
#[inline(always)]
unsafe fn step<
    V: Vector,
    const ROWS: usize,
    const VECTORS: usize,
    const MASKED: bool,
    const BY_ROWS: bool,
    const COPY: bool,
>(
    tile: &Tile,
    mask: V::Mask,
    rows: &[*const f32; ROWS],
    p: usize,
    at: &mut Line,
    sums: &mut [[V; VECTORS]; ROWS],
) {
    // SAFETY: rows below ROWS, k steps below tile.k, columns below tile.cols.
    unsafe {
        let mut line = [V::zero(); VECTORS];
        for (j, vector) in line.iter_mut().enumerate() {
            let from = at.b.add(j * V::LANES);
            *vector = if MASKED && j == VECTORS - 1 {
                V::load_masked(from, mask)
            } else {
                V::load(from)
            };
            if COPY {
                V::prefetch(from.wrapping_add(AHEAD * tile.b_row));
                vector.store(at.copy.add(j * V::LANES));
            }
        }
        at.b = at.b.wrapping_add(tile.b_row);
        if COPY {
            at.copy = at.copy.wrapping_add(tile.copy_row);
        }
        for (i, row) in sums.iter_mut().enumerate() {
            let factor = V::splat(if BY_ROWS {
                rows[i].add(p)
            } else {
                rows[0].wrapping_add(p * tile.a_col).add(i)
            });
            for (sum, vector) in row.iter_mut().zip(line) {
                *sum = vector.mul_add(factor, *sum);
            }
        }
    }
}

/// Moves the addresses of A by some steps along k.
#[inline(always)]
fn advance<const ROWS: usize, const BY_ROWS: bool>(tile: &Tile, rows: &mut [*const f32; ROWS], by: usize) {
    if BY_ROWS {
        for row in rows {
            *row = row.wrapping_add(by);
        }
    } else {
        rows[0] = rows[0].wrapping_add(by * tile.a_col);
    }
}

/// Writes the sums of a tile to C.
///
/// # Safety
///
/// As for [`multiply`].
#[inline(always)]
unsafe fn finish<V: Vector, const ROWS: usize, const VECTORS: usize, const MASKED: bool>(
    tile: &Tile,
    sums: &[[V; VECTORS]; ROWS],
) {
    // SAFETY: rows below ROWS, columns below tile.cols.
    unsafe {
        let mask = V::mask(tile.cols - (VECTORS - 1) * V::LANES);
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let to = tile.c.add(i * tile.c_row + j * V::LANES);
                let base = tile.base.wrapping_add(i * tile.base_row + j * V::LANES);
                match (MASKED && j == VECTORS - 1, !tile.base.is_null()) {
                    (false, false) => sum.store(to),
                    (false, true) => sum.add(V::load(base)).store(to),
                    (true, false) => sum.store_masked(to, mask),
                    (true, true) => sum.add(V::load_masked(base, mask)).store_masked(to, mask),
                }
            }
        }
    }
}
