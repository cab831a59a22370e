//! Kernels for weights in [`Panels`](crate::order::Panels) of sixteen rows, for AVX-512 with VNNI.
//!
//! A register contains four neighbouring numbers of each row as bytes, or one number of each row as `f32`. Sums and
//! scales have a lane for each row. Therefore nothing is added across lanes, and sixteen scales are converted and
//! multiplied at a time.
//!
//! Matmuls round the rows of the left operand to integers ([`super::rounded`]). If its numbers cannot be rounded, the
//! kernels of this module expand the weights in registers.

use std::arch::x86_64::*;

use meganeura_core::quantization::BLOCK;

use super::kernels::{Affine, Bytes, FewBits, Halves, Nibbles, PANEL_ROWS, PanelKernels, UNIT};
use super::rounded::RoundedKernels;
use super::rows::{Rows, Storage};
use crate::gemm::spec::Kernel;
use crate::simd::{LINE, prefetch_line};
use meganeura_core::quantization::BlockFormat;

/// Number of steps of a block. A step is four neighbouring numbers of each row.
pub(super) const STEPS: usize = BLOCK / 4;
/// Prefetch distance in bytes, into the second-level cache. A panel is read as one stream, and consecutive tasks of a
/// thread read consecutive panels.
const AHEAD: usize = 16 << 10;

/// Returns the kernels for a storage format, if it is faster in panels.
pub(super) fn fastest(kernel: Kernel, storage: Storage) -> Option<&'static PanelKernels> {
    static NIBBLES: PanelKernels = kernels::<Nibbles>();
    static BYTES: PanelKernels = kernels::<Bytes>();
    static Q4_1: PanelKernels = kernels::<Affine<0>>();
    static Q5_0: PanelKernels = kernels::<FewBits<1, 16>>();
    static Q5_1: PanelKernels = kernels::<Affine<1>>();
    static Q6: PanelKernels = kernels::<Halves>();
    let has_vnni = || is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw");
    match storage {
        Storage::F16 => None,
        Storage::Blocks(_) if kernel != Kernel::Avx512 || !has_vnni() => None,
        Storage::Blocks(BlockFormat::Q4_0) => Some(&NIBBLES),
        Storage::Blocks(BlockFormat::Q8_0) => Some(&BYTES),
        Storage::Blocks(BlockFormat::Q4_1) => Some(&Q4_1),
        Storage::Blocks(BlockFormat::Q5_0) => Some(&Q5_0),
        Storage::Blocks(BlockFormat::Q5_1) => Some(&Q5_1),
        Storage::Blocks(BlockFormat::Q6) => Some(&Q6),
    }
}

const fn kernels<F: PanelFormat>() -> PanelKernels {
    PanelKernels {
        matmul: [matmul::<F, 1>, matmul::<F, 2>, matmul::<F, 3>, matmul::<F, 4>],
        rounded: RoundedKernels::of::<F>(),
    }
}

/// A storage format in panels. A block of a panel contains the blocks of all its rows, unit by unit ([`UNIT`] bytes
/// of each row). A unit of all rows fills a register.
pub(super) trait PanelFormat {
    /// Number of bytes of one row's block.
    const BYTES: usize;
    /// Offset that [`PanelFormat::bytes`] adds to all numbers.
    const OFFSET: i32;
    /// Number of scales of a block. If there are two and [`PanelFormat::MINIMUM`] is true, the second one is the
    /// minimum; if it is false, the second one is the scale of the second half.
    const SCALES: usize = 1;
    const MINIMUM: bool = false;

    /// Returns the integers of a step, each plus the offset that makes it positive.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512, and the block must be valid.
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i;

    /// Returns number `e` of a step, for all rows of the panel.
    ///
    /// # Safety
    ///
    /// As for [`PanelFormat::bytes`].
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512;
}

/// Values of the nibbles 0 to 15, with the offset 8 subtracted.
static NUMBERS: [f32; 16] = [
    -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
];

// Byte i of a block contains numbers i and i + 16.
impl PanelFormat for Nibbles {
    const BYTES: usize = BLOCK / 2;
    const OFFSET: i32 = 8;

