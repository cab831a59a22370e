//! Reductions over axes, running sums, and distances.

use meganeura_core::graph::{Graph, NodeId, Value};

use super::fold::indices;
use super::{OnnxOp, Overflow, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("CumProd", 26, cum_prod)
        .partly("axes longer than 64")
        .checked(Overflow::Products(&[0])),
    op("CumSum", 11, cum_sum)
        .partly("an axis that depends on the data of an input")
        .checked(Overflow::Sums(&[0])),
    op("ReduceL1", 1, |c| {
        reduce(c, |g, x, axes, keep| {
            let size = g.abs(x);
            g.sum(size, axes, keep)
        })
    })
    .checked(Overflow::Products(&[0])),
    op("ReduceL2", 1, |c| {
        reduce(c, |g, x, axes, keep| {
            let squares = g.mul(x, x);
            let sum = g.sum(squares, axes, keep);
            g.sqrt(sum)
        })
    }),
    op("ReduceLogSum", 1, |c| {
        reduce(c, |g, x, axes, keep| {
            let sum = g.sum(x, axes, keep);
            g.log(sum)
        })
    }),
    op("ReduceLogSumExp", 1, |c| {
        reduce_or(c, |_| f64::NEG_INFINITY, log_sum_exp)
    }),
    op("ReduceMax", 1, |c| {
        reduce_or(c, |e| limits(e).0, |g, x, axes, keep| g.max(x, axes, keep))
    })
    .folding(|c, x| fold_ints(c, x, i64::MIN, |a, b| Some(a.max(b)))),
    op("ReduceMean", 1, |c| reduce(c, mean)),
    op("ReduceMin", 1, |c| {
        reduce_or(c, |e| limits(e).1, |g, x, axes, keep| g.min(x, axes, keep))
    })
    .folding(|c, x| fold_ints(c, x, i64::MAX, |a, b| Some(a.min(b)))),
    op("ReduceProd", 1, |c| reduce(c, |g, x, axes, keep| g.prod(x, axes, keep)))
        .folding(|c, x| fold_ints(c, x, 1, i64::checked_mul))
        .checked(Overflow::Products(&[0])),
    op("ReduceSum", 1, |c| reduce(c, |g, x, axes, keep| g.sum(x, axes, keep)))
        .folding(|c, x| fold_ints(c, x, 0, i64::checked_add))
        .checked(Overflow::Sums(&[0])),
    op("ReduceSumSquare", 1, |c| {
        reduce(c, |g, x, axes, keep| {
            let squares = g.mul(x, x);
            g.sum(squares, axes, keep)
        })
    })
    .checked(Overflow::Products(&[0])),
    ms("CDist", distances),
];

/// Returns the axes that are reduced. An empty list means all axes, unless `noop_with_empty_axes` is set.
fn axes(call: &Call, rank: usize) -> Result<Vec<usize>, String> {
    let named = call.attribute_or_operand("axes", 1)?.unwrap_or_default();
    if named.is_empty() {
        return Ok(if call.int("noop_with_empty_axes", 0)? != 0 {
            Vec::new()
        } else {
            (0..rank).collect()
        });
    }
    let mut axes: Vec<usize> = named.iter().map(|&a| call.axis(a, rank)).collect::<Result<_, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

fn reduce(call: &mut Call, f: fn(&mut Graph, Value, &[i32], bool) -> NodeId) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let axes: Vec<i32> = axes(call, dims.len())?.iter().map(|&a| a as i32).collect();
    let keep = call.int("keepdims", 1)? != 0;
    let mut x = call.value(0)?;
    if axes.is_empty() && !dims.is_empty() {
        // Each element is reduced separately, along a new axis.
        let spread = [dims.as_slice(), &[1]].concat();
        let graph = call.graph();
        x = graph.reshape(x, &spread).into();
        let y = f(graph, x, &[dims.len() as i32], false);
        return call.one(y, element);
    }
    if axes.is_empty() {
        x = call.graph().reshape(x, &[1]).into();
        let y = f(call.graph(), x, &[0], false);
        return call.one(y, element);
    }
    let float_only = !element.is_float();
    let y = f(call.graph(), x, &axes, keep);
    let y = if float_only {
        call.wrap(y.into(), element)
    } else {
        y.into()
    };
    call.one(y, element)
}

/// Returns the smallest and largest number of a type; integers of 64 bits have 32 bits in a graph.
fn limits(element: ElementType) -> (f64, f64) {
    if element.is_float() {
        return (f64::NEG_INFINITY, f64::INFINITY);
    }
    let (low, high) = element.range();
    if element.is_signed() {
        (
            low.max(i64::from(i32::MIN)) as f64,
            high.min(i64::from(i32::MAX)) as f64,
        )
    } else {
        (low as f64, high.min(i64::from(u32::MAX)) as f64)
    }
}

/// Builds [`reduce`] for a function that is not defined for zero elements; `empty` builds the result in this case.
fn reduce_or(
    call: &mut Call,
    empty: fn(ElementType) -> f64,
    f: fn(&mut Graph, Value, &[i32], bool) -> NodeId,
) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let axes = axes(call, dims.len())?;
    if axes.iter().all(|&a| dims[a] != 0) {
        return reduce(call, f);
    }
    let keep = call.int("keepdims", 1)? != 0;
    let left = (0..dims.len()).filter(|i| keep || !axes.contains(i));
    let left: Vec<usize> = left.map(|i| if axes.contains(&i) { 1 } else { dims[i] }).collect();
    let value = call.scalar(element, empty(element));
    let y = call.graph().expand(value, &left);
    call.one(y, element)
}

