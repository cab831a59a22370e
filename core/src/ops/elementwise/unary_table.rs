//! The table of unary elementwise operators, and their builder methods.

use std::f64::consts::{LN_2, LOG2_E, PI};

use super::unary::{Derivative::Vjp, Unary, builders};
use crate::NodeId;
use crate::graph::{Graph, Value};

impl Graph {
    /// Adds a constant scalar of the dtype of `like`.
    pub(super) fn num(&mut self, like: Value, v: f64) -> NodeId {
        let dtype = self.dtype(like);
        self.scalar_of(dtype, v)
    }

    pub(super) fn times(&mut self, x: impl Into<Value>, factor: f64) -> NodeId {
        let x = x.into();
        let factor = self.num(x, factor);
        self.mul(x, factor)
    }

    pub(super) fn plus(&mut self, x: impl Into<Value>, term: f64) -> NodeId {
        let x = x.into();
        let term = self.num(x, term);
        self.add(x, term)
    }
}

/// Computes the error function: its Maclaurin series where that converges fast without
/// cancellation, and the continued fraction of `erfc` beyond (Abramowitz and Stegun, 7.1.5 and
/// 7.1.14).
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    if a < 2.5 {
        let mut term = x;
        let mut sum = x;
        let mut n = 0.0;
        while term.abs() > 1e-18 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * 2.0 / PI.sqrt();
    }
    if a > 6.5 {
        return x.signum();
    }
    let mut fraction = a;
    for k in (1..=80).rev() {
        fraction = a + 0.5 * f64::from(k) / fraction;
    }
    x.signum() * (1.0 - (-a * a).exp() / (PI.sqrt() * fraction))
}

/// Computes erf with operators of the primitive set: 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1
/// / (1 + p |x|), absolute error below 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf_decomposed(g: &mut Graph, x: Value, _: &[f64]) -> Value {
    const P: f64 = 0.327_591_1;
    const A: [f64; 5] = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    let a = g.abs(x);
    let d = g.times(a, P);
    let d = g.plus(d, 1.0);
    let t = g.reciprocal(d);
    let mut poly: Value = g.times(t, A[4]).into();
    for &c in A[..4].iter().rev() {
        let sum = g.plus(poly, c);
        poly = g.mul(sum, t).into();
    }
    let square = g.square(x);
    let minus = g.neg(square);
    let e = g.exp(minus);
    let tail = g.mul(poly, e);
    let tail = g.neg(tail);
    let magnitude = g.plus(tail, 1.0);
    let negative = g.neg(magnitude);
    let zero = g.num(x, 0.0);
    let below = g.less_than(x, zero);
    g.select(below, negative, magnitude).into()
}

/// All operators of this table.
pub(super) static ROWS: &[Unary] = &[
    LOG2, EXP2, SIN, RECIPROCAL, SQRT, NEG, ABS, EXP, LOG, RSQRT, SQUARE, TANH, SIGMOID, RELU, LEAKY_RELU, SOFTPLUS,
    SILU, ERF, CLAMP,
];

const LOG2: Unary = Unary {
    name: "core.log2",
    formula: "log2(x)",
    reference: |x, _| x.log2(),
    derivative: Vjp(|g, x, _, dy, _| {
        let r = g.div(dy, x);
        g.times(r, LOG2_E).into()
    }),
    domain: (0.1, 9.0),
    flops: 8,
    ..Unary::BASE
};

const EXP2: Unary = Unary {
    name: "core.exp2",
    formula: "2^x",
    reference: |x, _| x.exp2(),
    derivative: Vjp(|g, _, y, dy, _| {
        let r = g.mul(dy, y);
        g.times(r, LN_2).into()
    }),
    flops: 8,
    ..Unary::BASE
};

const SIN: Unary = Unary {
    name: "core.sin",
    formula: "sin(x), x in radians",
    reference: |x, _| x.sin(),
    derivative: Vjp(|g, x, _, dy, _| {
        let shifted = g.plus(x, PI / 2.0);
        let cos = g.sin(shifted);
        g.mul(dy, cos).into()
    }),
    flops: 10,
    ..Unary::BASE
};

const RECIPROCAL: Unary = Unary {
    name: "core.reciprocal",
    formula: "1 / x",
    reference: |x, _| 1.0 / x,
    derivative: Vjp(|g, _, y, dy, _| {
        let y2 = g.mul(y, y);
        let r = g.mul(dy, y2);
        g.neg(r).into()
    }),
    domain: (0.3, 4.0),
    flops: 4,
    ..Unary::BASE
};

const SQRT: Unary = Unary {
    name: "core.sqrt",
    formula: "sqrt(x)",
    reference: |x, _| x.sqrt(),
    derivative: Vjp(|g, _, y, dy, _| {
        let half = g.times(dy, 0.5);
        g.div(half, y).into()
    }),
    domain: (0.1, 9.0),
    flops: 4,
    ..Unary::BASE
};

const NEG: Unary = Unary {
    name: "core.neg",
    formula: "-x",
    reference: |x, _| -x,
    derivative: Vjp(|g, _, _, dy, _| g.neg(dy).into()),
    decompose: Some(|g, x, _| g.times(x, -1.0).into()),
    integers: true,
    ..Unary::BASE
};