    #[inline(always)]
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i {
        // SAFETY: a unit of each row.
        unsafe {
            let both = _mm512_loadu_si512(block.add(step % (STEPS / 2) * UNIT * PANEL_ROWS).cast());
            let own = if step < STEPS / 2 {
                both
            } else {
                _mm512_srli_epi16::<4>(both)
            };
            _mm512_and_si512(own, _mm512_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512 {
        // SAFETY: a unit of each row. The permutation uses only the lowest four bits of an index.
        unsafe {
            let both = _mm512_loadu_si512(block.add(step % (STEPS / 2) * UNIT * PANEL_ROWS).cast());
            let bit = 8 * e + 4 * (step / (STEPS / 2));
            let own = _mm512_srlv_epi32(both, _mm512_set1_epi32(bit as i32));
            _mm512_permutexvar_ps(own, _mm512_loadu_ps(NUMBERS.as_ptr()))
        }
    }
}

impl PanelFormat for Bytes {
    const BYTES: usize = BLOCK;
    const OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i {
        // SAFETY: a unit of each row.
        unsafe {
            let signed = _mm512_loadu_si512(block.add(step * UNIT * PANEL_ROWS).cast());
            _mm512_xor_si512(signed, _mm512_set1_epi8(i8::MIN))
        }
    }

    #[inline(always)]
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512 {
        // SAFETY: a unit of each row.
        unsafe {
            let signed = _mm512_loadu_si512(block.add(step * UNIT * PANEL_ROWS).cast());
            let highest = _mm512_sllv_epi32(signed, _mm512_set1_epi32(24 - 8 * e as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(highest))
        }
    }
}

/// Returns the integers of a step, each with `ABOVE` bits above the lower four. The units after the first four contain
/// these upper bits.
///
/// # Safety
///
/// The CPU must have AVX-512, and the block must be valid.
#[inline(always)]
unsafe fn few_bits<const ABOVE: u32>(block: *const u8, step: usize) -> __m512i {
    // SAFETY: units of each row.
    unsafe {
        let low = Nibbles::bytes(block, step);
        if ABOVE == 0 {
            return low;
        }
        // Each byte of a unit contains the upper bits of four integers. The bits of the next step are the next bits
        // of this unit, or are in the next unit.
        let units = ABOVE as usize;
        let above = _mm512_loadu_si512(block.add((4 + step % units) * UNIT * PANEL_ROWS).cast());
        let above = _mm512_srlv_epi32(above, _mm512_set1_epi32((step / units * units) as i32));
        let mask = _mm512_set1_epi8((1 << ABOVE) - 1);
        _mm512_or_si512(low, _mm512_slli_epi16::<4>(_mm512_and_si512(above, mask)))
    }
}

/// Returns byte `e` of each lane, minus the offset, as `f32`.
///
/// # Safety
///
/// The CPU must have AVX-512.
#[inline(always)]
unsafe fn number_of<const OFFSET: i32>(bytes: __m512i, e: usize) -> __m512 {
    // SAFETY: passed on to the caller.
    unsafe {
        let own = _mm512_srlv_epi32(bytes, _mm512_set1_epi32(8 * e as i32));
        let own = _mm512_and_si512(own, _mm512_set1_epi32(255));
        _mm512_cvtepi32_ps(_mm512_sub_epi32(own, _mm512_set1_epi32(OFFSET)))
    }
}

impl PanelFormat for FewBits<1, 16> {
    const BYTES: usize = BLOCK / 8 * 5;
    const OFFSET: i32 = 16;

    #[inline(always)]
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe { few_bits::<1>(block, step) }
    }

    #[inline(always)]
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512 {
        // SAFETY: passed on to the caller.
        unsafe { number_of::<16>(few_bits::<1>(block, step), e) }
    }
}

impl<const ABOVE: u32> PanelFormat for Affine<ABOVE> {
    const BYTES: usize = BLOCK / 8 * (4 + ABOVE as usize);
    const OFFSET: i32 = 0;
    const SCALES: usize = 2;
    const MINIMUM: bool = true;

    #[inline(always)]
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe { few_bits::<ABOVE>(block, step) }
    }

    #[inline(always)]
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512 {
        // SAFETY: passed on to the caller.
        unsafe { number_of::<0>(few_bits::<ABOVE>(block, step), e) }
    }
}

impl PanelFormat for Halves {
    const BYTES: usize = BLOCK / 8 * 6;
    const OFFSET: i32 = 32;
    const SCALES: usize = 2;

    #[inline(always)]
    unsafe fn bytes(block: *const u8, step: usize) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe { few_bits::<2>(block, step) }
    }

    #[inline(always)]
    unsafe fn number(block: *const u8, step: usize, e: usize) -> __m512 {
        // SAFETY: passed on to the caller.
        unsafe { number_of::<32>(few_bits::<2>(block, step), e) }
    }
}

// SAFETY of the loads and intrinsics below: the CPU has AVX-512 with VNNI and BW, and the pointers
// are valid for all reads, as each function's contract demands.

/// Prefetches the `bytes` bytes that begin [`AHEAD`] bytes after `at`.
#[inline(always)]
pub(super) fn ask_ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        prefetch_line(at.addr().wrapping_add(AHEAD + line));
    }
}

