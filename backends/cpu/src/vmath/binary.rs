//! Binary functions of floats, comparisons and selection.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};
use super::operand::{Element, Operand, zip_map};
use super::wide;

/// A binary function of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// Power `a^b`, with the special cases of `f32::powf`.
    Pow,
    /// Minimum of IEEE 754-2019: NaN if either operand is NaN, and `-0 < +0`.
    Min,
    /// Maximum of IEEE 754-2019: NaN if either operand is NaN, and `+0 > -0`.
    Max,
    /// Remainder `a - floor(a/b) * b` as in Python and NumPy. It has the sign of the divisor, even if it is zero.
    Mod,
}

/// A comparison by the rules of IEEE 754. If an operand is NaN, only `NotEqual` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
}

/// Writes `op` of the elements of `a` and `b` to `out`.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn binary(op: Binary, level: Level, a: Operand<'_>, b: Operand<'_>, out: &mut [f32]) {
    a.check_len(out.len());
    b.check_len(out.len());
    binary_multi(level, op, a, b, out);
}

/// Writes 1 if the comparison holds for an element, else 0.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn compare(op: Compare, level: Level, a: Operand<'_>, b: Operand<'_>, out: &mut [u32]) {
    compare_elements(op, level, a, b, out);
}

/// Writes the element of `a` if the condition is not 0, else that of `b`.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn select<T: Element>(
    level: Level,
    cond: Operand<'_, u32>,
    a: Operand<'_, T>,
    b: Operand<'_, T>,
    out: &mut [T],
) {
    cond.check_len(out.len());
    a.check_len(out.len());
    b.check_len(out.len());
    match cond {
        Operand::Slice(cond) => select_multi(level, cond, a, b, out),
        Operand::Scalar(cond) => match if cond != 0 { a } else { b } {
            Operand::Slice(source) => out.copy_from_slice(source),
            Operand::Scalar(value) => out.fill(value),
        },
    }
}

/// Compares like [`compare`], for any element type.
pub(super) fn compare_elements<T: Element + PartialOrd>(
    op: Compare,
    level: Level,
    a: Operand<'_, T>,
    b: Operand<'_, T>,
    out: &mut [u32],
) {
    a.check_len(out.len());
    b.check_len(out.len());
    compare_multi(level, op, a, b, out);
}

multiversion! {
    fn binary_multi(op: Binary, a: Operand<'_>, b: Operand<'_>, out: &mut [f32]) = binary_body;
}

multiversion! {
    fn compare_multi<T: OrderedElement>(
        op: Compare, a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [u32],
    ) = compare_body;
}

multiversion! {
    fn select_multi<T: Element>(
        cond: &[u32], a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [T],
    ) = select_body;
}

/// A trait with both bounds, because `multiversion!` accepts only one path.
trait OrderedElement: Element + PartialOrd {}
impl<T: Element + PartialOrd> OrderedElement for T {}

#[inline(always)]
fn binary_body<const FMA: bool>(op: Binary, a: Operand<'_>, b: Operand<'_>, out: &mut [f32]) {
    match op {
        Binary::Add => zip_map!(a, b, out, |a, b| a + b),
        Binary::Sub => zip_map!(a, b, out, |a, b| a - b),
        Binary::Mul => zip_map!(a, b, out, |a, b| a * b),
        Binary::Div => zip_map!(a, b, out, |a, b| a / b),
        Binary::Pow => zip_map!(a, b, out, |a, b| wide::pow::<FMA>(a, b)),
        Binary::Min => zip_map!(a, b, out, |a, b| k::minimum(a, b)),
        Binary::Max => zip_map!(a, b, out, |a, b| k::maximum(a, b)),
        Binary::Mod => zip_map!(a, b, out, |a, b| floored_mod(a, b)),
    }
}

#[inline(always)]
fn compare_body<const FMA: bool, T: OrderedElement>(
    op: Compare,
    a: Operand<'_, T>,
    b: Operand<'_, T>,
    out: &mut [u32],
) {
    match op {
        Compare::Less => zip_map!(a, b, out, |a, b| u32::from(a < b)),
        Compare::LessEqual => zip_map!(a, b, out, |a, b| u32::from(a <= b)),
        Compare::Greater => zip_map!(a, b, out, |a, b| u32::from(a > b)),
        Compare::GreaterEqual => zip_map!(a, b, out, |a, b| u32::from(a >= b)),
        Compare::Equal => zip_map!(a, b, out, |a, b| u32::from(a == b)),
        Compare::NotEqual => zip_map!(a, b, out, |a, b| u32::from(a != b)),
    }
}

#[inline(always)]
fn select_body<const FMA: bool, T: Element>(cond: &[u32], a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [T]) {
    match (a, b) {
        (Operand::Slice(a), Operand::Slice(b)) => {
            for (((o, &c), &a), &b) in out.iter_mut().zip(cond).zip(a).zip(b) {
                *o = if c != 0 { a } else { b };
            }
        }
        (Operand::Slice(a), Operand::Scalar(b)) => {
            for ((o, &c), &a) in out.iter_mut().zip(cond).zip(a) {
                *o = if c != 0 { a } else { b };
            }
        }
        (Operand::Scalar(a), Operand::Slice(b)) => {
            for ((o, &c), &b) in out.iter_mut().zip(cond).zip(b) {
                *o = if c != 0 { a } else { b };
            }
        }
        (Operand::Scalar(a), Operand::Scalar(b)) => {
            for (o, &c) in out.iter_mut().zip(cond) {
                *o = if c != 0 { a } else { b };
            }
        }
    }
}

/// Returns the floored remainder. It is exact except for the rounding of the final addition.
///
/// The `%` of floats is C's `fmod`. It is exact, has the sign of the dividend, and cannot be vectorised. A remainder
/// of the wrong sign is moved by one divisor. Therefore an infinite divisor of the other sign returns itself, and a
/// zero divisor returns NaN.
#[inline(always)]
fn floored_mod(a: f32, b: f32) -> f32 {
    let r = a % b;
    if r == 0.0 {
        0.0f32.copysign(b)
    } else if (r < 0.0) != (b < 0.0) {
        r + b
    } else {
        r
    }
}
