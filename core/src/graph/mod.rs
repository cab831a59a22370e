//! The graph IR: a list of nodes whose edges are values.
//!
//! A value is one port of one node, so an operator may have several results. Builder methods live
//! beside their operators in [`crate::ops`]; this module knows no operator. They never panic: a
//! wrong call yields a poisoned node, and the error comes out of [`Graph::verify`] with the
//! location of the call.

mod constant;
mod order;
mod print;
mod verify;

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use constant::ConstantData;

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::error::{Error, NodeLabel, SourceLocation};
use crate::init::Init;
use crate::ops::{Call, OpRef};
use crate::shape::{Shape, TensorType};

/// Index of a node; as an operand it means the node's port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As a list index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// One result of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub port: u32,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Self {
        Value { node, port: 0 }
    }
}

impl From<&NodeId> for Value {
    fn from(node: &NodeId) -> Self {
        (*node).into()
    }
}

impl From<&Value> for Value {
    fn from(v: &Value) -> Self {
        *v
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => write!(f, "{}", self.node),
            p => write!(f, "{}.{p}", self.node),
        }
    }
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Data that the caller feeds before a step.
    Input,
    /// Weights; `trainable` ones get a gradient and optimizer updates.
    Parameter {
        /// Whether training changes it.
        trainable: bool,
        /// How a fresh session may fill it.
        init: Init,
    },
    /// Persistent, untrained data that effects may write (running statistics, caches).
    State {
        /// Every element's value in a fresh session.
        fill: f32,
    },
    /// A number that the session sets at each step (learning rate, random seed …).
    Scalar,
    /// Data known when the graph is built.
    Constant(Arc<ConstantData>),
    /// A call of an operator.
    Op {
        /// The operator.
        op: OpRef,
        /// Its attributes.
        attrs: Attrs,
    },
    /// A rejected builder call; the graph's errors say why.
    Poison,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Operands.
    pub inputs: Vec<Value>,
    /// Types of the ports; empty for a poisoned node.
    pub outputs: Vec<TensorType>,
    /// Name given by the user or inherited from the node it was derived from. Leaves always have one
    /// (constants excepted).
    pub name: Option<Arc<str>>,
    /// The builder call, if the node came from one.
    pub location: Option<SourceLocation>,
}

/// An in-place write of persistent data that must execute even when its result is unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effect {
    /// The state or parameter node that is written.
    pub target: NodeId,
    /// Its value after the step.
    pub value: Value,
}

/// Name and location that derived nodes inherit.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// Name.
    pub name: Option<Arc<str>>,
    /// Location.
    pub location: Option<SourceLocation>,
}

