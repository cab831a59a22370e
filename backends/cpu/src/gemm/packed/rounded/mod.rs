//! Matmuls of rows that are rounded to integers of 16 bits, with weights in [`Panels`](crate::order::Panels), for
//! AVX-512 with VNNI.
//!
//! Converting a weight to `f32` costs about as much as multiplying it. A multiplication of `f32`s has 16 lanes, while
//! `vpdpbusd` adds 64 products of bytes. The rows of the left operand are therefore rounded once, each block of 32
//! numbers to integers of 16 bits with a scale of its own. The error of a number is at most about 2^-16 of the
//! largest magnitude of its block. That is far below the error of the quantised weights: 2^-8 of the largest
//! magnitude with Q8_0, the finest format.
//!
//! An integer has two signed digits, `low + 256 high`. Sums of a block are exact. The sums of all blocks are added up
//! in `f32` in the order of the row. The results of a row therefore depend neither on other rows nor on their number.
//!
//! The weights in the products include the offset that makes them positive; the sum of the row's integers corrects
//! for it. Minima are multiplied by this sum.

#[cfg(target_arch = "x86_64")]
mod avx512;

use meganeura_core::quantization::BLOCK;

use super::rows::Rows;

/// Maximum number of rounded rows that are multiplied together. Registers contain their integer sums, their `f32`
/// sums, and the weights of a block.
pub(super) const ROWS: usize = 8;

/// A block of a rounded row: 32 integers.
#[repr(C, align(16))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
pub(super) struct Block {
    /// Higher digits of the integers, then the lower digits.
    digits: [[i8; BLOCK]; 2],
    /// Product of the weights' offset and the sum of the integers, for each part of a block with a separate scale.
    /// The sums of products exceed the result by this value.
    offsets: [i32; 2],
    /// Scale of the block: the value of the integer 1.
    scale: f32,
    /// Sum of the rounded numbers, as `f32`.
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

/// Kernels for one storage format.
pub(super) struct RoundedKernels {
    /// Rounds up to [`ROWS`] rows of whole blocks: `(x, [rows, k], to)`, where `to` is a [`tile`](tile_blocks) of
    /// blocks. Returns a bit for each row, the first row in the lowest bit. The bit is 0 if a number of the row is
    /// not finite, or so large or small that the scale of its block could overflow or underflow. The products of such
    /// a row are unusable.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the rows must be valid, and only the caller may access the blocks.
    pub(super) round: unsafe fn(*const f32, [usize; 2], *mut Block) -> u8,
    /// Computes the product of `x` and the transposed weights for 1 to [`ROWS`] rows of `x` and whole panels: `(x,
    /// weights, cols, y, y_row)`.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set. The tile must contain the rounded rows, and the panels must be valid.
    /// No other code may access these columns of these rows of `y` meanwhile.
    pub(super) matmul: [MatmulFn; ROWS],
}

type MatmulFn = unsafe fn(*const Block, Rows, usize, *mut f32, usize);

/// Returns the number of blocks in a tile of [`ROWS`] rows of `k` numbers. The first blocks of all rows are adjacent,
/// then the second blocks, and so on. The layout is the same for fewer rows.
pub(super) fn tile_blocks(k: usize) -> usize {
    k / BLOCK * ROWS
}