fn mean(g: &mut Graph, x: Value, axes: &[i32], keep: bool) -> NodeId {
    g.mean(x, axes, keep)
}

/// Returns `max + ln(sum(e^(x - max)))`, which does not overflow.
fn log_sum_exp(g: &mut Graph, x: Value, axes: &[i32], keep: bool) -> NodeId {
    let max = g.max(x, axes, true);
    // An infinite maximum would make the difference NaN.
    let finite = g.clamp(max, f32::MIN, f32::MAX);
    let shifted = g.sub(x, finite);
    let exp = g.exp(shifted);
    let sum = g.sum(exp, axes, true);
    let log = g.log(sum);
    let y = g.add(log, finite);
    if keep {
        return y;
    }
    let shape = g.shape(y).to_vec();
    let rank = shape.len() as i32;
    let gone = |i: usize| axes.iter().any(|&a| (if a < 0 { a + rank } else { a }) == i as i32);
    let dims: Vec<usize> = shape
        .iter()
        .enumerate()
        .filter(|(i, _)| !gone(*i))
        .map(|(_, &d)| d)
        .collect();
    g.reshape(y, &dims)
}

/// Reduces constant integers.
fn fold_ints(call: &Call, operands: &[Option<&Tensor>], start: i64, f: fn(i64, i64) -> Option<i64>) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let Some(data) = x.ints() else { return Ok(None) };
    if x.is_empty() {
        return Ok(None);
    }
    let axes = axes(call, x.dims().len())?;
    let keep = call.int("keepdims", 1)? != 0;
    let kept: Vec<usize> = x
        .dims()
        .iter()
        .enumerate()
        .map(|(i, &d)| if axes.contains(&i) { 1 } else { d })
        .collect();
    let steps = super::fold::strides(&kept);
    let mut sums = vec![start; kept.iter().product()];
    for (index, &value) in indices(x.dims()).zip(data) {
        let at = index.iter().zip(&steps).enumerate();
        let at: usize = at.map(|(i, (&k, &s))| if axes.contains(&i) { 0 } else { k * s }).sum();
        sums[at] = f(sums[at], value).ok_or("arithmetic on shapes overflows")?;
    }
    let dims = if keep {
        kept
    } else {
        kept.iter()
            .enumerate()
            .filter(|(i, _)| !axes.contains(i))
            .map(|(_, &d)| d)
            .collect()
    };
    Ok(Some(vec![Tensor::integers(x.element(), &dims, sums)]))
}

/// Returns the axis of a running sum.
fn running_axis(call: &Call) -> Result<i32, String> {
    let axis = call.known_scalar(1, "the axis")?.ok_or("the axis is missing")?;
    Ok(call.axis(axis as i64, call.dims(0)?.len())? as i32)
}

fn cum_sum(call: &mut Call) -> Built {
    let axis = running_axis(call)?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let (exclusive, reverse) = (call.int("exclusive", 0)? != 0, call.int("reverse", 0)? != 0);
    let y = call.graph().cumsum(x, axis, exclusive, reverse);
    let y = call.wrap(y.into(), element);
    call.one(y, element)
}

/// Builds products of the first 1, 2, 3... elements.
fn cum_prod(call: &mut Call) -> Built {
    let axis = running_axis(call)?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let (exclusive, reverse) = (call.int("exclusive", 0)? != 0, call.int("reverse", 0)? != 0);
    let size = call.dims(0)?[axis as usize];
    if size > 64 {
        return Err(format!("an axis of {size} elements is too long"));
    }
    let one = call.scalar(element, 1.0);
    let graph = call.graph();
    let mut products: Vec<Value> = Vec::new();
    let mut order: Vec<usize> = (0..size).collect();
    if reverse {
        order.reverse();
    }
    let mut product: Option<Value> = None;
    for i in order {
        let part: Value = graph.slice_axis(x, axis, i, i + 1).into();
        let next: Value = match product {
            None => part,
            Some(before) => graph.mul(before, part).into(),
        };
        let shape = graph.shape(part).to_vec();
        products.push(match (exclusive, product) {
            (false, _) => next,
            (true, Some(before)) => before,
            (true, None) => graph.expand(one, &shape).into(),
        });
        product = Some(next);
    }
    if reverse {
        products.reverse();
    }
    let y = match products.as_slice() {
        [] => x,
        [one] => *one,
        parts => graph.concat(parts, axis).into(),
    };
    let y = call.wrap(y, element);
    call.one(y, element)
}

/// Returns the distances between the rows of two matrices. ONNX Runtime computes the squares as `a^2 + b^2 - 2 a b`; sums of
/// squared differences are more accurate for rows that are close to each other.
fn distances(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let is_root = match &*call.string("metric", "sqeuclidean")? {
        "euclidean" => true,
        "sqeuclidean" => false,
        other => return Err(format!("metric = `{other}` is neither euclidean nor sqeuclidean")),
    };
    let (a_dims, b_dims) = (call.dims(0)?, call.dims(1)?);
    let (&[rows, width], &[columns, b_width]) = (a_dims.as_slice(), b_dims.as_slice()) else {
        return Err(format!("expected two matrices, found {}", call.types()));
    };
    if width != b_width {
        return Err(format!("rows of {} differ in length", call.types()));
    }
    let (a, b) = (call.value(0)?, call.value(1)?);
    let graph = call.graph();
    let (a, b) = (
        graph.reshape(a, &[rows, 1, width]),
        graph.reshape(b, &[1, columns, width]),
    );
    let difference = graph.sub(a, b);
    let squares = graph.square(difference);
    let mut y = graph.sum(squares, &[-1], false);
    if is_root {
        y = graph.sqrt(y);
    }
    call.one(y, element)
}
