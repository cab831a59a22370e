//! Activations and other functions of single numbers.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::elementwise::float;
use super::{OnnxOp, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Acos", 7, |c| wide(c, acos)),
    op("Acosh", 9, |c| wide(c, acosh)),
    op("Asin", 7, |c| wide(c, asin)),
    op("Asinh", 9, |c| wide(c, asinh)),
    op("Atan", 7, |c| wide(c, atan)),
    op("Atanh", 9, |c| wide(c, atanh)),
    op("Celu", 12, celu),
    op("Cos", 7, |c| float(c, |g, x| g.cos(x))),
    op("Cosh", 9, |c| wide(c, cosh)),
    op("Elu", 1, elu),
    op("Erf", 9, |c| float(c, |g, x| g.erf(x))),
    op("Gelu", 20, gelu),
    op("HardSigmoid", 1, hard_sigmoid),
    op("HardSwish", 14, |c| float(c, |g, x| g.hard_swish(x))),
    op("LeakyRelu", 1, leaky_relu),
    op("Mish", 18, |c| wide(c, mish)),
    op("PRelu", 1, prelu),
    op("Selu", 6, selu),
    op("Shrink", 9, shrink),
    op("Sigmoid", 1, |c| float(c, |g, x| g.sigmoid(x))),
    op("Sin", 7, |c| float(c, |g, x| g.sin(x))),
    op("Sinh", 9, |c| wide(c, sinh)),
    op("Softplus", 1, |c| float(c, |g, x| g.softplus(x))),
    op("Softsign", 1, |c| float(c, softsign)),
    op("SwiGLU", 28, swiglu),
    op("Swish", 24, swish),
    op("Tan", 7, |c| wide(c, tan)),
    op("Tanh", 1, |c| float(c, |g, x| g.tanh(x))),
    op("ThresholdedRelu", 10, thresholded_relu),
    ms("BiasGelu", bias_gelu),
    ms("FastGelu", fast_gelu),
    ms("Gelu", |c| float(c, |g, x| g.gelu_erf(x))),
    ms("QuickGelu", quick_gelu),
];

/// Builds a function that consists of several calls. Half-precision operands are computed in f32, because intermediate
/// results such as squares overflow or lose their bits in half precision.
fn wide(call: &mut Call, f: fn(&mut Graph, Value) -> NodeId) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    if !element.is_float() {
        return Err(format!("expected a floating-point type, found {element}"));
    }
    let graph = call.graph();
    let dtype = graph.dtype(x);
    if !dtype.is_half() {
        let y = f(graph, x);
        return call.one(y, element);
    }
    let x = graph.cast(x, DType::F32);
    let y = f(graph, x.into());
    let y = graph.cast(y, dtype);
    call.one(y, element)
}

fn atan(g: &mut Graph, x: Value) -> NodeId {
    super::signal::atan(g, x)
}

fn asin(g: &mut Graph, x: Value) -> NodeId {
    let one = g.scalar_of(g.dtype(x), 1.0);
    // (1 - x)(1 + x) is accurate near 1.
    let (below, above) = (g.sub(one, x), g.add(one, x));
    let rest = g.mul(below, above);
    let root = g.sqrt(rest);
    super::signal::angle(g, x, root.into())
}

fn acos(g: &mut Graph, x: Value) -> NodeId {
    let one = g.scalar_of(g.dtype(x), 1.0);
    let (below, above) = (g.sub(one, x), g.add(one, x));
    let rest = g.mul(below, above);
    let root = g.sqrt(rest);
    super::signal::angle(g, root.into(), x)
}

/// Minimum magnitude for which `asinh` and `acosh` equal `log(2 |x|)` in f32. Squares of smaller numbers are far from
/// overflow.
const LOGARITHMIC: f64 = 1e9;

/// Minimum magnitude for which `exp(x)` may overflow in f32 although `exp(x) / 2` does not.
const NEAR_OVERFLOW: f64 = 88.0;

/// Returns `log(2 x)` for `x` of at least [`LOGARITHMIC`], and otherwise the function `otherwise` of
/// `min(x, LOGARITHMIC)`. Neither of the two overflows for elements that select the other one, so that gradients stay
/// finite.
fn large_or(g: &mut Graph, x: Value, otherwise: impl FnOnce(&mut Graph, Value) -> NodeId) -> NodeId {
    let dtype = g.dtype(x);
    let limit = g.scalar_of(dtype, LOGARITHMIC);
    let is_large = g.greater_equal(x, limit);
    let large = g.maximum(x, limit);
    let log = g.log(large);
    let two = g.scalar_of(dtype, std::f64::consts::LN_2);
    let log = g.add(log, two);
    let small = g.minimum(x, limit);
    let value = otherwise(g, small.into());
    g.select(is_large, log, value)
}

