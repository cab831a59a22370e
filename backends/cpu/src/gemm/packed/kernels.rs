//! Inner loops that multiply by rows of weights in registers, or expand the weights to `f32`.
//!
//! A block is 32 neighbouring numbers of a row ([`BLOCK`]). It consists of several registers, its *parts*.

use half::f16;
use meganeura_core::quantization::BLOCK;

use super::rounded::RoundedKernels;
use super::rows::Rows;
use crate::simd::Vector;

/// Maximum number of rows of the left operand in a call of [`matmul`].
pub(in crate::gemm) const MAX_ROWS: usize = 4;
/// Number of blocks whose scales are converted together, and the maximum number of scales of these blocks.
const UNROLL: usize = 16;
const MAX_SCALES: usize = 2 * UNROLL;
/// Maximum number of lanes of a register, and maximum number of columns of a panel.
const MAX_LANES: usize = 16;
const MAX_COLS: usize = 2 * MAX_LANES;
/// Number of bytes of a cache line.
const LINE: usize = 64;

/// Type of [`matmul`]: multiplies some rows of `x` by rows of weights.
pub(super) type MatmulFn = unsafe fn(*const f32, Rows, usize, *mut f32, usize);

/// Kernels of one instruction set for one storage format.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct PackedKernels {
    /// [`matmul`] of 1 to `MAX_ROWS` rows of `x`.
    pub(in crate::gemm) matmul: [MatmulFn; MAX_ROWS],
    /// [`expand`].
    pub(in crate::gemm) expand: unsafe fn(Rows, usize, usize, *mut f32),
    /// [`panels`].
    pub(in crate::gemm) panels: unsafe fn(Rows, [usize; 2], [usize; 2], *mut f32),
}

/// Number of weight rows in a panel, if weights are stored in panels.
pub(super) const PANEL_ROWS: usize = 16;
/// Number of bytes of a *unit*: consecutive bytes of one row that stay adjacent in a panel.
pub(super) const UNIT: usize = 4;

/// Kernels for one storage format whose rows are in panels.
pub(super) struct PanelKernels {
    /// [`matmul`] of 1 to `MAX_ROWS` rows of `x` with whole panels.
    pub(super) matmul: [MatmulFn; MAX_ROWS],
    /// Matmuls of rows of `x` that are rounded to integers, with whole panels of weights.
    pub(super) rounded: RoundedKernels,
}

/// A storage format of weights, as the inner loops read it.
pub(in crate::gemm) trait Expand {
    /// Number of bytes of a block of 32 numbers, without scales.
    const BYTES: usize;
    /// Number of scales per block. The minimum of a block counts as a scale.
    const SCALES: usize;

    /// Returns the factor, a power of two, by which [`Expand::part`] multiplies all numbers.
    fn unit<V: Vector>() -> f32;

    /// Returns register `part` of the numbers of a block. They are multiplied by [`Expand::unit`], but not by their
    /// scale.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instruction set, and the block must be valid.
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V;

    /// Applies the two scales of a block to the numbers of register `part`. All lanes of a scale are equal. Formats
    /// with one scale leave the numbers unchanged: the sum of the block is multiplied by the scale instead.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instruction set.
    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: V, scales: [V; 2], part: usize) -> V {
        let _ = (scales, part);
        numbers
    }
}

pub(in crate::gemm) enum F16 {}
pub(in crate::gemm) enum Bytes {}
pub(in crate::gemm) enum Nibbles {}
/// Integers of `4 + ABOVE` bits, minus `OFFSET`, with one scale.
pub(in crate::gemm) enum FewBits<const ABOVE: u32, const OFFSET: i8> {}
/// Integers of `4 + ABOVE` bits with a scale and a minimum.
pub(in crate::gemm) enum Affine<const ABOVE: u32> {}
/// Integers of six bits with one scale for each half of a block.
pub(in crate::gemm) enum Halves {}

impl Expand for F16 {
    const BYTES: usize = 2 * BLOCK;
    const SCALES: usize = 0;

    fn unit<V: Vector>() -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: 32 numbers of two bytes, which need no alignment.
        unsafe { V::load_f16(block.cast::<u16>().add(part * V::LANES)) }
    }
}

impl Expand for Bytes {
    const BYTES: usize = BLOCK;
    const SCALES: usize = 1;

    fn unit<V: Vector>() -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: 32 bytes.
        unsafe { V::load_i8(block.cast::<i8>().add(part * V::LANES)) }
    }
}

