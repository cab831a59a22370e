//! The vector registers that kernels use, as a trait and its implementations.
//!
//! A kernel body is generic over [`Vector`] and inlined into a function that enables the instruction set. There, each
//! method becomes one instruction or a few.

use half::f16;

use crate::few_bits;

/// A register of f32 lanes.
///
/// # Safety
///
/// Every method requires a CPU with the instruction set of the implementing type. Pointers must be valid for the lanes
/// that a method reads or writes; they need no alignment beyond that of f32.
pub(crate) trait Vector: Copy {
    /// Number of f32s in a register.
    const LANES: usize;
    /// Number of steps along k per iteration of a tile's loop.
    const STEPS: usize = 4;
    /// A mask of the first lanes of a register.
    type Mask: Copy;

    /// Returns a register of zeros.
    unsafe fn zero() -> Self;
    /// Returns a register whose lanes are all `*from`.
    unsafe fn splat(from: *const f32) -> Self;
    /// Reads all lanes.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes all lanes.
    unsafe fn store(self, to: *mut f32);
    /// Returns the mask of the first `lanes` lanes, at most [`Self::LANES`].
    unsafe fn mask(lanes: usize) -> Self::Mask;
    /// Reads one signed byte per lane and converts it to f32.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// Power of two by which all numbers of [`Vector::nibbles`] are multiplied.
    const NIBBLE_UNIT: f32;
    /// Returns register `part` of 32 numbers: the lower nibbles of 16 bytes minus 8, then their upper nibbles minus
    /// 8, all multiplied by [`Vector::NIBBLE_UNIT`].
    unsafe fn nibbles(from: *const u8, part: usize) -> Self;
    /// Returns register `part` of 32 integers in the layout of
    /// [`BlockFormat`](meganeura_core::quantization::BlockFormat), minus `OFFSET`. Their lower four bits are nibbles
    /// as in [`Vector::nibbles`]. The bytes after the first 16 contain `ABOVE` upper bits (0, 1 or 2) of each
    /// integer.
    unsafe fn few_bits<const ABOVE: u32, const OFFSET: i8>(from: *const u8, part: usize) -> Self;
    /// Reads one IEEE 754 binary16 number per lane and converts it to f32.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Returns a register whose lanes are all the binary16 number `*from`, converted to f32.
    unsafe fn splat_f16(from: *const u16) -> Self;
    /// Returns `self * factor` for each lane.
    unsafe fn mul(self, factor: Self) -> Self;
    /// Reads the lanes of the mask without accessing memory of other lanes. The other lanes become 0.
    unsafe fn load_masked(from: *const f32, mask: Self::Mask) -> Self;
    /// Writes the lanes of the mask without accessing memory of other lanes.
    unsafe fn store_masked(self, to: *mut f32, mask: Self::Mask);
    /// Prefetches the cache line of an address, which may be invalid.
    unsafe fn prefetch(at: *const f32);
    /// Returns `self + other` for each lane.
    unsafe fn add(self, other: Self) -> Self;
    /// Returns `self * factor + addend` for each lane.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// Returns the sum of all lanes.
    unsafe fn sum(self) -> f32;
    /// Transposes a square of `LANES` rows and columns: `to[j][i] = from[i][j]`. `from_row` and `to_row` are the
    /// distances between rows in f32s.
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize);
}

/// Number of bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Prefetches the cache line of an address into the second-level cache, if the target has an instruction for this.
#[inline(always)]
pub(crate) fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache lines of `count` f32s, if the target has an instruction for this. The memory may be invalid.
#[inline(always)]
pub(crate) fn prefetch(from: *const f32, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for first in (0..count).step_by(LINE / size_of::<f32>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(first).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, count);
}

/// Number of lanes of the portable vector: a NEON or SSE register.
const PORTABLE: usize = 4;

/// A register as a plain array. The compiler maps it to the available registers.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; PORTABLE]);

