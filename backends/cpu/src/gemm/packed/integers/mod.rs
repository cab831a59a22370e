//! Matmuls of one row with weights in Q4_0 by integers, for AVX2. There are others for VNNI: [`super::rounded`].
//!
//! To make numbers of weights takes most of the time of such a matmul: a register of eight costs a shuffle and a
//! conversion before its multiplication. Here the row is rounded once instead, to integers that the weights, as bytes,
//! are multiplied with. The integers have 21 bits and a sign, with a scale for each block, so that a product is off by
//! what rounding in `f32` costs: at most 2^-22 of the block's largest magnitude for each element of the row (what few
//! bits cost, as in the formats that other programs round rows to, would be seen in the results). Sums of a block are exact.
//!
//! An integer is three digits, `d0 + 128 d1 + 128^2 d2`, as `vpmaddubsw` takes bytes: products of four bits by eight, of
//! four neighbours, stay within 16 bits, and `vpmaddwd` brings digits together, each times its power of 128. Weights keep their
//! offset until the end, when it is taken out by the sum of the row's integers.

#[cfg(target_arch = "x86_64")]
mod avx2;

use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::rows::{Rows, Storage};
use crate::gemm::spec::Kernel;

/// Blocks of a [`Group`].
const GROUP_BLOCKS: usize = 8;
const PAIRS: usize = GROUP_BLOCKS / 2;
const DIGITS: usize = 3;
/// Bytes of a group's weights.
const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK / 2;
const Q4_0: Storage = Storage::Blocks(BlockFormat::Q4_0);
/// Prefetch distance in `f32`s: 3 KiB. Lines at a distance of 4 KiB would conflict in the cache.
const AHEAD: usize = 768;
/// Rows of weights that are multiplied together: as many as a group has pairs, whose scales those of the rows' last blocks take
/// the places of.
const ROWS: usize = PAIRS;

/// Eight neighbouring blocks of a rounded row; those behind the last one of a row have any numbers and scales of 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
pub(in crate::gemm) struct Group {
    /// Of each digit first that of elements 0 to 15 of all blocks, then that of elements 16 to 31.
    digits: [[[i8; GROUP_BYTES]; 2]; DIGITS],
    /// -8 times the integers' sums: four numbers for each block, which are to be added up.
    offsets: [i32; 4 * GROUP_BLOCKS],
    /// What the integer 1 stands for, of the first blocks of all pairs, then of the second ones.
    scales: [f32; GROUP_BLOCKS],
}

/// The groups of a row of `k` numbers.
pub(in crate::gemm) fn groups(k: usize) -> usize {
    (k / BLOCK).div_ceil(GROUP_BLOCKS)
}

/// What an instruction set has for such matvecs.
pub(in crate::gemm) struct Integers {
    /// Rounds a row of whole blocks. Gives false if a number is not finite, or so large or small that scales could be: then
    /// nobody may use the groups.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the row be there, and its groups be the caller's own.
    pub(in crate::gemm) round: unsafe fn(*const f32, usize, *mut Group) -> bool,
    /// `y[j] = x · weights[j]` for a rounded row and the first `cols` rows of weights.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the groups of a row as long as those of the weights and the rows be there, and
    /// nobody else access `y` meanwhile.
    pub(in crate::gemm) matvec: MatvecFn,
}

type MatvecFn = unsafe fn(*const Group, Rows, usize, *mut f32);

/// Goes over the first `cols` rows of weights and their results: [`ROWS`] together, and what is left one by one.
///
/// # Safety
///
/// There are so many rows, and results.
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
    /// What is faster than a kernel's own loops, for weights by rows.
    pub(super) fn fastest(kernel: Kernel, storage: Storage) -> Option<&'static Integers> {
        static AVX2: Integers = Integers {
            round: avx2::round,
            matvec: avx2::matvec,
        };
        (storage == Q4_0 && kernel != Kernel::Portable).then_some(&AVX2)
    }
}