fn acosh(g: &mut Graph, x: Value) -> NodeId {
    large_or(g, x, |g, x| {
        let one = g.scalar_of(g.dtype(x), 1.0);
        let (below, above) = (g.sub(x, one), g.add(x, one));
        let rest = g.mul(below, above);
        let root = g.sqrt(rest);
        let sum = g.add(below, root);
        g.log1p(sum)
    })
}

fn asinh(g: &mut Graph, x: Value) -> NodeId {
    let size = g.abs(x);
    let value = large_or(g, size.into(), |g, size| {
        let one = g.scalar_of(g.dtype(size), 1.0);
        let square = g.square(size);
        let above = g.add(square, one);
        let root = g.sqrt(above);
        // |x| + sqrt(x^2 + 1) - 1 = |x| + x^2 / (1 + sqrt(x^2 + 1))
        let divisor = g.add(root, one);
        let rest = g.div(square, divisor);
        let sum = g.add(size, rest);
        g.log1p(sum)
    });
    let sign = g.sign(x);
    g.mul(sign, value)
}

fn atanh(g: &mut Graph, x: Value) -> NodeId {
    let negative = g.neg(x);
    let (above, below) = (g.log1p(x), g.log1p(negative));
    let difference = g.sub(above, below);
    let half = g.scalar_of(g.dtype(x), 0.5);
    g.mul(difference, half)
}

/// Returns `exp(size / 2)^2 / 2` for magnitudes of at least [`NEAR_OVERFLOW`], and otherwise the function `otherwise`
/// of the clamped magnitude. Neither of the two overflows for elements that select the other one.
fn exponential_or(g: &mut Graph, size: Value, otherwise: impl FnOnce(&mut Graph, Value) -> NodeId) -> NodeId {
    let dtype = g.dtype(size);
    let (limit, half) = (g.scalar_of(dtype, NEAR_OVERFLOW), g.scalar_of(dtype, 0.5));
    let is_large = g.greater_equal(size, limit);
    let halved = g.mul(size, half);
    let root = g.exp(halved);
    let halved = g.mul(root, half);
    let large = g.mul(halved, root);
    let small = g.minimum(size, limit);
    let value = otherwise(g, small.into());
    g.select(is_large, large, value)
}

fn cosh(g: &mut Graph, x: Value) -> NodeId {
    let size = g.abs(x);
    exponential_or(g, size.into(), |g, size| {
        let negative = g.neg(size);
        let (up, down) = (g.exp(size), g.exp(negative));
        let sum = g.add(up, down);
        let half = g.scalar_of(g.dtype(size), 0.5);
        g.mul(sum, half)
    })
}

fn sinh(g: &mut Graph, x: Value) -> NodeId {
    let size = g.abs(x);
    let value = exponential_or(g, size.into(), |g, size| {
        let negative = g.neg(size);
        let (up, down) = (g.expm1(size), g.expm1(negative));
        let difference = g.sub(up, down);
        let half = g.scalar_of(g.dtype(size), 0.5);
        g.mul(difference, half)
    });
    let sign = g.sign(x);
    g.mul(sign, value)
}

fn tan(g: &mut Graph, x: Value) -> NodeId {
    let (sin, cos) = (g.sin(x), g.cos(x));
    g.div(sin, cos)
}

fn mish(g: &mut Graph, x: Value) -> NodeId {
    let softplus = g.softplus(x);
    let tanh = g.tanh(softplus);
    g.mul(x, tanh)
}

pub(super) fn softsign(g: &mut Graph, x: Value) -> NodeId {
    let one = g.scalar_of(g.dtype(x), 1.0);
    let size = g.abs(x);
    let divisor = g.add(size, one);
    g.div(x, divisor)
}

fn elu(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 1.0)?);
    let y = call.graph().elu(x, alpha);
    call.one(y, element)
}

fn celu(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 1.0)?);
    let factor = call.scalar(element, alpha.into());
    let graph = call.graph();
    let scaled = graph.div(x, factor);
    let unit = graph.elu(scaled, 1.0);
    let y = graph.mul(unit, factor);
    call.one(y, element)
}

fn leaky_relu(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 0.01)?);
    let y = call.graph().leaky_relu(x, alpha);
    call.one(y, element)
}

fn selu(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let alpha = call.float("alpha", 1.673_263_2)?;
    let gamma = call.float("gamma", 1.050_701)?;
    let factor = call.scalar(element, gamma.into());
    let graph = call.graph();
    let unit = graph.elu(x, alpha);
    let y = graph.mul(unit, factor);
    call.one(y, element)
}

