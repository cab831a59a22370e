//! Methods with which passes build one graph from another.

use std::collections::HashMap;
use std::panic::Location;

use super::{Effect, Graph, Node, NodeId, NodeKind, Provenance, Value};
use crate::error::{Error, Result};

impl Graph {
    /// Runs `build`; every node that it adds inherits this name and location. Passes that replace or differentiate a
    /// node use it.
    pub fn with_provenance<R>(&mut self, provenance: Provenance, build: impl FnOnce(&mut Graph) -> R) -> R {
        let outer = self.provenance.replace(provenance);
        let result = build(self);
        self.provenance = outer;
        result
    }

    /// Runs `build` and reports the line that calls this method as the source location of its new
    /// nodes and errors, unless an outer call of this method has set one. It is for functions that
    /// make several builder calls: errors then name the line of the caller. The function itself
    /// needs `#[track_caller]`.
    #[track_caller]
    pub fn at_caller<R>(&mut self, build: impl FnOnce(&mut Graph) -> R) -> R {
        let outer = self.provenance.take();
        let mut inner = outer.clone().unwrap_or_default();
        inner.location.get_or_insert(Location::caller().into());
        self.provenance = Some(inner);
        let result = build(self);
        self.provenance = outer;
        result
    }

    /// Runs `build` like [`Graph::at_caller`], but errors of the calls also name `what`, such as
    /// `linear 'fc1' (64 to 10 features)`. The innermost `what` counts.
    #[track_caller]
    pub fn within<R>(&mut self, what: impl Into<String>, build: impl FnOnce(&mut Graph) -> R) -> R {
        let outer = self.within.replace(what.into());
        let result = self.at_caller(build);
        self.within = outer;
        result
    }

    /// Returns the name and location of a node.
    pub fn provenance(&self, id: NodeId) -> Provenance {
        self.nodes
            .get(id.index())
            .map_or_else(Provenance::default, |n| Provenance {
                name: n.name.clone(),
                location: n.location,
            })
    }

    /// Replaces one operand of a node, without any check until [`Graph::verify`].
    pub fn replace_operand(&mut self, node: NodeId, operand: usize, value: impl Into<Value>) {
        if let Some(slot) = self.nodes.get_mut(node.index()).and_then(|n| n.inputs.get_mut(operand)) {
            *slot = value.into();
        }
    }

    /// Replaces kind and operands of a node, without any check until [`Graph::verify`]. The new call must have the same
    /// result types.
    pub fn replace_call(&mut self, id: NodeId, kind: NodeKind, inputs: Vec<Value>) {
        if let Some(node) = self.nodes.get_mut(id.index()) {
            (node.kind, node.inputs) = (kind, inputs);
        }
    }

    /// Copies a node with new operands, keeping name, location and effects; for passes.
    pub fn copy_node(&mut self, source: &Graph, id: NodeId, inputs: Vec<Value>) -> NodeId {
        let node = &source.nodes[id.index()];
        let new = self.push_raw(Node { inputs, ..node.clone() });
        self.register_leaf(new);
        new
    }

    /// Adds the nodes that the results of another graph need, and returns those results in this
    /// graph. `feeds` replaces inputs of `other` by values of this graph; other leaves are added
    /// with their names, which must be unused here.
    ///
    /// # Errors
    /// All errors of [`Graph::verify`] on `other`; a feed with another type than its input, or with
    /// a name that is not an input of `other`; effects and gradients, which belong to a graph as a
    /// whole.
    pub fn splice(&mut self, other: &Graph, feeds: &[(&str, Value)]) -> Result<Vec<Value>> {
        let map = self.splice_all(other, feeds)?;
        Ok(other.outputs.iter().map(|v| map[v]).collect())
    }

