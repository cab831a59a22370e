//! Scalar `f32` functions, written so that a loop over them vectorises.
//!
//! Every function is branch-free (an `if` here is a select) and calls no function of the C library. To round to an
//! integer, it adds a large number. A cast would saturate in Rust and cost extra instructions. `FMA` selects between
//! one fused instruction and a separate multiplication and addition. This is the only difference between levels.
//!
//! Range reductions are the classic ones (Cody and Waite, "Software Manual for the Elementary Functions", 1980;
//! Muller, "Elementary Functions", 3rd ed.).

use super::coeffs;

/// Rounding constant `1.5 * 2^23`. Adding it to `|t| < 2^22` leaves `t`, rounded to the nearest integer, in the low
/// mantissa bits. Subtracting it again returns this integer.
const ROUND: f32 = 12_582_912.0;

/// Leading bits of ln(2). Their number is small, so that `n * LN2_HI` is exact for `|n| < 2^9`.
const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
/// Remaining bits of ln(2): `ln(2) - LN2_HI`.
const LN2_LO: f32 = (std::f64::consts::LN_2 - LN2_HI as f64) as f32;

/// Bits of the float nearest to `sqrt(1/2)`, the lowest mantissa that [`split`] returns.
const SQRT_HALF_BITS: u32 = 0x3f35_04f3;

/// Returns `a * b + c`. It is fused if `FMA`.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Evaluates a polynomial by Horner's method. The coefficient of the lowest power comes first.
#[inline(always)]
pub(super) fn poly<const FMA: bool, const N: usize>(x: f32, coeffs: &[f32; N]) -> f32 {
    let mut total = coeffs[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        total = mul_add::<FMA>(total, x, coeffs[k]);
    }
    total
}

/// Limits `x` to `[lo, hi]`. Unlike `f32::max` and `f32::min`, it returns NaN for NaN.
#[inline(always)]
pub(super) fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// Returns the minimum of `x` and `hi`, or `x` if it is NaN.
#[inline(always)]
fn at_most(x: f32, hi: f32) -> f32 {
    if x > hi { hi } else { x }
}

/// Returns `a^2` as the sum of a float and a small correction.
#[inline(always)]
fn square<const FMA: bool>(a: f32) -> (f32, f32) {
    if FMA {
        let square = a * a;
        (square, a.mul_add(a, -square))
    } else {
        // a^2 = hi^2 + (a - hi)(a + hi), where a 12-bit hi makes hi^2 exact.
        let hi = f32::from_bits(a.to_bits() & 0xffff_f000);
        (hi * hi, (a - hi) * (a + hi))
    }
}

/// Returns the maximum of IEEE 754-2019: NaN if either operand is NaN, and `+0 > -0`.
#[inline(always)]
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    // Equal operands are either identical, or zeros with different signs. The AND of their bits is correct in both
    // cases.
    let tie = f32::from_bits(a.to_bits() & b.to_bits());
    let m = if a > b { a } else { b };
    let m = if a == b { tie } else { m };
    if a.is_nan() { a } else { m }
}

/// Returns the minimum of IEEE 754-2019: NaN if either operand is NaN, and `-0 < +0`.
#[inline(always)]
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    let tie = f32::from_bits(a.to_bits() | b.to_bits());
    let m = if a < b { a } else { b };
    let m = if a == b { tie } else { m };
    if a.is_nan() { a } else { m }
}

/// Rounds `t` to the nearest integer `n`. Returns `n` as a float, and `2^n` as two factors.
///
/// `|t|` must be below 2^22. There are two factors, `2^(n/2)` and `2^(n - n/2)`, because `2^n` may not be
/// representable if the result is subnormal. Two multiplications then compute the result with one rounding.
#[inline(always)]
fn split_power(t: f32) -> (f32, f32, f32) {
    let shifted = t + ROUND;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    (shifted - ROUND, power_of_two(half), power_of_two(n.wrapping_sub(half)))
}