/// Returns scale `block` of all rows of a panel as `f32`.
///
/// # Safety
///
/// The CPU must have AVX-512, and the scales must be valid.
#[inline(always)]
pub(super) unsafe fn scales_of(scales: *const u16, block: usize) -> __m512 {
    // SAFETY: passed on to the caller.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(block * PANEL_ROWS).cast())) }
}

/// Applies the scale of a block, and its minimum if it has one, to a number of step `step` of all rows.
///
/// # Safety
///
/// The CPU must have AVX-512, and the scales must be valid.
#[inline(always)]
unsafe fn scaled<F: PanelFormat>(number: __m512, scales: *const u16, block: usize, step: usize) -> __m512 {
    // SAFETY: passed on to the caller.
    unsafe {
        if F::MINIMUM {
            let [scale, minimum] = [0, 1].map(|i| scales_of(scales, 2 * block + i));
            return _mm512_fmadd_ps(number, scale, minimum);
        }
        let part = if F::SCALES == 2 { step / (STEPS / 2) } else { 0 };
        _mm512_mul_ps(number, scales_of(scales, F::SCALES * block + part))
    }
}

/// Multiplies `M` rows of `x` by whole panels of weights. It expands the weights in registers.
///
/// # Safety
///
/// As for [`super::matmul`], with whole panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
unsafe fn matmul<F: PanelFormat, const M: usize>(x: *const f32, weights: Rows, cols: usize, y: *mut f32, y_row: usize) {
    let (k, blocks) = (weights.k, weights.k / BLOCK);
    for panel in (0..cols).step_by(PANEL_ROWS) {
        // SAFETY: blocks of the panel, numbers of each row, and the panel's results.
        unsafe {
            let numbers = weights.numbers.add(panel * blocks * F::BYTES);
            let scales = weights.scales.add(panel * blocks * F::SCALES);
            let mut sums = [_mm512_setzero_ps(); M];
            for block in 0..blocks {
                let at = numbers.add(block * F::BYTES * PANEL_ROWS);
                ask_ahead(at, F::BYTES * PANEL_ROWS);
                // Each row has two sums, because an addition has to wait for the previous addition to the same sum.
                let mut of_block = [[_mm512_setzero_ps(); M]; 2];
                for step in 0..STEPS {
                    for e in 0..4 {
                        let mut number = F::number(at, step, e);
                        if F::SCALES == 2 {
                            number = scaled::<F>(number, scales, block, step);
                        }
                        for (i, sum) in of_block[e % 2].iter_mut().enumerate() {
                            let x = _mm512_set1_ps(*x.add(i * k + block * BLOCK + 4 * step + e));
                            *sum = _mm512_fmadd_ps(number, x, *sum);
                        }
                    }
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let product = _mm512_add_ps(of_block[0][i], of_block[1][i]);
                    *sum = match F::SCALES {
                        1 => _mm512_fmadd_ps(product, scales_of(scales, block), *sum),
                        _ => _mm512_add_ps(product, *sum),
                    };
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(y.add(i * y_row + panel), sum);
            }
        }
    }
}
