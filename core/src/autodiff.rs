//! Reverse-mode automatic differentiation of a graph.
//!
//! This module refers to no operator: each operator implements its own gradient rule ([`Gradient`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Error, Result, unwrap_report};
use crate::graph::{Graph, NodeId, NodeKind, Provenance, Value};
use crate::loss_scaling::{INVERSE_STATE, LossScaling, RESERVED, SCALE_STATE};
use crate::ops::gradient::{GradCall, GradCx};
use crate::ops::{Gradient, OpRef};
use crate::reference::expand_into;

/// Suffix for names of calls that compute gradients: gradients of `fc1` are named `fc1.grad`.
pub const GRADIENT_SUFFIX: &str = ".grad";

/// Adds to a forward graph the gradients of its first output with respect to every trainable
/// parameter and every input marked by `require_grad`.
///
/// The result has the same outputs; [`Graph::gradients`] lists each of these leaves with its gradient.
///
/// # Panics
/// Panics with the text of the error if [`try_differentiate`] fails.
#[must_use]
#[track_caller]
pub fn differentiate(graph: &Graph) -> Graph {
    unwrap_report(try_differentiate(graph))
}

/// Differentiates like [`differentiate`], but returns errors instead of panicking.
///
/// # Errors
/// All errors of [`Graph::verify`]; [`Error::NonScalarLoss`] unless the first output has one float
/// element; [`Error::NotDifferentiable`] if a required gradient cannot be computed.
pub fn try_differentiate(graph: &Graph) -> Result<Graph> {
    differentiate_from(graph, None)
}

/// Differentiates like [`try_differentiate`], for training in mixed precision: multiplies gradients by the loss scale
/// during backpropagation, and divides them by it at the end ([`crate::loss_scaling`]). The scale and its inverse are
/// states of the result.
///
/// # Errors
/// As [`try_differentiate`]; a scale that is not a power of two; a loss, or a leaf with a gradient,
/// that is not `f32`; a state of the graph whose name is reserved for loss scaling.
pub fn try_differentiate_scaled(graph: &Graph, scaling: LossScaling) -> Result<Graph> {
    scaling.checked()?;
    differentiate_from(graph, Some(scaling))
}

fn differentiate_from(graph: &Graph, scaling: Option<LossScaling>) -> Result<Graph> {
    graph.verify()?;
    let order = graph.topological_order()?;
    let loss = *graph.outputs().first().ok_or(Error::NoOutputs)?;
    check_loss(graph, loss)?;

    let wanted = wanted_leaves(graph);
    if scaling.is_some() {
        check_scalable(graph, loss, &wanted)?;
    }
    let mut needs = vec![false; graph.nodes().len()];
    for leaf in &wanted {
        needs[leaf.index()] = true;
    }
    for id in &order {
        let node = &graph.nodes()[id.index()];
        // Integers carry no gradient, so an integer operand and its producers need none.
        needs[id.index()] |= node
            .inputs
            .iter()
            .any(|v| needs[v.node.index()] && graph.dtype(*v).is_float());
    }

    let mut out = graph.clone();
    out.freeze_writes();
    let mut adjoints = Adjoints::default();
    let loss_type = graph.ty(loss).map(|t| (t.dtype, t.shape.clone()));
    if let Some((dtype, shape)) = loss_type {
        let seed = match scaling {
            None => out.scalar_of(dtype, 1.0),
            Some(scaling) => out.state_filled(SCALE_STATE, &[], scaling.initial()),
        };
        let seed = out.reshape(seed, &shape);
        adjoints.add(&mut out, loss, seed.into());
    }
    let inverse = scaling.map(|scaling| out.state_filled(INVERSE_STATE, &[], 1.0 / scaling.initial()));
    for &id in order.iter().rev() {
        if needs[id.index()] && graph.nodes()[id.index()].is_op() {
            backpropagate(&mut out, id, &needs, &mut adjoints)?;
        }
    }
    out.gradients = wanted
        .into_iter()
        .map(|leaf| (leaf, adjoints.gradient_of_leaf(&mut out, leaf, inverse)))
        .collect();
    out.thaw_writes();
    out.verify()?;
    Ok(out)
}