/// A computation as a list of nodes; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<Value>,
    pub(crate) gradients: Vec<(NodeId, Value)>,
    pub(crate) wants_gradient: Vec<NodeId>,
    pub(crate) effects: Vec<Effect>,
    /// Latest value of each written leaf: what later reads of the leaf see.
    current: HashMap<NodeId, Value>,
    leaf_names: HashMap<Arc<str>, NodeId>,
    errors: Vec<Error>,
    next_uid: u32,
    provenance: Option<Provenance>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    // ---- leaves -------------------------------------------------------------------------------

    /// An `f32` input of that shape, fed with `set_input` before each step.
    #[track_caller]
    pub fn input(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.input_typed(name, shape, DType::F32)
    }

    /// A `u32` input (token ids, class ids, positions), fed with `set_input_u32`.
    #[track_caller]
    pub fn input_u32(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.input_typed(name, shape, DType::U32)
    }

    /// An input of any dtype.
    #[track_caller]
    pub fn input_typed(&mut self, name: &str, shape: &[usize], dtype: DType) -> NodeId {
        self.leaf(NodeKind::Input, name, shape, dtype)
    }

    /// A trainable `f32` parameter, zero until it is set.
    #[track_caller]
    pub fn parameter(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.parameter_with(name, shape, Init::Zeros)
    }

    /// A trainable `f32` parameter that `Session::initialize_parameters` fills by `init`.
    #[track_caller]
    pub fn parameter_with(&mut self, name: &str, shape: &[usize], init: Init) -> NodeId {
        let kind = NodeKind::Parameter { trainable: true, init };
        self.leaf(kind, name, shape, DType::F32)
    }

    /// Freezes (`false`) or unfreezes a parameter: a frozen one gets no gradient, no update and no
    /// optimizer state.
    #[track_caller]
    pub fn trainable(&mut self, parameter: NodeId, trainable: bool) -> NodeId {
        let location = Location::caller();
        match self.nodes.get_mut(parameter.index()).map(|n| &mut n.kind) {
            Some(NodeKind::Parameter { trainable: t, .. }) => *t = trainable,
            Some(NodeKind::Poison) => {}
            _ => self.reject(
                "trainable",
                location,
                format!("{parameter} is not a parameter"),
                "pass what `parameter` returned",
            ),
        }
        parameter
    }

    /// Persistent `f32` data that is not trained, zero in a fresh session.
    #[track_caller]
    pub fn state(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.state_filled(name, shape, 0.0)
    }

    /// Persistent `f32` data with another initial value in every element.
    #[track_caller]
    pub fn state_filled(&mut self, name: &str, shape: &[usize], fill: f32) -> NodeId {
        self.leaf(NodeKind::State { fill }, name, shape, DType::F32)
    }

    /// A scalar that the session supplies at each step; one node per name.
    #[track_caller]
    pub fn scalar_input(&mut self, name: &str, dtype: DType) -> NodeId {
        match self.leaf_names.get(name) {
            Some(&id) if matches!(self.nodes[id.index()].kind, NodeKind::Scalar) => id,
            _ => self.leaf(NodeKind::Scalar, name, &[], dtype),
        }
    }

    /// An `f32` constant in row-major order.
    #[track_caller]
    pub fn constant(&mut self, data: Vec<f32>, shape: &[usize]) -> NodeId {
        self.constant_data(ConstantData::from_f32(data), shape)
    }

    /// A `u32` constant in row-major order.
    #[track_caller]
    pub fn constant_u32(&mut self, data: Vec<u32>, shape: &[usize]) -> NodeId {
        self.constant_data(ConstantData::from_u32(data), shape)
    }

    /// An `f32` constant of shape `[]`.
    #[track_caller]
    pub fn scalar(&mut self, value: f32) -> NodeId {
        self.constant(vec![value], &[])
    }

    /// A constant scalar of a given dtype (rounded or truncated to it).
    #[track_caller]
    pub fn scalar_of(&mut self, dtype: DType, value: f64) -> NodeId {
        self.constant_data(ConstantData::splat(dtype, value), &[])
    }

    #[track_caller]
    pub(crate) fn constant_data(&mut self, data: ConstantData, shape: &[usize]) -> NodeId {
        let location = Location::caller();
        let ty = match Shape::new(shape) {
            Ok(shape) => TensorType::new(data.dtype(), shape),
            Err(message) => return self.poison("constant", location, message, OVERFLOW_HELP),
        };
        if ty.numel() != data.len() {
            let message = format!(
                "shape {} has {} elements, but the data has {}",
                ty.shape,
                ty.numel(),
                data.len()
            );
            return self.poison("constant", location, message, "make the data fit the shape");
        }
        self.push(Node {
            kind: NodeKind::Constant(Arc::new(data)),
            inputs: Vec::new(),
            outputs: vec![ty],
            name: None,
            location: Some(location.into()),
        })
    }

    #[track_caller]
    fn leaf(&mut self, kind: NodeKind, name: &str, shape: &[usize], dtype: DType) -> NodeId {
        let location = Location::caller();
        let what = kind.noun();
        let shape = match Shape::new(shape) {
            Ok(s) => s,
            Err(m) => return self.poison(&format!("{what} '{name}'"), location, m, OVERFLOW_HELP),
        };
        if name.is_empty() {
            return self.poison(what, location, "the name is empty".into(), "give it a name");
        }
        let name: Arc<str> = name.into();
        if let Some(&other) = self.leaf_names.get(&name) {
            let message = format!("the name is already taken by {}", self.label(other));
            return self.poison(
                &format!("{what} '{name}'"),
                location,
                message,
                "names of inputs, parameters and states are unique in a graph",
            );
        }
        let id = self.push(Node {
            kind,
            inputs: Vec::new(),
            outputs: vec![TensorType::new(dtype, shape)],
            name: Some(name.clone()),
            location: Some(location.into()),
        });
        self.leaf_names.insert(name, id);
        id
    }

    // ---- operators ----------------------------------------------------------------------------

    /// Adds a call of an operator: what every builder method ends in.
    ///
    /// Shapes and dtypes are inferred and checked here; a rejected call gives a poisoned node.
    #[track_caller]
    pub fn call(&mut self, op: OpRef, attrs: Attrs, inputs: Vec<Value>) -> NodeId {
        let location = Location::caller();
        let inputs: Vec<Value> = inputs.into_iter().map(|v| self.current_value(v)).collect();
        let mut types = Vec::with_capacity(inputs.len());
        for &value in &inputs {
            match self.try_type(value) {
                Ok(Some(ty)) => types.push(ty.clone()),
                // Already reported where the operand was built.
                Ok(None) => return self.push_poison(location),
                Err(message) => {
                    return self.poison(op.name(), location, message, "pass values of this graph");
                }
            }
        }
        let outputs = match infer(op, &attrs, &types) {
            Ok(outputs) => outputs,
            Err(message) => return self.poison(op.name(), location, message, ""),
        };
        let node = self.push(Node {
            kind: NodeKind::Op { op, attrs },
            inputs: inputs.clone(),
            outputs,
            name: None,
            location: Some(location.into()),
        });
        for &(input, port) in op.writes() {
            let new = Value {
                node,
                port: port as u32,
            };
            self.record_write(op, inputs[input], new, location);
        }
        node
    }

    /// A write must start from the latest value of persistent data: find the leaf behind it.
    fn record_write(&mut self, op: OpRef, old: Value, new: Value, location: &'static Location<'static>) {
        let leaf = self
            .current
            .iter()
            .find(|(_, v)| **v == old)
            .map_or(old.node, |(leaf, _)| *leaf);
        let persistent = matches!(
            self.nodes[leaf.index()].kind,
            NodeKind::State { .. } | NodeKind::Parameter { .. }
        );
        if !persistent {
            let message = format!(
                "{} is not a state or parameter, so it cannot be written",
                self.label(leaf)
            );
            return self.reject(op.name(), location, message, "write what `state` returned");
        }
        self.current.insert(leaf, new);
        self.effects.retain(|e| e.target != leaf);
        self.effects.push(Effect {
            target: leaf,
            value: new,
        });
    }

    /// The latest value of a leaf that has been written, the value itself otherwise.
    pub fn current_value(&self, value: impl Into<Value>) -> Value {
        let value = value.into();
        match self.current.get(&value.node) {
            Some(&v) if value.port == 0 => v,
            _ => value,
        }
    }

    /// The value of another port of a node with several results.
    pub fn port(&self, node: NodeId, port: u32) -> Value {
        Value { node, port }
    }

    /// Names a node; the name follows it into dispatch labels, profiles and errors.
    pub fn named(&mut self, node: NodeId, name: &str) -> NodeId {
        if let Some(n) = self.nodes.get_mut(node.index())
            && n.is_op()
        {
            n.name = Some(name.into());
        }
        node
    }

    /// Asks for the gradient of an input (parameters that are trainable have one anyway).
    #[track_caller]
    pub fn require_grad(&mut self, input: NodeId) -> NodeId {
        let location = Location::caller();
        match self.nodes.get(input.index()) {
            Some(n) if matches!(n.kind, NodeKind::Input | NodeKind::Parameter { .. }) => {
                if !self.wants_gradient.contains(&input) {
                    self.wants_gradient.push(input);
                }
            }
            Some(n) if matches!(n.kind, NodeKind::Poison) => {}
            _ => self.reject(
                "require_grad",
                location,
                format!("{input} is not an input or parameter"),
                "pass what `input` returned",
            ),
        }
        input
    }

    /// Sets the results; the first is the loss when training.
    pub fn set_outputs<V: Into<Value>>(&mut self, outputs: Vec<V>) {
        self.outputs = outputs.into_iter().map(|v| self.current_value(v.into())).collect();
    }

    /// A number that no other call of this method on this graph returns: it keeps random and
    /// stateful calls apart where equal calls would be merged.
    pub fn fresh_uid(&mut self) -> u32 {
        self.next_uid += 1;
        self.next_uid
    }

    // ---- reading ------------------------------------------------------------------------------

    /// All nodes; a [`NodeId`] is an index into them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Node ids in list order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The results.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// Leaf and its gradient, after differentiation.
    pub fn gradients(&self) -> &[(NodeId, Value)] {
        &self.gradients
    }

    /// In-place writes of persistent data, in program order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Type of a value; `None` for a poisoned or foreign one.
    pub fn ty(&self, value: impl Into<Value>) -> Option<&TensorType> {
        self.try_type(value.into()).ok().flatten()
    }

    /// Shape of a value; empty for a poisoned or foreign one.
    pub fn shape(&self, value: impl Into<Value>) -> &[usize] {
        self.ty(value).map_or(&[], |t| t.shape.dims())
    }

    /// Dtype of a value; `F32` for a poisoned or foreign one.
    pub fn dtype(&self, value: impl Into<Value>) -> DType {
        self.ty(value).map_or(DType::F32, |t| t.dtype)
    }

    /// The leaf of that name.
    pub fn leaf_named(&self, name: &str) -> Option<NodeId> {
        self.leaf_names.get(name).copied()
    }

    /// How errors speak of a node.
    pub fn label(&self, id: NodeId) -> NodeLabel {
        let Some(node) = self.nodes.get(id.index()) else {
            return NodeLabel(format!("{id} (not in this graph)"));
        };
        let mut text = match &node.name {
            Some(name) => format!("{} '{name}'", node.kind.noun()),
            None => format!("{} {id}", node.kind.noun()),
        };
        if let Some(l) = node.location {
            text += &format!(" at {l}");
        }
        NodeLabel(text)
    }

    /// Errors of rejected builder calls, in order.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    // `Ok(None)` is a poisoned value, `Err` one that does not exist.
    fn try_type(&self, value: Value) -> Result<Option<&TensorType>, String> {
        let Some(node) = self.nodes.get(value.node.index()) else {
            return Err(format!("{value} is not a value of this graph"));
        };
        if matches!(node.kind, NodeKind::Poison) {
            return Ok(None);
        }
        match node.outputs.get(value.port as usize) {
            Some(ty) => Ok(Some(ty)),
            None => Err(format!(
                "{} has {} results, so there is no port {}",
                self.label(value.node),
                node.outputs.len(),
                value.port
            )),
        }
    }

    // ---- derived graphs -----------------------------------------------------------------------

    /// Runs `build` with every new node inheriting this name and location, as passes do that
    /// replace or differentiate a node.
    pub fn with_provenance<R>(&mut self, provenance: Provenance, build: impl FnOnce(&mut Graph) -> R) -> R {
        let outer = self.provenance.replace(provenance);
        let result = build(self);
        self.provenance = outer;
        result
    }

    /// Name and location of a node.
    pub fn provenance(&self, id: NodeId) -> Provenance {
        self.nodes
            .get(id.index())
            .map_or_else(Provenance::default, |n| Provenance {
                name: n.name.clone(),
                location: n.location,
            })
    }

    /// Rewires one operand by hand, without any check until [`Graph::verify`].
    pub fn replace_operand(&mut self, node: NodeId, operand: usize, value: impl Into<Value>) {
        if let Some(slot) = self.nodes.get_mut(node.index()).and_then(|n| n.inputs.get_mut(operand)) {
            *slot = value.into();
        }
    }

    /// Rejects the graph for a reason that only a builder method above this crate can see.
    #[track_caller]
    pub fn report(&mut self, what: &str, message: impl Into<String>, remedy: &str) -> NodeId {
        self.poison(what, Location::caller(), message.into(), remedy)
    }

    /// Copies a node with new operands, keeping name, location and effects; for passes.
    pub(crate) fn copy_node(&mut self, source: &Graph, id: NodeId, inputs: Vec<Value>) -> NodeId {
        let node = &source.nodes[id.index()];
        let new = self.push_raw(Node { inputs, ..node.clone() });
        if let (Some(name), false) = (&node.name, node.is_op()) {
            self.leaf_names.insert(name.clone(), new);
        }
        new
    }

    /// Takes over everything that is not a node from the graph that this one is derived from.
    pub(crate) fn adopt_roots(&mut self, source: &Graph, map: impl Fn(Value) -> Value) {
        let leaf = |id: NodeId| map(id.into()).node;
        self.outputs = source.outputs.iter().map(|&v| map(v)).collect();
        self.gradients = source.gradients.iter().map(|&(l, v)| (leaf(l), map(v))).collect();
        self.wants_gradient = source.wants_gradient.iter().map(|&l| leaf(l)).collect();
        self.effects = source
            .effects
            .iter()
            .map(|e| Effect {
                target: leaf(e.target),
                value: map(e.value),
            })
            .collect();
        self.errors.clone_from(&source.errors);
        self.next_uid = self.next_uid.max(source.next_uid);
    }

    /// Keeps the effects for which `keep` says so, by position.
    pub(crate) fn retain_effects(&mut self, keep: impl Fn(usize) -> bool) {
        let mut position = 0;
        self.effects.retain(|_| {
            position += 1;
            keep(position - 1)
        });
    }

    /// Ends the rewiring of reads to written values: passes mean the exact value that they name.
    pub(crate) fn freeze_writes(&mut self) {
        self.current.clear();
    }

    /// Values that must be computed: outputs, gradients and effects; and the leaves that effects
    /// write or gradients belong to.
    pub(crate) fn roots(&self) -> impl Iterator<Item = Value> + '_ {
        let gradients = self.gradients.iter().flat_map(|&(leaf, value)| [leaf.into(), value]);
        let effects = self.effects.iter().flat_map(|e| [e.target.into(), e.value]);
        let wanted = self.wants_gradient.iter().map(|&l| l.into());
        self.outputs
            .iter()
            .copied()
            .chain(gradients)
            .chain(effects)
            .chain(wanted)
    }

    fn push(&mut self, mut node: Node) -> NodeId {
        if let Some(p) = &self.provenance {
            node.name = node.name.or_else(|| p.name.clone());
            node.location = p.location.or(node.location);
        }
        self.push_raw(node)
    }

    fn push_raw(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    fn reject(&mut self, what: &str, at: &'static Location<'static>, message: String, help: &str) {
        let location = match &self.provenance {
            Some(Provenance { location: Some(l), .. }) => *l,
            _ => at.into(),
        };
        self.errors.push(Error::InvalidOp {
            node: NodeLabel(format!("{what} at {location}")),
            message,
            remedy: help.to_owned(),
        });
    }

    fn poison(&mut self, what: &str, at: &'static Location<'static>, message: String, help: &str) -> NodeId {
        self.reject(what, at, message, help);
        self.push_poison(at)
    }

    fn push_poison(&mut self, at: &'static Location<'static>) -> NodeId {
        self.push(Node {
            kind: NodeKind::Poison,
            inputs: Vec::new(),
            outputs: Vec::new(),
            name: None,
            location: Some(at.into()),
        })
    }
}

