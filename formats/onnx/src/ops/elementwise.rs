//! Functions of single elements: arithmetic, comparisons, logic, casts and activations.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::cast::{cast, cast_like, fold_cast, fold_cast_like};
use super::power::{fold_pow, pow};
use super::{OnnxOp, Overflow, fold, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::{Data, Tensor};

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Abs", 1, abs)
        .folding(|_, x| fold::unary(x, Some(i64::wrapping_abs), f64::abs))
        .checked(Overflow::Products(&[])),
    op("Add", 1, |c| arithmetic(c, |g, a, b| g.add(a, b)))
        .folding(|c, x| fold::pair(c, x, i64::checked_add, |a, b| a + b))
        .checked(Overflow::Products(&[])),
    op("And", 1, |c| comparison(c, |g, a, b| g.logical_and(a, b)))
        .folding(|c, x| fold::pair(c, x, |a, b| Some(a & b), |a, _| a)),
    op("BitShift", 11, bit_shift),
    op("BitwiseAnd", 18, |c| bitwise(c, |g, a, b| g.bit_and(a, b))),
    op("BitwiseNot", 18, bitwise_not),
    op("BitwiseOr", 18, |c| bitwise(c, |g, a, b| g.bit_or(a, b))),
    op("BitwiseXor", 18, |c| bitwise(c, |g, a, b| g.bit_xor(a, b))),
    op("Cast", 6, cast)
        .folding(fold_cast)
        .taking_strings()
        .partly("float8e8m0; computed numbers to strings"),
    op("CastLike", 15, cast_like)
        .folding(fold_cast_like)
        .partly("strings and float8e8m0"),
    op("Ceil", 1, |c| float(c, |g, x| g.ceil(x))).folding(|_, x| fold::unary(x, None, f64::ceil)),
    op("Clip", 1, clip).folding(fold_clip),
    op("Div", 1, divide).folding(|c, x| fold::pair(c, x, i64::checked_div, |a, b| a / b)),
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
        .taking_sequences()
        .taking_strings()
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
        .folding(|c, x| fold::pair(c, x, i64::checked_mul, |a, b| a * b))
        .checked(Overflow::Products(&[])),
    op("Neg", 1, negate)
        .folding(|_, x| fold::unary(x, Some(i64::wrapping_neg), |v| -v))
        .checked(Overflow::Products(&[])),
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
        .folding(|c, x| fold::pair(c, x, i64::checked_sub, |a, b| a - b))
        .checked(Overflow::Products(&[])),
    op("Sum", 1, |c| variadic(c, |g, a, b| g.add(a, b)))
        .folding(|_, x| fold::binary(x, i64::checked_add, |a, b| a + b))
        .checked(Overflow::Sums(&[])),
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

/// Builds a function of a floating-point operand.
pub(super) fn float(call: &mut Call, f: fn(&mut Graph, Value) -> NodeId) -> Built {
    let x = call.value(0)?;
    let element = call.element(0)?;
    if !element.is_float() {
        return Err(format!("{element} is not a floating-point type"));
    }
    let y = f(call.graph(), x);
    call.one(y, element)
}

/// Returns the second operand, reshaped so that it broadcasts to the first one. Before version 7, the attribute `axis`
/// specifies the axis of the first operand that corresponds to the first axis of the second one.
pub(super) fn second(call: &mut Call) -> Result<Value, String> {
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

/// Builds an operator of two numbers.
fn arithmetic(call: &mut Call, f: fn(&mut Graph, Value, Value) -> NodeId) -> Built {
    let (a, b) = (call.value(0)?, second(call)?);
    let element = call.element(0)?;
    let y = f(call.graph(), a, b);
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

/// Builds a quotient. For 64-bit integers, only the smallest 32-bit number divided by -1 overflows 32 bits.
fn divide(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let result = arithmetic(call, |g, a, b| g.div(a, b))?;
    let (Some((low, _)), Some((least, most))) = (call.range(0), call.range(1)) else {
        return Ok(result);
    };
    let smallest = i64::from(i32::MIN);
    if element == ElementType::I64 && low <= smallest && least <= -1 && most >= -1 {
        let (a, b) = (call.value(0)?, second(call)?);
        let (smallest, minus) = (call.scalar(element, smallest as f64), call.scalar(element, -1.0));
        let graph = call.graph();
        let (is_smallest, is_minus) = (graph.equal(a, smallest), graph.equal(b, minus));
        let flag = graph.logical_and(is_smallest, is_minus);
        for one in &result {
            let value = call.value_of(one)?;
            call.guard(flag, value, element);
        }
    }
    Ok(result)
}

/// Builds an operator of one or more numbers, evaluated from the left.
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
    let given = call.element(0)?;
    if !given.is_float() {
        return Err(format!("expected floating-point operands, found {given}"));
    }
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

/// Builds a bitwise operator: signed integers are cast to unsigned ones of the same size.
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
    if element == ElementType::U64 {
        return Err(
            "expected an integer of at most 32 bits or int64, found uint64: its complement needs 64 bits".into(),
        );
    }
    let x = call.value(0)?;
    let graph = call.graph();
    let x = graph.cast(x, DType::U32);
    let y = graph.bit_not(x);
    let y = graph.cast(y, element.dtype());
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

/// Builds a shift. A left shift discards bits, and a right shift of signed integers extends the sign. A shift by a negative
/// amount, or by all bits or more, leaves only the fill bits.
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
        let y = if left {
            graph.shift_left(bits, by)
        } else {
            graph.shift_right(bits, by)
        };
        graph.select(inside, y, nothing)
    };
    let y = match zero {
        // Right shift of a negative number: shifts zeros into its complement.
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
    if element == ElementType::U64 && left {
        // Discarded bits raise the flag of a 64-bit left shift.
        let back = graph.shift_right(y, by);
        let flag = graph.not_equal(back, bits);
        let outside = graph.logical_not(inside);
        let is_some = graph.not_equal(bits, nothing);
        let gone = graph.logical_and(outside, is_some);
        let flag = graph.logical_or(flag, gone);
        call.guard(flag, y.into(), element);
    }
    let graph = call.graph();
    let y = graph.cast(y, element.dtype());
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

fn abs(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let x = call.value(0)?;
    let y = if element.is_float() || element.is_signed() {
        call.graph().abs(x).into()
    } else {
        x
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

/// Returns the lower and upper bound: attributes before version 11, operands since then.
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
    // Uses one node if both bounds are known, so that rewrite rules recognise it.
    let known = |call: &Call, i: usize, name: &str| -> Option<f32> {
        if call.opset >= 11 {
            call.tensor(i).filter(|t| t.len() == 1).map(|t| t.to_f32()[0])
        } else {
            call.float(name, 0.0).ok().filter(|_| call.attributes().has(name))
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
    // With the sign of a: a - b trunc(a / b).
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
        // False for every element, NaN too.
        (false, false) => graph.less_than(x, x),
    };
    call.one(y, ElementType::Bool)
}
