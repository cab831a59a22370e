//! The innermost matmul: a few rows of A times a few vectors of B's columns.

use super::pack::AHEAD;
use crate::simd::{Vector, prefetch_line};

/// Operands of the matmul of one tile: C[rows, cols] = A[rows, k] · B[k, cols] + base.
///
/// The kernel determines the number of rows. Distances are in f32s.
pub(super) struct Tile {
    /// Element (0, 0) of A, and the distances between its rows and between its columns. The kernel
    /// assumes that one of them is 1.
    pub a: *const f32,
    pub a_row: usize,
    pub a_col: usize,
    /// Element (0, 0) of B, and the distance between its rows. Its columns are adjacent.
    pub b: *const f32,
    pub b_row: usize,
    /// Element (0, 0) of C, and the distance between its rows. Its columns are adjacent.
    pub c: *mut f32,
    pub c_row: usize,
    /// Number of columns of A and of rows of B.
    pub k: usize,
    /// Number of columns of B and C.
    pub cols: usize,
    /// Matrix added to the result: address of element (0, 0), and distance between rows. The address may be null, or
    /// that of C.
    pub base: *const f32,
    pub base_row: usize,
    /// Destination of the rows of B for kernels that copy them, and distance between rows in the destination.
    pub copy: *mut f32,
    pub copy_row: usize,
    /// Address of a row to prefetch while multiplying (it may be invalid), and distance to the next row.
    pub prefetch: *const f32,
    pub ahead_row: usize,
}

/// A kernel for tiles of one size. It is unsafe to call: the CPU must have the kernel's instruction set, the operands
/// must be valid, and no other code may access the tile of C meanwhile.
pub(super) type TileFn = unsafe fn(&Tile);

/// Kernels for one number of rows and one order of A, by number of columns.
pub(super) struct TileRow<F = TileFn> {
    /// Kernel for all columns of the widest tile, which has two vectors.
    pub full: F,
    /// Kernel for more than one vector of columns, but fewer than two.
    pub wide: F,
    /// Kernel for at most one vector of columns.
    pub narrow: F,
}

/// A left operand whose rows consist of pieces anywhere in memory. A piece has [`Tile::k`] elements; piece `p` of row
/// `i` begins at `pointers[p * step + i]`. B contains the rows for piece 0, then the rows for piece 1, and so on.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    pub(crate) pointers: *const *const f32,
    /// Distance between the pointers of consecutive pieces of a row.
    pub(crate) step: usize,
    pub(crate) count: usize,
}

/// A kernel for tiles of one size and an A in pieces. It is unsafe to call for the reasons of [`TileFn`].
pub(super) type PiecesFn = unsafe fn(&Tile, &Pieces);

/// Multiplies like [`multiply`], with an A in pieces. `tile.a` and its distances are ignored.
///
/// # Safety
///
/// As for [`multiply`]; every pointer of a row of the tile must be valid for `tile.k` elements.
#[inline(always)]
pub(super) unsafe fn multiply_pieces<V: Vector, const ROWS: usize, const VECTORS: usize, const MASKED: bool>(
    tile: &Tile,
    pieces: &Pieces,
) {
    // SAFETY: the caller guarantees that the operands are valid. All reads and writes are within them: pieces below
    // their count, rows below ROWS, k steps below tile.k, columns below tile.cols.
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

/// Multiplies a tile of `ROWS` rows and `VECTORS` vectors of columns. If `MASKED`, the last vector ends at
/// `tile.cols`. If `BY_ROWS`, the rows of A are contiguous, else its columns are. If `COPY`, B is also copied to
/// `tile.copy`, in whole vectors with zeros after `tile.cols`.
///
/// # Safety
///
/// As for [`TileFn`], and `tile.cols` must end within the last vector. Unless `MASKED`, it must be the end of this
/// vector.
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
    // SAFETY: the caller guarantees that the operands are valid. All reads and writes are within them: rows below
    // ROWS, k steps below tile.k, columns below tile.cols.
    unsafe {
        let mask = V::mask(tile.cols - (VECTORS - 1) * V::LANES);
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        // The addresses of A's elements must not depend on multiplications or on each other. Otherwise computing them
        // takes longer than the arithmetic. Use either a pointer per row, or one pointer and constant offsets.
        let mut rows = [tile.a; ROWS];
        if BY_ROWS {
            for (i, row) in rows.iter_mut().enumerate() {
                *row = tile.a.add(i * tile.a_row);
            }
        }
        // C may not be in a cache yet: prefetch it now, because it is used at the end.
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

/// Address of the next row of B, and of its copy.
struct Line {
    b: *const f32,
    copy: *mut f32,
}

/// Adds one step along k to the sums: a row of B times the elements of A that are `p` steps after `rows`. Then
/// advances to the next row of B.
///
/// This is a function, not a closure, because only functions can be forced inline. A closure that is not inlined
/// would lack the kernel's instruction set, and every multiplication would become a call.
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

/// Advances the addresses of A by some steps along k.
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
