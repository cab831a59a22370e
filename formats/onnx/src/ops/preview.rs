//! Operators of the domains `ai.onnx.preview` and `ai.onnx.preview.training`.

use meganeura_core::graph::{NodeId, Value};

use super::OnnxOp;
use super::attention::repeat_heads;
use super::matmul::swap_last;
use crate::element::ElementType;
use crate::import::Call;
use crate::import::Operand;
use crate::ops::Build;

type Built = Result<Vec<Operand>, String>;

const fn training(name: &'static str, build: Build) -> OnnxOp {
    OnnxOp::new("ai.onnx.preview.training", name, 1, build)
}

pub(super) const OPS: &[OnnxOp] = &[
    OnnxOp::new("ai.onnx.preview", "FlexAttention", 1, flex_attention),
    training("Adagrad", adagrad),
    training("Adam", adam),
    training("Momentum", momentum),
];

/// Applies the subgraph in an attribute, if present, to scores or probabilities.
fn modified(call: &mut Call, name: &str, x: Value, element: ElementType) -> Result<Value, String> {
    if !call.attributes().has(name) {
        return Ok(x);
    }
    let body = call.subgraph(name)?;
    let given = call.result(x, element);
    let results = call.body(body, name, vec![given.clone()])?;
    match results.as_slice() {
        [one] if one.dims == given.dims && one.element == element => call.value_of(one),
        _ => Err(format!("{name} changes the shape or type of its operand")),
    }
}

/// Builds attention with subgraphs that change its scores and probabilities.
fn flex_attention(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let precision = match call.attributes().int("softmax_precision")? {
        Some(number) => ElementType::from_number(number)?,
        None if element == ElementType::F64 => ElementType::F64,
        None => ElementType::F32,
    };
    let (q_dims, k_dims) = (call.dims(0)?, call.dims(1)?);
    let ([_, heads, _, width], 4) = (q_dims.as_slice(), k_dims.len()) else {
        return Err(format!("operands {} are not supported", call.types()));
    };
    let (q, k, v) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let (q, k) = (call.as_f32(q), call.as_f32(k));
    let (k, v) = (repeat_heads(call, k, *heads)?, repeat_heads(call, v, *heads)?);
    let scale = call.float("scale", 1.0 / (*width as f32).sqrt())?;
    let k = swap_last(call, k);
    let graph = call.graph();
    let scale = graph.scalar(scale);
    let scores = graph.matmul(q, k);
    let scores = graph.mul(scores, scale);
    let scores = call.as_element(scores.into(), precision);
    let scores = modified(call, "score_mod", scores, precision)?;
    let soft = call.graph().softmax(scores, -1);
    let soft = modified(call, "prob_mod", soft.into(), precision)?;
    let soft = call.as_element(soft, element);
    let y = call.graph().matmul(soft, v);
    call.one(y, element)
}

/// Values of an optimizer step for one of a node's tensors: the tensor, its gradient, and accumulated values.
struct Update {
    element: ElementType,
    x: Value,
    /// Gradient of the loss plus the gradient of the regularization (`norm_coefficient` times half the squared norm).
    gradient: Value,
    accumulated: Vec<Value>,
}

/// Returns the tensors of a node, each with `accumulated` accumulated values.
fn updates(call: &mut Call, accumulated: usize) -> Result<Vec<Update>, String> {
    let kinds = 2 + accumulated;
    let count = call.arity().saturating_sub(2) / kinds;
    if call.arity() != 2 + count * kinds {
        return Err(format!("{} operands are not {kinds} for each tensor", call.arity()));
    }
    let norm = call.float("norm_coefficient", 0.0)?;
    let mut found = Vec::new();
    for i in 0..count {
        let element = call.element(2 + i)?;
        let (x, gradient) = (call.value(2 + i)?, call.value(2 + count + i)?);
        let mut list = Vec::new();
        for kind in 2..kinds {
            list.push(call.value(2 + kind * count + i)?);
        }
        let norm = call.scalar(element, norm.into());
        let graph = call.graph();
        let decay = graph.mul(x, norm);
        found.push(Update {
            element,
            x,
            gradient: graph.add(gradient, decay).into(),
            accumulated: list,
        });
    }
    Ok(found)
}

/// Returns the results of a node in its order: first the results of one kind for all tensors, then of the next kind.
fn by_kind(call: &Call, all: Vec<(ElementType, Vec<NodeId>)>) -> Built {
    let kinds = all.first().map_or(0, |(_, list)| list.len());
    let of_kind = |kind: usize| all.iter().map(move |(element, list)| (list[kind], *element));
    let results = (0..kinds).flat_map(of_kind);
    Ok(results.map(|(value, element)| call.result(value, element)).collect())
}

