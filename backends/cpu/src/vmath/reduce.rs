//! Reductions of a slice, and row-wise accumulations for reductions of columns.
//!
//! A reduction has [`LANES`] partial results: lane `i` accumulates the elements `i`, `i + LANES`, `i + 2 LANES`, ...
//! in order. Then the lanes are folded in halves (`i` with `i + 16`, then with `i + 8`, and so on). This order
//! defines the result and is the same at every level. It allows the compiler to vectorise the loop, although it may
//! not reorder float additions.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};

/// Number of partial results of a reduction. They fill four AVX2 registers, which hides most of the latency of an
/// addition.
const LANES: usize = 32;

/// Number of elements that `sum_exp_sub` writes before it reads them back to add them up. It is a multiple of
/// `LANES`, and the elements stay in the first-level cache.
const EXP_BLOCK: usize = 1024;

multiversion! {
    /// Returns the sum of all elements, in the order of the module's documentation; 0 if there are none.
    pub(crate) fn sum(x: &[f32]) -> f32 = sum_body;
}

multiversion! {
    /// Computes the [`sum`] of each row of `width` elements in `x`. `sums` has an element for each row. One call for
    /// all rows is faster than a call per row if rows are short. Panics if the lengths differ.
    pub(crate) fn row_sums(x: &[f32], width: usize, sums: &mut [f32]) = row_sums_body;
}

multiversion! {
    /// Returns the maximum element by IEEE 754-2019: NaN if any element is NaN, `-inf` if there are no elements.
    pub(crate) fn max(x: &[f32]) -> f32 = max_body;
}

multiversion! {
    /// Returns the minimum element by IEEE 754-2019: NaN if any element is NaN, `inf` if there are no elements.
    pub(crate) fn min(x: &[f32]) -> f32 = min_body;
}

multiversion! {
    /// Returns the product of all elements, in the order of the module's documentation; 1 if there are none.
    pub(crate) fn product(x: &[f32]) -> f32 = product_body;
}

multiversion! {
    /// Computes `acc[i] = minimum(acc[i], x[i])`. The result is NaN if either operand is NaN. Panics if the lengths
    /// differ.
    pub(crate) fn min_assign(acc: &mut [f32], x: &[f32]) = min_assign_body;
}

multiversion! {
    /// Multiplies `acc[i]` by `x[i]`. Panics if the lengths differ.
    pub(crate) fn mul_assign(acc: &mut [f32], x: &[f32]) = mul_assign_body;
}

multiversion! {
    /// Writes `e^(x - m)` to `out` and returns the sum of `out`, in the order of [`sum`].
    ///
    /// These are the softmax numerators and denominator if `m` is the maximum element. If `x` and `m` are the same
    /// infinity, the difference is NaN. Panics if the lengths differ.
    pub(crate) fn sum_exp_sub(x: &[f32], m: f32, out: &mut [f32]) -> f32 = sum_exp_sub_body;
}

multiversion! {
    /// Adds `x[i]` to `acc[i]`. Panics if the lengths differ.
    pub(crate) fn add_assign(acc: &mut [f32], x: &[f32]) = add_assign_body;
}

multiversion! {
    /// Computes `acc[i] = maximum(acc[i], x[i])`. The result is NaN if either operand is NaN. Panics if the lengths
    /// differ.
    pub(crate) fn max_assign(acc: &mut [f32], x: &[f32]) = max_assign_body;
}

#[inline(always)]
fn sum_body<const FMA: bool>(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    accumulate(&mut lanes, x, |a, b| a + b);
    fold(lanes, |a, b| a + b)
}

#[inline(always)]
fn row_sums_body<const FMA: bool>(x: &[f32], width: usize, sums: &mut [f32]) {
    assert_eq!(x.len(), width * sums.len(), "not as many rows as sums");
    match width {
        0 => sums.fill(0.0),
        // These are common head sizes, with a number of iterations that is a compile-time constant.
        16 => fixed_row_sums::<FMA, 16>(x, sums),
        32 => fixed_row_sums::<FMA, 32>(x, sums),
        64 => fixed_row_sums::<FMA, 64>(x, sums),
        _ => {
            for (sum, row) in sums.iter_mut().zip(x.chunks_exact(width)) {
                *sum = sum_body::<FMA>(row);
            }
        }
    }
}

#[inline(always)]
fn fixed_row_sums<const FMA: bool, const WIDTH: usize>(x: &[f32], sums: &mut [f32]) {
    let (rows, _) = x.as_chunks::<WIDTH>();
    for (sum, row) in sums.iter_mut().zip(rows) {
        *sum = sum_body::<FMA>(row);
    }
}

#[inline(always)]
fn max_body<const FMA: bool>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    accumulate(&mut lanes, x, k::maximum);
    fold(lanes, k::maximum)
}

#[inline(always)]
fn min_body<const FMA: bool>(x: &[f32]) -> f32 {
    let mut lanes = [f32::INFINITY; LANES];
    accumulate(&mut lanes, x, k::minimum);
    fold(lanes, k::minimum)
}

#[inline(always)]
fn product_body<const FMA: bool>(x: &[f32]) -> f32 {
    let mut lanes = [1.0; LANES];
    accumulate(&mut lanes, x, |a, b| a * b);
    fold(lanes, |a, b| a * b)
}

#[inline(always)]
fn min_assign_body<const FMA: bool>(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "accumulator and input lengths differ");
    for (a, &x) in acc.iter_mut().zip(x) {
        *a = k::minimum(*a, x);
    }
}

#[inline(always)]
fn mul_assign_body<const FMA: bool>(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "accumulator and input lengths differ");
    for (a, &x) in acc.iter_mut().zip(x) {
        *a *= x;
    }
}

#[inline(always)]
fn sum_exp_sub_body<const FMA: bool>(x: &[f32], m: f32, out: &mut [f32]) -> f32 {
    assert_eq!(x.len(), out.len(), "input and output lengths differ");
    let mut lanes = [0.0; LANES];
    for (x, out) in x.chunks(EXP_BLOCK).zip(out.chunks_mut(EXP_BLOCK)) {
        for (o, &x) in out.iter_mut().zip(x) {
            *o = k::exp::<FMA>(x - m);
        }
        accumulate(&mut lanes, out, |a, b| a + b);
    }
    fold(lanes, |a, b| a + b)
}

#[inline(always)]
fn add_assign_body<const FMA: bool>(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "accumulator and input lengths differ");
    for (a, &x) in acc.iter_mut().zip(x) {
        *a += x;
    }
}

#[inline(always)]
fn max_assign_body<const FMA: bool>(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "accumulator and input lengths differ");
    for (a, &x) in acc.iter_mut().zip(x) {
        *a = k::maximum(*a, x);
    }
}

/// Combines `x` into the lanes; `x` must start at a multiple of `LANES`.
#[inline(always)]
fn accumulate(lanes: &mut [f32; LANES], x: &[f32], f: impl Fn(f32, f32) -> f32) {
    // A local copy can stay in registers during the loop.
    let mut local = *lanes;
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in local.iter_mut().zip(chunk) {
            *lane = f(*lane, x);
        }
    }
    for (lane, &x) in local.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
    *lanes = local;
}

/// Folds the upper half of the lanes onto the lower until one is left.
#[inline(always)]
pub(super) fn fold<const N: usize>(mut lanes: [f32; N], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = N / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}
