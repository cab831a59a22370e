//! Binary functions of 32-bit integers.

use super::binary::{Compare, compare_elements};
use super::level::{Isa, Level, multiversion};
use super::operand::{Element, Operand, zip_map};

/// A binary function of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntBinary {
    /// Sum. It wraps around on overflow, like `Sub` and `Mul`.
    Add,
    Sub,
    Mul,
    /// Quotient rounded towards 0; `x / 0` is 0 and `i32::MIN / -1` wraps.
    Div,
    /// Floored remainder, with the sign of the divisor; `x mod 0` is 0.
    Mod,
    Min,
    Max,
}

/// The integer element types: `u32` and `i32`.
pub(crate) trait Int: Element + Ord {
    fn apply_add(self, other: Self) -> Self;
    fn apply_sub(self, other: Self) -> Self;
    fn apply_mul(self, other: Self) -> Self;
    fn apply_div(self, other: Self) -> Self;
    fn apply_mod(self, other: Self) -> Self;
}

/// Implements [`Int`]. The wrapping operations have the same names for both types. `$modulo` is the floored
/// remainder; its divisor is not 0.
macro_rules! impl_int {
    ($t:ty, $modulo:expr) => {
        impl Int for $t {
            #[inline(always)]
            fn apply_add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn apply_sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn apply_mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn apply_div(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn apply_mod(self, other: Self) -> Self {
                if other == 0 { 0 } else { $modulo(self, other) }
            }
        }
    };
}

impl_int!(u32, |a: u32, b: u32| a % b);
impl_int!(i32, |a: i32, b: i32| {
    let r = a.wrapping_rem(b);
    if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
});

/// Writes `op` of the elements of `a` and `b` to `out`.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn binary_int<T: Int>(op: IntBinary, level: Level, a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [T]) {
    a.check_len(out.len());
    b.check_len(out.len());
    binary_int_multi(level, op, a, b, out);
}

/// Writes 1 if the comparison holds for an element, else 0.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn compare_int<T: Int>(op: Compare, level: Level, a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [u32]) {
    compare_elements(op, level, a, b, out);
}

multiversion! {
    fn binary_int_multi<T: Int>(
        op: IntBinary, a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [T],
    ) = binary_int_body;
}

#[inline(always)]
fn binary_int_body<const FMA: bool, T: Int>(op: IntBinary, a: Operand<'_, T>, b: Operand<'_, T>, out: &mut [T]) {
    match op {
        IntBinary::Add => zip_map!(a, b, out, |a, b| a.apply_add(b)),
        IntBinary::Sub => zip_map!(a, b, out, |a, b| a.apply_sub(b)),
        IntBinary::Mul => zip_map!(a, b, out, |a, b| a.apply_mul(b)),
        IntBinary::Div => zip_map!(a, b, out, |a, b| a.apply_div(b)),
        IntBinary::Mod => zip_map!(a, b, out, |a, b| a.apply_mod(b)),
        IntBinary::Min => zip_map!(a, b, out, |a, b| a.min(b)),
        IntBinary::Max => zip_map!(a, b, out, |a, b| a.max(b)),
    }
}
