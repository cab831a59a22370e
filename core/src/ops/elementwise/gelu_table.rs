//! The table of Gaussian error linear units and their derivatives, and their builder methods.
//!
//! Differentiation builds derivatives from elementary operators. The derivative operators here compute the same in one
//! call: rules replace the elementary operators by them, and their kernels compute common subexpressions once.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::unary::{Derivative::Vjp, Unary, builders};
use super::unary_table::erf;
use crate::graph::{Graph, Value};

/// All operators of this table.
pub(super) static ROWS: &[Unary] = &[GELU_TANH, GELU_ERF, GELU_TANH_DERIVATIVE, GELU_ERF_DERIVATIVE];

/// sqrt(2 / pi), of the tanh form.
const SCALE: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;
const SOURCE: &str = "Hendrycks and Gimpel, 2016";

/// Returns `tanh(u)`, `u = SCALE (x + CUBIC x^3)`, and the square of `x`.
fn inner_tanh(g: &mut Graph, x: Value) -> [Value; 2] {
    let x2 = g.square(x);
    let cubic = g.times(x2, CUBIC);
    let inner = g.plus(cubic, 1.0);
    let u = g.mul(x, inner);
    let u = g.times(u, SCALE);
    [g.tanh(u).into(), x2.into()]
}

/// Returns, with `t = tanh(u)`, `(1 + t)/2 + x/2 (1 - t^2) u'`, `u' = SCALE (1 + 3 CUBIC x^2)`.
fn tanh_derivative(g: &mut Graph, x: Value) -> Value {
    let [t, x2] = inner_tanh(g, x);
    let slope = g.times(x2, 3.0 * CUBIC * SCALE);
    let slope = g.plus(slope, SCALE);
    let t2 = g.square(t);
    let t2 = g.neg(t2);
    let sech2 = g.plus(t2, 1.0);
    let second = g.mul(sech2, slope);
    let second = g.mul(x, second);
    let first = g.plus(t, 1.0);
    let sum = g.add(first, second);
    g.times(sum, 0.5).into()
}

/// Computes the density of the standard normal distribution.
fn density(g: &mut Graph, x: Value) -> Value {
    let square = g.square(x);
    let exponent = g.times(square, -0.5);
    let e = g.exp(exponent);
    g.times(e, 1.0 / (2.0 * PI).sqrt()).into()
}

/// Computes `cdf(x) + x pdf(x)` of the standard normal distribution.
fn erf_derivative(g: &mut Graph, x: Value) -> Value {
    let scaled = g.times(x, FRAC_1_SQRT_2);
    let e = g.erf(scaled);
    let cdf = g.plus(e, 1.0);
    let cdf = g.times(cdf, 0.5);
    let pdf = density(g, x);
    let second = g.mul(x, pdf);
    g.add(cdf, second).into()
}

const GELU_TANH: Unary = Unary {
    name: "core.gelu_tanh",
    formula: "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    source: "Hendrycks and Gimpel, 2016, the tanh approximation",
    reference: |x, _| 0.5 * x * (1.0 + (SCALE * (x + CUBIC * x * x * x)).tanh()),
    derivative: Vjp(|g, x, _, dy, _| {
        let slope = tanh_derivative(g, x);
        g.mul(dy, slope).into()
    }),
    decompose: Some(|g, x, _| {
        let [t, _] = inner_tanh(g, x);
        let t1 = g.plus(t, 1.0);
        let half = g.times(x, 0.5);
        g.mul(half, t1).into()
    }),
    flops: 20,
    ..Unary::BASE
};

const GELU_ERF: Unary = Unary {
    name: "core.gelu_erf",
    formula: "x/2 (1 + erf(x / sqrt(2)))",
    source: SOURCE,
    reference: |x, _| 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
    derivative: Vjp(|g, x, _, dy, _| {
        let slope = erf_derivative(g, x);
        g.mul(dy, slope).into()
    }),
    decompose: Some(|g, x, _| {
        let scaled = g.times(x, FRAC_1_SQRT_2);
        let e = g.erf(scaled);
        let e1 = g.plus(e, 1.0);
        let half = g.times(x, 0.5);
        g.mul(half, e1).into()
    }),
    flops: 24,
    ..Unary::BASE
};

const GELU_TANH_DERIVATIVE: Unary = Unary {
    name: "core.gelu_tanh_derivative",
    formula: "(1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 0.134145 x^2), t = tanh(sqrt(2/pi) (x + 0.044715 x^3))",
    source: SOURCE,
    reference: |x, _| {
        let t = (SCALE * (x + CUBIC * x * x * x)).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SCALE * (1.0 + 3.0 * CUBIC * x * x)
    },
    derivative: Vjp(|g, x, _, dy, _| {
        // With u' as in the formula and u'' = 6 SCALE CUBIC x: (1 - t^2) (u' + x/2 u'' - x t u'^2)
        let [t, x2] = inner_tanh(g, x);
        let t2 = g.square(t);
        let t2 = g.neg(t2);
        let sech2 = g.plus(t2, 1.0);
        let slope = g.times(x2, 3.0 * CUBIC * SCALE);
        let slope = g.plus(slope, SCALE);
        let bend = g.times(x2, 3.0 * CUBIC * SCALE);
        let bend = g.add(slope, bend);
        let slope2 = g.square(slope);
        let xt = g.mul(x, t);
        let third = g.mul(xt, slope2);
        let bracket = g.sub(bend, third);
        let d = g.mul(sech2, bracket);
        g.mul(dy, d).into()
    }),
    decompose: Some(|g, x, _| tanh_derivative(g, x)),
    flops: 30,
    ..Unary::BASE
};

const GELU_ERF_DERIVATIVE: Unary = Unary {
    name: "core.gelu_erf_derivative",
    formula: "(1 + erf(x / sqrt(2)))/2 + x e^(-x^2/2) / sqrt(2 pi)",
    source: SOURCE,
    reference: |x, _| {
        let pdf = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
        0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)) + x * pdf
    },
    derivative: Vjp(|g, x, _, dy, _| {
        // pdf(x) (2 - x^2)
        let pdf = density(g, x);
        let square = g.square(x);
        let minus = g.neg(square);
        let factor = g.plus(minus, 2.0);
        let d = g.mul(pdf, factor);
        g.mul(dy, d).into()
    }),
    decompose: Some(|g, x, _| erf_derivative(g, x)),
    flops: 32,
    ..Unary::BASE
};

builders! {
    /// Computes GELU in its tanh form.
    gelu_tanh(GELU_TANH);
    /// Computes GELU in its exact form.
    gelu_erf(GELU_ERF);
    /// Computes the derivative of [`Graph::gelu_tanh`].
    gelu_tanh_derivative(GELU_TANH_DERIVATIVE);
    /// Computes the derivative of [`Graph::gelu_erf`].
    gelu_erf_derivative(GELU_ERF_DERIVATIVE);
}
