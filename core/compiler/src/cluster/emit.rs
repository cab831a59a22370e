//! Construction of the new graph, in which each cluster is one call.

use std::collections::{HashMap, HashSet};

use super::grow::FusionGroup;
use super::report::Cluster;
use meganeura_core::autodiff::GRADIENT_SUFFIX;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, NodeKind, Provenance, Value};
use meganeura_core::ops::FUSED;

/// A graph with its clusters as calls.
pub(super) struct ClusteredGraph {
    pub(super) graph: Graph,
    pub(super) clusters: Vec<Cluster>,
    /// Maps each node of the source graph to its node in the new graph, or to the cluster that contains it.
    pub(super) moved: HashMap<NodeId, NodeId>,
}

/// Rebuilds the graph with a call for each cluster.
///
/// # Errors
/// A cycle, if a path leaves a cluster and returns to it.
pub(super) fn emit(graph: &Graph, grown: Vec<FusionGroup>) -> Result<ClusteredGraph> {
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
                let FusionGroup { members, draft, .. } = &grown[index];
                let operands = mapped(&draft.operands);
                let provenance = provenance(graph, members);
                let new = out.with_provenance(provenance, |out| out.call(FUSED, draft.attrs(), operands));
                let ports = draft.results.iter().zip(0u32..);
                map.extend(ports.map(|(&value, port)| (value, Value { node: new, port })));
                moved.extend(members.iter().map(|&member| (member, new)));
                // Views with other users are also separate calls.
                for &view in &draft.views {
                    moved.entry(view).or_insert(new);
                }
                made.push((new, index));
            }
        }
    }
    out.adopt_roots(graph, |v| map[&v]);
    let clusters = made.into_iter().map(|(node, index)| {
        let FusionGroup {
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
    Ok(ClusteredGraph {
        graph: out,
        clusters,
        moved,
    })
}

/// Returns name and location of a cluster: those of its last call. If that call belongs to the gradient, but the
/// cluster also contains forward calls, such as the comparison of a ReLU, the last named forward call counts.
fn provenance(graph: &Graph, members: &[NodeId]) -> Provenance {
    let of_gradient = |p: &Provenance| p.name.as_deref().is_some_and(|name| name.ends_with(GRADIENT_SUFFIX));
    let all = || members.iter().rev().map(|&id| graph.provenance(id));
    let forward = || all().filter(|p| !of_gradient(p));
    let last = all().next().filter(|p| !of_gradient(p));
    last.or_else(|| forward().find(|p| p.name.is_some()))
        .or_else(|| forward().next())
        .or_else(|| all().next())
        .unwrap_or_default()
}

/// A node or a cluster of the source graph, which becomes one node of the new graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Node(NodeId),
    Cluster(usize),
}

/// The graph of all units.
struct Units<'a> {
    graph: &'a Graph,
    clusters: &'a [FusionGroup],
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

    /// Returns the units that the roots need, and all leaves that users feed by name.
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

    /// Returns the needed units, operands before users, and otherwise in list order.
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