const ABS: Unary = Unary {
    name: "core.abs",
    formula: "|x|; the derivative at 0 is 0",
    reference: |x, _| x.abs(),
    derivative: Vjp(|g, x, _, dy, _| {
        let zero = g.num(x, 0.0);
        let negative = g.neg(dy);
        let below = g.less_than(x, zero);
        let above = g.greater_than(x, zero);
        let inner = g.select(below, negative, zero);
        g.select(above, dy, inner).into()
    }),
    decompose: Some(|g, x, _| {
        let n = g.neg(x);
        g.maximum(x, n).into()
    }),
    integers: true,
    ..Unary::BASE
};

const EXP: Unary = Unary {
    name: "core.exp",
    formula: "e^x",
    reference: |x, _| x.exp(),
    derivative: Vjp(|g, _, y, dy, _| g.mul(dy, y).into()),
    decompose: Some(|g, x, _| {
        let scaled = g.times(x, LOG2_E);
        g.exp2(scaled).into()
    }),
    flops: 8,
    ..Unary::BASE
};

const LOG: Unary = Unary {
    name: "core.log",
    formula: "ln(x)",
    reference: |x, _| x.ln(),
    derivative: Vjp(|g, x, _, dy, _| g.div(dy, x).into()),
    decompose: Some(|g, x, _| {
        let l = g.log2(x);
        g.times(l, LN_2).into()
    }),
    domain: (0.1, 9.0),
    flops: 8,
    ..Unary::BASE
};

const RSQRT: Unary = Unary {
    name: "core.rsqrt",
    formula: "1 / sqrt(x)",
    reference: |x, _| 1.0 / x.sqrt(),
    derivative: Vjp(|g, x, y, dy, _| {
        // -y / (2 x)
        let r = g.div(y, x);
        let r = g.times(r, -0.5);
        g.mul(dy, r).into()
    }),
    decompose: Some(|g, x, _| {
        let s = g.sqrt(x);
        g.reciprocal(s).into()
    }),
    domain: (0.2, 9.0),
    flops: 6,
    ..Unary::BASE
};

const SQUARE: Unary = Unary {
    name: "core.square",
    formula: "x^2",
    reference: |x, _| x * x,
    derivative: Vjp(|g, x, _, dy, _| {
        let r = g.mul(dy, x);
        g.times(r, 2.0).into()
    }),
    decompose: Some(|g, x, _| g.mul(x, x).into()),
    ..Unary::BASE
};

const TANH: Unary = Unary {
    name: "core.tanh",
    formula: "tanh(x)",
    reference: |x, _| x.tanh(),
    derivative: Vjp(|g, _, y, dy, _| {
        let y2 = g.mul(y, y);
        let r = g.mul(dy, y2);
        g.sub(dy, r).into()
    }),
    decompose: Some(|g, x, _| {
        // 2 sigmoid(2x) - 1
        let x2 = g.times(x, 2.0);
        let s = g.sigmoid(x2);
        let s2 = g.times(s, 2.0);
        g.plus(s2, -1.0).into()
    }),
    flops: 12,
    ..Unary::BASE
};

const SIGMOID: Unary = Unary {
    name: "core.sigmoid",
    formula: "1 / (1 + e^-x)",
    source: "logistic function",
    reference: |x, _| 1.0 / (1.0 + (-x).exp()),
    derivative: Vjp(|g, _, y, dy, _| {
        let r = g.mul(dy, y);
        let r2 = g.mul(r, y);
        g.sub(r, r2).into()
    }),
    decompose: Some(|g, x, _| {
        let n = g.neg(x);
        let e = g.exp(n);
        let d = g.plus(e, 1.0);
        g.reciprocal(d).into()
    }),
    flops: 12,
    ..Unary::BASE
};

const RELU: Unary = Unary {
    name: "core.relu",
    formula: "max(x, 0); the derivative at 0 is 0",
    source: "Nair and Hinton, 2010",
    reference: |x, _| if x.is_nan() { x } else { x.max(0.0) },
    derivative: Vjp(|g, x, _, dy, _| {
        let zero = g.num(x, 0.0);
        let above = g.greater_than(x, zero);
        g.select(above, dy, zero).into()
    }),
    decompose: Some(|g, x, _| {
        let zero = g.num(x, 0.0);
        g.maximum(x, zero).into()
    }),
    ..Unary::BASE
};

const LEAKY_RELU: Unary = Unary {
    name: "core.leaky_relu",
    formula: "x if x > 0, else negative_slope * x",
    source: "Maas, Hannun and Ng, 2013",
    attrs: &["negative_slope"],
    sample_attrs: &[0.125],
    reference: |x, p| if x > 0.0 { x } else { p[0] * x },
    derivative: Vjp(|g, x, _, dy, p| {
        let zero = g.num(x, 0.0);
        let above = g.greater_than(x, zero);
        let scaled = g.times(dy, p[0]);
        g.select(above, dy, scaled).into()
    }),
    decompose: Some(|g, x, p| {
        let zero = g.num(x, 0.0);
        let above = g.greater_than(x, zero);
        let scaled = g.times(x, p[0]);
        g.select(above, x, scaled).into()
    }),
    flops: 2,
    ..Unary::BASE
};

