//! Matmuls of blocks that fit the cache, for kernels that multiply as a part of something larger.

use super::kernels::KernelSet;
use super::spec::{Kernel, Strides};
use super::tile::Tile;
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
        let width = self.set.tile_cols;
        let tiles = rows.div_ceil(kernels.len());
        for panel in 0..cols.div_ceil(width) {
            let col = panel * width;
            for index in 0..tiles {
                let rows = share(rows, tiles, index);
                let kernels = &kernels[rows.len() - 1];
                // SAFETY: elements of the block in A, B and C; the kernel for the tile's rows and columns.
                unsafe {
                    let to = c.start.add(rows.start * c.row + col);
                    let tile = Tile {
                        a: a.start.add(rows.start * a.strides.row),
                        a_row: a.strides.row,
                        a_col: a.strides.col,
                        b: b.start.add(panel * b.panel),
                        b_row: b.row,
                        c: to,
                        c_row: c.row,
                        k,
                        cols: width.min(cols - col),
                        base: if c.add { to.cast_const() } else { std::ptr::null() },
                        base_row: c.row,
                        copy: std::ptr::null_mut(),
                        copy_row: 0,
                        prefetch: b.start,
                        ahead_row: 0,
                    };
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
