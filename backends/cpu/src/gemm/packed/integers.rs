//! Products of one row with weights in Q4_0 by integers, for AVX2 and for AVX-512's VNNI.
//!
//! To make numbers of weights takes most of the time of such a product: a register of eight costs a shuffle and a
//! conversion before its multiplication. Here the row is rounded once instead, to integers that the weights, as bytes,
//! are multiplied with. The integers have 21 bits and a sign, with a scale for each block, so that a product is off by
//! what rounding in `f32` costs: at most 2^-22 of the block's largest magnitude for each element of the row (what few
//! bits cost, as in the formats that other programs round rows to, would be seen in the results). Sums of a block are exact.
//!
//! An integer is three digits, `d0 + 128 d1 + 128^2 d2`, as `vpmaddubsw` takes bytes: products of four bits by eight, of
//! four neighbours, stay within 16 bits, and `vpmaddwd` brings digits together, each times its power of 128. `vpdpbusd`
//! adds four products to a sum of 32 bits at once. Weights keep their offset of 8 until the end, when it is taken out by
//! the sum of the row's integers.

use meganeura_core::quantization::BLOCK;

use super::Rows;
use crate::gemm::Kernel;

/// Blocks of a [`Group`].
const GROUP_BLOCKS: usize = 8;
const PAIRS: usize = GROUP_BLOCKS / 2;
const DIGITS: usize = 3;

/// Two neighbouring blocks of a rounded row.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
struct Pair {
    /// Of each digit first that of elements 0 to 15 of both blocks, then that of elements 16 to 31.
    digits: [[[i8; BLOCK]; 2]; DIGITS],
    /// -8 times the integers' sums: four numbers for each block, which are to be added up.
    offsets: [i32; 8],
}

/// Eight neighbouring blocks of a rounded row; those behind the last one of a row have any numbers and scales of 0.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels look into it"))]
pub(in crate::gemm) struct Group {
    pairs: [Pair; PAIRS],
    /// What the integer 1 stands for, of the first blocks of all pairs, then of the second ones.
    scales: [f32; GROUP_BLOCKS],
}

/// The groups of a row of `k` numbers.
pub(in crate::gemm) fn groups(k: usize) -> usize {
    (k / BLOCK).div_ceil(GROUP_BLOCKS)
}

/// What an instruction set has for such products.
pub(in crate::gemm) struct Integers {
    /// Rounds a row of whole blocks. Gives false if a number is not finite, or so large or small that scales could be: then
    /// nobody may use the groups.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the row be there, and its groups be the caller's own.
    pub(in crate::gemm) round: unsafe fn(*const f32, usize, *mut Group) -> bool,
    /// `y[j] = x · weights[j]` for a rounded row and the first `cols` rows of weights in Q4_0.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction set, the groups of a row as long as those of the weights and the rows be there, and
    /// nobody else access `y` meanwhile.
    pub(in crate::gemm) product: unsafe fn(*const Group, Rows, usize, *mut f32),
}

impl Integers {
    /// The fastest beside the inner loops of a kernel, where they are faster than weights expanded in registers.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::gemm) fn beside(kernel: Kernel) -> Option<&'static Integers> {
        static AVX2: Integers = Integers {
            round: x86::round,
            product: x86::product_avx2,
        };
        static VNNI: Integers = Integers {
            round: x86::round,
            product: x86::product_vnni,
        };
        match kernel {
            Kernel::Avx512 if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") => Some(&VNNI),
            Kernel::Avx512 | Kernel::Avx2 => Some(&AVX2),
            Kernel::Portable => None,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(in crate::gemm) fn beside(_kernel: Kernel) -> Option<&'static Integers> {
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use meganeura_core::quantization::BlockFormat;

    use super::*;
    use crate::gemm::packed::Storage;
    use crate::gemm::simd::prefetch;

    /// The largest integer: its third digit is the largest that a byte has room for.
    const LARGEST: f32 = (127 << 14) as f32;
    /// Bits of the least and of the first too large magnitude that a block may have as its largest: 2^-60 and 2^60.
    const MAGNITUDES: std::ops::Range<i32> = (127 - 60) << 23..(127 + 60) << 23;
    /// Rows of weights whose sums are added up together, as many as a group has pairs.
    const ROWS: usize = PAIRS;
    const Q4_0: Storage = Storage::Blocks(BlockFormat::Q4_0);
    /// `f32`s ahead that are asked for: 3 KiB. Lines at a distance of 4 KiB would be in each other's way.
    const AHEAD: usize = 768;
    /// Bytes of a group's numbers.
    const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK / 2;

    /// Controls of a shuffle that brings eight scales to the order of [`Group::scales`].
    static ORDER: [u8; 16] = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];
    /// Controls that spread element `p` of both halves of a register over its half.
    static SPREAD: [[i32; 8]; PAIRS] = [[0; 8], [1; 8], [2; 8], [3; 8]];

