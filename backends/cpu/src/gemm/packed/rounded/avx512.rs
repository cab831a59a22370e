//! Integer products with AVX-512 VNNI: `vpdpbusd` multiplies unsigned bytes by signed ones and adds up four products.

use std::arch::x86_64::*;

use super::super::MAGNITUDES;
use super::super::kernels::{PANEL_ROWS, UNIT};
use super::super::panels::{PanelFormat, STEPS, ask_ahead, scales_of};
use super::*;

/// Largest integer: both of its digits are the largest value of a signed byte.
const LARGEST: f32 = (127 * 256 + 127) as f32;

impl RoundedKernels {
    pub(in super::super) const fn of<F: PanelFormat>() -> Self {
        RoundedKernels {
            round: round::<F>,
            matmul: [
                matmul::<F, 1>,
                matmul::<F, 2>,
                matmul::<F, 3>,
                matmul::<F, 4>,
                matmul::<F, 5>,
                matmul::<F, 6>,
                matmul::<F, 7>,
                matmul::<F, 8>,
            ],
        }
    }
}

/// Returns the number of parts of a block that have separate scales: 1 or 2.
const fn parts<F: PanelFormat>() -> usize {
    if F::SCALES == 2 && !F::MINIMUM { 2 } else { 1 }
}

// SAFETY of the loads and intrinsics below: the CPU has AVX-512 with VNNI and BW, and the pointers
// are valid for all reads, as each function's contract demands.

/// Rounds rows to integers.
///
/// # Safety
///
/// As for [`RoundedKernels::round`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
unsafe fn round<F: PanelFormat>(x: *const f32, [rows, k]: [usize; 2], to: *mut Block) -> u8 {
    let mut usable = 0;
    for row in 0..rows {
        let mut is_usable = true;
        for block in 0..k / BLOCK {
            // SAFETY: blocks of the row, and of the tile.
            is_usable &= unsafe { round_block::<F>(x.add(row * k + block * BLOCK), &mut *to.add(block * ROWS + row)) };
        }
        usable |= u8::from(is_usable) << row;
    }
    usable
}

/// Rounds a block. Returns false if one of its numbers is not finite, too large or too small.
///
/// # Safety
///
/// As for [`RoundedKernels::round`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
unsafe fn round_block<F: PanelFormat>(x: *const f32, to: &mut Block) -> bool {
    // SAFETY: the 32 numbers of the block, and both halves of its digits.
    unsafe {
        let x = [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(BLOCK / 2))];
        // Magnitudes are ordered like their bits, so non-finite values are larger than all numbers.
        let magnitudes = x.map(|x| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX)));
        let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes[0], magnitudes[1]));
        if largest != 0 && !MAGNITUDES.contains(&largest) {
            // Kernels read all rows of a tile.
            *to = Block::ZERO;
            return false;
        }
        let (scale, inverse) = match f32::from_bits(largest) {
            0.0 => (0.0, 0.0),
            largest => (largest / LARGEST, LARGEST / largest),
        };
        let v = x.map(|x| _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse))));
        for (half, &v) in v.iter().enumerate() {
            let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(v));
            let high = _mm512_srai_epi32::<8>(_mm512_sub_epi32(v, low));
            for (digits, own) in to.digits.iter_mut().zip([high, low]) {
                let at = digits.as_mut_ptr().add(half * BLOCK / 2);
                _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(own));
            }
        }
        let [first, second] = v.map(|v| _mm512_reduce_add_epi32(v));
        to.offsets = match parts::<F>() {
            1 => [(first + second) * F::OFFSET, 0],
            _ => [first * F::OFFSET, second * F::OFFSET],
        };
        to.scale = scale;
        to.total = (first + second) as f32 * scale;
        true
    }
}

/// Broadcasts four neighbouring digits to every lane.
///
/// # Safety
///
/// The CPU must have AVX-512; the step must exist.
#[inline(always)]
unsafe fn four(digits: &[i8; BLOCK], step: usize) -> __m512i {
    // SAFETY: four bytes of a step.
    unsafe { _mm512_set1_epi32(digits.as_ptr().add(UNIT * step).cast::<i32>().read_unaligned()) }
}

/// Multiplies `M` rounded rows by whole panels of weights.
///
/// # Safety
///
/// As for [`RoundedKernels::matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
unsafe fn matmul<F: PanelFormat, const M: usize>(
    x: *const Block,
    weights: Rows,
    cols: usize,
    y: *mut f32,
    y_row: usize,
) {
    let blocks = weights.k / BLOCK;
    for panel in (0..cols).step_by(PANEL_ROWS) {
        // SAFETY: blocks of the panel and of each row, and the panel's results.
        unsafe {
            let numbers = weights.numbers.add(panel * blocks * F::BYTES);
            let scales = weights.scales.add(panel * blocks * F::SCALES);
            let mut sums = [_mm512_setzero_ps(); M];
            for block in 0..blocks {
                let at = numbers.add(block * F::BYTES * PANEL_ROWS);
                ask_ahead(at, F::BYTES * PANEL_ROWS);
                let rows: &[Block; M] = &*x.add(block * ROWS).cast();
                add_block::<F, M>(rows, at, scales.add(block * F::SCALES * PANEL_ROWS), &mut sums);
            }
            for (i, sum) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(y.add(i * y_row + panel), sum);
            }
        }
    }
}

/// Adds the products of one block of each rounded row with one block of a panel.
///
/// # Safety
///
/// As for [`RoundedKernels::matmul`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
unsafe fn add_block<F: PanelFormat, const M: usize>(
    rows: &[Block; M],
    weights: *const u8,
    scales: *const u16,
    sums: &mut [__m512; M],
) {
    let parts = parts::<F>();
    // SAFETY: steps of the block, and its scales.
    unsafe {
        for part in 0..parts {
            let steps = part * STEPS / parts..(part + 1) * STEPS / parts;
            let mut products = [_mm512_setzero_si512(); M];
            // The products of both digits are added to one sum. After the products of the higher digits, the sum is
            // shifted by the power of this digit.
            for digit in 0..2 {
                for step in steps.clone() {
                    let bytes = F::bytes(weights, step);
                    for (product, row) in products.iter_mut().zip(rows) {
                        *product = _mm512_dpbusd_epi32(*product, bytes, four(&row.digits[digit], step));
                    }
                }
                if digit == 0 {
                    products = products.map(|product| _mm512_slli_epi32::<8>(product));
                }
            }
            let own = scales_of(scales, part);
            for ((sum, product), row) in sums.iter_mut().zip(products).zip(rows) {
                let offset = _mm512_set1_epi32(row.offsets[part]);
                let product = _mm512_cvtepi32_ps(_mm512_sub_epi32(product, offset));
                let scale = _mm512_mul_ps(own, _mm512_set1_ps(row.scale));
                *sum = _mm512_fmadd_ps(product, scale, *sum);
            }
        }
        if F::MINIMUM {
            let minimum = scales_of(scales, 1);
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(row.total), *sum);
            }
        }
    }
}
