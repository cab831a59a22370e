//! The inner loops: rows of few bits multiplied in registers, and expanded.

use half::f16;
use meganeura_core::quantization::BLOCK;

use super::integers::Integers;
use super::rows::Rows;
use crate::simd::Vector;

/// Most rows of the left operand that [`matmul`] takes at a time.
pub(in crate::gemm) const MAX_ROWS: usize = 4;
/// Blocks whose scales are converted together.
const TOGETHER: usize = 16;
/// The widest register, and the widest panel.
const MAX_LANES: usize = 16;
const MAX_COLS: usize = 2 * MAX_LANES;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Some rows of `x` by rows of a matrix.
pub(super) type MatmulFn = unsafe fn(*const f32, Rows, usize, *mut f32, usize);

/// What one instruction set has for one storage.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct PackedKernels {
    /// [`matmul`] of 1, 2 ... rows.
    pub(in crate::gemm) matmul: [MatmulFn; MAX_ROWS],
    /// [`expand`].
    pub(in crate::gemm) expand: unsafe fn(Rows, usize, usize, *mut f32),
    /// [`panels`].
    pub(in crate::gemm) panels: unsafe fn(Rows, [usize; 2], [usize; 2], *mut f32),
}

/// Rows of a panel, where rows lie in panels.
pub(super) const PANEL_ROWS: usize = 16;
/// Bytes of a row that lie together in a panel.
pub(super) const UNIT: usize = 4;

/// What there is for one storage in panels.
pub(super) struct PanelKernels {
    /// [`matmul`] of 1, 2 ... rows and whole panels.
    pub(super) matmul: [MatmulFn; MAX_ROWS],
    /// Numbers `[first, len]` of a panel, as columns of a panel whose rows are so far apart.
    pub(super) panel: unsafe fn(Rows, [usize; 2], usize, *mut f32),
    /// Matmuls of a rounded row with whole panels.
    pub(super) integers: Integers,
}

/// A storage, for inner loops.
pub(in crate::gemm) trait Expand {
    /// Bytes of 32 numbers.
    const BYTES: usize;
    /// Whether blocks have scales.
    const SCALED: bool;

    /// What 1 becomes in a register, a power of two.
    fn unit<V: Vector>() -> f32;

    /// The numbers of a block without their scale, times [`Expand::unit`], that are in its register `part`.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instruction set, and the block be there.
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V;
}

pub(in crate::gemm) enum F16 {}
pub(in crate::gemm) enum Bytes {}
pub(in crate::gemm) enum Nibbles {}

impl Expand for F16 {
    const BYTES: usize = 2 * BLOCK;
    const SCALED: bool = false;

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
    const SCALED: bool = true;

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
    const SCALED: bool = true;

    fn unit<V: Vector>() -> f32 {
        V::NIBBLE_UNIT
    }

    #[inline(always)]
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V {
        // SAFETY: 16 bytes; a block has as many registers as this is called for.
        unsafe { V::nibbles(block, part) }
    }
}

/// `y[i, j] = x[i] · weights[j]` for `M` rows of `x`, which follow each other, and the first `cols` rows of the weights,
/// `C` at a time, for they share what is read of `x`; rows of `y` are `y_row` apart.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the pointers must be valid for these sizes (whole blocks where there are
/// scales), and nobody else may access `y` meanwhile.
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

/// Bytes from one row to the next, without scales.
#[inline(always)]
fn pitch<F: Expand>(k: usize) -> usize {
    // Only numbers without scales go on behind whole blocks.
    k / BLOCK * F::BYTES + k % BLOCK * size_of::<u16>()
}

/// The rows from one on.
///
/// # Safety
///
/// There are so many rows.
#[inline(always)]
unsafe fn row_of<F: Expand>(weights: Rows, row: usize) -> Rows {
    // SAFETY: passed on to the caller.
    unsafe {
        Rows {
            numbers: weights.numbers.add(row * pitch::<F>(weights.k)),
            scales: match F::SCALED {
                true => weights.scales.add(row * (weights.k / BLOCK)),
                false => weights.scales,
            },
            k: weights.k,
        }
    }
}

