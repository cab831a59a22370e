//! The table of piecewise activations, and their builder methods.

use super::unary::{Derivative::Vjp, Unary, builders};

/// All operators of this table.
pub(super) static ROWS: &[Unary] = &[ELU, HARD_SIGMOID, HARD_SWISH];

const ELU: Unary = Unary {
    name: "core.elu",
    formula: "x if x > 0, else alpha (e^x - 1)",
    source: "Clevert, Unterthiner and Hochreiter, 2016",
    attrs: &["alpha"],
    sample_attrs: &[0.75],
    check: |p| (!p[0].is_finite()).then_some("alpha must be a finite number"),
    reference: |x, p| if x > 0.0 { x } else { p[0] * x.exp_m1() },
    derivative: Vjp(|g, x, y, dy, p| {
        // For negative x, alpha e^x = y + alpha.
        let zero = g.num(x, 0.0);
        let above = g.greater_than(x, zero);
        let slope = g.plus(y, p[0]);
        let scaled = g.mul(dy, slope);
        g.select(above, dy, scaled).into()
    }),
    decompose: Some(|g, x, p| {
        let zero = g.num(x, 0.0);
        let above = g.greater_than(x, zero);
        let e = g.expm1(x);
        let scaled = g.times(e, p[0]);
        g.select(above, x, scaled).into()
    }),
    flops: 10,
    ..Unary::BASE
};

const HARD_SIGMOID: Unary = Unary {
    name: "core.hard_sigmoid",
    formula: "min(max(x + 3, 0), 6) / 6; the derivative at -3 and 3 is 0",
    source: "Howard et al., 2019",
    reference: |x, _| {
        let v = x + 3.0;
        if v.is_nan() { v } else { v.clamp(0.0, 6.0) / 6.0 }
    },
    derivative: Vjp(|g, x, _, dy, _| {
        let zero = g.num(x, 0.0);
        let three = g.num(x, 3.0);
        let size = g.abs(x);
        let inside = g.less_than(size, three);
        let sixth = g.times(dy, 1.0 / 6.0);
        g.select(inside, sixth, zero).into()
    }),
    decompose: Some(|g, x, _| {
        let shifted = g.plus(x, 3.0);
        let limited = g.clamp(shifted, 0.0, 6.0);
        g.times(limited, 1.0 / 6.0).into()
    }),
    domain: (-5.0, 5.0),
    flops: 4,
    ..Unary::BASE
};

const HARD_SWISH: Unary = Unary {
    name: "core.hard_swish",
    formula: "x min(max(x + 3, 0), 6) / 6; the derivative is 0 for x <= -3 and 1 for x >= 3",
    source: "Howard et al., 2019",
    reference: |x, _| {
        let v = x + 3.0;
        if v.is_nan() { v } else { x * v.clamp(0.0, 6.0) / 6.0 }
    },
    derivative: Vjp(|g, x, _, dy, _| {
        // The derivative is x / 3 + 1/2 between -3 and 3.
        let zero = g.num(x, 0.0);
        let (low, high) = (g.num(x, -3.0), g.num(x, 3.0));
        let third = g.times(x, 1.0 / 3.0);
        let slope = g.plus(third, 0.5);
        let middle = g.mul(dy, slope);
        let right = g.less_equal(high, x);
        let inner = g.select(right, dy, middle);
        let left = g.less_equal(x, low);
        g.select(left, zero, inner).into()
    }),
    decompose: Some(|g, x, _| {
        let gate = g.hard_sigmoid(x);
        g.mul(x, gate).into()
    }),
    domain: (-5.0, 5.0),
    flops: 5,
    ..Unary::BASE
};

builders! {
    /// Computes `x` where positive, else `alpha * (e^x - 1)`.
    elu(ELU, alpha);
    /// Computes `min(max(x + 3, 0), 6) / 6`: a piecewise linear sigmoid.
    hard_sigmoid(HARD_SIGMOID);
    /// Computes `x * min(max(x + 3, 0), 6) / 6`.
    hard_swish(HARD_SWISH);
}