fn check_loss(graph: &Graph, loss: Value) -> Result<()> {
    let ty = graph.ty(loss).ok_or(Error::NoOutputs)?;
    if ty.numel() != 1 {
        return Err(Error::NonScalarLoss {
            node: graph.label(loss.node),
            shape: ty.shape.clone(),
        });
    }
    if !ty.dtype.is_float() {
        return Err(Error::NotDifferentiable {
            node: graph.label(loss.node),
            reason: format!("the loss is {}, not floating point", ty.dtype),
        });
    }
    Ok(())
}

/// Checks that the loss and all scaled leaves are `f32`, and that no state uses a reserved name.
fn check_scalable(graph: &Graph, loss: Value, wanted: &[NodeId]) -> Result<()> {
    let leaves = wanted.iter().map(|&leaf| leaf.into());
    if let Some(value) = std::iter::once(loss)
        .chain(leaves)
        .find(|v| graph.dtype(*v) != DType::F32)
    {
        return Err(Error::misuse(
            format!(
                "training in mixed precision keeps losses, parameters and gradients in f32, but {} is {}",
                graph.label(value.node),
                graph.dtype(value)
            ),
            "make it f32, or train in f32 precision",
        ));
    }
    let names = graph.nodes().iter().filter(|node| !node.is_op());
    let mut names = names.filter_map(|node| node.name.as_deref());
    match names.find(|name| name.starts_with(RESERVED)) {
        None => Ok(()),
        Some(name) => Err(Error::misuse(
            format!("the model has a tensor named '{name}', but these names belong to loss scaling"),
            format!("rename it: names that start with '{RESERVED}' are reserved in mixed precision"),
        )),
    }
}

fn wanted_leaves(graph: &Graph) -> Vec<NodeId> {
    graph
        .node_ids()
        .filter(|id| match &graph.nodes()[id.index()].kind {
            NodeKind::Parameter { trainable, .. } => *trainable,
            _ => graph.wants_gradient.contains(id),
        })
        .collect()
}

/// Gradients of values, accumulated so far. The gradient of a value with several users is the sum over its uses.
#[derive(Default)]
struct Adjoints(HashMap<Value, Value>);

impl Adjoints {
    fn add(&mut self, graph: &mut Graph, value: Value, gradient: Value) {
        let sum = match self.0.get(&value) {
            Some(&earlier) => graph.add(earlier, gradient).into(),
            None => gradient,
        };
        self.0.insert(value, sum);
    }

    /// Returns the gradient of a leaf, multiplied by `factor` if given; zeros if the loss does not
    /// depend on it.
    fn gradient_of_leaf(&self, out: &mut Graph, leaf: NodeId, factor: Option<NodeId>) -> Value {
        let (dtype, shape) = (out.dtype(leaf), out.shape(leaf).to_vec());
        out.with_provenance(gradient_provenance(out, leaf), |out| {
            match (self.0.get(&leaf.into()), factor) {
                (Some(&gradient), None) => gradient,
                (Some(&gradient), Some(factor)) => out.mul(gradient, factor).into(),
                (None, _) => out.full(dtype, 0.0, &shape).into(),
            }
        })
    }
}

fn gradient_provenance(graph: &Graph, id: NodeId) -> Provenance {
    let Provenance { name, location } = graph.provenance(id);
    let name = name.unwrap_or_else(|| graph.nodes()[id.index()].kind.noun().into());
    Provenance {
        name: Some(Arc::from(format!("{name}{GRADIENT_SUFFIX}"))),
        location,
    }
}