const SOFTPLUS: Unary = Unary {
    name: "core.softplus",
    formula: "ln(1 + e^x)",
    source: "Dugas et al., 2001",
    reference: |x, _| x.max(0.0) + (-x.abs()).exp().ln_1p(),
    derivative: Vjp(|g, x, _, dy, _| {
        let s = g.sigmoid(x);
        g.mul(dy, s).into()
    }),
    decompose: Some(|g, x, _| {
        // max(x, 0) + ln(1 + e^-|x|) does not overflow.
        let a = g.abs(x);
        let n = g.neg(a);
        let e = g.exp(n);
        let d = g.plus(e, 1.0);
        let l = g.log(d);
        let r = g.relu(x);
        g.add(r, l).into()
    }),
    flops: 20,
    ..Unary::BASE
};

const SILU: Unary = Unary {
    name: "core.silu",
    formula: "x * sigmoid(x)",
    source: "Elfwing, Uchibe and Doya, 2017; also called swish",
    reference: |x, _| x / (1.0 + (-x).exp()),
    derivative: Vjp(|g, x, y, dy, _| {
        // s + y (1 - s) = y + s (1 - y)
        let s = g.sigmoid(x);
        let sy = g.mul(s, y);
        let r = g.sub(s, sy);
        let r = g.add(y, r);
        g.mul(dy, r).into()
    }),
    decompose: Some(|g, x, _| {
        let s = g.sigmoid(x);
        g.mul(x, s).into()
    }),
    flops: 13,
    ..Unary::BASE
};

const ERF: Unary = Unary {
    name: "core.erf",
    formula: "2 / sqrt(pi) * integral of e^(-t^2) from 0 to x",
    source: "Abramowitz and Stegun, chapter 7",
    reference: |x, _| erf(x),
    derivative: Vjp(|g, x, _, dy, _| {
        let square = g.square(x);
        let minus = g.neg(square);
        let e = g.exp(minus);
        let d = g.times(e, 2.0 / PI.sqrt());
        g.mul(dy, d).into()
    }),
    decompose: Some(erf_decomposed),
    flops: 20,
    ..Unary::BASE
};

const CLAMP: Unary = Unary {
    name: "core.clamp",
    formula: "min(max(x, low), high); the derivative is 1 for low <= x <= high, else 0",
    attrs: &["low", "high"],
    sample_attrs: &[-1.0, 1.5],
    check: |p| {
        (p[0].partial_cmp(&p[1]).is_none_or(|o| o.is_gt())).then_some("low must not be above high, nor either NaN")
    },
    reference: |x, p| if x.is_nan() { x } else { x.max(p[0]).min(p[1]) },
    derivative: Vjp(|g, x, y, dy, _| {
        // x is within the limits exactly if clamping did not change it.
        let zero = g.num(x, 0.0);
        let inside = g.equal(x, y);
        g.select(inside, dy, zero).into()
    }),
    decompose: Some(|g, x, p| {
        let low = g.num(x, p[0]);
        let high = g.num(x, p[1]);
        let m = g.maximum(x, low);
        g.minimum(m, high).into()
    }),
    flops: 2,
    ..Unary::BASE
};

builders! {
    /// Computes the base-2 logarithm.
    log2(LOG2);
    /// Computes 2 to the power of `x`.
    exp2(EXP2);
    /// Computes the sine of `x` radians.
    sin(SIN);
    /// Computes `1 / x`.
    reciprocal(RECIPROCAL);
    /// Computes the square root.
    sqrt(SQRT);
    /// Computes `-x`; floats and `i32`.
    neg(NEG);
    /// Computes the absolute value; floats and `i32`.
    abs(ABS);
    /// Computes e to the power of `x`.
    exp(EXP);
    /// Computes the natural logarithm.
    log(LOG);
    /// Computes `1 / sqrt(x)`.
    rsqrt(RSQRT);
    /// Computes `x * x`.
    square(SQUARE);
    /// Computes the hyperbolic tangent.
    tanh(TANH);
    /// Computes the logistic function.
    sigmoid(SIGMOID);
    /// Computes `max(x, 0)`.
    relu(RELU);
    /// Computes `x` where positive, else `negative_slope * x`.
    leaky_relu(LEAKY_RELU, negative_slope);
    /// Computes `ln(1 + e^x)`.
    softplus(SOFTPLUS);
    /// Computes `x * sigmoid(x)`.
    silu(SILU);
    /// Computes the error function.
    erf(ERF);
    /// Clamps `x` to `[low, high]`.
    clamp(CLAMP, low, high);
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_matches_published_values() {
        // Abramowitz and Stegun, table 7.1.
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
        ];
        for (x, y) in table {
            assert!((erf(x) - y).abs() < 1e-10, "{x}");
            assert!((erf(-x) + y).abs() < 1e-10, "{x}");
        }
        assert!((erf(2.4999) - erf(2.5001)).abs() < 1e-6, "the two forms meet");
    }
}