/// [`matmul`] for `C` columns.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn group<V: Vector, F: Expand, const M: usize, const C: usize>(
    x: *const f32,
    weights: Rows,
    y: *mut f32,
    y_row: usize,
) {
    let (k, blocks, pitch) = (weights.k, weights.k / BLOCK, pitch::<F>(weights.k));
    // SAFETY: blocks and what is left of a row lie within it.
    unsafe {
        let mut sums = [[V::zero(); M]; C];
        let mut scales = [[0.0f32; TOGETHER + MAX_LANES]; C];
        let mut first = 0;
        while first < blocks {
            let some = TOGETHER.min(blocks - first);
            if F::SCALED {
                for (c, scales) in scales.iter_mut().enumerate() {
                    convert::<V, F>(weights.scales.add(c * blocks + first), some, scales);
                }
            }
            for b in 0..some {
                let block = weights.numbers.add((first + b) * F::BYTES);
                // The next columns follow these in memory. A step's share of those after the next is asked for, as the
                // hardware does not follow so many rows by itself.
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

/// Scales of blocks for numbers as they are in registers.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, and the scales, at most [`TOGETHER`], be there.
#[inline(always)]
unsafe fn convert<V: Vector, F: Expand>(from: *const u16, count: usize, to: &mut [f32; TOGETHER + MAX_LANES]) {
    let unit = 1.0 / F::unit::<V>();
    let to = to.as_mut_ptr();
    // SAFETY: reads end at `count`; the last writes begin below it, and there is room for a register behind.
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

/// A number in binary16.
///
/// # Safety
///
/// It is there.
#[inline(always)]
unsafe fn half_at(numbers: *const u8, index: usize) -> f32 {
    // SAFETY: passed on to the caller.
    f16::from_bits(unsafe { numbers.cast::<u16>().add(index).read_unaligned() }).to_f32()
}

/// Adds the products with a block of each column, whose scales have number `b`.
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
    scales: &[[f32; TOGETHER + MAX_LANES]; C],
    b: usize,
    sums: &mut [[V; M]; C],
) {
    // SAFETY: a block of each row and column; `b` is below TOGETHER.
    unsafe {
        let mut of_block = [[V::zero(); M]; C];
        for part in 0..BLOCK / V::LANES {
            let mut left = [V::zero(); M];
            for (i, left) in left.iter_mut().enumerate() {
                *left = V::load(x.add(i * x_row + part * V::LANES));
            }
            for (c, sums) in of_block.iter_mut().enumerate() {
                let right = F::part::<V>(block.add(c * pitch), part);
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
                sums[c][i] = match F::SCALED {
                    true => of_block[c][i].mul_add(scale, sums[c][i]),
                    false => sums[c][i].add(of_block[c][i]),
                };
            }
        }
    }
}

/// A block with its scale.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the block and its scale must be there, and `to` have room for 32 numbers, which
/// nobody else accesses meanwhile.
#[inline(always)]
unsafe fn expand_block<V: Vector, F: Expand>(block: *const u8, scale: *const u16, to: *mut f32) {
    // SAFETY: passed on to the caller.
    unsafe {
        let unit = 1.0 / F::unit::<V>();
        let scale = match F::SCALED {
            true => V::splat_f16(scale).mul(V::splat(&unit)),
            false => V::zero(),
        };
        for part in 0..BLOCK / V::LANES {
            let numbers = F::part::<V>(block, part);
            let numbers = if F::SCALED { numbers.mul(scale) } else { numbers };
            numbers.store(to.add(part * V::LANES));
        }
    }
}

/// `len` numbers of the first row, from `first` on, which is the beginning of a block.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the numbers must be there (whole blocks where there are scales), and `to`
/// have room for them, which nobody else accesses meanwhile.
#[inline(always)]
pub(in crate::gemm) unsafe fn expand<V: Vector, F: Expand>(weights: Rows, first: usize, len: usize, to: *mut f32) {
    let blocks = len / BLOCK;
    // SAFETY: blocks and what is left of the row.
    unsafe {
        let numbers = weights.numbers.add(first / BLOCK * F::BYTES);
        for b in 0..blocks {
            let scale = weights.scales.wrapping_add(first / BLOCK + b);
            expand_block::<V, F>(numbers.add(b * F::BYTES), scale, to.add(b * BLOCK));
        }
        let rest = numbers.add(blocks * F::BYTES);
        for p in blocks * BLOCK..len {
            *to.add(p) = half_at(rest, p - blocks * BLOCK);
        }
    }
}

/// Numbers `[first, first + len]` of the first `cols` rows as panels of a right operand with `width` columns, in the order of
/// [`crate::gemm::pack::panels`].
///
/// # Safety
///
/// As for [`expand`] with every row; `width` is that of the instruction set's tiles, and `to` has room for whole panels.
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

/// One panel: blocks of all its rows side by side, transposed in squares of registers.
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
    // Rows that are not there are never written, and go where nobody reads.
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
                expand_block::<V, F>(block, row.scales.wrapping_add(at), numbers.add(j * BLOCK));
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
