//! Integer products with AVX2: `vpmaddubsw` adds pairs of products of bytes to sums of 16 bits, and
//! `vpmaddwd` adds up these sums.

use std::arch::x86_64::*;

use super::super::MAGNITUDES;
use super::*;
use crate::simd::prefetch;

/// Largest integer: its third digit is the largest value of a signed byte.
const MAX_INTEGER: f32 = (127 << 14) as f32;
/// Shuffle control that permutes eight scales into the order of [`Group::scales`].
static ORDER: [u8; 16] = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];
/// Permutation indices: `SPREAD[p]` broadcasts element `p` of each half of a register to the whole half.
static SPREAD: [[i32; 8]; PAIRS] = [[0; 8], [1; 8], [2; 8], [3; 8]];

// SAFETY of the loads and intrinsics below: the CPU has AVX2, FMA and F16C, and the pointers are
// valid for all reads, as each function's contract demands.

/// Rounds a row to integers.
///
/// # Safety
///
/// As for [`Integers::round`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn round(x: *const f32, k: usize, to: *mut Group) -> bool {
    let mut usable = true;
    // SAFETY: the blocks belong to the row, and the caller provides their groups.
    unsafe {
        for index in 0..groups(k) {
            (*to.add(index)).scales = [0.0; GROUP_BLOCKS];
        }
        for block in 0..k / BLOCK {
            let group = to.add(block / GROUP_BLOCKS);
            let index = block % GROUP_BLOCKS;
            let (scale, fits) = round_block(x.add(block * BLOCK), group, index);
            (*group).scales[PAIRS * (index % 2) + index / 2] = scale;
            usable &= fits;
        }
    }
    usable
}

/// Rounds a block of a group. Returns the scale of the block, and true if its numbers can be rounded.
///
/// # Safety
///
/// As for [`Integers::round`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_block(x: *const f32, to: *mut Group, index: usize) -> (f32, bool) {
    // SAFETY: the 32 numbers of the block, and its parts of the group.
    unsafe {
        let x: [__m256; 4] = std::array::from_fn(|part| _mm256_loadu_ps(x.add(8 * part)));
        let largest = largest_magnitude(x);
        let (scale, inverse) = match largest {
            0 => (0.0, 0.0),
            bits => {
                let largest = f32::from_bits(bits.cast_unsigned());
                (largest / MAX_INTEGER, MAX_INTEGER / largest)
            }
        };
        let mut v = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
        let sum = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
        let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        let offsets = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32::<3>(sum));
        _mm_storeu_si128((&raw mut (*to).offsets[4 * index]).cast(), offsets);
        for digit in 0..DIGITS {
            let last = digit + 1 == DIGITS;
            // This is the lowest seven bits as a signed number.
            let digits = if last {
                v
            } else {
                v.map(|v| _mm256_srai_epi32::<25>(_mm256_slli_epi32::<25>(v)))
            };
            if !last {
                v = std::array::from_fn(|i| _mm256_srai_epi32::<7>(_mm256_sub_epi32(v[i], digits[i])));
            }
            let low = _mm256_packs_epi32(digits[0], digits[1]);
            let high = _mm256_packs_epi32(digits[2], digits[3]);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            let [first, second] = [0, 1].map(|part| (&raw mut (*to).digits[digit][part][index * BLOCK / 2]).cast());
            _mm_storeu_si128(first, _mm256_castsi256_si128(bytes));
            _mm_storeu_si128(second, _mm256_extracti128_si256::<1>(bytes));
        }
        (scale, largest == 0 || MAGNITUDES.contains(&largest.cast_unsigned()))
    }
}

/// Returns the bits of the largest magnitude. Magnitudes are ordered like their bits, so non-finite values
/// are larger than all numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest_magnitude(x: [__m256; 4]) -> i32 {
    let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)));
    let all = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
    let four = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one)
}

/// Multiplies a rounded row by rows of weights.
///
/// # Safety
///
/// As for [`Integers::matvec`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matvec(x: *const Group, weights: Rows, cols: usize, y: *mut f32) {
    // SAFETY: passed on to the caller.
    unsafe {
        by_rows(
            weights,
            cols,
            y,
            |weights, y| some_rows::<ROWS>(x, weights, y),
            |weights, y| some_rows::<1>(x, weights, y),
        )
    }
}

/// Computes the dot products of the row `x` with the first `N` rows of weights.
///
/// # Safety
///
/// As for [`Integers::matvec`] with `N` columns; `N` is at most [`ROWS`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_rows<const N: usize>(x: *const Group, weights: Rows, y: *mut f32) {
    let blocks = weights.k / BLOCK;
    let whole = blocks / GROUP_BLOCKS;
    let mut sums = [_mm256_setzero_ps(); ROWS];
    // SAFETY: whole groups of the row, and the remaining blocks after them.
    unsafe {
        for (row, sum) in sums.iter_mut().enumerate().take(N) {
            *sum = whole_groups(x, weights.from(Q4_0, row), whole);
        }
        for first in (whole * GROUP_BLOCKS..blocks).step_by(2) {
            add_last(&*x.add(whole), weights, first, &mut sums[..N]);
        }
        let sums = add_up(sums);
        if N == ROWS {
            _mm_storeu_ps(y, sums);
        } else {
            let mut all = [0.0f32; ROWS];
            _mm_storeu_ps(all.as_mut_ptr(), sums);
            std::ptr::copy_nonoverlapping(all.as_ptr(), y, N);
        }
    }
}

