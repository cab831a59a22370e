//! Activations times another operand, and their gradients in one pass.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};

multiversion! {
    /// `silu(gate) * up`. Ends with the shortest slice, as all functions here.
    pub(crate) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_body;
}

multiversion! {
    /// Gradients of `[gate, up]` from those of [`swiglu`]'s result, the last operand.
    pub(crate) fn swiglu_grad(operands: [&[f32]; 3], results: [&mut [f32]; 2]) = swiglu_grad_body;
}

multiversion! {
    /// `gelu(gate) * up` with the exact GELU.
    pub(crate) fn geglu(gate: &[f32], up: &[f32], out: &mut [f32]) = geglu_body;
}

multiversion! {
    /// Gradients of `[gate, up]` from those of [`geglu`]'s result, the last operand.
    pub(crate) fn geglu_grad(operands: [&[f32]; 3], results: [&mut [f32]; 2]) = geglu_grad_body;
}

/// Logistic function and `x` times it. Unlike [`k::sigmoid`] it is 0, not subnormal, below -87.3, where a gate is
/// shut.
#[inline(always)]
fn open<const FMA: bool>(x: f32) -> (f32, f32) {
    let z = k::exp_nonpositive::<FMA>(-x.abs());
    let s = (if x < 0.0 { z } else { 1.0 }) / (1.0 + z);
    // As in `silu`: the bound turns `-inf * 0` into its limit.
    (s, k::clamp(x, -200.0, f32::INFINITY) * s)
}

/// Elements that are computed together. Rows of packed operands are short: one by one, what is left of each would take
/// longer than its vectors.
const LANES: usize = 16;

/// What is left of a slice, with zeros behind.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

#[inline(always)]
fn swiglu_lanes<const FMA: bool>(gate: &[f32; LANES], up: &[f32; LANES], out: &mut [f32; LANES]) {
    for i in 0..LANES {
        out[i] = open::<FMA>(gate[i]).1 * up[i];
    }
}

#[inline(always)]
fn swiglu_body<const FMA: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let len = out.len().min(gate.len()).min(up.len());
    let ((gate, gate_rest), (up, up_rest)) = (gate[..len].as_chunks(), up[..len].as_chunks());
    let (out, out_rest) = out[..len].as_chunks_mut();
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        swiglu_lanes::<FMA>(gate, up, out);
    }
    if !out_rest.is_empty() {
        let mut lanes = [0.0; LANES];
        swiglu_lanes::<FMA>(&padded(gate_rest), &padded(up_rest), &mut lanes);
        out_rest.copy_from_slice(&lanes[..out_rest.len()]);
    }
}

#[inline(always)]
fn geglu_body<const FMA: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, &x), &up) in out.iter_mut().zip(gate).zip(up) {
        *o = k::gelu_erf::<FMA>(x) * up;
    }
}

#[inline(always)]
fn swiglu_grad_lanes<const FMA: bool>([gate, up, dy]: [&[f32; LANES]; 3], [dgate, dup]: [&mut [f32; LANES]; 2]) {
    for i in 0..LANES {
        let (s, y) = open::<FMA>(gate[i]);
        dup[i] = dy[i] * y;
        dgate[i] = dy[i] * up[i] * k::mul_add::<FMA>(y, 1.0 - s, s);
    }
}

#[inline(always)]
fn swiglu_grad_body<const FMA: bool>([gate, up, dy]: [&[f32]; 3], [dgate, dup]: [&mut [f32]; 2]) {
    let results = dgate.len().min(dup.len());
    let len = results.min(gate.len()).min(up.len()).min(dy.len());
    let ((gate, gate_rest), (up, up_rest)) = (gate[..len].as_chunks(), up[..len].as_chunks());
    let (dy, dy_rest) = dy[..len].as_chunks();
    let ((dgate, dgate_rest), (dup, dup_rest)) = (dgate[..len].as_chunks_mut(), dup[..len].as_chunks_mut());
    let operands = gate.iter().zip(up).zip(dy);
    for ((dgate, dup), ((gate, up), dy)) in dgate.iter_mut().zip(dup).zip(operands) {
        swiglu_grad_lanes::<FMA>([gate, up, dy], [dgate, dup]);
    }
    let rest = dy_rest.len();
    if rest > 0 {
        let (mut dgate, mut dup) = ([0.0; LANES], [0.0; LANES]);
        let operands = [&padded(gate_rest), &padded(up_rest), &padded(dy_rest)];
        swiglu_grad_lanes::<FMA>(operands, [&mut dgate, &mut dup]);
        dgate_rest.copy_from_slice(&dgate[..rest]);
        dup_rest.copy_from_slice(&dup[..rest]);
    }
}

#[inline(always)]
fn geglu_grad_body<const FMA: bool>([gate, up, dy]: [&[f32]; 3], [dgate, dup]: [&mut [f32]; 2]) {
    const INV_SQRT_2_PI: f32 = 0.398_942_280_401_432_7_f64 as f32;
    let operands = gate.iter().zip(up).zip(dy);
    for ((dgate, dup), ((&x, &up), &dy)) in dgate.iter_mut().zip(dup).zip(operands) {
        let (cdf, bell) = k::normal::<FMA>(x);
        *dup = dy * (k::clamp(x, -20.0, f32::INFINITY) * cdf);
        // The bell is 0 beyond the bounds, which turn `inf * 0` into its limit.
        let along = k::clamp(x, -20.0, 20.0) * INV_SQRT_2_PI;
        *dgate = dy * up * k::mul_add::<FMA>(along, bell, cdf);
    }
}
