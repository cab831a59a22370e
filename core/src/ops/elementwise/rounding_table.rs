//! The table of piecewise constant functions, and their builder methods. Their derivative is 0 wherever it
//! exists.

use super::unary::{Unary, builders};

/// All operators of this table.
pub(super) static ROWS: &[Unary] = &[CEIL, FLOOR, ROUND, SIGN];

const CEIL: Unary = Unary {
    name: "core.ceil",
    formula: "the smallest integer >= x; infinities and NaN stay; the derivative is 0",
    reference: |x, _| x.ceil(),
    decompose: Some(|g, x, _| {
        let n = g.neg(x);
        let f = g.floor(n);
        g.neg(f).into()
    }),
    ..Unary::BASE
};

const FLOOR: Unary = Unary {
    name: "core.floor",
    formula: "the greatest integer <= x; infinities and NaN stay; the derivative is 0",
    reference: |x, _| x.floor(),
    decompose: Some(|g, x, _| {
        // The remainder of an infinity (or NaN) is NaN: the result is then x. Just below an integer, the remainder may
        // round to 1; x - 1 then rounds to the integer below x.
        let one = g.num(x, 1.0);
        let rest = g.modulo(x, one);
        let whole = g.sub(x, rest);
        let finite = g.equal(rest, rest);
        g.select(finite, whole, x).into()
    }),
    ..Unary::BASE
};

const ROUND: Unary = Unary {
    name: "core.round",
    formula: "the nearest integer, the even one of two; infinities and NaN stay; the derivative is 0",
    source: "IEEE 754 roundToIntegralTiesToEven",
    reference: |x, _| x.round_ties_even(),
    decompose: Some(|g, x, _| {
        let (half, two) = (g.num(x, 0.5), g.num(x, 2.0));
        let zero = g.num(x, 0.0);
        let below = g.floor(x);
        let rest = g.sub(x, below);
        let tie = g.equal(rest, half);
        // At a tie, round an odd `below` up. The remainder of an infinity is NaN, for which all
        // comparisons are false.
        let odd = g.modulo(below, two);
        let share = g.select(tie, odd, zero);
        let more = g.greater_than(rest, half);
        let up = g.plus(below, 1.0);
        let odd = g.greater_than(share, zero);
        let r = g.select(more, up, below);
        g.select(odd, up, r).into()
    }),
    flops: 2,
    ..Unary::BASE
};

const SIGN: Unary = Unary {
    name: "core.sign",
    formula: "1 if x > 0, -1 if x < 0, else x: 0 stays 0 and NaN stays NaN; the derivative is 0",
    reference: |x, _| {
        if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            x
        }
    },
    decompose: Some(|g, x, _| {
        let zero = g.num(x, 0.0);
        let (one, minus) = (g.num(x, 1.0), g.num(x, -1.0));
        let above = g.greater_than(x, zero);
        let below = g.less_than(x, zero);
        let r = g.select(below, minus, x);
        g.select(above, one, r).into()
    }),
    integers: true,
    ..Unary::BASE
};

builders! {
    /// Rounds up: returns the smallest integer not below `x`, as a float.
    ceil(CEIL);
    /// Rounds down: returns the greatest integer not above `x`, as a float.
    floor(FLOOR);
    /// Rounds to the nearest integer, as a float; halves go to the even integer.
    round(ROUND);
    /// Returns 1 where positive, -1 where negative, else `x` (0 and NaN); floats and `i32`.
    sign(SIGN);
}

#[cfg(test)]
mod tests {
    use crate::graph::{Graph, NodeId};
    use crate::reference::{evaluate, evaluate_decomposed};

    type Build = fn(&mut Graph, NodeId) -> NodeId;
    type Exact = fn(f64) -> f64;

    fn decomposed(build: Build, values: &[f64]) -> Vec<f64> {
        let mut g = Graph::new();
        let x = g.input("x", &[values.len()]);
        let y = build(&mut g, x);
        g.set_outputs(vec![y]);
        let feeds = [("x".to_owned(), values.to_vec())].into();
        let all = evaluate(&g, &feeds).expect("evaluates");
        let node = &g.nodes()[y.index()];
        let (op, attrs) = node.op().expect("a call");
        let operand = all.get(x).expect("the operand");
        let got = evaluate_decomposed(op, attrs, &[operand], &node.outputs).expect("a decomposition");
        got[0].data.clone()
    }

    #[test]
    fn decompositions_round_edge_values() {
        let inf = f64::INFINITY;
        let x = [
            inf, -inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 1e-9, -1e-9, 0.4999999, 1e15, -3e20, 7.0, -7.0,
        ];
        let cases: [(Build, Exact); 4] = [
            (|g, x| g.floor(x), f64::floor),
            (|g, x| g.ceil(x), f64::ceil),
            (|g, x| g.round(x), f64::round_ties_even),
            (|g, x| g.sign(x), |x| if x == 0.0 { 0.0 } else { x.signum() }),
        ];
        for (build, want) in cases {
            let want: Vec<f64> = x.iter().map(|&x| want(x)).collect();
            assert_eq!(decomposed(build, &x), want);
            assert!(decomposed(build, &[f64::NAN])[0].is_nan());
        }
    }
}
