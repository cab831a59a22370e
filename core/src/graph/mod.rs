//! The graph IR: a list of nodes whose edges are values.
//!
//! A value is one port of one node, so an operator may have several results. Builder methods are
//! next to their operators in [`crate::ops`]; this module refers to no operator. They never panic:
//! a wrong call yields a poisoned node, and [`Graph::verify`] returns the error with the location
//! of the call.

mod constant;
mod derive;
mod id;
mod invariant;
mod leaves;
mod order;
mod packing;
mod print;
mod uses;
mod verify;

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use constant::ConstantData;
pub use id::NodeId;
use id::Owner;
pub use invariant::may_be_kept;
pub use packing::{PackedSource, Packing};
pub use uses::Uses;

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::error::{Error, NodeLabel, SourceLocation};
use crate::init::Init;
use crate::ops::{Call, OpRef};
use crate::shape::TensorType;

/// One result of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Index of this result among the results of the node.
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

/// Kind of a node.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Data that the caller feeds before a step.
    Input,
    /// Weights; `trainable` ones get a gradient and optimizer updates.
    Parameter {
        /// `true` if training changes it.
        trainable: bool,
        /// Initializer for fresh sessions; a packed parameter uses those of its sources.
        init: Init,
        /// The parameters that it contains, if it is packed.
        packing: Option<Arc<Packing>>,
    },
    /// Persistent, untrained data that effects may write (running statistics, caches).
    State {
        /// Every element's value in a fresh session.
        fill: f32,
    },
    /// A number that the session sets at each step (learning rate, random seed …).
    Scalar,
    /// Data that is fixed when the graph is built.
    Constant(Arc<ConstantData>),
    /// A call of an operator.
    Op {
        /// The operator.
        op: OpRef,
        /// Attributes of the call.
        attrs: Attrs,
    },
    /// A rejected builder call; the graph's errors contain the reason.
    Poison,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Kind of the node.
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

/// An in-place write of persistent data that must execute even if its result is unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effect {
    /// The state or parameter node that is written.
    pub target: NodeId,
    /// Value of the target after the step.
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
    /// Names of the outputs; empty if they have none.
    pub(crate) output_names: Vec<Arc<str>>,
    pub(crate) gradients: Vec<(NodeId, Value)>,
    pub(crate) wants_gradient: Vec<NodeId>,
    pub(crate) effects: Vec<Effect>,
    /// Latest value of each written leaf, which later reads of the leaf use.
    current: HashMap<NodeId, Value>,
    leaf_names: HashMap<Arc<str>, NodeId>,
    errors: Vec<Error>,
    next_uid: u32,
    provenance: Option<Provenance>,
    /// Context that errors of builder calls include.
    within: Option<String>,
    /// Owner of this graph's ids, to detect ids of another graph.
    owner: Owner,
}

const FOREIGN_HELP: &str = "pass values of this graph: node ids are specific to a graph, and a pass returns a new \
    graph";

impl Graph {
    /// Creates an empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    // ---- operators ----------------------------------------------------------------------------

