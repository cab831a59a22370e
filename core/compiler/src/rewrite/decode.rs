//! Conversion of the selected e-nodes to a graph.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::problem::{Problem, Selection};
use super::snapshot::Snapshot;
use super::state::State;
use super::types::Label;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, Provenance, Value};

/// A graph that was built from selected e-nodes, and the node of each class.
pub(super) struct DecodedGraph {
    pub(super) graph: Graph,
    /// Value in the graph of each class.
    pub(super) values: FxHashMap<u32, Value>,
    /// Calls whose results are stored packed.
    pub(super) packed: FxHashSet<NodeId>,
}

struct Decoder<'a> {
    graph: &'a Graph,
    state: &'a State,
    snapshot: &'a Snapshot,
    problem: &'a Problem,
    selection: &'a Selection,
    /// Name and location of each class. The first graph node that the class represents has them, or else the class that
    /// first needed it.
    provenance: Vec<Option<Provenance>>,
    out: Graph,
    /// Node in the graph of each class.
    nodes: FxHashMap<u32, NodeId>,
    /// Value in the graph of each class that has a single value.
    values: FxHashMap<u32, Value>,
    packed: FxHashSet<NodeId>,
}

/// Builds the graph of a selection. Leaves keep their order, names and locations; calls inherit
/// those of the nodes that they replace.
///
/// # Errors
/// The selection lacks a class, or a selected call is rejected (both would be bugs of this module).
pub(super) fn decode(
    graph: &Graph,
    state: &State,
    snapshot: &Snapshot,
    problem: &Problem,
    selection: &Selection,
) -> Result<DecodedGraph> {
    let mut decoder = Decoder {
        graph,
        state,
        snapshot,
        problem,
        selection,
        provenance: provenance(graph, snapshot),
        out: Graph::new(),
        nodes: FxHashMap::default(),
        values: FxHashMap::default(),
        packed: FxHashSet::default(),
    };
    decoder.leaves();
    let mut roots: Vec<u32> = Vec::new();
    for value in graph.roots() {
        match snapshot.values.get(&value) {
            Some(&class) => roots.push(class),
            None => return Err(lost("a result")),
        }
    }
    for root in roots {
        decoder.build(root)?;
    }
    let Decoder {
        mut out,
        values,
        packed,
        ..
    } = decoder;
    let at = |v: Value| snapshot.values.get(&v).and_then(|class| values.get(class)).copied();
    if graph.roots().any(|v| at(v).is_none()) {
        return Err(lost("a result"));
    }
    out.adopt_roots(graph, |v| at(v).unwrap_or(v));
    out.verify()?;
    Ok(DecodedGraph {
        graph: out,
        values,
        packed,
    })
}

fn lost(what: &str) -> Error {
    Error::graph(format!("rewriting lost {what}"), "this is a fault of the rewriter")
}

/// Returns names and locations of classes that represent graph nodes; named nodes take precedence.
fn provenance(graph: &Graph, snapshot: &Snapshot) -> Vec<Option<Provenance>> {
    let mut provenance: Vec<Option<Provenance>> = vec![None; snapshot.classes.len()];
    let mut values: Vec<(&Value, &u32)> = snapshot.values.iter().collect();
    values.sort_unstable();
    for (value, &class) in values {
        let slot = &mut provenance[class as usize];
        let known = slot.as_ref().is_some_and(|p| p.name.is_some());
        let found = graph.provenance(value.node);
        if !known && (slot.is_none() || found.name.is_some()) {
            *slot = Some(found);
        }
    }
    provenance
}

impl Decoder<'_> {
    /// Copies the leaves that users feed by name, in their order, even if they are unused.
    fn leaves(&mut self) {
        for id in self.graph.node_ids() {
            if !self.graph.nodes()[id.index()].is_named_leaf() {
                continue;
            }
            let new = self.out.copy_node(self.graph, id, Vec::new());
            if let Some(&class) = self.snapshot.values.get(&id.into()) {
                self.nodes.insert(class, new);
                self.values.insert(class, new.into());
            }
        }
    }

    /// Builds a class after its operands. It does not recurse, because training graphs are deep.
    fn build(&mut self, root: u32) -> Result<()> {
        let mut stack = vec![(root, 0)];
        while let Some((class, next)) = stack.pop() {
            if self.nodes.contains_key(&class) {
                continue;
            }
            let choice = self.selection[class as usize].ok_or_else(|| lost("a value"))?;
            let (node, _) = self.snapshot.chosen(self.problem, class, choice);
            if let Some(&child) = node.children.get(next) {
                stack.push((class, next + 1));
                if self.provenance[child as usize].is_none() {
                    self.provenance[child as usize] = self.provenance[class as usize].clone();
                }
                stack.push((child, 0));
                continue;
            }
            self.emit(class)?;
        }
        Ok(())
    }

    fn emit(&mut self, class: u32) -> Result<()> {
        let choice = self.selection[class as usize].ok_or_else(|| lost("a value"))?;
        let (node, is_packed) = self.snapshot.chosen(self.problem, class, choice);
        let label = self.state.labels.get(node.label);
        if let Label::Get(port) = label {
            let tuple = self.nodes[&node.children[0]];
            self.nodes.insert(class, tuple);
            self.values.insert(
                class,
                Value {
                    node: tuple,
                    port: *port,
                },
            );
            return Ok(());
        }
        let inputs: Vec<Value> = node.children.iter().map(|c| self.values[c]).collect();
        let new = match (label, self.state.operator(node.label)) {
            (Label::Leaf(id) | Label::Pinned(id), _) => self.out.copy_node(self.graph, *id, inputs),
            (_, Some((op, attrs))) => {
                let provenance = self.provenance[class as usize].clone().unwrap_or_default();
                self.out
                    .with_provenance(provenance, |out| out.call(op, attrs.clone(), inputs))
            }
            (_, None) => return Err(lost("an operator")),
        };
        if let Some(error) = self.out.errors().first() {
            return Err(error.clone());
        }
        if is_packed {
            self.packed.insert(new);
        }
        self.nodes.insert(class, new);
        self.values.insert(class, new.into());
        Ok(())
    }
}

/// Returns the name of a node for reports: its own, else its operator and index.
pub(super) fn place(graph: &Graph, value: Value) -> Arc<str> {
    let node = &graph.nodes()[value.node.index()];
    match &node.name {
        Some(name) => name.clone(),
        None => format!("{}{}", node.kind.noun(), value.node).into(),
    }
}
