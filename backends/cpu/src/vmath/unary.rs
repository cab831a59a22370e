//! Functions of one float.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};
use super::wide;

/// A function of one float. `NaN` gives `NaN` in all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    Neg,
    Abs,
    /// `e^x`; overflows to infinity and underflows through subnormals to 0.
    Exp,
    /// `2^x`, with the limits of `Exp`.
    Exp2,
    /// Natural logarithm: `-inf` at both zeros, NaN below.
    Log,
    /// Base-2 logarithm, with the limits of `Log`.
    Log2,
    /// Sine; elements above 1.3e7 in magnitude take the slower `f32::sin`.
    Sin,
    Reciprocal,
    Sqrt,
    /// `1 / sqrt(x)` by a square root and a division.
    Rsqrt,
    Square,
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `max(x, +0)`.
    Relu,
    /// `x` times the slope where negative.
    LeakyRelu(f32),
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x / (1 + e^-x)`, tending to -0 at `-inf`.
    Silu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, tending to -0 at `-inf`.
    GeluTanh,
    /// `x/2 (1 + erf(x / sqrt(2)))`, tending to -0 at `-inf`.
    GeluErf,
    /// The derivative of `GeluTanh`.
    GeluTanhDerivative,
    /// The derivative of `GeluErf`.
    GeluErfDerivative,
    Erf,
    /// Cosine; elements above 6.5e6 in magnitude take the slower `f32::cos`.
    Cos,
    /// `e^x - 1`, accurate near 0.
    Expm1,
    /// `ln(1 + x)`, accurate near 0: `-inf` at -1, NaN below.
    Log1p,
    /// `x` where positive, else the factor times `e^x - 1`.
    Elu(f32),
    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// `x min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// 1 above 0, -1 below, else `x`.
    Sign,
    Floor,
    Ceil,
    /// To the nearest integer, the even one of two.
    Round,
    /// Limits to `lo..=hi`; a NaN bound does not limit, and `hi` wins over `lo`.
    Clamp(f32, f32),
}

/// Writes `op` of every element of `x` to `out`. Panics if the lengths differ.
pub(crate) fn unary(op: Unary, level: Level, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output lengths differ");
    apply(level, op, x, out);
}

/// Replaces every element of `x` by its `op`.
pub(crate) fn unary_in_place(op: Unary, level: Level, x: &mut [f32]) {
    apply_in_place(level, op, x);
}

multiversion! {
    fn apply(op: Unary, x: &[f32], out: &mut [f32]) = apply_body;
}

multiversion! {
    fn apply_in_place(op: Unary, x: &mut [f32]) = apply_in_place_body;
}

#[inline(always)]
fn apply_body<const FMA: bool>(op: Unary, x: &[f32], out: &mut [f32]) {
    run::<FMA>(op, Separate { x, out });
}

#[inline(always)]
fn apply_in_place_body<const FMA: bool>(op: Unary, x: &mut [f32]) {
    run::<FMA>(op, InPlace { x });
}

/// Where the elements come from and go to.
trait Target {
    /// Each element and the place of its result.
    fn cells(&mut self) -> impl Iterator<Item = (f32, &mut f32)>;

    /// Calls `f` with inputs and outputs of at most `BLOCK` elements.
    fn for_blocks(&mut self, f: impl FnMut(&[f32], &mut [f32]));
}

struct Separate<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

struct InPlace<'a> {
    x: &'a mut [f32],
}

/// Elements between two looks at whether any of them needs a slow function.
const BLOCK: usize = 64;

impl Target for Separate<'_> {
    #[inline(always)]
    fn cells(&mut self) -> impl Iterator<Item = (f32, &mut f32)> {
        self.out.iter_mut().zip(self.x).map(|(o, &x)| (x, o))
    }

    #[inline(always)]
    fn for_blocks(&mut self, mut f: impl FnMut(&[f32], &mut [f32])) {
        for (out, x) in self.out.chunks_mut(BLOCK).zip(self.x.chunks(BLOCK)) {
            f(x, out);
        }
    }
}

impl Target for InPlace<'_> {
    #[inline(always)]
    fn cells(&mut self) -> impl Iterator<Item = (f32, &mut f32)> {
        self.x.iter_mut().map(|x| (*x, x))
    }

    #[inline(always)]
    fn for_blocks(&mut self, mut f: impl FnMut(&[f32], &mut [f32])) {
        for out in self.x.chunks_mut(BLOCK) {
            let mut copy = [0.0; BLOCK];
            let copy = &mut copy[..out.len()];
            copy.copy_from_slice(out);
            f(copy, out);
        }
    }
}

