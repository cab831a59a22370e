//! The inner loops: rows of few bits multiplied in registers, and expanded.

use half::f16;
use meganeura_core::quantization::BLOCK;

use super::rounded::RoundedKernels;
use super::rows::Rows;
use crate::simd::Vector;

/// Most rows of the left operand that [`matmul`] takes at a time.
pub(in crate::gemm) const MAX_ROWS: usize = 4;
/// Blocks whose scales are converted together, and the most scales.
const TOGETHER: usize = 16;
const MAX_SCALES: usize = 2 * TOGETHER;
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
    /// Matmuls of rounded rows with whole panels.
    pub(super) rounded: RoundedKernels,
}

/// A storage, for inner loops.
pub(in crate::gemm) trait Expand {
    /// Bytes of 32 numbers.
    const BYTES: usize;
    /// Scales of 32 numbers, minima among them.
    const SCALES: usize;

    /// What 1 becomes in a register, a power of two.
    fn unit<V: Vector>() -> f32;

    /// The numbers of a block without their scale, times [`Expand::unit`], that are in its register `part`.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instruction set, and the block be there.
    unsafe fn part<V: Vector>(block: *const u8, part: usize) -> V;

    /// What becomes of numbers of register `part` where there are two scales, which all lanes of these have; one scale is
    /// multiplied with the sum of a block.
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
/// Integers of four bits, or with bits `ABOVE` of more, with one scale.
pub(in crate::gemm) enum FewBits<const ABOVE: u32, const OFFSET: i8> {}
/// The same with a minimum.
pub(in crate::gemm) enum Affine<const ABOVE: u32> {}
/// Integers of six bits with a scale for each half of them.
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
        // SAFETY: 16 bytes; a block has as many registers as this is called for.
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
        // SAFETY: a block with its bits above; it has as many registers as this is called for.
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
            scales: weights.scales.add(row * (weights.k / BLOCK) * F::SCALES),
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
        let mut scales = [[0.0f32; MAX_SCALES + MAX_LANES]; C];
        let mut first = 0;
        while first < blocks {
            let some = TOGETHER.min(blocks - first);
            if F::SCALES > 0 {
                for (c, scales) in scales.iter_mut().enumerate() {
                    let from = weights.scales.add((c * blocks + first) * F::SCALES);
                    convert::<V, F>(from, some * F::SCALES, scales);
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
/// The CPU must have `V`'s instruction set, and the scales, at most [`MAX_SCALES`], be there.
#[inline(always)]
unsafe fn convert<V: Vector, F: Expand>(from: *const u16, count: usize, to: &mut [f32; MAX_SCALES + MAX_LANES]) {
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
    scales: &[[f32; MAX_SCALES + MAX_LANES]; C],
    b: usize,
    sums: &mut [[V; M]; C],
) {
    // SAFETY: a block of each row and column; `b` is below TOGETHER.
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

/// A block with its scales.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the block and its scales must be there, and `to` have room for 32 numbers, which
/// nobody else accesses meanwhile.
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
            let scale = weights.scales.wrapping_add((first / BLOCK + b) * F::SCALES);
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
