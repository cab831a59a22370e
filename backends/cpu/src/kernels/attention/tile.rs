//! What happens to a tile between its products, row by row.

use std::ops::Range;

use meganeura_core::ops::AttentionDims;

use super::KEYS;
use crate::vmath::{self, Isa, Level, multiversion};

/// Place of a tile of scores, whose rows are [`KEYS`] apart.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) dims: &'a AttentionDims,
    /// First query and number of queries.
    pub(super) query: usize,
    pub(super) rows: usize,
    /// First key and number of keys.
    pub(super) key: usize,
    pub(super) cols: usize,
}

impl Tile<'_> {
    /// The columns that a row sees.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize) -> Range<usize> {
        let keys = self.dims.keys_of(self.query + row);
        let column = |key: usize| key.saturating_sub(self.key).min(self.cols);
        column(keys.start)..column(keys.end)
    }
}

multiversion! {
    /// One step of the softmax: makes the scores of a tile numerators relative to the greatest score so far,
    /// and brings greatest scores, sums and the accumulated results up to date. Results of the first tile of a
    /// row are not accumulated yet, and may hold anything.
    pub(super) fn softmax_step(scores: &mut [f32], state: [&mut [f32]; 2], out: Option<&mut [f32]>, tile: Tile) = softmax_body;
}

multiversion! {
    /// Makes the scores of a tile probabilities, by the logarithms of the rows' sums; and the gradients of
    /// these, `dp`, gradients of the scores: `p (dp - delta)`.
    pub(super) fn gradient_step(scores: &mut [f32], dp: &mut [f32], rows: [&[f32]; 2], tile: Tile) = gradient_body;
}

multiversion! {
    /// Writes `factor` times the sum of slices that are `stride` apart.
    pub(super) fn scaled_sum(from: &[f32], stride: usize, factor: f32, to: &mut [f32]) = scaled_sum_body;
}

/// Partial results of a reduction.
const LANES: usize = 16;

/// Greatest element; NaN is passed over, since its exponential shows in the sum.
#[inline(always)]
fn greatest(x: &[f32], start: f32) -> f32 {
    let mut lanes = [start; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = if x > *lane { x } else { *lane };
    }
    vmath::greatest_lane(lanes)
}

/// Replaces every element by `e^(x - shift)` and sums up; none is above the shift.
#[inline(always)]
fn exponentials<const FMA: bool>(x: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *x = vmath::exp_nonpositive::<FMA>(*x - shift);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = vmath::exp_nonpositive::<FMA>(*x - shift);
        *lane += *x;
    }
    vmath::total(lanes)
}

#[inline(always)]
fn softmax_body<const FMA: bool>(
    scores: &mut [f32],
    [greatest_so_far, sums]: [&mut [f32]; 2],
    mut out: Option<&mut [f32]>,
    tile: Tile,
) {
    let width = tile.dims.head_dim;
    for row in 0..tile.rows {
        let scores = &mut scores[row * KEYS..][..tile.cols];
        let seen = tile.seen(row);
        if seen.is_empty() {
            scores.fill(0.0);
            continue;
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let scores = &mut scores[seen];
        let before = greatest_so_far[row];
        let now = greatest(scores, before);
        // Scores that are all minus infinity have no exponential relative to each other.
        let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
        let sum = exponentials::<FMA>(scores, shift);
        let correction = vmath::exp_nonpositive::<FMA>(before - shift);
        greatest_so_far[row] = now;
        sums[row] = sums[row] * correction + sum;
        if correction != 1.0
            && let Some(out) = &mut out
        {
            for o in &mut out[row * width..][..width] {
                *o *= correction;
            }
        }
    }
}

#[inline(always)]
fn gradient_body<const FMA: bool>(scores: &mut [f32], dp: &mut [f32], [lse, delta]: [&[f32]; 2], tile: Tile) {
    for row in 0..tile.rows {
        let (p, ds) = (
            &mut scores[row * KEYS..][..tile.cols],
            &mut dp[row * KEYS..][..tile.cols],
        );
        let seen = tile.seen(row);
        for hidden in [0..seen.start, seen.end..tile.cols] {
            p[hidden.clone()].fill(0.0);
            ds[hidden].fill(0.0);
        }
        let (lse, delta) = (lse[row], delta[row]);
        for (p, ds) in p[seen.clone()].iter_mut().zip(&mut ds[seen]) {
            *p = vmath::exp::<FMA>(*p - lse);
            *ds = *p * (*ds - delta);
        }
    }
}

#[inline(always)]
fn scaled_sum_body<const FMA: bool>(from: &[f32], stride: usize, factor: f32, to: &mut [f32]) {
    to.copy_from_slice(&from[..to.len()]);
    let mut at = stride;
    while at < from.len() {
        for (to, &from) in to.iter_mut().zip(&from[at..]) {
            *to += from;
        }
        at += stride;
    }
    for to in to {
        *to *= factor;
    }
}