/// Replaces every cell of a target by a function of it; a macro for the reason
/// given at `zip_map!`.
macro_rules! map {
    ($target:expr, |$x:ident| $f:expr) => {
        for ($x, o) in $target.cells() {
            *o = $f;
        }
    };
}

#[inline(always)]
fn run<const FMA: bool>(op: Unary, mut target: impl Target) {
    match op {
        Unary::Neg => map!(target, |x| -x),
        Unary::Abs => map!(target, |x| x.abs()),
        Unary::Exp => map!(target, |x| k::exp::<FMA>(x)),
        Unary::Exp2 => map!(target, |x| k::exp2::<FMA>(x)),
        Unary::Log => map!(target, |x| k::log::<FMA>(x)),
        Unary::Log2 => map!(target, |x| k::log2::<FMA>(x)),
        Unary::Sin => target.for_blocks(sin_block::<FMA>),
        Unary::Reciprocal => map!(target, |x| 1.0 / x),
        Unary::Sqrt => map!(target, |x| x.sqrt()),
        Unary::Rsqrt => map!(target, |x| 1.0 / x.sqrt()),
        Unary::Square => map!(target, |x| x * x),
        Unary::Tanh => map!(target, |x| k::tanh::<FMA>(x)),
        Unary::Sigmoid => map!(target, |x| k::sigmoid::<FMA>(x)),
        Unary::Relu => map!(target, |x| if x <= 0.0 { 0.0 } else { x }),
        Unary::LeakyRelu(slope) => map!(target, |x| if x < 0.0 { x * slope } else { x }),
        Unary::Softplus => map!(target, |x| k::softplus::<FMA>(x)),
        Unary::Silu => map!(target, |x| k::silu::<FMA>(x)),
        Unary::GeluTanh => map!(target, |x| k::gelu_tanh::<FMA>(x)),
        Unary::GeluErf => map!(target, |x| k::gelu_erf::<FMA>(x)),
        Unary::GeluTanhDerivative => map!(target, |x| k::gelu_tanh_derivative::<FMA>(x)),
        Unary::GeluErfDerivative => map!(target, |x| k::gelu_erf_derivative::<FMA>(x)),
        Unary::Erf => map!(target, |x| k::erf::<FMA>(x)),
        Unary::Cos => target.for_blocks(cos_block::<FMA>),
        Unary::Expm1 => map!(target, |x| k::expm1::<FMA>(x)),
        Unary::Log1p => map!(target, |x| k::log1p::<FMA>(x)),
        Unary::Elu(alpha) => map!(target, |x| k::elu::<FMA>(x, alpha)),
        Unary::HardSigmoid => map!(target, |x| k::hard_sigmoid(x)),
        Unary::HardSwish => map!(target, |x| x * k::hard_sigmoid(x)),
        Unary::Sign => map!(target, |x| k::sign(x)),
        Unary::Floor => map!(target, |x| k::floor(x)),
        Unary::Ceil => map!(target, |x| k::ceil(x)),
        Unary::Round => map!(target, |x| k::round(x)),
        Unary::Clamp(lo, hi) => map!(target, |x| k::clamp(x, lo, hi)),
    }
}

/// Sine of a block: all by the vectorised reduction, then the elements beyond
/// its reach again.
#[inline(always)]
fn sin_block<const FMA: bool>(x: &[f32], out: &mut [f32]) {
    let mut any_large = false;
    for (o, &x) in out.iter_mut().zip(x) {
        any_large |= x.abs() > wide::SIN_LIMIT;
        *o = wide::sin_reduced::<FMA>(x);
    }
    if any_large {
        for (o, &x) in out.iter_mut().zip(x) {
            if x.abs() > wide::SIN_LIMIT {
                *o = x.sin();
            }
        }
    }
}

/// Cosine of a block, as [`sin_block`].
#[inline(always)]
fn cos_block<const FMA: bool>(x: &[f32], out: &mut [f32]) {
    let mut any_large = false;
    for (o, &x) in out.iter_mut().zip(x) {
        any_large |= x.abs() > wide::COS_LIMIT;
        *o = wide::cos_reduced::<FMA>(x);
    }
    if any_large {
        for (o, &x) in out.iter_mut().zip(x) {
            if x.abs() > wide::COS_LIMIT {
                *o = x.cos();
            }
        }
    }
}
