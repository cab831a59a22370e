//! Rows rounded to integers of 16 bits, by weights in [`Panels`](crate::order::Panels), for AVX-512 with VNNI.
//!
//! To make an `f32` of a weight costs about as much as to multiply it, and one multiplication of `f32`s has 16 lanes, where one
//! of bytes, `vpdpbusd`, adds 64 products. The rows of the left operand are rounded once, each block of 32 numbers to integers
//! of 16 bits with a scale of its own: a number is off by about 2^-16 of the largest magnitude of its block at most. That is far
//! below what the weights' few bits cost (2^-8 of the largest with Q8_0, the finest format).
//!
//! An integer is two signed digits, `low + 256 high`. Sums of a block are exact, and blocks are added up in `f32` in the order
//! of the row, whatever other rows there are: the results of a row do not depend on the number of rows.
//!
//! Weights keep the offset that makes them positive, which is taken out by the sum of the row's integers; minima are multiplied
//! with that sum.

#[cfg(target_arch = "x86_64")]
mod avx512;

use meganeura_core::quantization::BLOCK;

use super::rows::Rows;

/// Most rows that are multiplied together: so many sums of 32 bits and of `f32`s, and a block's weights, are in registers.
pub(super) const ROWS: usize = 8;

/// A rounded block.
#[repr(C, align(16))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
pub(super) struct Block {
    /// The higher digits, then the lower ones.
    digits: [[i8; BLOCK]; 2],
    /// What products have too much, as weights have an offset: it times the sum of the integers, those of each part of a
    /// block that has a scale of its own.
    offsets: [i32; 2],
    /// What the integer 1 stands for.
    scale: f32,
    /// The sum of the rounded numbers.
    total: f32,
}

impl Block {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels use it"))]
    const ZERO: Block = Block {
        digits: [[0; BLOCK]; 2],
        offsets: [0; 2],
        scale: 0.0,
        total: 0.0,
    };
}

/// What there is for one storage.
pub(super) struct RoundedKernels {
    /// Rounds up to [`ROWS`] rows of whole blocks: `(x, [rows, k], to)`, where `to` is a [`tile`](tile_blocks) of blocks.
    /// Gives a bit for each row, the first in the lowest one. It is 0 if a number of the row is not finite, or so large or small that
    /// scales could be: then the row's products are of no use.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the rows be there, and the blocks be the caller's own.
    pub(super) round: unsafe fn(*const f32, [usize; 2], *mut Block) -> u8,
    /// `y = x · weights` transposed for 1, 2 ... rows of `x` and whole panels: `(x, weights, cols, y, y_row)`.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, a tile of so many rounded rows and the panels be there, and nobody else access
    /// these columns of these rows of `y` meanwhile.
    pub(super) matmul: [MatmulFn; ROWS],
}

type MatmulFn = unsafe fn(*const Block, Rows, usize, *mut f32, usize);

/// Blocks of a tile of [`ROWS`] rows of `k` numbers. The first blocks of all rows lie together, then the second ones, each as if
/// there were that many rows.
pub(super) fn tile_blocks(k: usize) -> usize {
    k / BLOCK * ROWS
}