/// Returns the sum of all lanes of each register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_up(sums: [__m256; ROWS]) -> __m128 {
    let pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs))
}

/// Returns the dot product of `count` groups of `x` with the same groups of one row of weights, as partial
/// sums in the lanes. The caller adds up the lanes.
///
/// # Safety
///
/// As for [`Integers::matvec`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn whole_groups(x: *const Group, weights: Rows, count: usize) -> __m256 {
    let mut sums = [_mm256_setzero_ps(); 2];
    for index in 0..count {
        // SAFETY: groups of the row.
        unsafe {
            let group = &*x.add(index);
            let numbers = weights.numbers.add(index * GROUP_BYTES);
            prefetch(
                numbers.cast::<f32>().wrapping_add(AHEAD),
                GROUP_BYTES / size_of::<f32>(),
            );
            let scales = weights.scales.add(index * GROUP_BLOCKS);
            let own = _mm256_load_ps(group.scales.as_ptr());
            let scales = scales_of(_mm_loadu_si128(scales.cast()), own);
            for pair in 0..PAIRS {
                let packed = _mm256_loadu_si256(numbers.add(pair * BLOCK).cast());
                sums[pair % 2] = add_pair(group, pair, packed, [scales, sums[pair % 2]], pair);
            }
        }
    }
    _mm256_add_ps(sums[0], sums[1])
}

/// Multiplies block `first` and, if it exists, block `first + 1` of the row `x` by the same blocks of some
/// rows of weights, and adds the products to `sums`. These blocks follow the last whole group of the row. The
/// scales of the rows take the positions that the scales of pairs have in a group.
///
/// # Safety
///
/// As for [`Integers::matvec`], with a row for each sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_last(x: &Group, weights: Rows, first: usize, sums: &mut [__m256]) {
    let blocks = weights.k / BLOCK;
    let is_pair = first + 1 < blocks;
    let index = first % GROUP_BLOCKS / 2;
    let mut scales = [0u32; ROWS];
    // SAFETY: the blocks of each row and their scales; there is a control for each pair.
    unsafe {
        for (row, scale) in scales.iter_mut().enumerate().take(sums.len()) {
            let at = weights.scales.add(row * blocks + first);
            *scale = if is_pair {
                at.cast::<u32>().read_unaligned()
            } else {
                u32::from(*at)
            };
        }
        let control = _mm256_loadu_si256(SPREAD[index].as_ptr().cast());
        let own = _mm256_permutevar_ps(_mm256_load_ps(x.scales.as_ptr()), control);
        let scales = scales_of(_mm_loadu_si128(scales.as_ptr().cast()), own);
        for (row, sum) in sums.iter_mut().enumerate() {
            let at = weights.numbers.add((row * blocks + first) * (BLOCK / 2));
            prefetch(at.cast::<f32>().wrapping_add(AHEAD), BLOCK / size_of::<f32>());
            let packed = if is_pair {
                _mm256_loadu_si256(at.cast())
            } else {
                _mm256_zextsi128_si256(_mm_loadu_si128(at.cast()))
            };
            *sum = add_pair(x, index, packed, [scales, *sum], row);
        }
    }
}

/// Returns the scales of products: the `f16` scales of the weights, in the order [`ORDER`], times the `own`
/// scales of the rounded row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of(f16: __m128i, own: __m256) -> __m256 {
    // SAFETY: the table has the size of a register.
    let order = unsafe { _mm_loadu_si128(ORDER.as_ptr().cast()) };
    _mm256_mul_ps(_mm256_cvtph_ps(_mm_shuffle_epi8(f16, order)), own)
}

/// Adds the products of a pair of blocks to a sum. The blocks' scales are element `index` of the lower and of the upper
/// half of `scales`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pair(x: &Group, pair: usize, packed: __m256i, [scales, sum]: [__m256; 2], index: usize) -> __m256 {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_and_si256(packed, mask);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask);
    let mut digits = [_mm256_setzero_si256(); DIGITS];
    for (sums, parts) in digits.iter_mut().zip(&x.digits) {
        // SAFETY: each part of the pair has the size and the alignment of a register.
        let [first, second] = parts
            .each_ref()
            .map(|part| unsafe { _mm256_load_si256(part.as_ptr().add(pair * BLOCK).cast()) });
        *sums = _mm256_add_epi16(_mm256_maddubs_epi16(low, first), _mm256_maddubs_epi16(high, second));
    }
    let [d0, d1, d2] = digits;
    // SAFETY: as above; there is a control for each pair.
    let (offsets, control) = unsafe {
        (
            _mm256_load_si256(x.offsets.as_ptr().add(8 * pair).cast()),
            _mm256_loadu_si256(SPREAD[index].as_ptr().cast()),
        )
    };
    let lower = _mm256_add_epi32(
        _mm256_madd_epi16(d0, _mm256_set1_epi16(1)),
        _mm256_madd_epi16(d1, _mm256_set1_epi16(1 << 7)),
    );
    let upper = _mm256_add_epi32(_mm256_madd_epi16(d2, _mm256_set1_epi16(1 << 14)), offsets);
    let product = _mm256_cvtepi32_ps(_mm256_add_epi32(lower, upper));
    _mm256_fmadd_ps(product, _mm256_permutevar_ps(scales, control), sum)
}
