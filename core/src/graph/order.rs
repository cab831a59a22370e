//! Topological sorting of the nodes.

use super::{Graph, NodeId, Value};
use crate::error::Error;

impl Graph {
    /// Returns an equivalent graph whose nodes follow their operands.
    ///
    /// # Panics
    /// Panics with the text of the error if [`Graph::try_toposort`] fails.
    #[must_use]
    #[track_caller]
    pub fn toposort(&self) -> Graph {
        crate::error::unwrap_report(self.try_toposort())
    }

    /// Returns an equivalent graph whose nodes follow their operands. Nodes keep their relative
    /// order where the edges leave a choice, so a sorted graph is returned unchanged.
    ///
    /// # Errors
    /// [`Error::Cycle`] naming the nodes on it.
    pub fn try_toposort(&self) -> Result<Graph, Error> {
        let order = self.topological_order()?;
        if order.iter().enumerate().all(|(i, id)| id.index() == i) {
            return Ok(self.clone());
        }
        let mut sorted = Graph::new();
        let mut map = vec![NodeId::new(0); self.nodes.len()];
        let remap = |map: &[NodeId], v: Value| Value {
            node: map[v.node.index()],
            port: v.port,
        };
        for id in order {
            let inputs = self.nodes[id.index()].inputs.iter().map(|&v| remap(&map, v)).collect();
            map[id.index()] = sorted.copy_node(self, id, inputs);
        }
        sorted.adopt_roots(self, |v| remap(&map, v));
        Ok(sorted)
    }

    /// Returns the ids of all nodes, each after its operands. The depth-first search in list order has no recursion,
    /// because training graphs are deep.
    ///
    /// # Errors
    /// A cycle.
    pub fn topological_order(&self) -> Result<Vec<NodeId>, Error> {
        self.topological_order_after(&[])
    }

    /// Sorts like [`Graph::topological_order`], but each node also follows the nodes that `extra` lists for it.
    pub fn topological_order_after(&self, extra: &[Vec<NodeId>]) -> Result<Vec<NodeId>, Error> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack: Vec<(NodeId, usize)> = Vec::new();
        for root in self.node_ids() {
            if marks[root.index()] != Mark::New {
                continue;
            }
            marks[root.index()] = Mark::Open;
            stack.push((root, 0));
            while let Some((id, next)) = stack.last_mut() {
                let id = *id;
                let inputs = &self.nodes[id.index()].inputs;
                let before = || extra.get(id.index())?.get(*next - inputs.len()).copied();
                let operand = inputs.get(*next).map(|v| v.node).or_else(before);
                let Some(operand) = operand else {
                    marks[id.index()] = Mark::Done;
                    order.push(id);
                    stack.pop();
                    continue;
                };
                *next += 1;
                match marks.get(operand.index()) {
                    Some(Mark::New) => {
                        marks[operand.index()] = Mark::Open;
                        stack.push((operand, 0));
                    }
                    Some(Mark::Open) => return Err(self.cycle_error(&stack, operand)),
                    // Done, or an operand outside of the graph, which `verify` reports.
                    _ => {}
                }
            }
        }
        Ok(order)
    }

    fn cycle_error(&self, stack: &[(NodeId, usize)], closing: NodeId) -> Error {
        let start = stack.iter().position(|&(id, _)| id == closing).unwrap_or_default();
        let mut path: Vec<String> = stack[start..].iter().map(|&(id, _)| self.label(id).0).collect();
        // The stack runs from users to operands; data flows the other way.
        path.reverse();
        path.push(path[0].clone());
        Error::Cycle { path }
    }
}
