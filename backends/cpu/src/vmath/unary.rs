//! Unary functions of floats.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};
use super::wide;

/// A unary function of floats. All of them map NaN to NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    Neg,
    Abs,
    /// Exponential `e^x`. It overflows to infinity, and underflows through subnormals to 0.
    Exp,
    /// Power `2^x`. It overflows and underflows like `Exp`.
    Exp2,
    /// Natural logarithm. It is `-inf` at both zeros and NaN below 0.
    Log,
    /// Base-2 logarithm. It has the same special values as `Log`.
    Log2,
    /// Sine. Elements above 1.3e7 in magnitude use the slower `f32::sin`.
    Sin,
    Reciprocal,
    Sqrt,
    /// Reciprocal square root `1 / sqrt(x)`, computed by a square root and a division.
    Rsqrt,
    Square,
    Tanh,
    /// Logistic function `1 / (1 + e^-x)`.
    Sigmoid,
    /// Rectified linear unit `max(x, +0)`.
    Relu,
    /// Leaky ReLU: `x` times the slope if `x` is negative, else `x`.
    LeakyRelu(f32),
    /// Softplus `ln(1 + e^x)`.
    Softplus,
    /// SiLU `x / (1 + e^-x)`. It is -0 at `-inf`.
    Silu,
    /// Approximate GELU `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`. It is -0 at `-inf`.
    GeluTanh,
    /// Exact GELU `x/2 (1 + erf(x / sqrt(2)))`. It is -0 at `-inf`.
    GeluErf,
    /// Derivative of `GeluTanh`.
    GeluTanhDerivative,
    /// Derivative of `GeluErf`.
    GeluErfDerivative,
    Erf,
    /// Cosine. Elements above 6.5e6 in magnitude use the slower `f32::cos`.
    Cos,
    /// Difference `e^x - 1`, accurate near 0.
    Expm1,
    /// Logarithm `ln(1 + x)`, accurate near 0. It is `-inf` at -1 and NaN below -1.
    Log1p,
    /// ELU: `x` if it is positive, else the factor times `e^x - 1`.
    Elu(f32),
    /// Piecewise linear sigmoid `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// Product `x min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// Sign: 1 for positive `x`, -1 for negative `x`, else `x`.
    Sign,
    Floor,
    Ceil,
    /// Rounding to the nearest integer, or to the even one of two equally near integers.
    Round,
    /// Clamp to `lo..=hi`. A bound that is NaN has no effect, and `hi` takes precedence over `lo`.
    Clamp(f32, f32),
}

/// Writes `op` of every element of `x` to `out`. Panics if the lengths differ.
pub(crate) fn unary(op: Unary, level: Level, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output lengths differ");
    apply(level, op, x, out);
}

/// Replaces every element of `x` by the result of `op`.
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
    run::<FMA>(op, SeparateBuffers { x, out });
}

#[inline(always)]
fn apply_in_place_body<const FMA: bool>(op: Unary, x: &mut [f32]) {
    run::<FMA>(op, InPlace { x });
}

/// The inputs of a function, and the memory for its results: a separate buffer, or the inputs themselves.
trait Target {
    /// Returns each element and the slot of its result.
    fn cells(&mut self) -> impl Iterator<Item = (f32, &mut f32)>;

    /// Calls `f` with blocks of inputs and outputs, of at most `BLOCK` elements each.
    fn for_blocks(&mut self, f: impl FnMut(&[f32], &mut [f32]));
}

struct SeparateBuffers<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

struct InPlace<'a> {
    x: &'a mut [f32],
}

/// Number of elements of a block. Each block is checked once for arguments that need a slow function.
const BLOCK: usize = 64;

impl Target for SeparateBuffers<'_> {
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

/// Replaces every cell of a target by a function of it. It is a macro for the same reason as `zip_map!`.
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

/// Computes the sine of a block. The vectorised reduction computes all elements. Elements beyond its range are then
/// computed again.
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

/// Computes the cosine of a block, like [`sin_block`].
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
