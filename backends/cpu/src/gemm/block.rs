//! Matmuls of blocks that fit in the cache, for kernels that contain a matmul.

use super::kernels::KernelSet;
use super::spec::{Kernel, Strides};
use super::tile::{Pieces, Tile};
use crate::share::share;

/// The inner loops of one instruction set, which multiply one block per call.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    set: &'static KernelSet,
}

/// A block of B in the layout that the inner loops read: each panel contains some adjacent columns.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// Address of element (0, 0).
    pub(crate) start: *const f32,
    /// Distance between the rows of a panel, in `f32`s.
    pub(crate) row: usize,
    /// Distance between the first columns of neighbouring panels, in `f32`s.
    pub(crate) panel: usize,
}

/// A block of A. One of its two strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct LeftBlock {
    /// Address of element (0, 0).
    pub(crate) start: *const f32,
    /// Distances between neighbouring elements.
    pub(crate) strides: Strides,
}

/// A block of C with adjacent columns.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Address of element (0, 0).
    pub(crate) start: *mut f32,
    /// Distance between rows, in `f32`s.
    pub(crate) row: usize,
    /// True to add to the current values of C, false to overwrite them.
    pub(crate) add: bool,
}

impl Blocks {
    /// Selects the fastest inner loops that this CPU can run.
    pub(crate) fn detect() -> Self {
        Blocks::with_kernel(Kernel::detect())
    }

    /// Selects the inner loops of `kernel`, or the fastest ones if this CPU cannot run it.
    pub(crate) fn with_kernel(kernel: Kernel) -> Self {
        Blocks { set: kernel.set() }
    }

    /// Returns the number of rows of the tallest tile for an A in [`Pieces`].
    pub(crate) fn piece_rows(&self) -> usize {
        self.set.pieces.len()
    }

    /// Returns the number of columns of a panel.
    pub(crate) fn panel_cols(&self) -> usize {
        self.set.tile_cols
    }

    /// Computes `C[rows, cols] = A[rows, pieces * k] · B[pieces * k, cols]`, or adds it to C. Each row of A consists of
    /// separate pieces of `k` elements (see [`Pieces`]). There are at most [`Self::piece_rows`] rows.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]; each pointer of a row must be valid for `k` elements.
    pub(crate) unsafe fn multiply_pieces(&self, a: &Pieces, b: Panels, c: Target, [rows, cols, k]: [usize; 3]) {
        for panel in 0..cols.div_ceil(self.set.tile_cols) {
            // SAFETY: the addresses are elements of the block in B and C, and the kernel matches the tile's
            // rows and columns. The kernel reads the pieces instead of A.
            unsafe {
                let none = LeftBlock {
                    start: b.start,
                    strides: Strides { row: 0, col: 1 },
                };
                let tile = self.tile(none, b, c, [0, panel], [cols, k]);
                self.set.run_pieces(&self.set.pieces[rows - 1], &tile, a);
            }
        }
    }

    /// Returns the tile that starts at a row of A and a panel of B, in a product with this number of columns.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]: the row and the panel must be within the operands.
    unsafe fn tile(
        &self,
        a: LeftBlock,
        b: Panels,
        c: Target,
        [first_row, panel]: [usize; 2],
        [cols, k]: [usize; 2],
    ) -> Tile {
        let width = self.set.tile_cols;
        let first_col = panel * width;
        // SAFETY: elements of the operands, by the function's contract.
        unsafe {
            let to = c.start.add(first_row * c.row + first_col);
            Tile {
                a: a.start.add(first_row * a.strides.row),
                a_row: a.strides.row,
                a_col: a.strides.col,
                b: b.start.add(panel * b.panel),
                b_row: b.row,
                c: to,
                c_row: c.row,
                k,
                cols: width.min(cols - first_col),
                base: if c.add { to.cast_const() } else { std::ptr::null() },
                base_row: c.row,
                copy: std::ptr::null_mut(),
                copy_row: 0,
                prefetch: b.start,
                ahead_row: 0,
            }
        }
    }

    /// Returns the number of f32s of a packed block of B.
    pub(crate) fn packed_len(&self, k: usize, cols: usize) -> usize {
        k * cols.next_multiple_of(self.set.tile_cols)
    }

