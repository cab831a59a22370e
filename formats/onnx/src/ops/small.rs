//! Rounding to floating-point types of 8 and 4 bits.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use crate::import::Call;
use crate::small::SmallFloat;

fn number(g: &mut Graph, value: f32) -> NodeId {
    g.scalar_of(DType::F32, value.into())
}

/// Rounds to the nearest numbers of a type (to even in a tie), as `f32`. Larger values become the maximum; if `saturate` is
/// false, they become the type's value beyond the maximum.
pub(super) fn rounded(call: &mut Call, x: Value, small: SmallFloat, saturate: bool) -> Value {
    let x = call.as_f32(x);
    let g = call.graph();
    let size = g.abs(x);
    // The distance between neighbours doubles at each power of two; division and multiplication by it are exact.
    let mut step = number(g, 2f32.powi(small.lowest() - small.mantissa));
    for exponent in small.lowest() + 1..=small.highest() {
        let from = number(g, 2f32.powi(exponent));
        let wider = number(g, 2f32.powi(exponent - small.mantissa));
        let there = g.greater_equal(size, from);
        step = g.select(there, wider, step);
    }
    let steps = g.div(x, step);
    let whole = g.round(steps);
    let y = g.mul(whole, step);
    let (low, high) = (number(g, -small.max), number(g, small.max));
    let (below, above) = (g.less_than(y, low), g.greater_than(y, high));
    let beyond = if saturate { small.max } else { small.beyond };
    let (negative, positive) = (number(g, -beyond), number(g, beyond));
    let held = g.select(below, negative, y);
    let held = g.select(above, positive, held);
    let missing = g.not_equal(x, x);
    let nan = number(g, small.nan);
    g.select(missing, nan, held).into()
}
