//! The table of binary elementwise operators, and their builder methods.

use super::binary::{Binary, call};
use crate::NodeId;
use crate::graph::{Graph, Value};

/// All operators of this table.
pub(super) static ROWS: &[Binary] = &[ADD, SUB, MUL, DIV, MOD, POW, MAX, MIN];

const WIDE: [(f64, f64); 2] = [(-3.0, 3.0), (-3.0, 3.0)];

const ADD: Binary = Binary {
    name: "core.add",
    formula: "a + b; integers wrap",
    reference: |a, b| a + b,
    integers: Some(|a, b| a + b),
    vjp: |_, _, _, _, dy| [Some(dy), Some(dy)],
    decompose: None,
    domain: WIDE,
    flops: 1,
};

const SUB: Binary = Binary {
    name: "core.sub",
    formula: "a - b; integers wrap",
    reference: |a, b| a - b,
    integers: Some(|a, b| a - b),
    vjp: |g, _, _, _, dy| [Some(dy), Some(g.neg(dy).into())],
    decompose: Some(|g, a, b| {
        // Multiplying by the all-ones word negates unsigned numbers as well.
        let dtype = g.dtype(b);
        let minus_one = if dtype == crate::DType::U32 {
            f64::from(u32::MAX)
        } else {
            -1.0
        };
        let minus_one = g.scalar_of(dtype, minus_one);
        let negative = g.mul(b, minus_one);
        g.add(a, negative).into()
    }),
    domain: WIDE,
    flops: 1,
};

const MUL: Binary = Binary {
    name: "core.mul",
    formula: "a * b; integers wrap",
    reference: |a, b| a * b,
    integers: Some(|a, b| a * b),
    vjp: |g, a, b, _, dy| [Some(g.mul(dy, b).into()), Some(g.mul(dy, a).into())],
    decompose: None,
    domain: WIDE,
    flops: 1,
};

const DIV: Binary = Binary {
    name: "core.div",
    formula: "a / b; integers truncate towards zero, and give 0 for b = 0",
    reference: |a, b| a / b,
    integers: Some(|a, b| a.checked_div(b).unwrap_or(0)),
    vjp: |g, _, b, y, dy| {
        let da = g.div(dy, b);
        let db = g.mul(da, y);
        [Some(da.into()), Some(g.neg(db).into())]
    },
    decompose: None,
    domain: [(-3.0, 3.0), (0.4, 3.0)],
    flops: 4,
};

const MOD: Binary = Binary {
    name: "core.mod",
    formula: "a - b floor(a / b), of the sign of b; integers give 0 for b = 0",
    reference: |a, b| {
        let r = a % b;
        if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
    },
    integers: Some(|a, b| {
        let r = a.checked_rem(b).unwrap_or(0);
        if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
    }),
    vjp: |g, a, b, y, dy| {
        // floor(a / b) = (a - y) / b, piecewise constant
        let difference = g.sub(a, y);
        let quotient = g.div(difference, b);
        let db = g.mul(dy, quotient);
        [Some(dy), Some(g.neg(db).into())]
    },
    decompose: None,
    // One quotient for the whole range, away from the jumps.
    domain: [(1.1, 1.9), (2.1, 2.9)],
    flops: 8,
};

const POW: Binary = Binary {
    name: "core.pow",
    formula: "a ^ b; the derivative by b is 0 where a <= 0",
    reference: f64::powf,
    integers: None,
    vjp: |g, a, b, y, dy| {
        // b a^(b-1) rather than b y / a: right at a = 0
        let dtype = g.dtype(a);
        let one = g.scalar_of(dtype, 1.0);
        let b1 = g.sub(b, one);
        let power = g.pow(a, b1);
        let slope = g.mul(b, power);
        // a^0 is 1 everywhere; 0 * 0^-1 would be NaN
        let zero = g.scalar_of(dtype, 0.0);
        let constant = g.equal(b, zero);
        let slope = g.select(constant, zero, slope);
        let da = g.mul(dy, slope);
        // ln(a) y, and 0 where a = 0: the limit for b > 0
        let log = g.log(a);
        let positive = g.greater_than(a, zero);
        let log = g.select(positive, log, zero);
        let r = g.mul(y, log);
        let r = g.select(positive, r, zero);
        let db = g.mul(dy, r);
        [Some(da.into()), Some(db.into())]
    },
    // Positive bases only, where 2^(b log2 a) is the same; backends have kernels for the rest.
    decompose: None,
    domain: [(0.2, 3.0), (-2.0, 2.0)],
    flops: 24,
};

