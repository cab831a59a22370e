//! Users of each value, for passes that merge calls.

use std::collections::HashSet;

use super::{Graph, NodeId, Value};

/// Uses of the values of a graph.
pub struct Uses {
    /// For each node, the nodes that use its results; a node is listed once for each operand that uses them.
    pub users: Vec<Vec<NodeId>>,
    /// Values that are needed even without users.
    pub roots: HashSet<Value>,
}

impl Uses {
    /// Finds the uses in a graph.
    pub fn of(graph: &Graph) -> Self {
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

    /// Returns `true` if a node has exactly one user and is not an output.
    pub fn is_private(&self, id: NodeId) -> bool {
        self.users[id.index()].len() == 1 && !self.roots.contains(&id.into())
    }
}