    /// Adds nodes like [`Graph::splice`], and returns the value of this graph for each value of `other`.
    ///
    /// # Errors
    /// Those of [`Graph::splice`].
    pub fn splice_all(&mut self, other: &Graph, feeds: &[(&str, Value)]) -> Result<HashMap<Value, Value>> {
        other.verify()?;
        if !other.effects.is_empty() || !other.gradients.is_empty() {
            return Err(Error::graph(
                "a graph that writes state or has gradients cannot be added to another",
                "differentiate the whole graph, and write its state there",
            ));
        }
        let mut map: HashMap<Value, Value> = HashMap::new();
        for (name, value) in feeds {
            let input = other
                .leaf_named(name)
                .filter(|id| matches!(other.nodes[id.index()].kind, NodeKind::Input));
            let Some(input) = input else {
                return Err(Error::graph(
                    format!("the graph has no input '{name}'"),
                    "feed its inputs by their names",
                ));
            };
            if other.ty(input) != self.ty(*value) {
                return Err(Error::graph(
                    format!(
                        "input '{name}' is {:?}, and {:?} is fed",
                        other.ty(input),
                        self.ty(*value)
                    ),
                    "feed a value of the same type and shape",
                ));
            }
            map.insert(input.into(), *value);
        }
        for id in other.topological_order()? {
            if map.contains_key(&id.into()) {
                continue;
            }
            let node = &other.nodes[id.index()];
            let taken = node
                .name
                .as_deref()
                .filter(|name| node.is_named_leaf() && self.leaf_names.contains_key(*name));
            if let Some(name) = taken {
                return Err(Error::graph(
                    format!("both graphs have a {} '{name}'", node.kind.noun()),
                    "feed the input, or give one of them another name",
                ));
            }
            let inputs = node.inputs.iter().map(|v| map[v]).collect();
            let new = self.copy_node(other, id, inputs);
            for value in other.values(id) {
                map.insert(
                    value,
                    Value {
                        node: new,
                        port: value.port,
                    },
                );
            }
        }
        Ok(map)
    }

    /// Gives an unnamed node the name and source location of another node that computes the same.
    pub fn name_if_unnamed(&mut self, id: NodeId, equal: &Node) {
        let node = &mut self.nodes[id.index()];
        if node.name.is_none() && node.is_op() && equal.name.is_some() {
            node.name.clone_from(&equal.name);
            node.location = equal.location;
        }
    }

    /// Copies outputs, gradients, effects and errors, but no nodes, from `source`, the graph that this one was derived
    /// from. `map` returns the value of this graph for a value of `source`.
    pub fn adopt_roots(&mut self, source: &Graph, map: impl Fn(Value) -> Value) {
        let leaf = |id: NodeId| map(id.into()).node;
        self.outputs = source.outputs.iter().map(|&v| map(v)).collect();
        self.output_names.clone_from(&source.output_names);
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
        self.thaw_writes();
        self.errors.clone_from(&source.errors);
        self.next_uid = self.next_uid.max(source.next_uid);
    }

    /// Returns the inputs and parameters whose gradients [`Graph::require_grad`] requested.
    pub fn wants_gradient(&self) -> &[NodeId] {
        &self.wants_gradient
    }

    /// Replaces the gradients, `(parameter, gradient)`, and the list of [`wants_gradient`](Graph::wants_gradient), as a
    /// pass that merges parameters does after [`adopt_roots`](Graph::adopt_roots).
    pub fn replace_gradients(&mut self, gradients: Vec<(NodeId, Value)>, wanted: Vec<NodeId>) {
        self.gradients = gradients;
        self.wants_gradient = wanted;
    }

    /// Removes effects that do not change their target.
    pub fn drop_idle_effects(&mut self) {
        self.effects.retain(|e| e.value != e.target.into());
        self.thaw_writes();
    }

    /// Makes later reads of a written leaf return the written value, as during the construction of the graph.
    pub fn thaw_writes(&mut self) {
        self.current = self.effects.iter().map(|e| (e.target, e.value)).collect();
    }

    /// Ends the redirection of reads to written values, because passes refer to exact values.
    pub fn freeze_writes(&mut self) {
        self.current.clear();
    }

    /// Iterates over the values that must be computed: outputs, gradients and effects; and the
    /// leaves that effects write or gradients belong to.
    pub fn roots(&self) -> impl Iterator<Item = Value> + '_ {
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
}
