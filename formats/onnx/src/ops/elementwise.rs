//! Functions of single elements: arithmetic, comparisons, logic, casts and activations.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::{OnnxOp, fold, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::small::SmallFloat;
use crate::tensor::{Data, Tensor};

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Abs", 1, abs).folding(|_, x| fold::unary(x, Some(i64::wrapping_abs), f64::abs)),
    op("Add", 1, |c| arithmetic(c, |g, a, b| g.add(a, b)))
        .folding(|c, x| fold::pair(c, x, i64::checked_add, |a, b| a + b)),
    op("And", 1, |c| comparison(c, |g, a, b| g.logical_and(a, b)))
        .folding(|c, x| fold::pair(c, x, |a, b| Some(a & b), |a, _| a)),
    op("BitShift", 11, bit_shift),
    op("BitwiseAnd", 18, |c| bitwise(c, |g, a, b| g.bit_and(a, b))),
    op("BitwiseNot", 18, bitwise_not),
    op("BitwiseOr", 18, |c| bitwise(c, |g, a, b| g.bit_or(a, b))),
    op("BitwiseXor", 18, |c| bitwise(c, |g, a, b| g.bit_xor(a, b))),
    op("Cast", 6, cast).folding(fold_cast).partly("strings and float8e8m0"),
    op("CastLike", 15, cast_like)
        .folding(fold_cast_like)
        .partly("strings and float8e8m0"),
    op("Ceil", 1, |c| float(c, |g, x| g.ceil(x))).folding(|_, x| fold::unary(x, None, f64::ceil)),
    op("Clip", 1, clip).folding(fold_clip),
    op("Div", 1, |c| arithmetic(c, |g, a, b| g.div(a, b)))
        .folding(|c, x| fold::pair(c, x, i64::checked_div, |a, b| a / b)),
    op("Equal", 1, |c| comparison(c, |g, a, b| g.equal(a, b)))
        .folding(|c, x| fold::compare_pair(c, x, |a, b| a == b, |a, b| a == b))
        .partly("strings"),
    op("Exp", 1, |c| float(c, |g, x| g.exp(x))).folding(|_, x| fold::unary(x, None, f64::exp)),
    op("Floor", 1, |c| float(c, |g, x| g.floor(x))).folding(|_, x| fold::unary(x, None, f64::floor)),
    op("Greater", 1, |c| comparison(c, |g, a, b| g.greater_than(a, b)))
        .folding(|c, x| fold::compare_pair(c, x, |a, b| a > b, |a, b| a > b)),
    op("GreaterOrEqual", 12, |c| comparison(c, |g, a, b| g.greater_equal(a, b)))
        .folding(|_, x| fold::compare(x, |a, b| a >= b, |a, b| a >= b)),
    op("Identity", 1, identity)
        .folding(fold::first)
        .partly("optional values"),
    op("IsInf", 10, is_inf),
    op("IsNaN", 9, is_nan),
    op("Less", 1, |c| comparison(c, |g, a, b| g.less_than(a, b)))
        .folding(|c, x| fold::compare_pair(c, x, |a, b| a < b, |a, b| a < b)),
    op("LessOrEqual", 12, |c| comparison(c, |g, a, b| g.less_equal(a, b)))
        .folding(|_, x| fold::compare(x, |a, b| a <= b, |a, b| a <= b)),
    op("Log", 1, |c| float(c, |g, x| g.log(x))).folding(|_, x| fold::unary(x, None, f64::ln)),
    op("Max", 1, |c| variadic(c, |g, a, b| g.maximum(a, b)))
        .folding(|_, x| fold::binary(x, |a, b| Some(a.max(b)), nan_max)),
    op("Mean", 1, mean),
    op("Min", 1, |c| variadic(c, |g, a, b| g.minimum(a, b)))
        .folding(|_, x| fold::binary(x, |a, b| Some(a.min(b)), nan_min)),
    op("Mod", 10, modulo).folding(fold_mod),
    op("Mul", 1, |c| arithmetic(c, |g, a, b| g.mul(a, b)))
        .folding(|c, x| fold::pair(c, x, i64::checked_mul, |a, b| a * b)),
    op("Neg", 1, negate).folding(|_, x| fold::unary(x, Some(i64::wrapping_neg), |v| -v)),
    op("Not", 1, not).folding(|_, x| fold::unary(x, Some(|v| i64::from(v == 0)), |v| v)),
    op("Or", 1, |c| comparison(c, |g, a, b| g.logical_or(a, b)))
        .folding(|c, x| fold::pair(c, x, |a, b| Some(a | b), |a, _| a)),
    op("Pow", 1, pow).folding(fold_pow),
    op("Reciprocal", 1, |c| float(c, |g, x| g.reciprocal(x))).folding(|_, x| fold::unary(x, None, f64::recip)),
    op("Relu", 1, relu).folding(|_, x| fold::unary(x, Some(|v| v.max(0)), |v| v.max(0.0))),
    op("Round", 11, |c| float(c, |g, x| g.round(x))).folding(|_, x| fold::unary(x, None, f64::round_ties_even)),
    op("Sign", 9, sign).folding(|_, x| fold::unary(x, Some(i64::signum), sign_of)),
    op("Sqrt", 1, |c| float(c, |g, x| g.sqrt(x))).folding(|_, x| fold::unary(x, None, f64::sqrt)),
    op("Sub", 1, |c| arithmetic(c, |g, a, b| g.sub(a, b)))
        .folding(|c, x| fold::pair(c, x, i64::checked_sub, |a, b| a - b)),
    op("Sum", 1, |c| variadic(c, |g, a, b| g.add(a, b)))
        .folding(|_, x| fold::binary(x, i64::checked_add, |a, b| a + b)),
    op("Where", 9, where_).folding(fold_where),
    op("Xor", 1, |c| comparison(c, |g, a, b| g.logical_xor(a, b)))
        .folding(|c, x| fold::pair(c, x, |a, b| Some(a ^ b), |a, _| a)),
];

fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn nan_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn sign_of(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// A function of a floating-point operand.
pub(super) fn float(call: &mut Call, f: fn(&mut Graph, Value) -> NodeId) -> Built {
    let x = call.value(0)?;
    let element = call.element(0)?;
    if !element.is_float() {
        return Err(format!("{element} is not a floating-point type"));
    }
    let y = f(call.graph(), x);
    call.one(y, element)
}

/// The second operand, with axes so that it broadcasts to the first: before version 7 attribute `axis` says which axis of that
/// its first one is.
fn second(call: &mut Call) -> Result<Value, String> {
    let b = call.value(1)?;
    if !fold::names_axis(call) {
        return Ok(b);
    }
    let rank = call.dims(0)?.len();
    let mut dims = call.dims(1)?;
    let axis = call.axis(call.int("axis", 0)?, rank)?;
    if axis + dims.len() > rank {
        return Err(format!("operands {} do not fit at axis {axis}", call.types()));
    }
    dims.resize(rank - axis, 1);
    Ok(call.graph().reshape(b, &dims).into())
}

/// An operator of two numbers.
fn arithmetic(call: &mut Call, f: fn(&mut Graph, Value, Value) -> NodeId) -> Built {
    let (a, b) = (call.value(0)?, second(call)?);
    let element = call.element(0)?;
    let y = f(call.graph(), a, b);
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

/// An operator of one or more numbers, from the left.
fn variadic(call: &mut Call, f: fn(&mut Graph, Value, Value) -> NodeId) -> Built {
    let element = call.element(0)?;
    let mut y = call.value(0)?;
    for i in 1..call.arity() {
        let x = call.value(i)?;
        y = f(call.graph(), y, x).into();
    }
    let y = call.wrap(y, element);
    call.one(y, element)
}

fn mean(call: &mut Call) -> Built {
    let count = call.arity() as f64;
    let sum = variadic(call, |g, a, b| g.add(a, b))?;
    let [sum] = sum.as_slice() else { return Ok(sum) };
    let element = sum.element;
    let sum = call.value_of(sum)?;
    let factor = call.scalar(element, 1.0 / count);
    let y = call.graph().mul(sum, factor);
    call.one(y, element)
}

fn comparison(call: &mut Call, f: fn(&mut Graph, Value, Value) -> NodeId) -> Built {
    let (a, b) = (call.value(0)?, second(call)?);
    let y = f(call.graph(), a, b);
    call.one(y, ElementType::Bool)
}

fn not(call: &mut Call) -> Built {
    let x = call.value(0)?;
    let y = call.graph().logical_not(x);
    call.one(y, ElementType::Bool)
}

/// An operator on bits: signed integers go through the unsigned ones of as many bits.
fn bitwise(call: &mut Call, f: fn(&mut Graph, Value, Value) -> NodeId) -> Built {
    let element = call.element(0)?;
    let (a, b) = (call.value(0)?, call.value(1)?);
    let graph = call.graph();
    let (a, b) = (graph.cast(a, DType::U32), graph.cast(b, DType::U32));
    let y = f(graph, a.into(), b.into());
    let y = graph.cast(y, element.dtype());
    call.one(y, element)
}

fn bitwise_not(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    let graph = call.graph();
    let x = graph.cast(x, DType::U32);
    let y = graph.bit_not(x);
    let y = graph.cast(y, element.dtype());
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

/// Shifts, of signed integers with their sign: what is shifted out to the left is gone, and to the right the sign fills up.
/// By a negative amount, or by all bits and more, only that filling is left.
fn bit_shift(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let left = match &*call.string("direction", "")? {
        "LEFT" => true,
        "RIGHT" => false,
        other => return Err(format!("direction `{other}` is neither LEFT nor RIGHT")),
    };
    let (x, by) = (call.value(0)?, call.value(1)?);
    let signed = element.is_signed();
    let zero = signed.then(|| call.scalar(element, 0.0));
    let graph = call.graph();
    // Negative amounts become large ones.
    let (bits, by) = (graph.cast(x, DType::U32), graph.cast(by, DType::U32));
    let (width, nothing) = (graph.scalar_of(DType::U32, 32.0), graph.scalar_of(DType::U32, 0.0));
    let inside = graph.less_than(by, width);
    let by = graph.select(inside, by, nothing);
    let shifted = |graph: &mut Graph, bits: NodeId| {
        let y = match left {
            true => graph.shift_left(bits, by),
            false => graph.shift_right(bits, by),
        };
        graph.select(inside, y, nothing)
    };
    let y = match zero {
        // A negative number to the right: zeros shift into its complement.
        Some(zero) if !left => {
            let negative = graph.less_than(x, zero);
            let complement = graph.bit_not(bits);
            let from = graph.select(negative, complement, bits);
            let y = shifted(graph, from);
            let complement = graph.bit_not(y);
            graph.select(negative, complement, y)
        }
        _ => shifted(graph, bits),
    };
    let y = graph.cast(y, element.dtype());
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

fn abs(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    let y = match element.is_float() || element.is_signed() {
        true => call.graph().abs(x).into(),
        false => x,
    };
    let y = call.wrap(y, element);
    call.one(y, element)
}

fn negate(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    let y = call.graph().neg(x);
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

fn sign(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    if element.is_float() || element.is_signed() {
        let y = call.graph().sign(x);
        return call.one(y, element);
    }
    let zero = call.scalar(element, 0.0);
    let y = call.graph().greater_than(x, zero);
    call.one(y, element)
}

fn relu(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    if element.is_float() {
        let y = call.graph().relu(x);
        return call.one(y, element);
    }
    let zero = call.scalar(element, 0.0);
    let y = call.graph().maximum(x, zero);
    call.one(y, element)
}

fn identity(call: &mut Call) -> Built {
    Ok(vec![call.operand(0)?.clone()])
}

/// The type that attribute `to` names.
fn target(call: &Call) -> Result<ElementType, String> {
    ElementType::from_number(call.int("to", 0)?)
}

fn cast(call: &mut Call) -> Built {
    let to = target(call)?;
    cast_to(call, to)
}

fn cast_like(call: &mut Call) -> Built {
    let to = call.element(1)?;
    cast_to(call, to)
}

fn fold_cast(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x)] = operands else { return Ok(None) };
    let to = target(call)?;
    // Known tensors saturate.
    match call.int("saturate", 1)? == 0 && SmallFloat::of(to).is_some() {
        true => Ok(None),
        false => Ok(Some(vec![x.cast(to)])),
    }
}

fn fold_cast_like(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(like)] = operands else {
        return Ok(None);
    };
    match call.int("saturate", 1)? == 0 && SmallFloat::of(like.element()).is_some() {
        true => Ok(None),
        false => Ok(Some(vec![x.cast(like.element())])),
    }
}

fn cast_to(call: &mut Call, to: ElementType) -> Built {
    let from = call.element(0)?;
    let x = call.value(0)?;
    let y = match SmallFloat::of(to) {
        Some(small) if from != to => {
            let saturate = call.int("saturate", 1)? != 0;
            super::small::rounded(call, x, small, saturate)
        }
        _ => convert(call, x, from, to),
    };
    call.one(y, to)
}

/// A value as another element type: floats to integers truncate, integers wrap, and everything but 0 is true.
pub(super) fn convert(call: &mut Call, x: Value, from: ElementType, to: ElementType) -> Value {
    if from == to {
        return x;
    }
    if let Some(small) = SmallFloat::of(to) {
        return super::small::rounded(call, x, small, true);
    }
    if to == ElementType::Bool {
        let zero = call.scalar(from, 0.0);
        return call.graph().not_equal(x, zero).into();
    }
    if to.is_float() || (to.bits() >= 32 && !(from.is_float() && to.dtype() == DType::U32)) {
        return call.as_element(x, to);
    }
    if from.is_float() && to.bits() >= 32 {
        return call.graph().cast(x, DType::U32).into();
    }
    // Floats go through the signed type, which keeps what is below 0 until it wraps.
    let x = if from.is_float() {
        call.graph().cast(x, DType::I32).into()
    } else {
        x
    };
    let x = call.as_element(x, to);
    call.wrap(x, to)
}

/// Lower and upper bound: attributes before version 11, operands since.
fn clip_bounds(call: &mut Call, element: ElementType) -> Result<[Option<Value>; 2], String> {
    if call.opset >= 11 {
        return Ok([call.optional(1)?, call.optional(2)?]);
    }
    let mut bounds = [None; 2];
    for (bound, name) in bounds.iter_mut().zip(["min", "max"]) {
        if call.attributes().has(name) {
            let value = call.float(name, 0.0)?;
            *bound = Some(call.scalar(element, value.into()));
        }
    }
    Ok(bounds)
}

fn clip(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    // One node where both bounds are known, which rules recognise.
    let known = |call: &Call, i: usize, name: &str| -> Option<f32> {
        match call.opset >= 11 {
            true => call.tensor(i).filter(|t| t.len() == 1).map(|t| t.to_f32()[0]),
            false => call.float(name, 0.0).ok().filter(|_| call.attributes().has(name)),
        }
    };
    if let (true, Some(low), Some(high)) = (element.is_float(), known(call, 1, "min"), known(call, 2, "max"))
        && low <= high
    {
        let y = call.graph().clamp(x, low, high);
        return call.one(y, element);
    }
    let [low, high] = clip_bounds(call, element)?;
    let mut y = x;
    if let Some(low) = low {
        y = call.graph().maximum(y, low).into();
    }
    if let Some(high) = high {
        y = call.graph().minimum(y, high).into();
    }
    call.one(y, element)
}

fn fold_clip(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let Data::Int(data) = &x.data else { return Ok(None) };
    if call.opset < 11 {
        return Ok(None);
    }
    let bound = |i: usize| {
        operands
            .get(i)
            .copied()
            .flatten()
            .and_then(|t| t.to_i64().first().copied())
    };
    let low = bound(1).unwrap_or(i64::MIN);
    let high = bound(2).unwrap_or(i64::MAX);
    let clipped = data.iter().map(|&v| v.max(low).min(high)).collect();
    Ok(Some(vec![Tensor::integers(x.element(), x.dims(), clipped)]))
}

fn modulo(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let (a, b) = (call.value(0)?, call.value(1)?);
    if call.int("fmod", 0)? == 0 {
        let y = call.graph().modulo(a, b);
        return call.one(y, element);
    }
    // Of the sign of a: a - b trunc(a / b).
    let graph = call.graph();
    let y: Value = if element.is_float() {
        let (size_a, size_b) = (graph.abs(a), graph.abs(b));
        let rest = graph.modulo(size_a, size_b);
        let sign = graph.sign(a);
        graph.mul(rest, sign).into()
    } else {
        let quotient = graph.div(a, b);
        let whole = graph.mul(quotient, b);
        graph.sub(a, whole).into()
    };
    call.one(y, element)
}

fn fold_mod(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    fn floored(a: i64, b: i64) -> Option<i64> {
        let rest = a.checked_rem(b)?;
        Some(if rest != 0 && (rest < 0) != (b < 0) {
            rest + b
        } else {
            rest
        })
    }
    match call.int("fmod", 0)? {
        0 => fold::binary(operands, floored, |a, b| {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            }
        }),
        _ => fold::binary(operands, i64::checked_rem, |a, b| a % b),
    }
}

fn pow(call: &mut Call) -> Built {
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
    let (x, by) = (call.as_f32(x), call.as_f32(by));
    let graph = call.graph();
    let y = graph.pow(x, by);
    let y = graph.round(y);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}

fn fold_pow(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    if fold::names_axis(call) {
        return Ok(None);
    }
    let [Some(x), Some(by)] = operands else { return Ok(None) };
    let by = by.cast(x.element());
    let of_ints = |a: i64, b: i64| u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
    fold::binary(&[Some(x), Some(&by)], of_ints, f64::powf)
}

fn where_(call: &mut Call) -> Built {
    let (condition, a, b) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let element = call.element(1)?;
    let y = call.graph().select(condition, a, b);
    call.one(y, element)
}

fn fold_where(_: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(condition), Some(a), Some(b)] = operands else {
        return Ok(None);
    };
    let shape = fold::broadcast(&[condition.dims(), a.dims(), b.dims()])?;
    let all = (
        fold::expand(condition, &shape),
        fold::expand(a, &shape),
        fold::expand(b, &shape),
    );
    let (Some(condition), Some(a), Some(b)) = all else {
        return Ok(None);
    };
    let chosen = condition.to_i64();
    Ok(match (&a.data, &b.data) {
        (Data::Int(a_data), Data::Int(b_data)) => {
            let pairs = a_data.iter().zip(b_data).zip(&chosen);
            let data = pairs.map(|((&a, &b), &c)| if c != 0 { a } else { b }).collect();
            Some(vec![Tensor::integers(a.element(), &shape, data)])
        }
        _ if a.element().is_float() => {
            let (a_data, b_data) = (a.to_f64(), b.to_f64());
            let pairs = a_data.iter().zip(&b_data).zip(&chosen);
            let data = pairs.map(|((&a, &b), &c)| if c != 0 { a } else { b }).collect();
            Some(vec![Tensor::floats(a.element(), &shape, data)])
        }
        _ => None,
    })
}

fn is_nan(call: &mut Call) -> Built {
    let x = call.value(0)?;
    let y = call.graph().not_equal(x, x);
    call.one(y, ElementType::Bool)
}

fn is_inf(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let positive = call.int("detect_positive", 1)? != 0;
    let negative = call.int("detect_negative", 1)? != 0;
    let (high, low) = (
        call.scalar(element, f64::INFINITY),
        call.scalar(element, f64::NEG_INFINITY),
    );
    let graph = call.graph();
    let y = match (positive, negative) {
        (true, true) => {
            let size = graph.abs(x);
            graph.equal(size, high)
        }
        (true, false) => graph.equal(x, high),
        (false, true) => graph.equal(x, low),
        (false, false) => graph.not_equal(x, x),
    };
    call.one(y, ElementType::Bool)
}
