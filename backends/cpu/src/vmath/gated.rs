//! Activations times another operand, and their gradients in one pass.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};

multiversion! {
    /// Computes `silu(gate) * up`. Like all functions of this module, it stops at the end of the shortest slice.
    pub(crate) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_body;
}

multiversion! {
    /// Computes the gradients of `gate` and `up`. The last operand is the gradient of the result of [`swiglu`].
    pub(crate) fn swiglu_grad(operands: [&[f32]; 3], results: [&mut [f32]; 2]) = swiglu_grad_body;
}

multiversion! {
    /// Computes `gelu(gate) * up` with the exact GELU.
    pub(crate) fn geglu(gate: &[f32], up: &[f32], out: &mut [f32]) = geglu_body;
}

multiversion! {
    /// Computes the gradients of `gate` and `up`. The last operand is the gradient of the result of [`geglu`].
    pub(crate) fn geglu_grad(operands: [&[f32]; 3], results: [&mut [f32]; 2]) = geglu_grad_body;
}

/// Returns the logistic function of `x`, and `x` times this function. Unlike [`k::sigmoid`], it is 0, not subnormal,
/// below -87.3.
#[inline(always)]
fn open<const FMA: bool>(x: f32) -> (f32, f32) {
    let z = k::exp_nonpositive::<FMA>(-x.abs());
    let s = (if x < 0.0 { z } else { 1.0 }) / (1.0 + z);
    // As in `silu`, the bound turns `-inf * 0` into its limit.
    (s, k::clamp(x, -200.0, f32::INFINITY) * s)
}

#[inline(always)]
fn swiglu_body<const FMA: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, &x), &up) in out.iter_mut().zip(gate).zip(up) {
        *o = open::<FMA>(x).1 * up;
    }
}

#[inline(always)]
fn geglu_body<const FMA: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, &x), &up) in out.iter_mut().zip(gate).zip(up) {
        *o = k::gelu_erf::<FMA>(x) * up;
    }
}

#[inline(always)]
fn swiglu_grad_body<const FMA: bool>([gate, up, dy]: [&[f32]; 3], [dgate, dup]: [&mut [f32]; 2]) {
    let operands = gate.iter().zip(up).zip(dy);
    for ((dgate, dup), ((&x, &up), &dy)) in dgate.iter_mut().zip(dup).zip(operands) {
        let (s, y) = open::<FMA>(x);
        *dup = dy * y;
        *dgate = dy * up * k::mul_add::<FMA>(y, 1.0 - s, s);
    }
}

#[inline(always)]
fn geglu_grad_body<const FMA: bool>([gate, up, dy]: [&[f32]; 3], [dgate, dup]: [&mut [f32]; 2]) {
    const INV_SQRT_2_PI: f32 = 0.398_942_280_401_432_7_f64 as f32;
    let operands = gate.iter().zip(up).zip(dy);
    for ((dgate, dup), ((&x, &up), &dy)) in dgate.iter_mut().zip(dup).zip(operands) {
        let (cdf, bell) = k::normal::<FMA>(x);
        *dup = dy * (k::clamp(x, -20.0, f32::INFINITY) * cdf);
        // The density `bell` is 0 beyond the bounds, so that `inf * 0` becomes its limit.
        let along = k::clamp(x, -20.0, 20.0) * INV_SQRT_2_PI;
        *dgate = dy * up * k::mul_add::<FMA>(along, bell, cdf);
    }
}