/// Returns `2^n` for `n` in `-126..=127`. For other arguments, it returns an arbitrary number and does not panic.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Returns `e^x`.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinity, and the exponent of the power of two would overflow.
    let x = clamp(x, -105.0, 89.0);
    let (n, scale_a, scale_b) = split_power(x * std::f32::consts::LOG2_E);
    let r = mul_add::<FMA>(n, -LN2_HI, x);
    let r = mul_add::<FMA>(n, -LN2_LO, r);
    let tail = poly::<FMA, 5>(r, &coeffs::EXP) * r;
    let p = mul_add::<FMA>(tail, r, r) + 1.0;
    p * scale_a * scale_b
}

/// Returns `e^x` for non-positive `x`, as in a softmax, with a third fewer instructions than [`exp`]. It is 0 below
/// -87.3, where results would be subnormal.
#[inline(always)]
pub(crate) fn exp_nonpositive<const FMA: bool>(x: f32) -> f32 {
    const MIN_EXPONENT: f32 = -87.3;
    let bounded = if x < MIN_EXPONENT { MIN_EXPONENT } else { x };
    let shifted = mul_add::<FMA>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let scale = power_of_two((shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32));
    let r = mul_add::<FMA>(n, -LN2_HI, bounded);
    let r = mul_add::<FMA>(n, -LN2_LO, r);
    let tail = poly::<FMA, 5>(r, &coeffs::EXP) * r;
    let y = (mul_add::<FMA>(tail, r, r) + 1.0) * scale;
    if x < MIN_EXPONENT { 0.0 } else { y }
}

/// Returns `e^(hi + lo)`, where `lo` is a small correction and `hi` is not positive. Underflow is gradual.
#[inline(always)]
fn exp_gradual<const FMA: bool>(hi: f32, lo: f32) -> f32 {
    // Below this bound the result is 0.
    const MIN_EXPONENT: f32 = -105.0;
    // The power of two is multiplied by 2^64, so that it is a normal number. The final multiplication by 2^-64 is the
    // only rounding.
    const RAISED: i32 = 64;
    const LOWERED: f32 = 1.0 / (1u128 << RAISED) as f32;
    let bounded = if hi < MIN_EXPONENT { MIN_EXPONENT } else { hi };
    let shifted = mul_add::<FMA>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let scale = power_of_two((shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32 - RAISED));
    let r = mul_add::<FMA>(n, -LN2_HI, bounded);
    let r = mul_add::<FMA>(n, -LN2_LO, r) + lo;
    let tail = poly::<FMA, 5>(r, &coeffs::EXP) * r;
    (mul_add::<FMA>(tail, r, r) + 1.0) * scale * LOWERED
}

/// Returns `2^x`.
#[inline(always)]
pub(super) fn exp2<const FMA: bool>(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let (n, scale_a, scale_b) = split_power(x);
    poly::<FMA, 7>(x - n, &coeffs::EXP2) * scale_a * scale_b
}

/// Returns `e^x - 1` for `x` in `[0, 40]`. The relative error is also small near 0.
#[inline(always)]
fn exp_m1_positive<const FMA: bool>(x: f32) -> f32 {
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let scale = power_of_two((shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32));
    let r = mul_add::<FMA>(n, -LN2_HI, x);
    let r = mul_add::<FMA>(n, -LN2_LO, r);
    let tail = poly::<FMA, 5>(r, &coeffs::EXP) * r;
    let q = mul_add::<FMA>(tail, r, r);
    mul_add::<FMA>(q, scale, scale - 1.0)
}

/// Magnitude below which `expm1(x)` and `log1p(x)` equal `x` after rounding.
const OWN_IMAGE: f32 = 1e-10;