    /// Copies a block of B into panels.
    ///
    /// # Safety
    ///
    /// The block must be valid and `to` must have room for [`Self::packed_len`] f32s. No other code
    /// may access either meanwhile.
    pub(crate) unsafe fn pack(&self, b: *const f32, strides: Strides, k: usize, cols: usize, to: *mut f32) -> Panels {
        // SAFETY: passed on to the caller; the set is one that the CPU can run.
        unsafe { (self.set.panels)(b, strides, k, cols, self.set.tile_cols, to) };
        self.packed(to, k)
    }

    /// Returns the panels of a block with `k` rows that [`Self::pack`] wrote to `start`.
    pub(crate) fn packed(&self, start: *const f32, k: usize) -> Panels {
        Panels {
            start,
            row: self.set.tile_cols,
            panel: self.set.tile_cols * k,
        }
    }

    /// Returns the panels of a block of B that is read in place and whose rows are `row` f32s apart. Reading
    /// it is fast if the rows are close together.
    pub(crate) fn in_place(&self, start: *const f32, row: usize) -> Panels {
        Panels {
            start,
            row,
            panel: self.set.tile_cols,
        }
    }

    /// Computes `C[rows, cols] = A[rows, k] · B[k, cols]` for few rows. The elements of a row of A are
    /// contiguous, and so are the elements of a column of B. The columns of B are `column` f32s apart and are
    /// read in place.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]. C is overwritten, not added to.
    pub(crate) unsafe fn few_rows(
        &self,
        (a, a_row): (*const f32, usize),
        (b, column): (*const f32, usize),
        (c, c_row): (*mut f32, usize),
        [rows, cols, k]: [usize; 3],
    ) {
        let together = self.set.dots.len();
        for first in (0..rows).step_by(together) {
            let dots = self.set.dots[together.min(rows - first) - 1];
            // SAFETY: passed on to the caller; the set is one that the CPU can run.
            unsafe {
                let (a, c) = (a.add(first * a_row), c.add(first * c_row));
                dots(a, b, [a_row, column, c_row], [k, cols], c);
            }
        }
    }

