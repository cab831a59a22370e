//! Integer matmuls of one row with weights in Q4_0, for AVX2. [`super::rounded`] contains the integer matmuls for
//! VNNI.
//!
//! Converting weights to floats takes most of the time of such a matmul: each register of eight weights costs a
//! shuffle and a conversion before its multiplication. Here the row is rounded once instead, to integers that are
//! multiplied by the weights as bytes. The integers have 21 bits and a sign, with a scale for each block. The error
//! of a product is then as large as that of rounding in `f32`: at most 2^-22 of the block's largest magnitude for
//! each element of the row. (Rounding to fewer bits, as other programs do, would be visible in the results.) Sums of
//! a block are exact.
//!
//! An integer has three digits, `d0 + 128 d1 + 128^2 d2`, because `vpmaddubsw` multiplies bytes. A sum of products of
//! four neighbouring pairs, four bits by eight, fits in 16 bits. `vpmaddwd` adds up the digits, each times its power
//! of 128. The offset of the weights is subtracted at the end, by means of the sum of the row's integers.

#[cfg(target_arch = "x86_64")]
mod avx2;

use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::rows::{Rows, Storage};
use crate::gemm::spec::Kernel;

/// Number of blocks in a [`Group`].
const GROUP_BLOCKS: usize = 8;
const PAIRS: usize = GROUP_BLOCKS / 2;
const DIGITS: usize = 3;
/// Number of bytes of the weights that a group is multiplied by.
const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK / 2;
const Q4_0: Storage = Storage::Blocks(BlockFormat::Q4_0);
/// Prefetch distance in `f32`s: 3 KiB. Lines at a distance of 4 KiB would conflict in the cache.
const AHEAD: usize = 768;
/// Number of weight rows that are multiplied together. It equals the number of pairs in a group, because the scales
/// of the rows' last blocks use the slots of the pairs' scales.
const ROWS: usize = PAIRS;

/// Eight neighbouring blocks of a rounded row. Blocks after the last block of a row have arbitrary numbers and scales
/// of 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
pub(in crate::gemm) struct Group {
    /// Digits of the integers. For each of the three digits: first elements 0 to 15 of all blocks, then elements 16
    /// to 31 of all blocks.
    digits: [[[i8; GROUP_BYTES]; 2]; DIGITS],
    /// Sums of the integers, times -8: four partial sums for each block.
    offsets: [i32; 4 * GROUP_BLOCKS],
    /// Scales (value of the integer 1) of the first blocks of all pairs, then of the second blocks.
    scales: [f32; GROUP_BLOCKS],
}

/// Returns the number of groups of a row of `k` numbers.
pub(in crate::gemm) fn groups(k: usize) -> usize {
    (k / BLOCK).div_ceil(GROUP_BLOCKS)
}

/// Kernels of one instruction set for products of a rounded row with weights.
pub(in crate::gemm) struct Integers {
    /// Rounds a row of whole blocks. Returns false if a number is not finite, or so large or small that the scale of
    /// its block could overflow or underflow. The groups are then unusable.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the row must be valid, and only the caller may access its groups.
    pub(in crate::gemm) round: unsafe fn(*const f32, usize, *mut Group) -> bool,
    /// Computes `y[j] = x · weights[j]` for a rounded row and the first `cols` rows of weights.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set. The groups must contain a row of the same length as the rows of
    /// weights, and the weights must be valid. No other code may access `y` meanwhile.
    pub(in crate::gemm) matvec: MatvecFn,
}

type MatvecFn = unsafe fn(*const Group, Rows, usize, *mut f32);

/// Iterates over the first `cols` rows of weights and their results: [`ROWS`] rows at a time with `together`, then
/// the remaining rows one by one.
///
/// # Safety
///
/// There must be `cols` rows and results.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn by_rows(
    weights: Rows,
    cols: usize,
    y: *mut f32,
    together: impl Fn(Rows, *mut f32),
    one: impl Fn(Rows, *mut f32),
) {
    let whole = cols / ROWS * ROWS;
    // SAFETY: rows of the weights, and results below `cols`.
    unsafe {
        for row in (0..whole).step_by(ROWS) {
            together(weights.from(Q4_0, row), y.add(row));
        }
        for row in whole..cols {
            one(weights.from(Q4_0, row), y.add(row));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Integers {
    /// Returns the integer kernels for weights stored row by row, or `None` if the loops of `kernel` are faster.
    pub(super) fn fastest(kernel: Kernel, storage: Storage) -> Option<&'static Integers> {
        static AVX2: Integers = Integers {
            round: avx2::round,
            matvec: avx2::matvec,
        };
        (storage == Q4_0 && kernel != Kernel::Portable).then_some(&AVX2)
    }
}
