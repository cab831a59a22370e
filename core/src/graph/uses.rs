//! Who reads what: for passes that merge calls.

use std::collections::HashSet;

use super::{Graph, NodeId, Value};

/// How the values of a graph are used.
pub(crate) struct Uses {
    /// Users of each node's results, once for each operand.
    pub(crate) users: Vec<Vec<NodeId>>,
    /// Values that are needed whatever uses them.
    pub(crate) roots: HashSet<Value>,
}

impl Uses {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut users = vec![Vec::new(); graph.nodes().len()];
        for id in graph.node_ids() {
            for v in &graph.nodes()[id.index()].inputs {
                users[v.node.index()].push(id);
            }
        }
        Uses {
            users,
            roots: graph.roots().collect(),
        }
    }

    /// Whether a node has one user and is nobody's result.
    pub(crate) fn is_private(&self, id: NodeId) -> bool {
        self.users[id.index()].len() == 1 && !self.roots.contains(&id.into())
    }
}