impl Vector for Portable {
    const LANES: usize = PORTABLE;
    type Mask = usize;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; PORTABLE])
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: the caller's pointer is valid for one lane.
        Self([unsafe { *from }; PORTABLE])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's pointer is valid for all lanes.
        Self(unsafe { from.cast::<[f32; PORTABLE]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's pointer is valid for all lanes.
        unsafe { to.cast::<[f32; PORTABLE]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> usize {
        lanes
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller's pointer is valid for all lanes.
        Self(unsafe { from.cast::<[i8; PORTABLE]>().read_unaligned() }.map(f32::from))
    }

    const NIBBLE_UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn nibbles(from: *const u8, part: usize) -> Self {
        let parts = 16 / PORTABLE;
        // SAFETY: the caller's pointer is valid for 16 bytes.
        let bytes = unsafe {
            from.add(part % parts * PORTABLE)
                .cast::<[u8; PORTABLE]>()
                .read_unaligned()
        };
        let mut numbers = [0.0; PORTABLE];
        for (x, byte) in numbers.iter_mut().zip(bytes) {
            let nibble = if part < parts { byte & 15 } else { byte >> 4 };
            *x = f32::from(nibble) - 8.0;
        }
        Self(numbers)
    }

    #[inline(always)]
    unsafe fn few_bits<const ABOVE: u32, const OFFSET: i8>(from: *const u8, part: usize) -> Self {
        let mut numbers = [0.0; PORTABLE];
        for (lane, x) in numbers.iter_mut().enumerate() {
            // SAFETY: `from` is a block, and the index is below its number of integers.
            *x = f32::from(unsafe { few_bits::integer::<ABOVE, OFFSET>(from, part * PORTABLE + lane) });
        }
        Self(numbers)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's pointer is valid for all lanes.
        let bits = unsafe { from.cast::<[u16; PORTABLE]>().read_unaligned() };
        Self(bits.map(|bits| f16::from_bits(bits).to_f32()))
    }

    #[inline(always)]
    unsafe fn splat_f16(from: *const u16) -> Self {
        // SAFETY: the caller's pointer is valid for one number.
        Self([f16::from_bits(unsafe { *from }).to_f32(); PORTABLE])
    }

    #[inline(always)]
    unsafe fn mul(mut self, factor: Self) -> Self {
        for i in 0..PORTABLE {
            self.0[i] *= factor.0[i];
        }
        self
    }

    #[inline(always)]
    unsafe fn load_masked(from: *const f32, mask: usize) -> Self {
        let mut lanes = [0.0; PORTABLE];
        for (i, lane) in lanes.iter_mut().enumerate().take(mask) {
            // SAFETY: the caller's pointer is valid for the lanes of the mask.
            *lane = unsafe { *from.add(i) };
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store_masked(self, to: *mut f32, mask: usize) {
        for (i, lane) in self.0.iter().enumerate().take(mask) {
            // SAFETY: the caller's pointer is valid for the lanes of the mask.
            unsafe { *to.add(i) = *lane };
        }
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const f32) {}

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..PORTABLE {
            self.0[i] += other.0[i];
        }
        self
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, mut addend: Self) -> Self {
        for i in 0..PORTABLE {
            // `mul_add` is a slow library call if the hardware has no such instruction.
            addend.0[i] = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                self.0[i].mul_add(factor.0[i], addend.0[i])
            } else {
                self.0[i] * factor.0[i] + addend.0[i]
            };
        }
        addend
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        (a + c) + (b + d)
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for i in 0..PORTABLE {
            for j in 0..PORTABLE {
                // SAFETY: by the caller's contract, both squares are valid.
                unsafe { *to.add(j * to_row + i) = *from.add(i * from_row + j) };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::few_bits;
    use crate::simd::Vector;
    use std::arch::x86_64::*;

    /// An AVX2 register. The kernels also use fused multiply-add and conversion of binary16.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    /// Shuffle controls that move 8 bytes to the highest bytes of the lanes. Both halves of the register contain the
    /// same 16 bytes. The controls select the first or the last 8 of these bytes.
    static HIGHEST: [[i8; 32]; 2] = [highest(0), highest(8)];

    const fn highest(first: i8) -> [i8; 32] {
        // Negative controls produce 0.
        let mut control = [-1; 32];
        let mut lane = 0;
        while lane < 8 {
            control[4 * lane + 3] = first + lane as i8;
            lane += 1;
        }
        control
    }

    /// Source of masks: the eight words from `MASKS[8 - n]` on are the mask of the first n lanes.
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    // SAFETY of all blocks below: the CPU has AVX2, FMA and F16C, and the pointers are valid for the accessed lanes.
    // The trait requires this of its caller.
    impl Vector for Avx2 {
        const LANES: usize = 8;
        type Mask = __m256i;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_broadcast_ss(&*from) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __m256i {
            // SAFETY: see above; with `lanes <= 8` the read stays in the table.
            unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - lanes).cast()) }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) })
        }

        const NIBBLE_UNIT: f32 = (1u32 << 28) as f32;

        #[inline(always)]
        unsafe fn nibbles(from: *const u8, part: usize) -> Self {
            // SAFETY: see above; there are 16 bytes, and two controls.
            unsafe {
                let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
                // With the highest bit flipped, the nibbles are two's complement numbers. They are moved to the
                // highest bits of their lane, where the conversion interprets their sign.
                let bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(0x88u8.cast_signed()));
                let bytes = if part < 2 { _mm256_slli_epi16::<4>(bytes) } else { bytes };
                let nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(0xf0u8.cast_signed()));
                let control = _mm256_loadu_si256(HIGHEST.as_ptr().add(part % 2).cast());
                Self(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(nibbles, control)))
            }
        }

        #[inline(always)]
        unsafe fn few_bits<const ABOVE: u32, const OFFSET: i8>(from: *const u8, part: usize) -> Self {
            // SAFETY: see above.
            unsafe {
                let q = few_bits::integers::<ABOVE, OFFSET>(from);
                let half = match part / 2 {
                    0 => _mm256_castsi256_si128(q),
                    _ => _mm256_extracti128_si256::<1>(q),
                };
                let eight = if part.is_multiple_of(2) {
                    half
                } else {
                    _mm_unpackhi_epi64(half, half)
                };
                Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
        }

        #[inline(always)]
        unsafe fn splat_f16(from: *const u16) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_cvtph_ps(_mm_set1_epi16((*from).cast_signed())) })
        }

        #[inline(always)]
        unsafe fn mul(self, factor: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_mul_ps(self.0, factor.0) })
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __m256i) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_maskload_ps(from, mask) })
        }

        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __m256i) {
            // SAFETY: see above.
            unsafe { _mm256_maskstore_ps(to, mask, self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: see above.
            unsafe {
                let halves = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
                _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
            }
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: see above; the squares are 8 by 8.
            unsafe {
                // Rows i and i + 4 share a register, four columns at a time, so that all further operations stay
                // within the 128-bit halves.
                for half in 0..2 {
                    let rows: [__m256; 4] = std::array::from_fn(|i| {
                        let low = from.add(i * from_row + 4 * half);
                        let high = _mm_loadu_ps(low.add(4 * from_row));
                        _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(low)), high)
                    });
                    let a = _mm256_unpacklo_ps(rows[0], rows[1]);
                    let b = _mm256_unpackhi_ps(rows[0], rows[1]);
                    let c = _mm256_unpacklo_ps(rows[2], rows[3]);
                    let d = _mm256_unpackhi_ps(rows[2], rows[3]);
                    let to = to.add(4 * half * to_row);
                    _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(a, c));
                    _mm256_storeu_ps(to.add(to_row), _mm256_shuffle_ps::<0xee>(a, c));
                    _mm256_storeu_ps(to.add(2 * to_row), _mm256_shuffle_ps::<0x44>(b, d));
                    _mm256_storeu_ps(to.add(3 * to_row), _mm256_shuffle_ps::<0xee>(b, d));
                }
            }
        }
    }

    /// Values of the nibbles 0 to 15, with the offset 8 subtracted.
    static NIBBLE_VALUES: [f32; 16] = [
        -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
    ];

    /// An AVX-512 register (Foundation, which implies AVX2 and FMA).
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    // SAFETY of all blocks below: the CPU has AVX-512F, and the pointers are valid for the accessed lanes. The trait
    // requires this of its caller.
    impl Vector for Avx512 {
        const LANES: usize = 16;
        // With more steps, the compiler loads values for later steps first and runs out of registers.
        const STEPS: usize = 1;
        type Mask = __mmask16;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_set1_ps(*from) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __mmask16 {
            ((1u32 << lanes) - 1) as __mmask16
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
        }

        const NIBBLE_UNIT: f32 = 1.0;

        #[inline(always)]
        unsafe fn nibbles(from: *const u8, part: usize) -> Self {
            // SAFETY: see above. The permutation uses only the lowest four bits of an index.
            unsafe {
                let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
                let numbers = _mm512_loadu_ps(NIBBLE_VALUES.as_ptr());
                let nibbles = if part == 0 {
                    bytes
                } else {
                    _mm512_srli_epi32::<4>(bytes)
                };
                Self(_mm512_permutexvar_ps(nibbles, numbers))
            }
        }

        #[inline(always)]
        unsafe fn few_bits<const ABOVE: u32, const OFFSET: i8>(from: *const u8, part: usize) -> Self {
            // SAFETY: see above; a CPU with AVX-512 has AVX2.
            unsafe {
                let q = few_bits::integers::<ABOVE, OFFSET>(from);
                let half = match part {
                    0 => _mm256_castsi256_si128(q),
                    _ => _mm256_extracti128_si256::<1>(q),
                };
                Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(half)))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
        }

        #[inline(always)]
        unsafe fn splat_f16(from: *const u16) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtph_ps(_mm256_set1_epi16((*from).cast_signed())) })
        }

        #[inline(always)]
        unsafe fn mul(self, factor: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_mul_ps(self.0, factor.0) })
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __mmask16) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_maskz_loadu_ps(mask, from) })
        }

        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __mmask16) {
            // SAFETY: see above.
            unsafe { _mm512_mask_storeu_ps(to, mask, self.0) }
        }

        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: see above.
            unsafe { _mm512_reduce_add_ps(self.0) }
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: see above. The square of 16 by 16 consists of four quarters. Each is transposed and written to
            // the mirrored position.
            unsafe {
                for (i, j) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                    let to = to.add(j * to_row + i);
                    Avx2::transpose(from.add(i * from_row + j), from_row, to, to_row);
                }
            }
        }
    }
}
