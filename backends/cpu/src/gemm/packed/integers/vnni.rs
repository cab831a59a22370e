//! By `vpdpbusd`, which adds four products of bytes to 32 bits.
//!
//! The digits of four blocks are loaded for some rows of weights at once: for each row anew they would take as long as the
//! products.

use std::arch::x86_64::*;

use super::*;
use crate::gemm::simd::prefetch;

/// Blocks of a register.
const QUAD: usize = 4;

/// Where [`Group::scales`] has those of each quad's lanes.
static LANES: [[i32; 16]; GROUP_BLOCKS / QUAD] = [lanes(0), lanes(1)];

const fn lanes(quad: i32) -> [i32; 16] {
    let mut lanes = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        let block = QUAD as i32 * quad + lane / 4;
        lanes[lane as usize] = block % 2 * PAIRS as i32 + block / 2;
        lane += 1;
    }
    lanes
}

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512f")
}

// SAFETY of the loads and intrinsics below: the CPU has AVX-512 with VNNI, BW and VL, and the pointers are valid for what is
// read, as the functions demand of their callers.

/// # Safety
///
/// As for [`Integers::product`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn product(x: *const Group, weights: Rows, cols: usize, y: *mut f32) {
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

/// The products with the first `N` rows.
///
/// # Safety
///
/// As for [`Integers::product`], with so many columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
unsafe fn some_rows<const N: usize>(x: *const Group, weights: Rows, y: *mut f32) {
    let blocks = weights.k / BLOCK;
    let whole = blocks / GROUP_BLOCKS;
    let mut sums = [_mm512_setzero_ps(); N];
    // SAFETY: groups of the row, the last of which may have fewer blocks, and `N` results.
    unsafe {
        for index in 0..whole {
            add_group::<N, true>(&*x.add(index), weights, index * GROUP_BLOCKS, &mut sums);
        }
        if whole * GROUP_BLOCKS < blocks {
            add_group::<N, false>(&*x.add(whole), weights, whole * GROUP_BLOCKS, &mut sums);
        }
        for (row, sum) in sums.into_iter().enumerate() {
            *y.add(row) = _mm512_reduce_add_ps(sum);
        }
    }
}

/// Adds the products of a group with the blocks from `first` on of each row, of which there may be fewer if it is not whole.
///
/// # Safety
///
/// As for [`Integers::product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
unsafe fn add_group<const N: usize, const WHOLE: bool>(x: &Group, weights: Rows, first: usize, sums: &mut [__m512; N]) {
    let blocks = weights.k / BLOCK;
    let left = if WHOLE { GROUP_BLOCKS } else { blocks - first };
    let halves = _mm512_set1_epi8(15);
    // SAFETY: `left` blocks of each row and their scales; parts of a group are aligned like it.
    unsafe {
        let own = _mm256_load_ps(x.scales.as_ptr());
        let mut scales = [_mm512_setzero_ps(); N];
        for (row, scales) in scales.iter_mut().enumerate() {
            let at = weights.scales.add(row * blocks + first).cast::<i16>();
            let halves = match WHOLE {
                true => _mm_loadu_si128(at.cast()),
                false => _mm_maskz_loadu_epi16((1 << left) - 1, at),
            };
            *scales = _mm512_castps256_ps512(avx2::scales_of(halves, own));
        }
        for (quad, lanes) in LANES.iter().enumerate().take(left.div_ceil(QUAD)) {
            let mut digits = [[_mm512_setzero_si512(); 2]; DIGITS];
            for (digits, parts) in digits.iter_mut().zip(&x.digits) {
                for (digits, part) in digits.iter_mut().zip(parts) {
                    *digits = _mm512_load_si512(part.as_ptr().add(64 * quad).cast());
                }
            }
            let offsets = _mm512_load_si512(x.offsets.as_ptr().add(16 * quad).cast());
            let lanes = _mm512_loadu_si512(lanes.as_ptr().cast());
            for (row, sum) in sums.iter_mut().enumerate() {
                let at = weights.numbers.add((row * blocks + first + QUAD * quad) * (BLOCK / 2));
                prefetch(at.cast::<f32>().wrapping_add(AHEAD), 16);
                let here = left - QUAD * quad;
                let packed = match WHOLE || here >= QUAD {
                    true => _mm512_loadu_si512(at.cast()),
                    false => _mm512_maskz_loadu_epi64((1 << (2 * here)) - 1, at.cast()),
                };
                let low = _mm512_and_si512(packed, halves);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), halves);
                let mut products = [offsets, _mm512_setzero_si512(), _mm512_setzero_si512()];
                for (product, [first, second]) in products.iter_mut().zip(digits) {
                    *product = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(*product, low, first), high, second);
                }
                let [d0, d1, d2] = products;
                let upper = _mm512_add_epi32(_mm512_slli_epi32::<7>(d1), _mm512_slli_epi32::<14>(d2));
                let product = _mm512_cvtepi32_ps(_mm512_add_epi32(d0, upper));
                *sum = _mm512_fmadd_ps(product, _mm512_permutexvar_ps(lanes, scales[row]), *sum);
            }
        }
    }
}