/// Returns `e^x - 1`.
///
/// With `e^x = 2^n e^r`, it is `2^n (e^r - 1) + (2^n - 1)`. Near 0, neither term loses digits in the addition. All
/// values are halved, because `2^128` is not a float.
#[inline(always)]
pub(super) fn expm1<const FMA: bool>(x: f32) -> f32 {
    // The result rounds to -1 below -17.4, and overflows from 88.8 on.
    let bounded = clamp(x, -18.0, 89.0);
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let scale = power_of_two(exponent.wrapping_sub(1));
    let r = mul_add::<FMA>(n, -LN2_HI, bounded);
    let r = mul_add::<FMA>(n, -LN2_LO, r);
    let tail = poly::<FMA, 5>(r, &coeffs::EXP) * r;
    let q = mul_add::<FMA>(tail, r, r);
    let half = mul_add::<FMA>(q, scale, scale - 0.5);
    if x.abs() < OWN_IMAGE { x } else { half + half }
}

/// Splits a positive `x` into `2^e * (1 + f)` with `1 + f` in `[sqrt(1/2), sqrt(2))`.
///
/// For zero, negative numbers, infinities and NaN, the results are meaningless.
#[inline(always)]
pub(super) fn split(x: f32) -> (f32, f32) {
    // Subnormals have no hidden bit, so they are first scaled by 2^23.
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bias = if tiny { -23.0 } else { 0.0 };
    let offset = scaled.to_bits().wrapping_sub(SQRT_HALF_BITS) as i32;
    let exponent = offset >> 23;
    let mantissa = ((offset & 0x007f_ffff) as u32).wrapping_add(SQRT_HALF_BITS);
    (exponent as f32 + bias, f32::from_bits(mantissa) - 1.0)
}

/// Returns the special value of the logarithm if `x` is not positive and finite, else `result`.
#[inline(always)]
fn log_special(x: f32, result: f32) -> f32 {
    let result = if x == f32::INFINITY { x } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    // The condition is false for NaN, which therefore returns NaN.
    if x >= 0.0 { result } else { f32::NAN }
}

/// Returns the natural logarithm.
#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    let (e, f) = split(x);
    let z = f * f;
    let tail = poly::<FMA, 9>(f, &coeffs::LOG) * (f * z);
    let tail = mul_add::<FMA>(e, LN2_LO, tail);
    let tail = mul_add::<FMA>(z, -0.5, tail);
    log_special(x, mul_add::<FMA>(e, LN2_HI, f + tail))
}

/// Returns the base-2 logarithm.
#[inline(always)]
pub(super) fn log2<const FMA: bool>(x: f32) -> f32 {
    // This is log2(e) - 1. Without the 1, the leading term `f` stays exact.
    const LOG2_E_M1: f32 = (std::f64::consts::LOG2_E - 1.0) as f32;
    let (e, f) = split(x);
    let z = f * f;
    let tail = poly::<FMA, 9>(f, &coeffs::LOG) * (f * z);
    let tail = mul_add::<FMA>(z, -0.5, tail);
    let low = mul_add::<FMA>(tail, LOG2_E_M1, tail);
    let low = mul_add::<FMA>(f, LOG2_E_M1, low);
    log_special(x, e + (f + low))
}

/// Returns `ln(1 + x)`.
///
/// The sum `u = 1 + x` is rounded. The two-sum algorithm (Knuth, 4.2.2) computes the rounding error exactly. The
/// correction of the logarithm is this error divided by `u`.
#[inline(always)]
pub(super) fn log1p<const FMA: bool>(x: f32) -> f32 {
    let u = 1.0 + x;
    let back = u - 1.0;
    let error = (1.0 - (u - back)) + (x - back);
    let whole = log::<FMA>(u);
    let result = whole + error / u;
    // An infinite logarithm has no correction.
    let result = if whole.abs() == f32::INFINITY { whole } else { result };
    if x.abs() < OWN_IMAGE { x } else { result }
}