impl Expand for Nibbles {
    const BYTES: usize = BLOCK / 2;
    const SCALES: usize = 1;

    fn unit<V: Vector>() -> f32 {
        V::NIBBLE_UNIT
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: 16 bytes; `part` is below the number of registers of a block.
        unsafe { V::nibbles(block, part) }
    }
}

impl<const ABOVE: u32, const OFFSET: i8> Expand for FewBits<ABOVE, OFFSET> {
    const BYTES: usize = BLOCK / 8 * (4 + ABOVE as usize);
    const SCALES: usize = 1;

    fn unit<V: Vector>() -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: a block with its upper bits; `part` is below the number of registers of a block.
        unsafe { V::few_bits::<ABOVE, OFFSET>(block, part) }
    }
}

impl<const ABOVE: u32> Expand for Affine<ABOVE> {
    const BYTES: usize = BLOCK / 8 * (4 + ABOVE as usize);
    const SCALES: usize = 2;

    fn unit<V: Vector>() -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: as above.
        unsafe { V::few_bits::<ABOVE, 0>(block, part) }
    }

    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: V, [scale, minimum]: [V; 2], _part: usize) -> V {
        // SAFETY: passed on to the caller.
        unsafe { numbers.mul_add(scale, minimum) }
    }
}

impl Expand for Halves {
    const BYTES: usize = BLOCK / 8 * 6;
    const SCALES: usize = 2;

    fn unit<V: Vector>() -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: as above.
        unsafe { V::few_bits::<2, 32>(block, part) }
    }

    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: V, scales: [V; 2], part: usize) -> V {
        const { assert!(V::LANES <= BLOCK / 2) };
        // SAFETY: passed on to the caller.
        unsafe { numbers.mul(scales[part * V::LANES / (BLOCK / 2)]) }
    }
}

/// Computes `y[i, j] = x[i] · weights[j]` for `M` consecutive rows of `x` and the first `cols` rows of the weights.
/// Groups of `C` rows of weights share the reads of `x`. Rows of `y` are `y_row` apart.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, and the pointers must be valid for these sizes (whole blocks if there are
/// scales). No other code may access `y` meanwhile.
#[inline(always)]
pub(in crate::gemm) unsafe fn matmul<V: Vector, F: Expand, const M: usize, const C: usize>(
    x: *const f32,
    weights: Rows,
    cols: usize,
    y: *mut f32,
    y_row: usize,
) {
    let mut j = 0;
    // SAFETY: columns below `cols`.
    unsafe {
        while j + C <= cols {
            group::<V, F, M, C>(x, row_of::<F>(weights, j), y.add(j), y_row);
            j += C;
        }
        while j < cols {
            group::<V, F, M, 1>(x, row_of::<F>(weights, j), y.add(j), y_row);
            j += 1;
        }
    }
}

/// Returns the distance between rows of weights, in bytes.
#[inline(always)]
fn pitch<F: Expand>(k: usize) -> usize {
    // Only a row of a format without scales may end within a block.
    k / BLOCK * F::BYTES + k % BLOCK * size_of::<u16>()
}

/// Returns the rows of weights from `row` on.
///
/// # Safety
///
/// The row must exist.
#[inline(always)]
unsafe fn row_of<F: Expand>(weights: Rows, row: usize) -> Rows {
    // SAFETY: passed on to the caller.
    unsafe {
        Rows {
            numbers: weights.numbers.add(row * pitch::<F>(weights.k)),
            scales: weights.scales.add(row * (weights.k / BLOCK) * F::SCALES),
            k: weights.k,
        }
    }
}