    // SAFETY of the loads and intrinsics below: the CPU has AVX2, FMA and F16C, and what a function or an implementation of
    // `Digits` is named for, and the pointers are valid for what is read, as the functions demand of their callers.

    /// How halves of bytes are multiplied with digits.
    trait Digits {
        /// Products of two blocks of weights, whose lower and upper halves these are, with those of a row: four sums for each
        /// block, which are to be added up.
        ///
        /// # Safety
        ///
        /// The CPU has the instructions.
        unsafe fn products(low: __m256i, high: __m256i, x: &Pair) -> __m256i;
    }

    /// By `vpmaddubsw` and `vpmaddwd`.
    struct Avx2;

    impl Digits for Avx2 {
        #[inline(always)]
        unsafe fn products(low: __m256i, high: __m256i, x: &Pair) -> __m256i {
            // SAFETY: see above.
            unsafe {
                let [d0, d1, d2] = x.registers().map(|[first, second]| {
                    _mm256_add_epi16(_mm256_maddubs_epi16(low, first), _mm256_maddubs_epi16(high, second))
                });
                let lower = _mm256_add_epi32(
                    _mm256_madd_epi16(d0, _mm256_set1_epi16(1)),
                    _mm256_madd_epi16(d1, _mm256_set1_epi16(1 << 7)),
                );
                let upper = _mm256_add_epi32(_mm256_madd_epi16(d2, _mm256_set1_epi16(1 << 14)), x.offset());
                _mm256_add_epi32(lower, upper)
            }
        }
    }

    /// By `vpdpbusd`.
    struct Vnni;