    /// Adds a call of an operator; every builder method uses it.
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
                    return self.poison(op.name(), location, message, FOREIGN_HELP);
                }
            }
        }
        let outputs = match infer(op, &attrs, &types) {
            Ok(outputs) => outputs,
            Err(message) => {
                let remedy = format!("{} is {}", op.name(), op.doc().formula);
                return self.poison(op.name(), location, message, &remedy);
            }
        };
        let written: Vec<Value> = op.writes().iter().map(|&(input, _)| inputs[input]).collect();
        if (1..written.len()).any(|i| written[..i].contains(&written[i])) {
            let message = "the same state is passed for two operands that the operator writes".to_owned();
            return self.poison(op.name(), location, message, "give each its own state");
        }
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

    /// Records that `new` overwrites `old`, and finds the leaf whose latest value `old` is: it must be a state or a
    /// parameter.
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
            return self.reject(op.name(), location, message, "write to the value that `state` returned");
        }
        self.current.insert(leaf, new);
        self.effects.retain(|e| e.target != leaf);
        self.effects.push(Effect {
            target: leaf,
            value: new,
        });
    }

    /// Returns the latest value of a leaf that has been written, the value itself otherwise.
    pub fn current_value(&self, value: impl Into<Value>) -> Value {
        let value = value.into();
        match self.current.get(&value.node) {
            Some(&v) if value.port == 0 && value.node.may_belong_to(self.owner) => v,
            _ => value,
        }
    }

    /// Iterates over the results of a node.
    pub fn values(&self, node: NodeId) -> impl Iterator<Item = Value> + use<> {
        let ports = self.nodes[node.index()].outputs.len() as u32;
        (0..ports).map(move |port| Value { node, port })
    }

    /// Returns the value of another port of a node with several results.
    pub fn port(&self, node: NodeId, port: u32) -> Value {
        Value { node, port }
    }

    /// Sets the name of a node, for the labels of its dispatches, profiles and errors.
    #[track_caller]
    pub fn named(&mut self, node: NodeId, name: &str) -> NodeId {
        if let Err(message) = self.check_owner(node) {
            self.reject(&format!("name '{name}'"), Location::caller(), message, FOREIGN_HELP);
        } else if let Some(n) = self.nodes.get_mut(node.index())
            && n.is_op()
        {
            n.name = Some(name.into());
        }
        node
    }

    /// Requests the gradient of an input (trainable parameters always have one).
    #[track_caller]
    pub fn require_grad(&mut self, input: NodeId) -> NodeId {
        let location = Location::caller();
        if let Err(message) = self.check_owner(input) {
            self.reject("require_grad", location, message, FOREIGN_HELP);
            return input;
        }
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
                "pass the value that `input` returned",
            ),
        }
        input
    }

    /// Sets the results; the first is the loss when training.
    ///
    /// A value of another graph is an error of [`verify`](Graph::verify), and of every build.
    #[track_caller]
    pub fn set_outputs<V: Into<Value>>(&mut self, outputs: Vec<V>) {
        let location = Location::caller();
        let outputs: Vec<Value> = outputs.into_iter().map(Into::into).collect();
        for value in &outputs {
            if let Err(message) = self.check_owner(value.node) {
                self.reject("set_outputs", location, message, FOREIGN_HELP);
            }
        }
        self.outputs = outputs.into_iter().map(|v| self.current_value(v)).collect();
        self.output_names.clear();
    }

    /// Sets the results like [`Graph::set_outputs`], and their names, so that a session can read the results by name:
    /// `set_named_outputs([("loss", loss), ("logits", logits)])`, then `session.read_output_named("logits")`. The order
    /// matters, too: the first is the loss when training.
    ///
    /// An empty name or a duplicate name is an error of [`verify`](Graph::verify), and of every
    /// build.
    #[track_caller]
    pub fn set_named_outputs<'n, V: Into<Value>>(&mut self, outputs: impl IntoIterator<Item = (&'n str, V)>) {
        let location = Location::caller();
        let (names, values): (Vec<&str>, Vec<V>) = outputs.into_iter().unzip();
        for (i, name) in names.iter().enumerate() {
            if name.is_empty() || names[..i].contains(name) {
                let message = if name.is_empty() {
                    format!("output {i} has an empty name")
                } else {
                    format!("two outputs are called '{name}'")
                };
                self.reject(
                    "set_named_outputs",
                    location,
                    message,
                    "give every output a unique name",
                );
            }
        }
        self.set_outputs(values);
        self.output_names = names.into_iter().map(Arc::from).collect();
    }

    /// Returns a number that is unique within this graph: as an attribute, it prevents merging of
    /// equal random or stateful calls.
    pub fn fresh_uid(&mut self) -> u32 {
        self.next_uid += 1;
        self.next_uid
    }

    // ---- reading ------------------------------------------------------------------------------

    /// Returns all nodes; a [`NodeId`] is an index into them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Iterates over node ids in list order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        let owner = self.owner;
        (0..self.nodes.len() as u32).map(move |i| NodeId::of(owner, i))
    }

    /// Returns the results.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// Iterates over the names of the results, in their order; none if [`Graph::set_outputs`] set
    /// them.
    pub fn output_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.output_names.iter().map(|name| &**name)
    }

    /// Returns leaves and their gradients, after differentiation.
    pub fn gradients(&self) -> &[(NodeId, Value)] {
        &self.gradients
    }

    /// Returns the in-place writes of persistent data, in program order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Returns the type of a value; `None` for a poisoned or foreign one.
    pub fn ty(&self, value: impl Into<Value>) -> Option<&TensorType> {
        self.try_type(value.into()).ok().flatten()
    }

    /// Returns the shape of a value; empty for a poisoned or foreign one.
    pub fn shape(&self, value: impl Into<Value>) -> &[usize] {
        self.ty(value).map_or(&[], |t| t.shape.dims())
    }

    /// Returns the dtype of a value; `F32` for a poisoned or foreign one.
    pub fn dtype(&self, value: impl Into<Value>) -> DType {
        self.ty(value).map_or(DType::F32, |t| t.dtype)
    }

    /// Returns the leaf with that name; for a parameter within a packed parameter, the packed one.
    pub fn leaf_named(&self, name: &str) -> Option<NodeId> {
        self.leaf_names.get(name).copied()
    }

    /// Returns the label of a node for errors.
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

    /// Returns the errors of rejected builder calls, in order.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Returns an error for the id of another graph, even if a node of this graph has its index.
    fn check_owner(&self, id: NodeId) -> Result<(), String> {
        if id.may_belong_to(self.owner) {
            return Ok(());
        }
        Err(format!(
            "{id} is a node of another graph, not a value of this graph (which has {} nodes)",
            self.nodes.len()
        ))
    }

    // `Ok(None)` is a poisoned value, `Err` one that does not exist.
    fn try_type(&self, value: Value) -> Result<Option<&TensorType>, String> {
        self.check_owner(value.node)?;
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

    /// Reports an error of the graph that only a builder method outside of this crate can detect.
    #[track_caller]
    pub fn report(&mut self, what: &str, message: impl Into<String>, remedy: &str) -> NodeId {
        self.poison(what, Location::caller(), message.into(), remedy)
    }

    fn push(&mut self, mut node: Node) -> NodeId {
        if let Some(p) = &self.provenance {
            node.name = node.name.or_else(|| p.name.clone());
            node.location = p.location.or(node.location);
        }
        self.push_raw(node)
    }

    fn push_raw(&mut self, node: Node) -> NodeId {
        let id = NodeId::of(self.owner, self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    fn reject(&mut self, what: &str, at: &'static Location<'static>, message: String, help: &str) {
        let location = match &self.provenance {
            Some(Provenance { location: Some(l), .. }) => *l,
            _ => at.into(),
        };
        let within = self
            .within
            .as_ref()
            .map_or_else(String::new, |within| format!("{within}: "));
        self.errors.push(Error::InvalidOp {
            node: NodeLabel(format!("{within}{what} at {location}")),
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

/// Checks the number of operands, and infers the types of the results with the operator's rule.
fn infer(op: OpRef, attrs: &Attrs, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
    op.arity().check(inputs.len())?;
    let outputs = op.infer(&Call {
        attrs,
        inputs,
        outputs: &[],
    })?;
    debug_assert!(outputs.len() >= op.ports().len(), "{}", op.name());
    Ok(outputs)
}

impl Node {
    /// Returns `true` for leaves that users fill by name.
    pub fn is_named_leaf(&self) -> bool {
        matches!(
            self.kind,
            NodeKind::Input | NodeKind::Parameter { .. } | NodeKind::State { .. }
        )
    }

    /// Returns `true` if this is a call of an operator.
    pub fn is_op(&self) -> bool {
        matches!(self.kind, NodeKind::Op { .. })
    }

    /// Returns the operator and attributes of a call.
    pub fn op(&self) -> Option<(OpRef, &Attrs)> {
        match &self.kind {
            NodeKind::Op { op, attrs } => Some((*op, attrs)),
            _ => None,
        }
    }
}

impl NodeKind {
    /// Returns the word for the kind of node in errors and listings; for a call, the operator's name.
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
