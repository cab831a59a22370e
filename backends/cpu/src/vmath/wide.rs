//! Functions that compute in f64 internally: sine, cosine and power.
//!
//! In f32 they would lose many bits: sine and cosine in the subtraction of multiples of pi, the power in the
//! multiplication by the logarithm. Computing each half of a vector in f64 is faster than emulating the additional
//! bits with pairs of f32.

use super::coeffs;
use super::kernels::{poly, split};

/// Rounding constant `1.5 * 2^52`. It rounds like `kernels::ROUND`, for `|t| < 2^51`.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Leading bits of pi. Their number is small, so that `n * PI_HI` is exact for `n < 2^22`.
const PI_HI: f64 = f64::from_bits(0x4009_21fb_5440_0000);
/// Remaining bits of pi, `pi - PI_HI`, from the next digits of pi (fdlibm's `pio2_1t`, doubled).
const PI_LO: f64 = 2.0 * f64::from_bits(0x3dd0_b461_1a62_6331);

/// Maximum `|x|` for [`sin_reduced`]: about `2^22 * pi`.
pub(super) const SIN_LIMIT: f32 = 1.3e7;

#[inline(always)]
fn mul_add<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn poly_wide<const FMA: bool, const N: usize>(x: f64, coeffs: &[f64; N]) -> f64 {
    let mut total = coeffs[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        total = mul_add::<FMA>(total, x, coeffs[k]);
    }
    total
}

/// Returns `sin(x)` for `|x| <= SIN_LIMIT`. For other arguments, it returns an arbitrary finite number or NaN.
#[inline(always)]
pub(super) fn sin_reduced<const FMA: bool>(x: f32) -> f32 {
    let wide = f64::from(x);
    let shifted = mul_add::<FMA>(wide, std::f64::consts::FRAC_1_PI, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -PI_HI, wide);
    let r = mul_add::<FMA>(n, -PI_LO, r);
    // sin(r + n pi) = (-1)^n sin(r), and sin is odd: if n is odd, its lowest bit flips the sign of r. The sine of a
    // zero thereby also has the sign of x.
    let r = f64::from_bits(r.to_bits() ^ (shifted.to_bits() << 63)) as f32;
    let z = r * r;
    let sine = super::kernels::mul_add::<FMA>(poly::<FMA, 4>(z, &coeffs::SIN) * z, r, r);
    if x == 0.0 { x } else { sine }
}

/// Maximum `|x|` for [`cos_reduced`]. It is half of [`SIN_LIMIT`], because odd multiples of pi/2 need one more bit.
pub(super) const COS_LIMIT: f32 = 6.5e6;

/// Returns `cos(x)` for `|x| <= COS_LIMIT`. For other arguments, it returns an arbitrary finite number or NaN.
#[inline(always)]
pub(super) fn cos_reduced<const FMA: bool>(x: f32) -> f32 {
    // Uses cos(x) = sin(x + pi/2), then continues as in `sin_reduced`.
    let wide = f64::from(x);
    let shifted = mul_add::<FMA>(wide, std::f64::consts::FRAC_1_PI, 0.5) + ROUND;
    let n = (shifted - ROUND) - 0.5;
    let r = mul_add::<FMA>(n, -PI_HI, wide);
    let r = mul_add::<FMA>(n, -PI_LO, r);
    let r = f64::from_bits(r.to_bits() ^ (shifted.to_bits() << 63)) as f32;
    let z = r * r;
    let cosine = super::kernels::mul_add::<FMA>(poly::<FMA, 4>(z, &coeffs::SIN) * z, r, r);
    // Here 1 - x^2/2 rounds to 1.
    if x.abs() < 2.4e-4 { 1.0 } else { cosine }
}

/// Returns `x^y`, with the special cases of C's `powf` and of `f32::powf`.
#[inline(always)]
pub(super) fn pow<const FMA: bool>(x: f32, y: f32) -> f32 {
    let base = x.abs();
    let result = pow_positive::<FMA>(base, y);

    // The logarithms of zero and infinity are not finite.
    let result = if base == 0.0 { power_of_limit(y < 0.0) } else { result };
    let result = if base == f32::INFINITY {
        power_of_limit(y > 0.0)
    } else {
        result
    };

    // The result of a negative base is negative if the exponent is odd, and NaN if the exponent is not an integer.
    let whole = is_whole(y);
    let odd = whole & !is_whole(0.5 * y);
    let sign = if odd { x.to_bits() & 0x8000_0000 } else { 0 };
    let result = f32::from_bits(result.to_bits() | sign);
    let undefined = (x < 0.0) & (base < f32::INFINITY) & !whole;
    let result = if undefined | x.is_nan() | y.is_nan() {
        f32::NAN
    } else {
        result
    };

    if (y == 0.0) | (x == 1.0) { 1.0 } else { result }
}

#[inline(always)]
fn power_of_limit(infinite: bool) -> f32 {
    if infinite { f32::INFINITY } else { 0.0 }
}

/// Returns true if `y` is an integer. Infinities count as integers, because every large float is an even integer.
#[inline(always)]
fn is_whole(y: f32) -> bool {
    const TWO_23: f32 = 8_388_608.0;
    let magnitude = y.abs();
    (magnitude >= TWO_23) | (((magnitude + TWO_23) - TWO_23) == magnitude)
}

/// Returns `x^y` for positive finite `x` and any `y` except NaN.
#[inline(always)]
fn pow_positive<const FMA: bool>(x: f32, y: f32) -> f32 {
    let (e, f) = split(x);
    let f = f64::from(f);
    let s = f / (f + 2.0);
    let log2 = mul_add::<FMA>(poly_wide::<FMA, 5>(s * s, &coeffs::LOG2_WIDE), s, f64::from(e));
    // An infinite y would compute inf * 0 if the logarithm is 0. A huge y is sufficient instead, because the
    // logarithm of any float other than 1 is above 2^-25.
    let y = f64::from(super::kernels::clamp(y, -1e30, 1e30));
    // 2^160 and 2^-160 are beyond the range of f32, and within that of f64.
    let t = y * log2;
    let t = if t < -160.0 { -160.0 } else { t };
    let t = if t > 160.0 { 160.0 } else { t };
    let shifted = t + ROUND;
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    let p = poly_wide::<FMA, 8>(t - (shifted - ROUND), &coeffs::EXP2_WIDE);
    // The conversion to f32 is the only rounding, even if the result is subnormal or infinite.
    (p * scale) as f32
}
