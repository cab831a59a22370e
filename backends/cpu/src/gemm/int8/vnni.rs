//! Tiles with AVX-512 VNNI: `vpdpbusd` multiplies unsigned bytes by signed ones and adds up four products.

use std::arch::x86_64::*;

use super::{COLUMNS, PANEL, Sums, Taps, UNIT};

/// Computes the products of `M` rows and `P` panels.
///
/// # Safety
///
/// As for [`super::Int8Weights::products`]; the CPU must have AVX-512 with VNNI and BW.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn tile<const M: usize, const P: usize>(
    taps: &Taps,
    panel: *const u8,
    panel_bytes: usize,
    sums: &mut Sums,
) {
    let mut products = [[_mm512_setzero_si512(); P]; M];
    let mut at = panel;
    for offsets in taps.offsets {
        // SAFETY: the parts of the rows, and the units of the panels, by contract.
        unsafe {
            let mut rows = [taps.base; M];
            for (row, offset) in rows.iter_mut().zip(offsets) {
                *row = row.add(*offset as usize);
            }
            for unit in 0..taps.units {
                let mut weights = [_mm512_setzero_si512(); P];
                for (p, weights) in weights.iter_mut().enumerate() {
                    *weights = _mm512_loadu_si512(at.add(p * panel_bytes).cast());
                }
                for (products, row) in products.iter_mut().zip(rows) {
                    let four = _mm512_set1_epi32(row.add(UNIT * unit).cast::<i32>().read_unaligned());
                    for (product, weights) in products.iter_mut().zip(weights) {
                        *product = _mm512_dpbusd_epi32(*product, four, weights);
                    }
                }
                at = at.add(UNIT * PANEL);
            }
        }
    }
    for (products, sums) in products.iter().zip(sums) {
        for (p, &product) in products.iter().enumerate() {
            debug_assert!((p + 1) * PANEL <= COLUMNS);
            // SAFETY: a row of sums has the columns of two panels.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().add(p * PANEL).cast(), product) };
        }
    }
}
