//! The graph with clusters as calls.

use std::collections::{HashMap, HashSet};

use super::Cluster;
use super::grow::Grown;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value};
use meganeura_core::ops::FUSED;

/// A graph with its clusters.
pub(super) struct Emitted {
    pub(super) graph: Graph,
    pub(super) clusters: Vec<Cluster>,
    /// What each node became, or became a part of.
    pub(super) moved: HashMap<NodeId, NodeId>,
}

/// Rebuilds the graph with a call for each cluster.
///
/// # Errors
/// A cycle, if a path left a cluster and came back.
pub(super) fn emit(graph: &Graph, grown: Vec<Grown>) -> Result<Emitted> {
    let mut cluster_of: Vec<Option<usize>> = vec![None; graph.nodes().len()];
    for (index, cluster) in grown.iter().enumerate() {
        for m in &cluster.members {
            cluster_of[m.index()] = Some(index);
        }
    }
    let mut out = Graph::new();
    let mut map: HashMap<Value, Value> = HashMap::new();
    let mut moved: HashMap<NodeId, NodeId> = HashMap::new();
    let mut made: Vec<(NodeId, usize)> = Vec::new();
    let units = Units {
        graph,
        clusters: &grown,
        cluster_of: &cluster_of,
    };
    for unit in units.ordered()? {
        let mapped = |values: &[Value]| values.iter().map(|v| map[v]).collect::<Vec<_>>();
        match unit {
            Unit::Node(id) => {
                let node = &graph.nodes()[id.index()];
                let new = out.copy_node(graph, id, mapped(&node.inputs));
                moved.insert(id, new);
                let ports = 0..node.outputs.len() as u32;
                map.extend(ports.map(|port| (Value { node: id, port }, Value { node: new, port })));
            }
            Unit::Cluster(index) => {
                let Grown { members, draft, .. } = &grown[index];
                let operands = mapped(&draft.operands);
                // A cluster has members.
                let last = members.last().copied().unwrap_or(NodeId::new(0));
                let provenance = graph.provenance(last);
                let new = out.with_provenance(provenance, |out| out.call(FUSED, draft.attrs(), operands));
                let ports = draft.results.iter().zip(0u32..);
                map.extend(ports.map(|(&value, port)| (value, Value { node: new, port })));
                moved.extend(members.iter().map(|&member| (member, new)));
                // Those that others need too are calls of their own.
                for &view in &draft.views {
                    moved.entry(view).or_insert(new);
                }
                made.push((new, index));
            }
        }
    }
    out.adopt_roots(graph, |v| map[&v]);
    let clusters = made.into_iter().map(|(node, index)| {
        let Grown {
            members, draft, saving, ..
        } = &grown[index];
        Cluster {
            node,
            label: out.label(node).0,
            calls: members.len() + draft.costly_views,
            program: draft.program.to_string(),
            saving_ps: *saving,
        }
    });
    let clusters = clusters.collect();
    Ok(Emitted {
        graph: out,
        clusters,
        moved,
    })
}

/// What becomes one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Node(NodeId),
    Cluster(usize),
}

/// Nodes and clusters as a graph.
struct Units<'a> {
    graph: &'a Graph,
    clusters: &'a [Grown],
    cluster_of: &'a [Option<usize>],
}

impl Units<'_> {
    fn of(&self, id: NodeId) -> Unit {
        self.cluster_of[id.index()].map_or(Unit::Node(id), Unit::Cluster)
    }

    fn operands(&self, unit: Unit) -> &[Value] {
        match unit {
            Unit::Node(id) => &self.graph.nodes()[id.index()].inputs,
            Unit::Cluster(index) => &self.clusters[index].draft.operands,
        }
    }

    /// What the roots need; leaves that the user feeds by name, always.
    fn live(&self) -> HashSet<Unit> {
        let is_fed = |id: &NodeId| {
            let kind = &self.graph.nodes()[id.index()].kind;
            matches!(
                kind,
                NodeKind::Input | NodeKind::Parameter { .. } | NodeKind::State { .. }
            )
        };
        let fed = self.graph.node_ids().filter(is_fed);
        let mut open: Vec<Unit> = fed
            .chain(self.graph.roots().map(|v| v.node))
            .map(|id| self.of(id))
            .collect();
        let mut live = HashSet::new();
        while let Some(unit) = open.pop() {
            if live.insert(unit) {
                open.extend(self.operands(unit).iter().map(|v| self.of(v.node)));
            }
        }
        live
    }

    /// What is needed, operands first, otherwise in the order of the list.
    fn ordered(&self) -> Result<Vec<Unit>> {
        let live = self.live();
        let mut done: HashMap<Unit, bool> = HashMap::new();
        let mut order = Vec::with_capacity(live.len());
        let mut stack: Vec<(Unit, usize)> = Vec::new();
        for id in self.graph.node_ids() {
            let root = self.of(id);
            if !live.contains(&root) || done.contains_key(&root) {
                continue;
            }
            done.insert(root, false);
            stack.push((root, 0));
            while let Some((unit, next)) = stack.last_mut() {
                let Some(operand) = self.operands(*unit).get(*next) else {
                    done.insert(*unit, true);
                    order.push(*unit);
                    stack.pop();
                    continue;
                };
                *next += 1;
                let operand = self.of(operand.node);
                match done.get(&operand) {
                    Some(true) => {}
                    Some(false) => {
                        return Err(Error::graph("a path leaves a cluster and comes back", "report this"));
                    }
                    None => {
                        done.insert(operand, false);
                        stack.push((operand, 0));
                    }
                }
            }
        }
        Ok(order)
    }
}
