//! Tests of the accuracy against f64 references.

use super::super::*;
use super::run;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::f64::consts::FRAC_1_SQRT_2;

/// Type of the reference functions.
type Truth = fn(f64) -> f64;
/// Type of the conditions on arguments.
type ArgumentFilter = fn(f32) -> bool;

/// Returns the complementary error function in f64 for `x >= 0`. It uses the Maclaurin series of erf or the continued
/// fraction of erfc (DLMF 7.6.2 and 7.9.1).
fn erfc_positive(x: f64) -> f64 {
    let scale = 2.0 / std::f64::consts::PI.sqrt();
    if x < 2.0 {
        1.0 - erf_series(x)
    } else {
        let fraction = (1..=150).rev().fold(x, |rest, k| x + 0.5 * f64::from(k) / rest);
        0.5 * scale * (-x * x).exp() / fraction
    }
}

fn erf_series(x: f64) -> f64 {
    let (mut term, mut total) = (x, x);
    for n in 1..80 {
        term *= 2.0 * x * x / (2.0 * f64::from(n) + 1.0);
        total += term;
    }
    total * 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp()
}

fn erf(x: f64) -> f64 {
    let a = x.abs();
    (if a < 2.0 { erf_series(a) } else { 1.0 - erfc_positive(a) }).copysign(x)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn normal_cdf(x: f64) -> f64 {
    let tail = 0.5 * erfc_positive(x.abs() * FRAC_1_SQRT_2);
    if x < 0.0 { tail } else { 1.0 - tail }
}

fn gelu_tanh(x: f64) -> f64 {
    x * sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
}

fn gelu_tanh_derivative(x: f64) -> f64 {
    let twice = (8.0 / std::f64::consts::PI).sqrt();
    let s = sigmoid(twice * (x + 0.044715 * x * x * x));
    s + x * s * (1.0 - s) * twice * (1.0 + 3.0 * 0.044715 * x * x)
}

fn gelu_erf_derivative(x: f64) -> f64 {
    normal_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Returns the error in ulps of the correct value. An ulp is at least the smallest subnormal. Above the largest
/// float, only infinity is correct.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if nearest.is_infinite() || nearest.is_nan() {
        return if got == nearest || got.is_nan() && nearest.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    let exponent = (want.abs().log2().floor()).max(-126.0) as i32;
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// Returns every `step`-th float from `lo` to `hi`, which must have the same sign.
fn floats(lo: f32, hi: f32, step: usize) -> impl Iterator<Item = f32> {
    let (a, b) = (lo.abs().to_bits(), hi.abs().to_bits());
    let sign = lo.to_bits() & 0x8000_0000;
    (a.min(b)..=a.max(b))
        .step_by(step)
        .map(move |bits| f32::from_bits(bits | sign))
}

/// Returns about 4.2 million floats of both signs over the whole finite range. They include all floats near 1 and a
/// dense sample in the range of small integers.
fn dense() -> Vec<f32> {
    let mut x = Vec::new();
    for sign in [1.0, -1.0] {
        x.extend(floats(sign * 0.0, sign * f32::MAX, 1789));
        x.extend(floats(sign * 0.01, sign * 128.0, 131));
        x.extend(floats(sign * 0.999, sign * 1.001, 7));
    }
    x
}

/// Returns the maximum error of `op` in ulps, given its true values at `x`.
fn worst(op: Unary, level: Level, x: &[f32], truths: &[f64]) -> f64 {
    let out = run(op, level, x);
    let mut worst = (0.0, 0.0);
    for ((&x, &got), &truth) in x.iter().zip(&out).zip(truths) {
        let error = ulps(got, truth);
        if error > worst.0 {
            worst = (error, x);
        }
    }
    println!("{:9} {op:?}: {:.2} ulp at {:e}", level.name(), worst.0, worst.1);
    worst.0
}

/// Checks the accuracy of some functions. Each case has the function, its reference, a condition on arguments, and
/// the maximum error in ulps.
fn check_ulps<const N: usize>(cases: [(Unary, Truth, ArgumentFilter, f64); N]) {
    let dense = dense();
    for (op, truth, keep, bound) in cases {
        let x: Vec<f32> = dense.iter().copied().filter(|&x| keep(x)).collect();
        let truths: Vec<f64> = x.iter().map(|&x| truth(f64::from(x))).collect();
        for level in Level::available() {
            let error = worst(op, level, &x, &truths);
            assert!(error <= bound, "{op:?} at {}: {error} ulp", level.name());
        }
    }
}

#[test]
fn accuracy_in_ulps() {
    let all: ArgumentFilter = |_| true;
    let positive: ArgumentFilter = |x| x > 0.0;
    check_ulps([
        (Unary::Exp, f64::exp, all, 1.5),
        (Unary::Exp2, f64::exp2, all, 1.5),
        (Unary::Log, f64::ln, positive, 1.5),
        (Unary::Log2, f64::log2, positive, 2.0),
        (Unary::Sin, f64::sin, all, 2.0),
        (Unary::Cos, f64::cos, all, 2.5),
        (Unary::Expm1, f64::exp_m1, all, 2.0),
        (Unary::Log1p, f64::ln_1p, |x| x > -1.0, 2.0),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt(), positive, 1.5),
    ]);
}

#[test]
fn accuracy_of_activations_in_ulps() {
    let all: ArgumentFilter = |_| true;
    check_ulps([
        (Unary::Tanh, f64::tanh, all, 4.0),
        (Unary::Erf, erf, all, 2.0),
        (Unary::Sigmoid, sigmoid, all, 3.0),
        (Unary::Softplus, softplus, all, 4.0),
        // For arguments that do not satisfy these conditions, the next test checks an absolute error.
        (Unary::Silu, |x| x * sigmoid(x), |x| x > -87.0, 4.0),
        (Unary::GeluErf, |x| x * normal_cdf(x), |x| x > -12.0, 6.0),
        (Unary::GeluTanh, gelu_tanh, |x| x > -1.0, 6.0),
    ]);
}

/// Left tails whose values are too small for a relative error bound have an absolute bound.
#[test]
fn accuracy_of_left_tails() {
    let cases: [(Unary, Truth, f64, f64); 3] = [
        (Unary::Silu, |x| x * sigmoid(x), -87.0, 1e-42),
        (Unary::GeluErf, |x| x * normal_cdf(x), -12.0, 1e-37),
        (Unary::GeluTanh, gelu_tanh, -1.0, 1e-7),
    ];
    let x: Vec<f32> = floats(-0.5, -1000.0, 97).collect();
    for level in Level::available() {
        for (op, truth, below, bound) in cases {
            let out = run(op, level, &x);
            let errors = x.iter().zip(&out).map(|(&x, &y)| (f64::from(x), f64::from(y)));
            let errors = errors.filter(|(x, _)| *x < below).map(|(x, y)| (y - truth(x)).abs());
            let worst = errors.fold(0.0, f64::max);
            println!("{:9} {op:?}: {worst:.1e} absolute below {below}", level.name());
            assert!(worst <= bound, "{op:?} at {}: {worst:e}", level.name());
        }
    }
}

/// Derivatives have an absolute error bound, because their two terms cancel at their zeros.
#[test]
fn accuracy_of_derivatives() {
    let x: Vec<f32> = (-40_000..=40_000).map(|i| i as f32 * 5e-4).collect();
    let cases: [(Unary, Truth); 2] = [
        (Unary::GeluTanhDerivative, gelu_tanh_derivative),
        (Unary::GeluErfDerivative, gelu_erf_derivative),
    ];
    for level in Level::available() {
        for (op, truth) in cases {
            let out = run(op, level, &x);
            let errors = x
                .iter()
                .zip(&out)
                .map(|(&x, &y)| (f64::from(y) - truth(f64::from(x))).abs());
            let worst = errors.fold(0.0, f64::max);
            println!("{:9} {op:?}: {worst:.1e} absolute", level.name());
            assert!(worst <= 5e-7, "{op:?} at {}: {worst:e}", level.name());
        }
    }
}

#[test]
fn accuracy_of_pow() {
    let mut rng = StdRng::seed_from_u64(1);
    let count = 2_000_000;
    let x: Vec<f32> = (0..count)
        .map(|_| f32::from_bits(rng.random_range(0..0x7f80_0000)))
        .collect();
    // With these exponents, the results range from below the smallest subnormal to above the largest float.
    let y: Vec<f32> = x
        .iter()
        .map(|x| (rng.random_range(-155.0..135.0) / f64::from(*x).log2()) as f32)
        .collect();
    let pairs = x.iter().zip(&y);
    let truths: Vec<f64> = pairs.map(|(&x, &y)| f64::from(x).powf(f64::from(y))).collect();
    for level in Level::available() {
        let mut out = vec![0.0; count];
        binary(Binary::Pow, level, Operand::Slice(&x), Operand::Slice(&y), &mut out);
        let errors = out.iter().zip(&truths).map(|(&got, &truth)| ulps(got, truth));
        let worst = errors.fold(0.0, f64::max);
        println!("{:9} Pow: {worst:.2} ulp", level.name());
        assert!(worst <= 0.6, "{worst} ulp at {}", level.name());
    }
}
