//! Bitwise and logical functions of two words.

use super::level::{Isa, Level, multiversion};
use super::operand::{Operand, zip_map};

/// A function of two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    And,
    Or,
    Xor,
    /// Left shift. Shifts by 32 or more return 0, as for `ShiftRight`.
    ShiftLeft,
    ShiftRight,
    /// Logical and: 1 or 0. A word is true if it is not 0, also for the following functions.
    LogicalAnd,
    LogicalOr,
    LogicalXor,
}

/// Writes `op` of the elements of `a` and `b` to `out`.
///
/// Panics if a slice operand differs from `out` in length.
pub(crate) fn bits(op: Bits, level: Level, a: Operand<'_, u32>, b: Operand<'_, u32>, out: &mut [u32]) {
    a.check_len(out.len());
    b.check_len(out.len());
    bits_multi(level, op, a, b, out);
}

multiversion! {
    fn bits_multi(op: Bits, a: Operand<'_, u32>, b: Operand<'_, u32>, out: &mut [u32]) = bits_body;
}

#[inline(always)]
fn bits_body<const FMA: bool>(op: Bits, a: Operand<'_, u32>, b: Operand<'_, u32>, out: &mut [u32]) {
    match op {
        Bits::And => zip_map!(a, b, out, |a, b| a & b),
        Bits::Or => zip_map!(a, b, out, |a, b| a | b),
        Bits::Xor => zip_map!(a, b, out, |a, b| a ^ b),
        Bits::ShiftLeft => zip_map!(a, b, out, |a, b| if b < 32 { a.wrapping_shl(b) } else { 0 }),
        Bits::ShiftRight => zip_map!(a, b, out, |a, b| if b < 32 { a.wrapping_shr(b) } else { 0 }),
        Bits::LogicalAnd => zip_map!(a, b, out, |a, b| u32::from((a != 0) & (b != 0))),
        Bits::LogicalOr => zip_map!(a, b, out, |a, b| u32::from((a | b) != 0)),
        Bits::LogicalXor => zip_map!(a, b, out, |a, b| u32::from((a != 0) != (b != 0))),
    }
}
