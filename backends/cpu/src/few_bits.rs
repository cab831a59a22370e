//! Decoding of integers of 4, 5 or 6 bits in the layout of
//! [`BlockFormat`](meganeura_core::quantization::BlockFormat): 16 bytes of nibbles, followed by bytes with
//! the upper bits of the integers (`ABOVE`: 0, 1 or 2 bits of each).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Returns integer `i` of a block, minus `OFFSET`.
///
/// # Safety
///
/// The block must be valid: 16 bytes, and another `4 * ABOVE` bytes of upper bits.
#[inline(always)]
pub(crate) unsafe fn integer<const ABOVE: u32, const OFFSET: i8>(from: *const u8, i: usize) -> i8 {
    // Integers whose upper bits are in the same byte are `step` apart.
    let step = 4 * ABOVE as usize;
    // SAFETY: passed on to the caller.
    let (pair, above) = unsafe {
        let above = if ABOVE > 0 { *from.add(16 + i % step.max(1)) } else { 0 };
        (*from.add(i % 16), above)
    };
    let low = if i < 16 { pair & 15 } else { pair >> 4 };
    let high = match step {
        0 => 0,
        _ => above >> (ABOVE as usize * (i / step)) & ((1 << ABOVE) - 1),
    };
    (low | high << 4) as i8 - OFFSET
}

/// Returns all integers of a block of [`few_bits`](crate::simd::Vector::few_bits), each minus `OFFSET`.
///
/// # Safety
///
/// The CPU must have AVX2, and the block must be valid.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn integers<const ABOVE: u32, const OFFSET: i8>(from: *const u8) -> __m256i {
    // SAFETY: 16 bytes, and 4 or 8 more if there are upper bits.
    unsafe {
        let pairs = _mm_loadu_si128(from.cast());
        let low = _mm256_set_m128i(_mm_srli_epi16::<4>(pairs), pairs);
        let mut q = _mm256_and_si256(low, _mm256_set1_epi8(15));
        // Every lane loads all bytes of upper bits and shifts its own to the lowest position.
        if ABOVE == 1 {
            let bytes = _mm256_set1_epi32(from.add(16).cast::<i32>().read_unaligned());
            let high = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_and_si256(high, _mm256_set1_epi8(1));
            q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(high));
        }
        if ABOVE == 2 {
            let bytes = _mm256_set1_epi64x(from.add(16).cast::<i64>().read_unaligned());
            let high = _mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 2, 4, 6));
            let high = _mm256_and_si256(high, _mm256_set1_epi8(3));
            q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(high));
        }
        _mm256_sub_epi8(q, _mm256_set1_epi8(OFFSET))
    }
}