/// Returns `ln(1 + z)` for `z` in `[0, 1]`, as `2 atanh(z / (2 + z))`.
#[inline(always)]
fn log_1p_unit<const FMA: bool>(z: f32) -> f32 {
    let s = z / (z + 2.0);
    let w = s * s;
    let twice = s + s;
    mul_add::<FMA>(poly::<FMA, 5>(w, &coeffs::ATANH) * w, twice, twice)
}

/// Returns `x` if it is positive, else `alpha * (e^x - 1)`.
#[inline(always)]
pub(super) fn elu<const FMA: bool>(x: f32, alpha: f32) -> f32 {
    let left = alpha * expm1::<FMA>(x);
    if x > 0.0 { x } else { left }
}

/// Returns `min(max(x + 3, 0), 6) / 6`.
#[inline(always)]
pub(super) fn hard_sigmoid(x: f32) -> f32 {
    clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)
}

/// Magnitude above which every float is an integer.
const WHOLE: f32 = 8_388_608.0;

/// Returns the nearest integer, or the even one of two equally near integers. It does not use `f32::round_ties_even`,
/// which calls the C library at the baseline of x86-64.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    let a = x.abs();
    let rounded = ((a + WHOLE) - WHOLE).copysign(x);
    // The condition is also false for NaN.
    if a < WHOLE { rounded } else { x }
}

/// Returns the largest integer that is not above `x`.
#[inline(always)]
pub(super) fn floor(x: f32) -> f32 {
    let r = round(x);
    if r > x { r - 1.0 } else { r }
}

/// Returns the smallest integer that is not below `x`.
#[inline(always)]
pub(super) fn ceil(x: f32) -> f32 {
    let r = round(x);
    (if r < x { r + 1.0 } else { r }).copysign(x)
}

/// Returns 1 for positive `x`, -1 for negative `x`, else `x` (zeros and NaN).
#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    let s = if x > 0.0 { 1.0 } else { x };
    if x < 0.0 { -1.0 } else { s }
}

/// Returns the hyperbolic tangent. It is computed from `e^(2|x|) - 1`, so that small `x` lose no precision.
#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    // tanh rounds to 1 from 9.02 on.
    let t = exp_m1_positive::<FMA>(at_most(2.0 * x.abs(), 20.0));
    (t / (t + 2.0)).copysign(x)
}

/// Returns `1 / (1 + e^-x)`. The argument of the exponential is never positive, so it does not overflow, and the
/// relative accuracy is good for negative `x`, too.
#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let z = exp_gradual::<FMA>(-x.abs(), -0.0);
    let numerator = if x < 0.0 { z } else { 1.0 };
    numerator / (1.0 + z)
}

/// Returns `ln(1 + e^x)`.
#[inline(always)]
pub(super) fn softplus<const FMA: bool>(x: f32) -> f32 {
    let linear = if x < 0.0 { 0.0 } else { x };
    linear + log_1p_unit::<FMA>(exp_gradual::<FMA>(-x.abs(), -0.0))
}

/// Returns `x * sigmoid(x)`.
#[inline(always)]
pub(super) fn silu<const FMA: bool>(x: f32) -> f32 {
    // Below the bound, the sigmoid is 0. The bound turns `-inf * 0`, which would be NaN, into the limit -0.
    clamp(x, -200.0, f32::INFINITY) * sigmoid::<FMA>(x)
}

/// Returns `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`, computed as `x` times the sigmoid of twice the argument
/// of `tanh` (Hendrycks and Gimpel, arXiv:1606.08415).
#[inline(always)]
pub(super) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    const TWICE_SQRT_2_PI: f32 = 1.595_769_121_605_730_7_f64 as f32;
    let cubic = mul_add::<FMA>(0.044_715 * x * x, x, x);
    // As in `silu`. The sigmoid is 0 below about -10.6.
    clamp(x, -20.0, f32::INFINITY) * sigmoid::<FMA>(TWICE_SQRT_2_PI * cubic)
}