    /// Computes `C[rows, cols] = A[rows, k] · B[k, cols]`, or adds it to C.
    ///
    /// # Safety
    ///
    /// The operands must be valid for these sizes, C for writing. No other code may access C or
    /// write A and B meanwhile. One of A's strides must be 1.
    pub(crate) unsafe fn multiply(&self, a: LeftBlock, b: Panels, c: Target, [rows, cols, k]: [usize; 3]) {
        let by_rows = a.strides.col == 1;
        let kernels = if by_rows { self.set.by_rows } else { self.set.by_cols };
        let tiles = rows.div_ceil(kernels.len());
        for panel in 0..cols.div_ceil(self.set.tile_cols) {
            for index in 0..tiles {
                let rows = share(rows, tiles, index);
                let kernels = &kernels[rows.len() - 1];
                // SAFETY: elements of the block in A, B and C; the kernel for the tile's rows and columns.
                unsafe {
                    let tile = self.tile(a, b, c, [rows.start, panel], [cols, k]);
                    self.set.run(kernels, &tile);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `few_rows` multiplies correctly by matrices with gaps between their columns.
    #[test]
    fn few_rows_by_blocks() {
        let blocks = Blocks::detect();
        for (rows, cols, k) in [(1, 1, 1), (2, 40, 3), (3, 7, 64), (4, 33, 67), (9, 64, 129)] {
            let (a_row, column, c_row) = (k + 1, k + 2, cols + 3);
            let a: Vec<f32> = (0..rows * a_row).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..cols * column).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut c = vec![7.0; rows * c_row];
            // SAFETY: vectors of these sizes; only one is written.
            unsafe {
                let [a, b] = [(a.as_ptr(), a_row), (b.as_ptr(), column)];
                blocks.few_rows(a, b, (c.as_mut_ptr(), c_row), [rows, cols, k]);
            }
            for (i, row) in c.chunks(c_row).enumerate() {
                for (j, &c) in row.iter().enumerate() {
                    let product = |p: usize| a[i * a_row + p] * b[j * column + p];
                    let want = if j < cols {
                        (0..k).map(product).sum::<f32>()
                    } else {
                        7.0
                    };
                    assert_eq!(c, want, "{rows} {cols} {k} [{i}, {j}]");
                }
            }
        }
    }

    /// `multiply_pieces`, also with pieces that several rows share, agrees with sums over the assembled rows.
    #[test]
    fn products_of_pieces() {
        for kernel in Kernel::available() {
            let blocks = Blocks::with_kernel(kernel);
            for (rows, cols, count, k) in [
                (1, 1, 1, 1),
                (3, 40, 9, 4),
                (6, 33, 4, 7),
                (5, 64, 2, 16),
                (2, 16, 3, 5),
            ] {
                let from: Vec<f32> = (0..(rows + count) * k).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
                let b: Vec<f32> = (0..count * k * cols).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
                let mut packed = vec![0.0; blocks.packed_len(count * k, cols)];
                let at = |piece: usize, row: usize| (row + piece) * k;
                let pointers = (0..count).flat_map(|piece| (0..rows).map(move |row| (piece, row)));
                let pointers: Vec<*const f32> = pointers.map(|(piece, row)| from[at(piece, row)..].as_ptr()).collect();
                for add in [false, true] {
                    let mut c = vec![2.0f32; rows * (cols + 3)];
                    let target = Target {
                        start: c.as_mut_ptr(),
                        row: cols + 3,
                        add,
                    };
                    let pieces = Pieces {
                        pointers: pointers.as_ptr(),
                        step: rows,
                        count,
                    };
                    // SAFETY: vectors of these sizes; only one is written.
                    unsafe {
                        let strides = Strides { row: cols, col: 1 };
                        let panels = blocks.pack(b.as_ptr(), strides, count * k, cols, packed.as_mut_ptr());
                        blocks.multiply_pieces(&pieces, panels, target, [rows, cols, k]);
                    }
                    for i in 0..rows {
                        for j in 0..cols + 3 {
                            let term = |p: usize| from[at(p / k, i) + p % k] * b[p * cols + j];
                            let sum = || (0..count * k).map(term).sum::<f32>();
                            let want = match (j < cols, add) {
                                (false, _) => 2.0,
                                (true, false) => sum(),
                                (true, true) => 2.0 + sum(),
                            };
                            assert_eq!(
                                c[i * (cols + 3) + j],
                                want,
                                "{kernel:?} {rows} {cols} {count} {k} [{i}, {j}]"
                            );
                        }
                    }
                }
            }
        }
    }

    /// `multiply` with a B that is packed or read in place, and with both orders of A, agrees with sums in f64.
    #[test]
    fn products_of_blocks() {
        let blocks = Blocks::detect();
        for (rows, cols, k) in [(1, 1, 1), (5, 3, 2), (13, 40, 9), (66, 96, 64), (7, 17, 1), (23, 33, 5)] {
            let a: Vec<f32> = (0..rows * k).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..k * cols).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut packed = vec![0.0; blocks.packed_len(k, cols)];
            for (by_rows, pack, add) in [
                (true, true, false),
                (false, true, true),
                (true, false, true),
                (false, false, false),
            ] {
                let mut c = vec![2.0f32; rows * (cols + 3)];
                let strides = if by_rows {
                    Strides { row: k, col: 1 }
                } else {
                    Strides { row: 1, col: rows }
                };
                let left = LeftBlock {
                    start: a.as_ptr(),
                    strides,
                };
                let target = Target {
                    start: c.as_mut_ptr(),
                    row: cols + 3,
                    add,
                };
                // SAFETY: vectors of these sizes; only one is written.
                unsafe {
                    let panels = if pack {
                        blocks.pack(b.as_ptr(), Strides { row: cols, col: 1 }, k, cols, packed.as_mut_ptr())
                    } else {
                        blocks.in_place(b.as_ptr(), cols)
                    };
                    blocks.multiply(left, panels, target, [rows, cols, k]);
                }
                for i in 0..rows {
                    for j in 0..cols + 3 {
                        let product = |p: usize| a[i * strides.row + p * strides.col] * b[p * cols + j];
                        let want = match (j < cols, add) {
                            (false, _) => 2.0,
                            (true, false) => (0..k).map(product).sum::<f32>(),
                            (true, true) => 2.0 + (0..k).map(product).sum::<f32>(),
                        };
                        assert_eq!(c[i * (cols + 3) + j], want, "{rows} {cols} {k} [{i}, {j}]");
                    }
                }
            }
        }
    }
}
