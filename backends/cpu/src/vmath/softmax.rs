//! Softmax, the logarithm of the softmax, and the logarithm of its denominator, for rows and columns.
//!
//! The maximum is subtracted from all elements, so no exponential is above 1. Exponentials below `e^-87.3` become
//! zero. If a row contains a NaN, all of its results are NaN: the maximum ignores NaN, but the sum does not.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};
use super::reduce::fold;

/// Number of partial results. Lane `i` has the elements `i`, `i + LANES`, ... in order, and the lanes are folded in
/// halves.
const LANES: usize = 32;

/// Number of elements of a block, whose exponentials are summed in lanes. The sums of the blocks are added in order,
/// because a longer running sum would lose digits.
const BLOCK: usize = 2048;

multiversion! {
    /// Writes the softmax of a row.
    pub(crate) fn softmax_row(x: &[f32], out: &mut [f32]) = softmax_row_body;
}

multiversion! {
    /// Writes the logarithm of the softmax of a row.
    pub(crate) fn log_softmax_row(x: &[f32], out: &mut [f32]) = log_softmax_row_body;
}

multiversion! {
    /// Returns the maximum element and `ln(sum of e^(x - maximum))`. They are separate, because their sum would lose
    /// the digits of a small loss if logits are large.
    pub(crate) fn log_sum_exp(x: &[f32]) -> [f32; 2] = log_sum_exp_body;
}

multiversion! {
    /// Computes `acc[i] = max(acc[i], x[i])`, but does not change `acc[i]` if `x[i]` is NaN. Stops at the end of the
    /// shortest slice.
    pub(crate) fn greatest_assign(acc: &mut [f32], x: &[f32]) = greatest_assign_body;
}

multiversion! {
    /// Writes `e^(x - shift)` of each element, and adds it to the sum of its column. No element may be above its
    /// shift. Stops at the end of the shortest slice.
    pub(crate) fn exp_columns(x: &[f32], shift: &[f32], sum: &mut [f32], out: &mut [f32]) = exp_columns_body;
}

multiversion! {
    /// Returns `-(sum of weight * (x - max - log))`. `shift` contains `max` and `log`.
    pub(crate) fn weighted_loss(weights: &[f32], x: &[f32], shift: [f32; 2]) -> f32 = weighted_loss_body;
}

#[inline(always)]
fn softmax_row_body<const FMA: bool>(x: &[f32], out: &mut [f32]) {
    let shift = greatest(x);
    let mut sum = 0.0;
    for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        sum += exponentials::<FMA>(x, shift, out);
    }
    let scale = 1.0 / sum;
    for o in out {
        *o *= scale;
    }
}

#[inline(always)]
fn log_softmax_row_body<const FMA: bool>(x: &[f32], out: &mut [f32]) {
    let [shift, log] = log_sum_exp_body::<FMA>(x);
    for (o, &x) in out.iter_mut().zip(x) {
        *o = (x - shift) - log;
    }
}

#[inline(always)]
fn log_sum_exp_body<const FMA: bool>(x: &[f32]) -> [f32; 2] {
    let shift = greatest(x);
    let mut sum = 0.0;
    for x in x.chunks(BLOCK) {
        sum += sum_exponentials::<FMA>(x, shift);
    }
    [shift, sum.ln()]
}

/// Returns the maximum element. The result is arbitrary if an element is NaN.
#[inline(always)]
fn greatest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(filled(rest)) {
        *lane = if x > *lane { x } else { *lane };
    }
    greatest_lane(lanes)
}

/// Returns the elements of `x`, followed by minus infinity, whose exponential is 0.
#[inline(always)]
fn filled(x: &[f32]) -> [f32; LANES] {
    let mut all = [f32::NEG_INFINITY; LANES];
    all[..x.len()].copy_from_slice(x);
    all
}

/// Writes `e^(x - shift)` of each element, and returns the sum.
#[inline(always)]
fn exponentials<const FMA: bool>(x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in blocks.iter().zip(out_blocks) {
        for ((lane, o), &x) in lanes.iter_mut().zip(out).zip(x) {
            *o = k::exp_nonpositive::<FMA>(x - shift);
            *lane += *o;
        }
    }
    if !rest.is_empty() {
        let mut last = filled(rest);
        for (lane, x) in lanes.iter_mut().zip(&mut last) {
            *x = k::exp_nonpositive::<FMA>(*x - shift);
            *lane += *x;
        }
        out_rest.copy_from_slice(&last[..rest.len()]);
    }
    total(lanes)
}