/// Computes [`matmul`] for `C` columns of the result (`C` rows of weights).
///
/// # Safety
///
/// As for [`matmul`].
#[inline(always)]
unsafe fn group<V: Vector, F: Expand, const M: usize, const C: usize>(
    x: *const f32,
    weights: Rows,
    y: *mut f32,
    y_row: usize,
) {
    let (k, blocks, pitch) = (weights.k, weights.k / BLOCK, pitch::<F>(weights.k));
    // SAFETY: the blocks and the remainder are within their row.
    unsafe {
        let mut sums = [[V::zero(); M]; C];
        let mut scales = [[0.0f32; MAX_SCALES + MAX_LANES]; C];
        let mut first = 0;
        while first < blocks {
            let some = UNROLL.min(blocks - first);
            if F::SCALES > 0 {
                for (c, scales) in scales.iter_mut().enumerate() {
                    let from = weights.scales.add((c * blocks + first) * F::SCALES);
                    convert::<V, F>(from, some * F::SCALES, scales);
                }
            }
            for b in 0..some {
                let block = weights.numbers.add((first + b) * F::BYTES);
                // The weights of the next columns follow in memory. Each step prefetches its share of the columns
                // after the next ones, because the hardware does not prefetch this many rows.
                let next = weights.numbers.wrapping_add(C * (2 * pitch + (first + b) * F::BYTES));
                for line in (0..C * F::BYTES).step_by(LINE) {
                    V::prefetch(next.wrapping_add(line).cast());
                }
                add_block::<V, F, M, C>(x.add((first + b) * BLOCK), k, block, pitch, &scales, b, &mut sums);
            }
            first += some;
        }
        for (c, sums) in sums.into_iter().enumerate() {
            let rest = weights.numbers.add(c * pitch + blocks * F::BYTES);
            for (i, sum) in sums.into_iter().enumerate() {
                let mut sum = sum.sum();
                for p in blocks * BLOCK..k {
                    sum += *x.add(i * k + p) * half_at(rest, p - blocks * BLOCK);
                }
                *y.add(i * y_row + c) = sum;
            }
        }
    }
}

/// Converts `count` scales to `f32` and divides them by [`Expand::unit`].
///
/// # Safety
///
/// The CPU must have `V`'s instruction set. The scales must be valid, and there must be at most [`MAX_SCALES`].
#[inline(always)]
unsafe fn convert<V: Vector, F: Expand>(from: *const u16, count: usize, to: &mut [f32; MAX_SCALES + MAX_LANES]) {
    let unit = 1.0 / F::unit::<V>();
    let to = to.as_mut_ptr();
    // SAFETY: reads end at `count`. The last write begins below `count`, and `to` has room for a register after it.
    unsafe {
        let unit = V::splat(&unit);
        let mut i = 0;
        while i + V::LANES <= count {
            V::load_f16(from.add(i)).mul(unit).store(to.add(i));
            i += V::LANES;
        }
        while i < count {
            V::splat_f16(from.add(i)).mul(unit).store(to.add(i));
            i += 1;
        }
    }
}

/// Returns the binary16 number at an index.
///
/// # Safety
///
/// The number must exist.
#[inline(always)]
unsafe fn half_at(numbers: *const u8, index: usize) -> f32 {
    // SAFETY: passed on to the caller.
    f16::from_bits(unsafe { numbers.cast::<u16>().add(index).read_unaligned() }).to_f32()
}

/// Multiplies one block of `M` rows of `x` by the same block of `C` rows of weights, and adds the products to `sums`.
/// `b` is the index of the block in `scales`.
///
/// # Safety
///
/// As for [`matmul`].
#[inline(always)]
unsafe fn add_block<V: Vector, F: Expand, const M: usize, const C: usize>(
    x: *const f32,
    x_row: usize,
    block: *const u8,
    pitch: usize,
    scales: &[[f32; MAX_SCALES + MAX_LANES]; C],
    b: usize,
    sums: &mut [[V; M]; C],
) {
    // SAFETY: a block of each row and column; `b` is below UNROLL.
    unsafe {
        let mut of_block = [[V::zero(); M]; C];
        let mut pairs = [[V::zero(); 2]; C];
        if F::SCALES == 2 {
            for (pair, scales) in pairs.iter_mut().zip(scales) {
                let at = scales.as_ptr().add(2 * b);
                *pair = [V::splat(at), V::splat(at.add(1))];
            }
        }
        for part in 0..BLOCK / V::LANES {
            let mut left = [V::zero(); M];
            for (i, left) in left.iter_mut().enumerate() {
                *left = V::load(x.add(i * x_row + part * V::LANES));
            }
            for (c, sums) in of_block.iter_mut().enumerate() {
                let right = F::part::<V>(block.add(c * pitch), part);
                let right = F::apply::<V>(right, pairs[c], part);
                for (sum, left) in sums.iter_mut().zip(left) {
                    *sum = match part {
                        0 => right.mul(left),
                        _ => right.mul_add(left, *sum),
                    };
                }
            }
        }
        for c in 0..C {
            let scale = V::splat(scales[c].as_ptr().add(b));
            for i in 0..M {
                sums[c][i] = match F::SCALES {
                    1 => of_block[c][i].mul_add(scale, sums[c][i]),
                    _ => sums[c][i].add(of_block[c][i]),
                };
            }
        }
    }
}