/// Propagates gradients from the results of one call to its operands, and adds them to `adjoints`. `out` contains the
/// forward nodes with unchanged ids; the new nodes are added to it.
fn backpropagate(out: &mut Graph, id: NodeId, needs: &[bool], adjoints: &mut Adjoints) -> Result<()> {
    let node = out.nodes()[id.index()].clone();
    let Some((op, attrs)) = node.op() else {
        return Ok(());
    };
    let values = |count: usize| (0..count as u32).map(move |port| Value { node: id, port });
    let grads: Vec<Option<Value>> = values(node.outputs.len())
        .map(|v| adjoints.0.get(&v).copied())
        .collect();
    if grads.iter().all(Option::is_none) {
        return Ok(());
    }
    let needs: Vec<bool> = node
        .inputs
        .iter()
        .map(|v| needs[v.node.index()] && out.dtype(*v).is_float())
        .collect();
    let call = GradCall {
        attrs,
        inputs: node.inputs.clone(),
        outputs: values(node.outputs.len()).collect(),
        grads,
        needs,
    };
    let results = out
        .with_provenance(gradient_provenance(out, id), |out| {
            vector_jacobian_product(out, op, &call)
        })
        .map_err(|reason| Error::NotDifferentiable {
            node: out.label(id),
            reason,
        })?;
    for ((&value, gradient), needed) in call.inputs.iter().zip(results).zip(&call.needs) {
        if let (Some(gradient), true) = (gradient, needed) {
            check_gradient_type(out, op, value, gradient)?;
            adjoints.add(out, value, gradient);
        }
    }
    Ok(())
}

// A rule that returns a gradient of another shape is a bug in the operator. Report it by name
// instead of letting `add` broadcast the gradient.
fn check_gradient_type(graph: &Graph, op: OpRef, value: Value, gradient: Value) -> Result<()> {
    match (graph.ty(value), graph.ty(gradient)) {
        (Some(v), Some(g)) if v == g => Ok(()),
        (v, g) => match graph.errors().first() {
            Some(error) => Err(error.clone()),
            None => Err(Error::graph(
                format!(
                    "the gradient rule of {} yields {g:?} for an operand of type {v:?}",
                    op.name()
                ),
                "this is a fault of the operator",
            )),
        },
    }
}

fn vector_jacobian_product(graph: &mut Graph, op: OpRef, call: &GradCall) -> Result<Vec<Option<Value>>, String> {
    match op.gradient() {
        Gradient::Rule(rule) => rule(&mut GradCx { graph, call }),
        Gradient::Zero => Ok(vec![None; call.inputs.len()]),
        Gradient::NotDifferentiable(reason) => Err(reason.to_owned()),
        Gradient::Decomposed => decomposed_gradient(graph, op, call),
    }
}

/// Differentiates the decomposition of a call, after building it on the graph. Later passes remove nodes that stay
/// unused, and merge nodes that equal nodes of the forward pass.
fn decomposed_gradient(graph: &mut Graph, op: OpRef, call: &GradCall) -> Result<Vec<Option<Value>>, String> {
    let start = graph.nodes().len();
    let outputs: Vec<_> = call.outputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
    let results = expand_into(graph, op, call.attrs, &call.inputs, &outputs).map_err(|e| e.to_string())?;
    let end = graph.nodes().len();
    let mut needed: HashMap<NodeId, bool> = HashMap::new();
    for (v, &n) in call.inputs.iter().zip(&call.needs) {
        *needed.entry(v.node).or_default() |= n;
    }
    let mut adjoints = Adjoints::default();
    for (&value, gradient) in results.iter().zip(&call.grads) {
        if let Some(gradient) = gradient {
            adjoints.add(graph, value, *gradient);
        }
    }
    let needs = inner_needs(graph, start, &needed);
    for id in (start..end).rev().map(|i| NodeId::new(i as u32)) {
        if needs[id.index()] && graph.nodes()[id.index()].is_op() {
            backpropagate(graph, id, &needs, &mut adjoints).map_err(|e| e.to_string())?;
        }
    }
    // The same value may be several operands: its gradient is counted once, for the first of them.
    let mut seen = Vec::new();
    Ok(call
        .inputs
        .iter()
        .map(|v| {
            if seen.contains(v) {
                return None;
            }
            seen.push(*v);
            adjoints.0.get(v).copied()
        })
        .collect())
}

fn inner_needs(graph: &Graph, start: usize, operands: &HashMap<NodeId, bool>) -> Vec<bool> {
    let mut needs = vec![false; graph.nodes().len()];
    for (id, &needed) in operands {
        needs[id.index()] = needed;
    }
    for i in start..graph.nodes().len() {
        needs[i] = graph.nodes()[i]
            .inputs
            .iter()
            .any(|v| needs[v.node.index()] && graph.dtype(*v).is_float());
    }
    needs
}