const MAX: Binary = Binary {
    name: "core.max",
    formula: "the larger of a and b, NaN if either is; at a tie each gets half of the gradient",
    reference: |a, b| {
        if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
    },
    integers: Some(|a, b| a.max(b)),
    vjp: |g, a, b, _, dy| extremum(g, a, b, dy),
    decompose: Some(|g, a, b| {
        let below = g.less_than(a, b);
        let larger = g.select(below, b, a);
        nan_from_second(g, b, larger)
    }),
    domain: WIDE,
    flops: 1,
};

const MIN: Binary = Binary {
    name: "core.min",
    formula: "the smaller of a and b, NaN if either is; at a tie each gets half of the gradient",
    reference: |a, b| {
        if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
    },
    integers: Some(|a, b| a.min(b)),
    // `a` is the smaller where `b` is the larger.
    vjp: |g, a, b, _, dy| extremum(g, b, a, dy),
    decompose: Some(|g, a, b| {
        let below = g.less_than(b, a);
        let smaller = g.select(below, b, a);
        nan_from_second(g, b, smaller)
    }),
    domain: WIDE,
    flops: 1,
};

/// Returns `b` where it is NaN, else `otherwise`: a comparison with a NaN is false, so the selection has returned `a`,
/// and lost a NaN of `b`.
fn nan_from_second(g: &mut Graph, b: Value, otherwise: NodeId) -> Value {
    if g.dtype(b).is_integer() {
        return otherwise.into();
    }
    let number = g.equal(b, b);
    g.select(number, otherwise, b).into()
}

/// Returns the gradients of `max(a, b)`.
fn extremum(g: &mut Graph, a: Value, b: Value, dy: Value) -> [Option<Value>; 2] {
    let dtype = g.dtype(dy);
    let zero = g.scalar_of(dtype, 0.0);
    let half = g.scalar_of(dtype, 0.5);
    let half = g.mul(dy, half);
    let a_wins = g.less_than(b, a);
    let b_wins = g.less_than(a, b);
    let share = g.select(b_wins, zero, half);
    let da = g.select(a_wins, dy, share);
    let share = g.select(a_wins, zero, half);
    let db = g.select(b_wins, dy, share);
    [Some(da.into()), Some(db.into())]
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($row:ident);)*) => {
        impl Graph {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
                static ROW: Binary = $row;
                call(self, &ROW, a.into(), b.into())
            })*
        }
    };
}

builders! {
    /// Computes `a + b` with NumPy broadcasting; integers wrap.
    add(ADD);
    /// Computes `a - b` with NumPy broadcasting; integers wrap.
    sub(SUB);
    /// Computes `a * b` with NumPy broadcasting; integers wrap.
    mul(MUL);
    /// Computes `a / b` with NumPy broadcasting; integer quotients are truncated, and 0 if `b` is 0.
    div(DIV);
    /// Computes `a - b floor(a / b)`, whose sign is that of `b`, with NumPy broadcasting.
    modulo(MOD);
    /// Computes `a` to the power of `b` with NumPy broadcasting.
    pow(POW);
    /// Returns the larger of `a` and `b`, element by element, with NumPy broadcasting; [`Graph::max`] reduces.
    maximum(MAX);
    /// Returns the smaller of `a` and `b`, element by element, with NumPy broadcasting; [`Graph::min`] reduces.
    minimum(MIN);
}