/// Expands a block to `f32`, including its scales.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the block and its scales must be valid, and `to` must have room for 32
/// numbers that no other code accesses meanwhile.
#[inline(always)]
unsafe fn expand_block<V: Vector, F: Expand>(block: *const u8, scale: *const u16, to: *mut f32) {
    // SAFETY: passed on to the caller.
    unsafe {
        let unit = 1.0 / F::unit::<V>();
        let mut scales = [V::zero(); 2];
        for (i, to) in scales.iter_mut().enumerate().take(F::SCALES) {
            *to = V::splat_f16(scale.add(i)).mul(V::splat(&unit));
        }
        for part in 0..BLOCK / V::LANES {
            let numbers = F::part::<V>(block, part);
            let numbers = match F::SCALES {
                1 => numbers.mul(scales[0]),
                _ => F::apply::<V>(numbers, scales, part),
            };
            numbers.store(to.add(part * V::LANES));
        }
    }
}

/// Expands `len` numbers of the first row, from number `first` on. A block must begin at `first`.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, and the numbers must be valid (whole blocks if there are scales). `to`
/// must have room for the numbers, and no other code may access it meanwhile.
#[inline(always)]
pub(in crate::gemm) unsafe fn expand<V: Vector, F: Expand>(weights: Rows, first: usize, len: usize, to: *mut f32) {
    let blocks = len / BLOCK;
    // SAFETY: blocks and the remainder of the row.
    unsafe {
        let numbers = weights.numbers.add(first / BLOCK * F::BYTES);
        for b in 0..blocks {
            let scale = weights.scales.wrapping_add((first / BLOCK + b) * F::SCALES);
            expand_block::<V, F>(numbers.add(b * F::BYTES), scale, to.add(b * BLOCK));
        }
        let rest = numbers.add(blocks * F::BYTES);
        for p in blocks * BLOCK..len {
            *to.add(p) = half_at(rest, p - blocks * BLOCK);
        }
    }
}

/// Expands numbers `first..first + len` of the first `cols` rows. Writes them as panels of a right operand with
/// `width` columns, in the order of [`crate::gemm::pack::panels`].
///
/// # Safety
///
/// As for [`expand`] with every row. `width` must be that of the instruction set's tiles, and `to` must have room for
/// whole panels.
#[inline(always)]
pub(in crate::gemm) unsafe fn panels<V: Vector, F: Expand>(
    weights: Rows,
    [first, len]: [usize; 2],
    [cols, width]: [usize; 2],
    to: *mut f32,
) {
    // SAFETY: rows of a panel are below `cols`.
    unsafe {
        for start in (0..cols).step_by(width) {
            let rows = row_of::<F>(weights, start);
            panel::<V, F>(
                rows,
                [first, len],
                [width.min(cols - start), width],
                to.add(start * len),
            );
        }
    }
}

/// Expands the rows of one panel block by block, and transposes the blocks in squares of registers.
///
/// # Safety
///
/// As for [`panels`], with `cols <= width`.
#[inline(always)]
unsafe fn panel<V: Vector, F: Expand>(
    weights: Rows,
    [first, len]: [usize; 2],
    [cols, width]: [usize; 2],
    to: *mut f32,
) {
    // In a panel with fewer than `MAX_COLS` rows, the numbers of the missing rows stay 0 and are not read.
    let mut numbers = [0.0f32; MAX_COLS * BLOCK];
    let numbers = numbers.as_mut_ptr();
    let blocks = len / BLOCK;
    // SAFETY: blocks of rows below `cols`, squares of at most MAX_COLS rows and BLOCK columns, and steps below `len`.
    unsafe {
        for b in 0..blocks {
            for j in 0..cols {
                let row = row_of::<F>(weights, j);
                let at = first / BLOCK + b;
                let block = row.numbers.add(at * F::BYTES);
                V::prefetch(block.wrapping_add(2 * LINE).cast());
                expand_block::<V, F>(block, row.scales.wrapping_add(at * F::SCALES), numbers.add(j * BLOCK));
            }
            for p in (0..BLOCK).step_by(V::LANES) {
                for j in (0..cols).step_by(V::LANES) {
                    let to = to.add((b * BLOCK + p) * width + j);
                    V::transpose(numbers.add(j * BLOCK + p), BLOCK, to, width);
                }
            }
        }
        for j in 0..cols {
            let rest = row_of::<F>(weights, j).numbers.add((first / BLOCK + blocks) * F::BYTES);
            for p in blocks * BLOCK..len {
                *to.add(p * width + j) = half_at(rest, p - blocks * BLOCK);
            }
        }
    }
}