/// Returns the same sum as [`exponentials`], but does not write the exponentials.
#[inline(always)]
fn sum_exponentials<const FMA: bool>(x: &[f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += k::exp_nonpositive::<FMA>(x - shift);
        }
    }
    if !rest.is_empty() {
        for (lane, x) in lanes.iter_mut().zip(filled(rest)) {
            *lane += k::exp_nonpositive::<FMA>(x - shift);
        }
    }
    total(lanes)
}

/// Returns the sum of `N` lanes, where `N` is a power of two.
#[inline(always)]
pub(crate) fn total<const N: usize>(lanes: [f32; N]) -> f32 {
    fold(lanes, |a, b| a + b)
}

/// Returns the maximum of `N` lanes, where `N` is a power of two. The result is arbitrary if a lane is NaN.
#[inline(always)]
pub(crate) fn greatest_lane<const N: usize>(lanes: [f32; N]) -> f32 {
    fold(lanes, |a, b| if b > a { b } else { a })
}

#[inline(always)]
fn greatest_assign_body<const FMA: bool>(acc: &mut [f32], x: &[f32]) {
    for (a, &x) in acc.iter_mut().zip(x) {
        *a = if x > *a { x } else { *a };
    }
}

#[inline(always)]
fn exp_columns_body<const FMA: bool>(x: &[f32], shift: &[f32], sum: &mut [f32], out: &mut [f32]) {
    let operands = x.iter().zip(shift);
    for ((o, sum), (&x, &shift)) in out.iter_mut().zip(sum).zip(operands) {
        *o = k::exp_nonpositive::<FMA>(x - shift);
        *sum += *o;
    }
}

#[inline(always)]
fn weighted_loss_body<const FMA: bool>(weights: &[f32], x: &[f32], [max, log]: [f32; 2]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    let (weight_blocks, weight_rest) = weights.as_chunks::<LANES>();
    for (x, weights) in blocks.iter().zip(weight_blocks) {
        for ((lane, &x), &weight) in lanes.iter_mut().zip(x).zip(weights) {
            *lane += weight * (log - (x - max));
        }
    }
    for ((lane, &x), &weight) in lanes.iter_mut().zip(rest).zip(weight_rest) {
        *lane += weight * (log - (x - max));
    }
    total(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> Vec<Level> {
        Level::available()
    }

    #[test]
    fn rows_of_all_lengths() {
        for len in [1, 2, 17, 31, 32, 33, 64, 2047, 2048, 2049, 5000] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37) % 101) as f32 * 0.3 - 9.0).collect();
            let exact: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
            for level in levels() {
                let (mut plain, mut logarithm) = (vec![7.0; len], vec![7.0; len]);
                softmax_row(level, &x, &mut plain);
                log_softmax_row(level, &x, &mut logarithm);
                for ((&x, &p), &l) in x.iter().zip(&plain).zip(&logarithm) {
                    let want = f64::from(x).exp() / exact;
                    // The differences from the maximum are rounded: to 2^-20 from 16 on.
                    assert!((f64::from(p) - want).abs() <= 4e-6 * want, "{len}: {p}, not {want}");
                    assert!(
                        (f64::from(l) - want.ln()).abs() <= 4e-6,
                        "{len}: {l}, not {}",
                        want.ln()
                    );
                }
                let [max, log] = log_sum_exp(level, &x);
                assert!((f64::from(max) + f64::from(log) - exact.ln()).abs() <= 4e-6);
            }
        }
    }

    #[test]
    fn one_bad_element_spoils_the_row() {
        for (len, at) in [(5, 0), (5, 4), (100, 0), (100, 50), (100, 99)] {
            for level in levels() {
                for bad in [f32::NAN, f32::INFINITY] {
                    let mut x: Vec<f32> = (0..len).map(|i| i as f32).collect();
                    x[at] = bad;
                    let mut out = vec![7.0; len];
                    softmax_row(level, &x, &mut out);
                    // An infinite element becomes NaN. All other elements become 0 times NaN, also NaN.
                    assert!(out.iter().all(|o| o.is_nan()), "{bad} at {at} of {len}");
                    log_softmax_row(level, &x, &mut out);
                    assert!(out.iter().all(|o| o.is_nan()), "{bad} at {at} of {len}");
                    assert!(log_sum_exp(level, &x)[1].is_nan());
                }
                let nothing = vec![f32::NEG_INFINITY; len];
                let mut out = vec![7.0; len];
                softmax_row(level, &nothing, &mut out);
                assert!(out.iter().all(|o| o.is_nan()));
                let mut one = nothing;
                one[at] = -3.0e38;
                softmax_row(level, &one, &mut out);
                assert!(
                    out.iter()
                        .enumerate()
                        .all(|(i, &o)| o == if i == at { 1.0 } else { 0.0 })
                );
            }
        }
    }
}