    impl Digits for Vnni {
        #[inline(always)]
        unsafe fn products(low: __m256i, high: __m256i, x: &Pair) -> __m256i {
            // SAFETY: see above.
            unsafe {
                let [d0, d1, d2] = x.registers();
                let sum = |to, [first, second]: [__m256i; 2]| {
                    _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(to, low, first), high, second)
                };
                let [d1, d2] = [d1, d2].map(|digits| sum(_mm256_setzero_si256(), digits));
                let upper = _mm256_add_epi32(_mm256_slli_epi32::<7>(d1), _mm256_slli_epi32::<14>(d2));
                _mm256_add_epi32(sum(x.offset(), d0), upper)
            }
        }
    }

    impl Pair {
        /// The digits as registers.
        #[inline(always)]
        unsafe fn registers(&self) -> [[__m256i; 2]; DIGITS] {
            // SAFETY: see above; arrays of a register's size, in a structure that is aligned like registers.
            self.digits
                .each_ref()
                .map(|parts| parts.each_ref().map(|part| unsafe { _mm256_load_si256(part.as_ptr().cast()) }))
        }

        /// The offsets as a register.
        #[inline(always)]
        unsafe fn offset(&self) -> __m256i {
            // SAFETY: see above; as for the digits.
            unsafe { _mm256_load_si256(self.offsets.as_ptr().cast()) }
        }
    }

    /// # Safety
    ///
    /// As for [`Integers::round`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn round(x: *const f32, k: usize, to: *mut Group) -> bool {
        let mut usable = true;
        // SAFETY: blocks of the row, and groups for them.
        unsafe {
            for index in 0..groups(k) {
                (*to.add(index)).scales = [0.0; GROUP_BLOCKS];
            }
            for block in 0..k / BLOCK {
                let group = to.add(block / GROUP_BLOCKS);
                let (pair, half) = (block % GROUP_BLOCKS / 2, block % 2);
                let (scale, fits) = round_block(x.add(block * BLOCK), &raw mut (*group).pairs[pair], half);
                (*group).scales[PAIRS * half + pair] = scale;
                usable &= fits;
            }
        }
        usable
    }

    /// Rounds a block, to be the first or second of a pair; gives its scale, and whether its numbers allow one.
    ///
    /// # Safety
    ///
    /// As for [`Integers::round`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn round_block(x: *const f32, to: *mut Pair, half: usize) -> (f32, bool) {
        // SAFETY: the 32 numbers of the block, and the pair.
        unsafe {
            let x: [__m256; 4] = std::array::from_fn(|part| _mm256_loadu_ps(x.add(8 * part)));
            let largest = largest_magnitude(x);
            let (scale, inverse) = match largest {
                0 => (0.0, 0.0),
                bits => {
                    let largest = f32::from_bits(bits.cast_unsigned());
                    (largest / LARGEST, LARGEST / largest)
                }
            };
            let mut v = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
            let sum = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
            let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            let offsets = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32::<3>(sum));
            _mm_storeu_si128((&raw mut (*to).offsets[4 * half]).cast(), offsets);
            for digit in 0..DIGITS {
                let last = digit + 1 == DIGITS;
                // The lowest seven bits as a signed number.
                let digits = match last {
                    true => v,
                    false => v.map(|v| _mm256_srai_epi32::<25>(_mm256_slli_epi32::<25>(v))),
                };
                if !last {
                    v = std::array::from_fn(|i| _mm256_srai_epi32::<7>(_mm256_sub_epi32(v[i], digits[i])));
                }
                let low = _mm256_packs_epi32(digits[0], digits[1]);
                let high = _mm256_packs_epi32(digits[2], digits[3]);
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
                let [first, second] = [0, 1].map(|part| (&raw mut (*to).digits[digit][part][half * BLOCK / 2]).cast());
                _mm_storeu_si128(first, _mm256_castsi256_si128(bytes));
                _mm_storeu_si128(second, _mm256_extracti128_si256::<1>(bytes));
            }
            (scale, largest == 0 || MAGNITUDES.contains(&largest))
        }
    }

    /// Bits of the largest magnitude. Something that is not finite is larger than all numbers, as bits of magnitudes are in
    /// order.
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

    /// # Safety
    ///
    /// As for [`Integers::product`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn product_avx2(x: *const Group, weights: Rows, cols: usize, y: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe { product::<Avx2>(x, weights, cols, y) }
    }

    /// # Safety
    ///
    /// As for [`Integers::product`].
    #[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
    pub(super) unsafe fn product_vnni(x: *const Group, weights: Rows, cols: usize, y: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe { product::<Vnni>(x, weights, cols, y) }
    }

    /// # Safety
    ///
    /// As for [`Integers::product`], with the instructions of `D`.
    #[inline(always)]
    unsafe fn product<D: Digits>(x: *const Group, weights: Rows, cols: usize, y: *mut f32) {
        let together = cols / ROWS * ROWS;
        // SAFETY: rows of the weights, and results below `cols`.
        unsafe {
            for row in (0..together).step_by(ROWS) {
                some_rows::<D, ROWS>(x, weights.from(Q4_0, row), y.add(row));
            }
            for row in together..cols {
                some_rows::<D, 1>(x, weights.from(Q4_0, row), y.add(row));
            }
        }
    }

    /// The products with the first `N` rows.
    ///
    /// # Safety
    ///
    /// As for [`product`], with so many columns, [`ROWS`] at most.
    #[inline(always)]
    unsafe fn some_rows<D: Digits, const N: usize>(x: *const Group, weights: Rows, y: *mut f32) {
        let blocks = weights.k / BLOCK;
        let whole = blocks / GROUP_BLOCKS;
        // SAFETY: groups of the row, and what is left behind them.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); ROWS];
            for (row, sum) in sums.iter_mut().enumerate().take(N) {
                *sum = whole_groups::<D>(x, weights.from(Q4_0, row), whole);
            }
            for first in (whole * GROUP_BLOCKS..blocks).step_by(2) {
                add_last::<D>(&*x.add(whole), weights, first, &mut sums[..N]);
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

    /// The sum of all lanes of each register.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_up(sums: [__m256; ROWS]) -> __m128 {
        let pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
        _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs))
    }

    /// The product of so many groups with as many of one row, whose lanes are to be added up.
    ///
    /// # Safety
    ///
    /// As for [`product`].
    #[inline(always)]
    unsafe fn whole_groups<D: Digits>(x: *const Group, weights: Rows, count: usize) -> __m256 {
        // SAFETY: groups of the row.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); 2];
            for index in 0..count {
                let group = &*x.add(index);
                let numbers = weights.numbers.add(index * GROUP_BYTES);
                prefetch(
                    numbers.cast::<f32>().wrapping_add(AHEAD),
                    GROUP_BYTES / size_of::<f32>(),
                );
                let scales = weights.scales.add(index * GROUP_BLOCKS);
                let own = _mm256_load_ps(group.scales.as_ptr());
                let scales = scales_of(_mm_loadu_si128(scales.cast()), own);
                for (index, pair) in group.pairs.iter().enumerate() {
                    let packed = _mm256_loadu_si256(numbers.add(index * BLOCK).cast());
                    sums[index % 2] = add_pair::<D>(pair, packed, scales, index, sums[index % 2]);
                }
            }
            _mm256_add_ps(sums[0], sums[1])
        }
    }

    /// Adds the products with blocks `first` and, if there is one, `first + 1` of some rows, which lie behind the last whole
    /// group of the row `x`. The rows' scales are brought to the order that those of a group's pairs have.
    ///
    /// # Safety
    ///
    /// As for [`product`], with a row for each sum.
    #[inline(always)]
    unsafe fn add_last<D: Digits>(x: &Group, weights: Rows, first: usize, sums: &mut [__m256]) {
        let blocks = weights.k / BLOCK;
        let is_pair = first + 1 < blocks;
        let index = first % GROUP_BLOCKS / 2;
        let mut halves = [0u32; ROWS];
        // SAFETY: the blocks of each row and their scales; there are as many controls as pairs.
        unsafe {
            for (row, halves) in halves.iter_mut().enumerate().take(sums.len()) {
                let scale = weights.scales.add(row * blocks + first);
                *halves = match is_pair {
                    true => scale.cast::<u32>().read_unaligned(),
                    false => u32::from(*scale),
                };
            }
            let control = _mm256_loadu_si256(SPREAD[index].as_ptr().cast());
            let own = _mm256_permutevar_ps(_mm256_load_ps(x.scales.as_ptr()), control);
            let scales = scales_of(_mm_loadu_si128(halves.as_ptr().cast()), own);
            for (row, sum) in sums.iter_mut().enumerate() {
                let at = weights.numbers.add((row * blocks + first) * (BLOCK / 2));
                prefetch(at.cast::<f32>().wrapping_add(AHEAD), BLOCK / size_of::<f32>());
                let packed = match is_pair {
                    true => _mm256_loadu_si256(at.cast()),
                    false => _mm256_zextsi128_si256(_mm_loadu_si128(at.cast())),
                };
                *sum = add_pair::<D>(&x.pairs[index], packed, scales, row, *sum);
            }
        }
    }

    /// Scales of products: those of the weights, in [`ORDER`], times the row's own.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scales_of(halves: __m128i, own: __m256) -> __m256 {
        // SAFETY: a table of a register's size.
        let order = unsafe { _mm_loadu_si128(ORDER.as_ptr().cast()) };
        _mm256_mul_ps(_mm256_cvtph_ps(_mm_shuffle_epi8(halves, order)), own)
    }

    /// Adds the products of two blocks, whose scales are at `index` of both halves.
    ///
    /// # Safety
    ///
    /// The CPU has AVX2 and what `D` needs.
    #[inline(always)]
    unsafe fn add_pair<D: Digits>(x: &Pair, packed: __m256i, scales: __m256, index: usize, sum: __m256) -> __m256 {
        // SAFETY: see above; there are as many controls as pairs.
        unsafe {
            let halves = _mm256_set1_epi8(15);
            let low = _mm256_and_si256(packed, halves);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), halves);
            let product = _mm256_cvtepi32_ps(D::products(low, high, x));
            let control = _mm256_loadu_si256(SPREAD[index].as_ptr().cast());
            _mm256_fmadd_ps(product, _mm256_permutevar_ps(scales, control), sum)
        }
    }
}