/// Returns the normal distribution function `Phi(x)`, and `e^(-x^2/2)`.
///
/// It uses `Phi(-a) = e^(-a^2/2) * g(a) / (1 + a)`. `g` is smooth: the scaled complementary error function, fitted as
/// a polynomial of `(a - 4)/(a + 4)`. The left tail therefore has no cancellation, as `1 - erf` would.
#[inline(always)]
pub(super) fn normal<const FMA: bool>(x: f32) -> (f32, f32) {
    // Phi(-20) is far below the smallest float.
    let a = at_most(x.abs(), 20.0);
    // The exponential would magnify the rounding error of a plain a * a.
    let (square, low) = square::<FMA>(a);
    let e = exp_gradual::<FMA>(-0.5 * square, -0.5 * low);
    // One division computes both quotients: 1/((a + 4)(a + 1)).
    let (p, q) = (a + 4.0, a + 1.0);
    let inverse = 1.0 / (p * q);
    let t = (a - 4.0) * (q * inverse);
    let tail = e * poly::<FMA, 11>(t, &coeffs::HALF_ERFCX) * (p * inverse);
    (if x < 0.0 { tail } else { 1.0 - tail }, e)
}

/// Returns `x * Phi(x)`, with the normal distribution function `Phi`.
#[inline(always)]
pub(super) fn gelu_erf<const FMA: bool>(x: f32) -> f32 {
    clamp(x, -20.0, f32::INFINITY) * normal::<FMA>(x).0
}

/// Returns the derivative of [`gelu_tanh`]: `s + x s (1 - s) w`, where `s` is the sigmoid of twice the argument of
/// `tanh`, and `w` the derivative of twice this argument.
#[inline(always)]
pub(super) fn gelu_tanh_derivative<const FMA: bool>(x: f32) -> f32 {
    const TWICE_SQRT_2_PI: f32 = 1.595_769_121_605_730_7_f64 as f32;
    const CUBIC: f32 = (3.0 * 0.044_715 * 1.595_769_121_605_730_7_f64) as f32;
    // Beyond these bounds, the sigmoid is 0 or 1.
    let x = clamp(x, -20.0, 20.0);
    let square = x * x;
    let cubic = mul_add::<FMA>(0.044_715 * square, x, x);
    // `1 - s` would lose digits, and the factor `x w` amplifies the error. The exponential does not.
    let z = exp_gradual::<FMA>(-(TWICE_SQRT_2_PI * cubic).abs(), -0.0);
    let inverse = 1.0 / (1.0 + z);
    let tail = z * inverse;
    let s = if x < 0.0 { tail } else { inverse };
    let w = mul_add::<FMA>(CUBIC, square, TWICE_SQRT_2_PI);
    mul_add::<FMA>(x * w, tail * inverse, s)
}

/// Returns the derivative of [`gelu_erf`]: the normal distribution function plus `x` times its density.
#[inline(always)]
pub(super) fn gelu_erf_derivative<const FMA: bool>(x: f32) -> f32 {
    const INVERSE_SQRT_2_PI: f32 = 0.398_942_280_401_432_7_f64 as f32;
    let x = clamp(x, -20.0, 20.0);
    let (phi, e) = normal::<FMA>(x);
    mul_add::<FMA>(x * INVERSE_SQRT_2_PI, e, phi)
}

/// Returns the error function: an odd polynomial up to 1, `1 - e^q(x)` beyond.
#[inline(always)]
pub(super) fn erf<const FMA: bool>(x: f32) -> f32 {
    // erf rounds to 1 from 3.92 on.
    let a = at_most(x.abs(), 4.0);
    let small = mul_add::<FMA>(poly::<FMA, 7>(a * a, &coeffs::ERF_SMALL), a, a);
    let large = 1.0 - exp_gradual::<FMA>(poly::<FMA, 8>(a, &coeffs::ERF_LARGE), -0.0);
    (if a > 1.0 { large } else { small }).copysign(x)
}