const OVERFLOW_HELP: &str = "check the dimensions: a tensor must fit in memory";

/// Checks arity and asks the operator for the types of its results.
fn infer(op: OpRef, attrs: &Attrs, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
    op.arity().check(inputs.len())?;
    let outputs = op.infer(&Call {
        attrs,
        inputs,
        outputs: &[],
    })?;
    debug_assert_eq!(outputs.len(), op.ports().len(), "{}", op.name());
    Ok(outputs)
}

impl Node {
    /// Whether this is a call of an operator.
    pub fn is_op(&self) -> bool {
        matches!(self.kind, NodeKind::Op { .. })
    }

    /// Operator and attributes of a call.
    pub fn op(&self) -> Option<(OpRef, &Attrs)> {
        match &self.kind {
            NodeKind::Op { op, attrs } => Some((*op, attrs)),
            _ => None,
        }
    }
}

impl NodeKind {
    /// What errors and listings call it: the operator's name for a call.
    pub fn noun(&self) -> &'static str {
        match self {
            NodeKind::Input => "input",
            NodeKind::Parameter { .. } => "parameter",
            NodeKind::State { .. } => "state",
            NodeKind::Scalar => "scalar",
            NodeKind::Constant(_) => "constant",
            NodeKind::Op { op, .. } => op.name(),
            NodeKind::Poison => "poison",
        }
    }
}
