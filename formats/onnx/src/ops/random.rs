//! Random numbers with uniform, normal and Bernoulli distributions.
//!
//! They come from the counter-based generator of the graph, so that they depend on the seed of the session, the node and the
//! number of the step. The attribute `seed` has no effect: runs with the same seed of the session repeat in any case.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Bernoulli", 15, bernoulli),
    op("RandomNormal", 1, |c| of_shape(c, normal)),
    op("RandomNormalLike", 1, |c| of_operand(c, normal)),
    op("RandomUniform", 1, |c| of_shape(c, uniform)),
    op("RandomUniformLike", 1, |c| of_operand(c, uniform)),
];

/// Function that builds random numbers of a shape for a call.
type Numbers = fn(&mut Call, &[usize]) -> Result<NodeId, String>;

/// Builds f32 numbers in `(0, 1)`: the upper 24 bits of random words and a half, times 2^-24.
fn unit(g: &mut Graph, shape: &[usize]) -> NodeId {
    let bits = g.random_bits(shape);
    let eight = g.scalar_of(DType::U32, 8.0);
    let bits = g.shift_right(bits, eight);
    let numbers = g.cast(bits, DType::F32);
    let (half, step) = (g.scalar(0.5), g.scalar(2f32.powi(-24)));
    let numbers = g.add(numbers, half);
    g.mul(numbers, step)
}

/// Builds normally distributed numbers by the formula of Box and Muller (1958): `sqrt(-2 ln u) cos(2 pi v)`.
fn normal(call: &mut Call, shape: &[usize]) -> Result<NodeId, String> {
    let (mean, deviation) = (call.float("mean", 0.0)?, call.float("scale", 1.0)?);
    let g = call.graph();
    let (u, v) = (unit(g, shape), unit(g, shape));
    let (minus_two, turn) = (g.scalar(-2.0), g.scalar(std::f32::consts::TAU));
    let log = g.log(u);
    let square = g.mul(log, minus_two);
    let radius = g.sqrt(square);
    let angle = g.mul(v, turn);
    let cosine = g.cos(angle);
    let numbers = g.mul(radius, cosine);
    Ok(scaled(g, numbers, deviation, mean))
}

fn uniform(call: &mut Call, shape: &[usize]) -> Result<NodeId, String> {
    let (low, high) = (call.float("low", 0.0)?, call.float("high", 1.0)?);
    let g = call.graph();
    let numbers = unit(g, shape);
    Ok(scaled(g, numbers, high - low, low))
}

/// Builds `x * factor + offset`.
fn scaled(g: &mut Graph, x: NodeId, factor: f32, offset: f32) -> NodeId {
    let (factor, offset) = (g.scalar(factor), g.scalar(offset));
    let product = g.mul(x, factor);
    g.add(product, offset)
}

/// Returns the element type of the attribute `dtype`, or `otherwise` without it.
fn element_of(call: &Call, otherwise: ElementType) -> Result<ElementType, String> {
    let element = match call.int("dtype", 0)? {
        0 => otherwise,
        number => ElementType::from_number(number)?,
    };
    if element.is_float() {
        Ok(element)
    } else {
        Err(format!("expected a floating-point type, found {element}"))
    }
}

fn of_shape(call: &mut Call, numbers: Numbers) -> Built {
    let shape = call.ints("shape")?.ok_or("the shape is missing")?;
    let shape: Option<Vec<usize>> = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
    let shape = shape.ok_or("the shape has a negative size")?;
    let element = element_of(call, ElementType::F32)?;
    finish(call, &shape, element, numbers)
}

fn of_operand(call: &mut Call, numbers: Numbers) -> Built {
    let (shape, own) = (call.dims(0)?, call.element(0)?);
    let element = element_of(call, own)?;
    finish(call, &shape, element, numbers)
}

fn finish(call: &mut Call, shape: &[usize], element: ElementType, numbers: Numbers) -> Built {
    let numbers = numbers(call, shape)?;
    let numbers = call.graph().cast(numbers, element.dtype());
    call.one(numbers, element)
}

/// Builds 1 with the probability of each element, else 0.
fn bernoulli(call: &mut Call) -> Built {
    let (x, shape, own) = (call.value(0)?, call.dims(0)?, call.element(0)?);
    let element = match call.int("dtype", 0)? {
        0 => own,
        number => ElementType::from_number(number)?,
    };
    let g = call.graph();
    let x: Value = g.cast(x, DType::F32).into();
    let numbers = unit(g, &shape);
    let ones = g.less_than(numbers, x);
    let ones = super::cast::convert(call, ones.into(), ElementType::Bool, element);
    call.one(ones, element)
}
