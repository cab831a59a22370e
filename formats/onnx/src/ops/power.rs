//! Powers.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use super::cast::convert;
use super::elementwise::second;
use super::fold;
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) fn pow(call: &mut Call) -> Built {
    let (element, exponent_type) = (call.element(0)?, call.element(1)?);
    let exponent = call.tensor(1).filter(|t| t.len() == 1).map(|t| t.to_f64()[0]);
    let (x, by) = (call.value(0)?, second(call)?);
    if element.is_float() {
        let same_rank = call.dims(1)?.len() <= call.dims(0)?.len();
        if exponent == Some(2.0) && same_rank {
            let y = call.graph().square(x);
            return call.one(y, element);
        }
        if exponent == Some(0.5) && same_rank {
            let y = call.graph().sqrt(x);
            return call.one(y, element);
        }
        let by = convert(call, by, exponent_type, element);
        let y = call.graph().pow(x, by);
        return call.one(y, element);
    }
    let is_whole = |t: &Tensor| t.to_f64().iter().all(|v| v.fract() == 0.0 && v.abs() < 2f64.powi(31));
    let (y, flag) = if !exponent_type.is_float() || call.tensor(1).is_some_and(is_whole) {
        let by = call.as_element(by, ElementType::I32);
        integer_power(call, x, by, element)
    } else {
        let by = call.as_f32(by);
        real_power(call, x, by, element)
    };
    if element.bits() == 64 {
        call.guard(flag, y, element);
    }
    let y = call.wrap(y, element);
    call.one(y, element)
}

/// Returns powers of integers with `f32` exponents, and a flag for uncertain ones. Fractions truncate, but `f32` may round a
/// power near an integer to this integer.
fn real_power(call: &mut Call, x: Value, by: Value, element: ElementType) -> (Value, Value) {
    let graph = call.graph();
    let whole = graph.round(by);
    let is_whole = graph.equal(by, whole);
    let whole = graph.cast(whole, DType::I32);
    let (exact, overflows) = integer_power(call, x, whole.into(), element);
    let base = call.as_f32(x);
    let (relative, one) = (
        call.scalar(ElementType::F32, 2f64.powi(-18)),
        call.scalar(ElementType::F32, 1.0),
    );
    let graph = call.graph();
    let power = graph.pow(base, by);
    let nearest = graph.round(power);
    let distance = graph.sub(power, nearest);
    let (distance, size) = (graph.abs(distance), graph.abs(power));
    let tolerance = graph.mul(size, relative);
    let is_near = graph.less_equal(distance, tolerance);
    let power = graph.select(is_near, nearest, power);
    // Powers of 0 and 1 are exact.
    let is_large = graph.greater_than(base, one);
    let is_unsure = graph.logical_and(is_near, is_large);
    let power = call.as_element(power.into(), element);
    let graph = call.graph();
    let y = graph.select(is_whole, exact, power);
    let flag = graph.select(is_whole, overflows, is_unsure);
    (y.into(), flag.into())
}

/// Returns powers of integers with `i32` exponents, by squaring, and a flag that is raised if they exceed 32 bits.
fn integer_power(call: &mut Call, x: Value, by: Value, element: ElementType) -> (Value, Value) {
    let one = call.scalar(element, 1.0);
    let nothing = call.scalar(element, 0.0);
    let zero = call.scalar(ElementType::I32, 0.0);
    let graph = call.graph();
    let unsigned = |graph: &mut Graph, value: u32| graph.scalar_of(DType::U32, value.into());
    let (bit, most) = (unsigned(graph, 1), unsigned(graph, 62));
    let size = graph.abs(by);
    let size = graph.cast(size, DType::U32);
    let odd = graph.bit_and(size, bit);
    // For 0, 1 and -1, larger exponents give the same result; for all other bases, the power does not fit.
    let held = graph.add(most, odd);
    let is_large = graph.greater_than(size, most);
    let exponent = graph.select(is_large, held, size);
    let (mut y, mut square): (Value, Value) = (one, x);
    for i in 0..6 {
        let at = unsigned(graph, i);
        let shifted = graph.shift_right(exponent, at);
        let is_set = graph.bit_and(shifted, bit);
        let more = graph.mul(y, square);
        y = graph.select(is_set, more, y).into();
        square = graph.mul(square, square).into();
    }
    // A negative power is a fraction, which truncates to 0, unless the base is 1 or -1.
    let is_one = if element.is_signed() {
        let base = graph.abs(x);
        graph.equal(base, one)
    } else {
        graph.equal(x, one)
    };
    let is_negative = graph.less_than(by, zero);
    let fraction = graph.select(is_one, y, nothing);
    let y = graph.select(is_negative, fraction, y).into();
    let (floats, exponents) = (call.as_f32(x), call.as_f32(exponent.into()));
    let small = call.as_f32(y);
    let none = call.scalar(ElementType::F32, 0.0);
    let graph = call.graph();
    let base = graph.abs(floats);
    let power = graph.pow(base, exponents);
    let opposite = graph.neg(power);
    let is_below = graph.less_than(floats, none);
    let is_opposite = graph.logical_and(is_below, odd);
    let power = graph.select(is_opposite, opposite, power);
    let power = graph.select(is_negative, small, power);
    (y, call.is_far(power.into(), y))
}

pub(super) fn fold_pow(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    if fold::names_axis(call) {
        return Ok(None);
    }
    let [Some(x), Some(by)] = operands else { return Ok(None) };
    let by = by.cast(x.element());
    let of_ints = |a: i64, b: i64| u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
    fold::binary(&[Some(x), Some(&by)], of_ints, f64::powf)
}