fn thresholded_relu(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 1.0)?);
    let (threshold, zero) = (call.scalar(element, alpha.into()), call.scalar(element, 0.0));
    let graph = call.graph();
    let above = graph.greater_than(x, threshold);
    let y = graph.select(above, x, zero);
    call.one(y, element)
}

fn shrink(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let (bias, lambda) = (call.float("bias", 0.0)?, call.float("lambd", 0.5)?);
    let x = if element.is_float() { x } else { call.as_f32(x) };
    let float = if element.is_float() { element } else { ElementType::F32 };
    let low = call.scalar(float, (-lambda).into());
    let high = call.scalar(float, lambda.into());
    let bias = call.scalar(float, bias.into());
    let zero = call.scalar(float, 0.0);
    let graph = call.graph();
    let (is_low, is_high) = (graph.less_than(x, low), graph.greater_than(x, high));
    let (up, down) = (graph.add(x, bias), graph.sub(x, bias));
    let inner = graph.select(is_high, down, zero);
    let y = graph.select(is_low, up, inner);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}

fn hard_sigmoid(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let (alpha, beta) = (call.float("alpha", 0.2)?, call.float("beta", 0.5)?);
    if (alpha - 1.0 / 6.0).abs() < 1e-6 && beta == 0.5 {
        let y = call.graph().hard_sigmoid(x);
        return call.one(y, element);
    }
    let (alpha, beta) = (call.scalar(element, alpha.into()), call.scalar(element, beta.into()));
    let graph = call.graph();
    let scaled = graph.mul(x, alpha);
    let moved = graph.add(scaled, beta);
    let y = graph.clamp(moved, 0.0, 1.0);
    call.one(y, element)
}

fn prelu(call: &mut Call) -> Built {
    let (x, mut slope, element) = (call.value(0)?, call.value(1)?, call.element(0)?);
    let zero = call.scalar(element, 0.0);
    let (rank, slopes) = (call.dims(0)?.len(), call.dims(1)?);
    // Before version 7, a list contains one slope for each channel.
    if let (true, [n]) = (call.opset < 7, slopes.as_slice())
        && *n > 1
        && rank > 1
    {
        let mut dims = vec![1; rank - 1];
        dims[0] = *n;
        slope = call.graph().reshape(slope, &dims).into();
    }
    let graph = call.graph();
    let scaled = graph.mul(x, slope);
    let negative = graph.less_than(x, zero);
    let y = graph.select(negative, scaled, x);
    call.one(y, element)
}

fn gelu(call: &mut Call) -> Built {
    match &*call.string("approximate", "none")? {
        "none" => float(call, |g, x| g.gelu_erf(x)),
        "tanh" => float(call, |g, x| g.gelu_tanh(x)),
        other => Err(format!("approximate = `{other}` is neither none nor tanh")),
    }
}

fn swish(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 1.0)?);
    if alpha == 1.0 {
        let y = call.graph().silu(x);
        return call.one(y, element);
    }
    let y = scaled_swish(call, x, element, alpha);
    call.one(y, element)
}

/// Builds `swish(a) * b`.
fn swiglu(call: &mut Call) -> Built {
    let (a, b, element, alpha) = (
        call.value(0)?,
        call.value(1)?,
        call.element(0)?,
        call.float("alpha", 1.0)?,
    );
    if call.dims(0)? != call.dims(1)? {
        return Err(format!("operands {} differ in shape", call.types()));
    }
    if alpha == 1.0 {
        let y = call.graph().swiglu(a, b);
        return call.one(y, element);
    }
    let gate = scaled_swish(call, a, element, alpha);
    let y = call.graph().mul(gate, b);
    call.one(y, element)
}

fn scaled_swish(call: &mut Call, x: Value, element: ElementType, alpha: f32) -> Value {
    let alpha = call.scalar(element, alpha.into());
    let graph = call.graph();
    let scaled = graph.mul(x, alpha);
    let gate = graph.sigmoid(scaled);
    graph.mul(x, gate).into()
}

fn quick_gelu(call: &mut Call) -> Built {
    let (x, element, alpha) = (call.value(0)?, call.element(0)?, call.float("alpha", 1.702)?);
    let y = scaled_swish(call, x, element, alpha);
    call.one(y, element)
}

fn bias_gelu(call: &mut Call) -> Built {
    let (x, bias, element) = (call.value(0)?, call.value(1)?, call.element(0)?);
    let graph = call.graph();
    let sum = graph.add(x, bias);
    let y = graph.gelu_erf(sum);
    call.one(y, element)
}

fn fast_gelu(call: &mut Call) -> Built {
    let (mut x, element) = (call.value(0)?, call.element(0)?);
    if let Some(bias) = call.optional(1)? {
        x = call.graph().add(x, bias).into();
    }
    let y = call.graph().gelu_tanh(x);
    call.one(y, element)
}
