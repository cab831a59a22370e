//! Removal of unused nodes, and merging of equal computations.

use std::collections::HashMap;

use meganeura_core::attrs::Attrs;
use meganeura_core::error::Result;
use meganeura_core::graph::{ConstantData, Graph, NodeId, NodeKind, Value};
use meganeura_core::shape::TensorType;

/// Key that equal computations share.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Constant(ConstantData, TensorType),
    Call(&'static str, Attrs, Vec<Value>),
}

/// Rebuilds the graph from its roots, with one node for each distinct computation. Also returns the numbers of merged
/// and removed nodes. Unused leaves are kept, because users feed them by name.
pub(crate) fn clean(graph: &Graph) -> Result<(Graph, usize, usize)> {
    let (cleaned, merged, removed, _) = clean_with_places(graph)?;
    Ok((cleaned, merged, removed))
}

/// Cleans like [`clean`], and also returns the new node of each node; `None` for removed ones.
pub(crate) fn clean_with_places(graph: &Graph) -> Result<(Graph, usize, usize, Vec<Option<NodeId>>)> {
    let order = graph.topological_order()?;
    let mut live = vec![false; graph.nodes().len()];
    for root in graph.roots() {
        live[root.node.index()] = true;
    }
    for id in order.iter().rev() {
        let node = &graph.nodes()[id.index()];
        live[id.index()] |= node.is_named_leaf();
        if live[id.index()] {
            for v in &node.inputs {
                live[v.node.index()] = true;
            }
        }
    }
    let mut out = Graph::new();
    let mut map: Vec<NodeId> = vec![NodeId::new(0); graph.nodes().len()];
    let mut known: HashMap<Key, NodeId> = HashMap::new();
    let (mut merged, mut removed) = (0, 0);
    for id in order {
        if !live[id.index()] {
            removed += 1;
            continue;
        }
        let node = &graph.nodes()[id.index()];
        let inputs: Vec<Value> = node
            .inputs
            .iter()
            .map(|v| Value {
                node: map[v.node.index()],
                port: v.port,
            })
            .collect();
        let key = match &node.kind {
            NodeKind::Constant(data) => Some(Key::Constant((**data).clone(), node.outputs[0].clone())),
            // A write is never merged.
            NodeKind::Op { op, attrs } if op.writes().is_empty() => {
                Some(Key::Call(op.name(), attrs.clone(), inputs.clone()))
            }
            _ => None,
        };
        let existing = key.as_ref().and_then(|k| known.get(k)).copied();
        map[id.index()] = match existing {
            Some(same) => {
                merged += 1;
                out.name_if_unnamed(same, node);
                same
            }
            None => {
                let new = out.copy_node(graph, id, inputs);
                if let Some(key) = key {
                    known.insert(key, new);
                }
                new
            }
        };
    }
    out.adopt_roots(graph, |v| Value {
        node: map[v.node.index()],
        port: v.port,
    });
    let places = map
        .into_iter()
        .zip(live)
        .map(|(place, live)| live.then_some(place))
        .collect();
    Ok((out, merged, removed, places))
}
