//! Operands of two-input functions, and the loops over them.

/// One input of an elementwise function: a slice as long as the output, or one
/// value for all elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T = f32> {
    Slice(&'a [T]),
    Scalar(T),
}

mod sealed {
    pub(crate) trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
}

/// The element types: `f32`, `u32` and `i32`.
pub(crate) trait Element: Copy + Default + sealed::Sealed + 'static {}
impl Element for f32 {}
impl Element for u32 {}
impl Element for i32 {}

impl<T> Operand<'_, T> {
    /// Panics if a slice operand does not have the length of the output.
    ///
    /// The check comes first, so that a wrong length is a clear failure and not a partly written output (the loops
    /// stop at the shortest slice).
    #[track_caller]
    pub(super) fn check_len(&self, expected: usize) {
        if let Operand::Slice(slice) = self {
            assert_eq!(slice.len(), expected, "operand and output lengths differ");
        }
    }
}

/// Computes `out[i] = f(a[i], b[i])`, with one loop for each form of the operands.
///
/// This is a macro, not a function with a closure, because closures cannot be marked `#[inline(always)]`. A closure
/// that is not inlined would be compiled for the baseline, and would call the C library for each multiply-add.
macro_rules! zip_map {
    ($a:expr, $b:expr, $out:expr, |$x:ident, $y:ident| $f:expr) => {
        match ($a, $b) {
            (Operand::Slice(a), Operand::Slice(b)) => {
                for ((o, &$x), &$y) in $out.iter_mut().zip(a).zip(b) {
                    *o = $f;
                }
            }
            (Operand::Slice(a), Operand::Scalar($y)) => {
                for (o, &$x) in $out.iter_mut().zip(a) {
                    *o = $f;
                }
            }
            (Operand::Scalar($x), Operand::Slice(b)) => {
                for (o, &$y) in $out.iter_mut().zip(b) {
                    *o = $f;
                }
            }
            (Operand::Scalar($x), Operand::Scalar($y)) => $out.fill($f),
        }
    };
}
pub(super) use zip_map;