/// Returns `factor * old + other * new`.
fn mixed(call: &mut Call, element: ElementType, old: Value, factor: f64, new: Value, other: f64) -> NodeId {
    let (factor, other) = (call.scalar(element, factor), call.scalar(element, other));
    let graph = call.graph();
    let (old, new) = (graph.mul(old, factor), graph.mul(new, other));
    graph.add(old, new)
}

/// Returns the learning rate and the number of the step, as scalars of a type.
fn rate(call: &mut Call, element: ElementType) -> Result<(Value, Value), String> {
    let (rate, step) = (call.value(0)?, call.value(1)?);
    let (rate, step) = (call.as_element(rate, element), call.as_element(step, element));
    let graph = call.graph();
    Ok((graph.reshape(rate, &[]).into(), graph.reshape(step, &[]).into()))
}

fn adagrad(call: &mut Call) -> Built {
    let (decay, epsilon) = (call.float("decay_factor", 0.0)?, call.float("epsilon", 1e-6)?);
    let mut results = Vec::new();
    for update in updates(call, 1)? {
        let element = update.element;
        let (rate, step) = rate(call, element)?;
        let (decay, one) = (call.scalar(element, decay.into()), call.scalar(element, 1.0));
        let epsilon = call.scalar(element, epsilon.into());
        let graph = call.graph();
        let slowed = graph.mul(step, decay);
        let divisor = graph.add(slowed, one);
        let rate = graph.div(rate, divisor);
        let square = graph.square(update.gradient);
        let sum = graph.add(update.accumulated[0], square);
        let root = graph.sqrt(sum);
        let root = graph.add(root, epsilon);
        let scaled = graph.mul(update.gradient, rate);
        let change = graph.div(scaled, root);
        results.push((element, vec![graph.sub(update.x, change), sum]));
    }
    by_kind(call, results)
}

fn adam(call: &mut Call) -> Built {
    let (alpha, beta) = (
        f64::from(call.float("alpha", 0.9)?),
        f64::from(call.float("beta", 0.999)?),
    );
    let (epsilon, post) = (call.float("epsilon", 1e-6)?, call.float("norm_coefficient_post", 0.0)?);
    let mut results = Vec::new();
    for update in updates(call, 2)? {
        let element = update.element;
        let (rate, step) = rate(call, element)?;
        let v = mixed(
            call,
            element,
            update.accumulated[0],
            alpha,
            update.gradient,
            1.0 - alpha,
        );
        let square = call.graph().square(update.gradient);
        let h = mixed(call, element, update.accumulated[1], beta, square.into(), 1.0 - beta);
        let numbers = [alpha, beta, 0.0, 1.0, epsilon.into(), 1.0 - f64::from(post)];
        let [alpha, beta, zero, one, epsilon, kept] = numbers.map(|v| call.scalar(element, v));
        let graph = call.graph();
        // Corrects the bias of the first steps; step 0 is not corrected.
        let (a, b) = (graph.pow(alpha, step), graph.pow(beta, step));
        let (a, b) = (graph.sub(one, a), graph.sub(one, b));
        let root = graph.sqrt(b);
        let first = graph.less_equal(step, zero);
        let a = graph.select(first, one, a);
        let factor = graph.div(root, a);
        let factor = graph.select(first, one, factor);
        let rate = graph.mul(rate, factor);
        let root = graph.sqrt(h);
        let root = graph.add(root, epsilon);
        let direction = graph.div(v, root);
        let change = graph.mul(direction, rate);
        let x = graph.sub(update.x, change);
        results.push((element, vec![graph.mul(x, kept), v, h]));
    }
    by_kind(call, results)
}

fn momentum(call: &mut Call) -> Built {
    let (alpha, beta) = (call.float("alpha", 0.0)?, call.float("beta", 0.0)?);
    let nesterov = match &*call.string("mode", "")? {
        "standard" => false,
        "nesterov" => true,
        other => return Err(format!("mode `{other}` is neither standard nor nesterov")),
    };
    let mut results = Vec::new();
    for update in updates(call, 1)? {
        let element = update.element;
        let (rate, step) = rate(call, element)?;
        let numbers = [f64::from(alpha), beta.into(), 0.0, 1.0];
        let [alpha, beta, zero, one] = numbers.map(|v| call.scalar(element, v));
        let graph = call.graph();
        // The first gradient has the weight 1.
        let later = graph.greater_than(step, zero);
        let beta = graph.select(later, beta, one);
        let old = graph.mul(update.accumulated[0], alpha);
        let new = graph.mul(update.gradient, beta);
        let v = graph.add(old, new);
        let direction = if !nesterov {
            v
        } else {
            let ahead = graph.mul(v, alpha);
            graph.add(update.gradient, ahead)
        };
        let change = graph.mul(direction, rate);
        results.push((element, vec![graph.sub(update.x, change), v]));
    }
    by_kind(call, results)
}
