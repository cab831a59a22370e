//! The table of functions that are accurate near zero, and the cosine; and their builder methods.

use std::f64::consts::PI;

use super::unary::{Derivative::Vjp, Unary, builders};

/// All operators of this table.
pub(super) static ROWS: &[Unary] = &[COS, EXPM1, LOG1P];

const COS: Unary = Unary {
    name: "core.cos",
    formula: "cos(x), x in radians",
    reference: |x, _| x.cos(),
    derivative: Vjp(|g, x, _, dy, _| {
        let sin = g.sin(x);
        let r = g.mul(dy, sin);
        g.neg(r).into()
    }),
    decompose: Some(|g, x, _| {
        let shifted = g.plus(x, PI / 2.0);
        g.sin(shifted).into()
    }),
    flops: 10,
    ..Unary::BASE
};

const EXPM1: Unary = Unary {
    name: "core.expm1",
    formula: "e^x - 1, accurate near 0",
    source: "C99 `expm1`; decomposed by Kahan's quotient (Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1)",
    reference: |x, _| x.exp_m1(),
    derivative: Vjp(|g, _, y, dy, _| {
        let e = g.plus(y, 1.0);
        g.mul(dy, e).into()
    }),
    decompose: Some(|g, x, _| {
        // (u - 1) x / ln(u) with u = e^x: the rounding errors of u - 1 and ln(u) cancel in the quotient. Where u
        // rounds to 1 the result is x; far from 1, where u may be 0, subnormal or infinite, u - 1 loses nothing.
        let one = g.num(x, 1.0);
        let (low, high) = (g.num(x, 0.25), g.num(x, 4.0));
        let u = g.exp(x);
        let d = g.plus(u, -1.0);
        let log = g.log(u);
        let ratio = g.div(x, log);
        let corrected = g.mul(d, ratio);
        let flat = g.equal(u, one);
        let r = g.select(flat, x, corrected);
        let below = g.less_than(u, low);
        let r = g.select(below, d, r);
        let above = g.less_than(high, u);
        g.select(above, d, r).into()
    }),
    flops: 10,
    ..Unary::BASE
};

const LOG1P: Unary = Unary {
    name: "core.log1p",
    formula: "ln(1 + x), accurate near 0",
    source: "C99 `log1p`; decomposed by Kahan's quotient (Goldberg, 1991, theorem 4)",
    reference: |x, _| x.ln_1p(),
    derivative: Vjp(|g, x, _, dy, _| {
        let u = g.plus(x, 1.0);
        g.div(dy, u).into()
    }),
    decompose: Some(|g, x, _| {
        // ln(u) x / (u - 1) with u = 1 + x rounded, and x where u is 1.
        let one = g.num(x, 1.0);
        let infinity = g.num(x, f64::INFINITY);
        let u = g.plus(x, 1.0);
        let d = g.plus(u, -1.0);
        let log = g.log(u);
        let ratio = g.div(x, d);
        let corrected = g.mul(log, ratio);
        let flat = g.equal(u, one);
        let r = g.select(flat, x, corrected);
        let infinite = g.equal(u, infinity);
        g.select(infinite, u, r).into()
    }),
    domain: (-0.9, 9.0),
    flops: 10,
    ..Unary::BASE
};

builders! {
    /// Computes the cosine of `x` radians.
    cos(COS);
    /// Computes `e^x - 1`, accurate near 0.
    expm1(EXPM1);
    /// Computes `ln(1 + x)`, accurate near 0.
    log1p(LOG1P);
}

#[cfg(test)]
mod tests {
    use crate::graph::{Graph, NodeId};
    use crate::reference::{evaluate, evaluate_call, evaluate_decomposed};

    /// Checks that decomposition and definition agree, relative to each result.
    fn agree(build: fn(&mut Graph, NodeId) -> NodeId, values: &[f64]) {
        let mut g = Graph::new();
        let x = g.input("x", &[values.len()]);
        let y = build(&mut g, x);
        g.set_outputs(vec![y]);
        let feeds = [("x".to_owned(), values.to_vec())].into();
        let all = evaluate(&g, &feeds).expect("evaluates");
        let node = &g.nodes()[y.index()];
        let (op, attrs) = node.op().expect("a call");
        let operand = all.get(x).expect("the operand");
        let want = evaluate_call(op, attrs, &[operand], &node.outputs).expect("a definition");
        let got = evaluate_decomposed(op, attrs, &[operand], &node.outputs).expect("a decomposition");
        for ((x, want), got) in values.iter().zip(&want[0].data).zip(&got[0].data) {
            let close = want == got || (want.is_nan() && got.is_nan()) || ((want - got) / want).abs() < 1e-7;
            assert!(close, "{} of {x}: {got}, not {want}", op.name());
        }
    }

    const INF: f64 = f64::INFINITY;

    #[test]
    fn decompositions_are_accurate_near_zero_and_right_at_the_ends() {
        let near = [1e-3, -1e-3, 1e-8, -1e-8, 1e-12, -1e-15, 1e-17, 1e-300, 0.0, -0.0];
        agree(|g, x| g.log1p(x), &near);
        agree(|g, x| g.log1p(x), &[INF, f64::NAN, -1.0, -1.5, -INF, 1e30]);
        agree(|g, x| g.expm1(x), &near);
        agree(|g, x| g.expm1(x), &[INF, -INF, f64::NAN, -800.0, 800.0, -50.0, 5.0]);
    }
}
