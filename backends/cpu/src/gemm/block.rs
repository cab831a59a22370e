//! Matmuls of blocks that fit the cache, for kernels that multiply as a part of something larger.

use super::kernels::KernelSet;
use super::spec::{Kernel, Strides};
use super::tile::{Pieces, Tile};
use crate::share::share;

/// The inner loops of one instruction set, called block by block.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    set: &'static KernelSet,
}

/// A block of B as the inner loops read it: panels of adjacent columns.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// Element (0, 0).
    pub(crate) start: *const f32,
    /// Distance between rows.
    pub(crate) row: usize,
    /// Distance between the first columns of neighbouring panels.
    pub(crate) panel: usize,
}

/// A block of A: one of its strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// Element (0, 0).
    pub(crate) start: *const f32,
    /// Distances between neighbours.
    pub(crate) strides: Strides,
}

/// A block of C, whose columns are adjacent.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Element (0, 0).
    pub(crate) start: *mut f32,
    /// Distance between rows.
    pub(crate) row: usize,
    /// Add to what is there.
    pub(crate) add: bool,
}

impl Blocks {
    /// With the fastest inner loops that this CPU can run.
    pub(crate) fn detect() -> Self {
        Blocks::with_kernel(Kernel::detect())
    }

    /// With the inner loops of a kernel, or the fastest ones if this CPU cannot run these.
    pub(crate) fn with_kernel(kernel: Kernel) -> Self {
        Blocks { set: kernel.set() }
    }

    /// Rows of the tallest tile of an A in pieces.
    pub(crate) fn piece_rows(&self) -> usize {
        self.set.pieces.len()
    }

    /// Columns of a panel.
    pub(crate) fn panel_cols(&self) -> usize {
        self.set.tile_cols
    }

    /// `C[rows, cols] = A[rows, pieces * k] · B[pieces * k, cols]`, or adds it, where the rows of A are in pieces of `k` elements
    /// and there are at most as many as a tile has ([`Self::piece_rows`]).
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]; each pointer of a row must be valid for `k` elements.
    pub(crate) unsafe fn multiply_pieces(&self, a: &Pieces, b: Panels, c: Target, [rows, cols, k]: [usize; 3]) {
        for panel in 0..cols.div_ceil(self.set.tile_cols) {
            // SAFETY: elements of the block in B and C; the kernel for the tile's rows and columns. Pieces stand for A.
            unsafe {
                let none = Left {
                    start: b.start,
                    strides: Strides { row: 0, col: 1 },
                };
                let tile = self.tile(none, b, c, [0, panel], [cols, k]);
                self.set.run_pieces(&self.set.pieces[rows - 1], &tile, a);
            }
        }
    }

    /// The tile of a product of so many columns, from a row and in a panel.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]: the row and the panel are those of the operands.
    unsafe fn tile(
        &self,
        a: Left,
        b: Panels,
        c: Target,
        [first_row, panel]: [usize; 2],
        [cols, k]: [usize; 2],
    ) -> Tile {
        let width = self.set.tile_cols;
        let first_col = panel * width;
        // SAFETY: elements of the operands, as the caller says.
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

    /// f32s of a block of B that is packed.
    pub(crate) fn packed_len(&self, k: usize, cols: usize) -> usize {
        k * cols.next_multiple_of(self.set.tile_cols)
    }

    /// Copies a block of B to panels.
    ///
    /// # Safety
    ///
    /// The block must be valid, `to` have room for [`Self::packed_len`] f32s, and nobody else may access these
    /// meanwhile.
    pub(crate) unsafe fn pack(&self, b: *const f32, strides: Strides, k: usize, cols: usize, to: *mut f32) -> Panels {
        // SAFETY: passed on to the caller; the set is one that the CPU can run.
        unsafe { (self.set.panels)(b, strides, k, cols, self.set.tile_cols, to) };
        self.packed(to, k)
    }

    /// The panels of a block with `k` rows that [`Self::pack`] made.
    pub(crate) fn packed(&self, start: *const f32, k: usize) -> Panels {
        Panels {
            start,
            row: self.set.tile_cols,
            panel: self.set.tile_cols * k,
        }
    }

    /// A block that is read where it lies, with this distance between its rows. Fast if the rows lie close
    /// together.
    pub(crate) fn in_place(&self, start: *const f32, row: usize) -> Panels {
        Panels {
            start,
            row,
            panel: self.set.tile_cols,
        }
    }

    /// `C[rows, cols] = A[rows, k] · B[k, cols]` for few rows, adjacent in A, and a B with adjacent elements in its columns,
    /// which are `column` apart and read where they lie.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`]; C is not added to.
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

    /// `C[rows, cols] = A[rows, k] · B[k, cols]`, or adds it.
    ///
    /// # Safety
    ///
    /// The operands must be valid for these sizes, C for writing, and nobody may access C or write A and B
    /// meanwhile. One of A's strides must be 1.
    pub(crate) unsafe fn multiply(&self, a: Left, b: Panels, c: Target, [rows, cols, k]: [usize; 3]) {
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

    /// Rows by matrices whose columns lie apart.
    #[test]
    fn few_rows_by_blocks() {
        let blocks = Blocks::detect();
        for (rows, cols, k) in [(1, 1, 1), (2, 40, 3), (3, 7, 64), (4, 33, 67), (9, 64, 129)] {
            let (a_row, column, c_row) = (k + 1, k + 2, cols + 3);
            let a: Vec<f32> = (0..rows * a_row).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..cols * column).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut c = vec![7.0; rows * c_row];
            // SAFETY: vectors of these sizes, one of which is written.
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

    /// Rows in pieces, some of which are shared, against rows that are put together.
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
                    // SAFETY: vectors of these sizes, one of which is written.
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

    /// Packed and in place, by rows and by columns, against sums in f64.
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
                let left = Left {
                    start: a.as_ptr(),
                    strides,
                };
                let target = Target {
                    start: c.as_mut_ptr(),
                    row: cols + 3,
                    add,
                };
                // SAFETY: vectors of these sizes, one of which is written.
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
