//! Who reads what: for passes that merge calls.

use std::collections::HashSet;

use super::{Graph, NodeId, Value};

/// How the values of a graph are used.
pub struct Uses {
    /// Users of each node's results, once for each operand.
    pub users: Vec<Vec<NodeId>>,
    /// Values that are needed whatever uses them.
    pub roots: HashSet<Value>,
}

impl Uses {
    /// The uses in a graph.
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

    /// Whether a node has one user and is nobody's result.
    pub fn is_private(&self, id: NodeId) -> bool {
        self.users[id.index()].len() == 1 && !self.roots.contains(&id.into())
    }
}
