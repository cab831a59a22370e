//! The row-by-row computations on a tile of scores, between its two matmuls.

use std::ops::Range;

use meganeura_core::ops::AttentionDims;

use super::KEYS;
use crate::vmath::{self, Isa, Level, multiversion};

/// The position of a tile of scores in the score matrix. The rows of the tile are [`KEYS`] elements apart.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) dims: &'a AttentionDims,
    /// First query, and number of queries.
    pub(super) query: usize,
    pub(super) rows: usize,
    /// First key, and number of keys.
    pub(super) key: usize,
    pub(super) cols: usize,
}

impl Tile<'_> {
    /// Returns the columns of the tile that are visible to the query of a row.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize) -> Range<usize> {
        let keys = self.dims.keys_of(self.query + row);
        let column = |key: usize| key.saturating_sub(self.key).min(self.cols);
        column(keys.start)..column(keys.end)
    }
}

multiversion! {
    /// Performs one step of the softmax: turns the scores of a tile into numerators relative to the maximum score so
    /// far, and updates the maximum scores, the sums and the accumulated results. Before the first tile of a row, the
    /// results of the row may have arbitrary values.
    pub(super) fn softmax_step(scores: &mut [f32], state: [&mut [f32]; 2], out: Option<&mut [f32]>, tile: Tile) = softmax_body;
}

multiversion! {
    /// Writes the logarithm of each row's sum of exponentials to `lse`, and replaces `sums` by their inverses. The sums
    /// are relative to the maximum scores.
    pub(super) fn logarithms(greatest: &[f32], sums: &mut [f32], lse: &mut [f32]) = logarithms_body;
}

multiversion! {
    /// Turns the scores of a tile into probabilities, by means of the logarithms of the rows' sums. Turns `dp`, the
    /// gradients of the probabilities, into gradients of the scores: `p (dp - delta)`.
    pub(super) fn gradient_step(scores: &mut [f32], dp: &mut [f32], rows: [&[f32]; 2], tile: Tile) = gradient_body;
}

multiversion! {
    /// Writes `factor` times the sum of slices that are `stride` apart.
    pub(super) fn scaled_sum(from: &[f32], stride: usize, factor: f32, to: &mut [f32]) = scaled_sum_body;
}

/// Number of partial results of a reduction.
const LANES: usize = 16;
/// Rows of scores consist of whole blocks of lanes, so that no loop for a remainder is needed.
const _: () = assert!(KEYS.is_multiple_of(LANES));

/// Returns the maximum element. NaN is skipped here: the sum of exponentials is then NaN.
#[inline(always)]
fn greatest(blocks: &[[f32; LANES]], start: f32) -> f32 {
    let mut lanes = [start; LANES];
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    vmath::greatest_lane(lanes)
}

/// Replaces every element by `e^(x - shift)` and returns the sum. No element may be above `shift`.
#[inline(always)]
fn exponentials<const FMA: bool>(blocks: &mut [[f32; LANES]], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *x = vmath::exp_nonpositive::<FMA>(*x - shift);
            *lane += *x;
        }
    }
    vmath::total(lanes)
}

/// Returns the blocks of [`LANES`] elements of a row that contain the columns of a range.
#[inline(always)]
fn blocks_of<'a>(row: &'a mut [f32], columns: &Range<usize>) -> &'a mut [[f32; LANES]] {
    let (blocks, _) = row.as_chunks_mut::<LANES>();
    &mut blocks[columns.start / LANES..columns.end.div_ceil(LANES)]
}

#[inline(always)]
fn softmax_body<const FMA: bool>(
    scores: &mut [f32],
    [greatest_so_far, sums]: [&mut [f32]; 2],
    mut out: Option<&mut [f32]>,
    tile: Tile,
) {
    let width = tile.dims.head_dim;
    for (row, scores) in scores.chunks_exact_mut(KEYS).take(tile.rows).enumerate() {
        let seen = tile.seen(row);
        if seen.is_empty() {
            scores[..tile.cols].fill(0.0);
            continue;
        }
        let first = seen.start / LANES * LANES;
        if first > 0 {
            scores[..first].fill(0.0);
        }
        let end = seen.end.next_multiple_of(LANES);
        if end < tile.cols {
            scores[end..tile.cols].fill(0.0);
        }
        // Columns of these blocks that are not visible have the exponential 0.
        for hidden in [first..seen.start, seen.end..end] {
            for score in &mut scores[hidden] {
                *score = f32::NEG_INFINITY;
            }
        }
        let blocks = blocks_of(scores, &seen);
        let before = greatest_so_far[row];
        let now = greatest(blocks, before);
        // With a maximum of minus infinity, the difference of scores would be NaN: subtract 0 instead.
        let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
        let sum = exponentials::<FMA>(blocks, shift);
        greatest_so_far[row] = now;
        if before == f32::NEG_INFINITY {
            // The numerators are 0, or NaN, which remains in the sum.
            sums[row] += sum;
            continue;
        }
        let correction = vmath::exp_nonpositive::<FMA>(before - shift);
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
fn logarithms_body<const FMA: bool>(greatest: &[f32], sums: &mut [f32], lse: &mut [f32]) {
    for ((lse, sum), greatest) in lse.iter_mut().zip(sums).zip(greatest) {
        *lse = greatest + vmath::log::<FMA>(*sum);
        *sum = 1.0 / *sum;
    }
}

#[inline(always)]
fn gradient_body<const FMA: bool>(scores: &mut [f32], dp: &mut [f32], [lse, delta]: [&[f32]; 2], tile: Tile) {
    let rows = scores.chunks_exact_mut(KEYS).zip(dp.chunks_exact_mut(KEYS));
    for (row, (p, ds)) in rows.take(tile.rows).enumerate() {
        let seen = tile.seen(row);
        let (lse, delta) = (lse[row], delta[row]);
        for (p, ds) in blocks_of(p, &seen).iter_mut().zip(blocks_of(ds, &seen)) {
            for (p, ds) in p.iter_mut().zip(ds) {
                *p = vmath::exp::<FMA>(*p - lse);
                *ds = *p * (*ds - delta);
            }
        }
        // Columns that are not visible were computed together with the visible ones of their block.
        for hidden in [0..seen.start, seen.end..tile.cols] {
            if !hidden.is_empty() {
                p[hidden.clone()].fill(0.0);
                ds[hidden].fill(0.0);
            }
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
