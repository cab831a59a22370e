//! Values that are the same in every step, until a parameter or a state is written.
//!
//! In an inference graph, values computed only from parameters, states and constants need not be
//! recomputed in each step: folded batch norms, transposed or normalised weights, positions. Plans
//! compute them in a segment of their own ([`PREPARE`](crate::plan::PREPARE)), and the cost model
//! does not count them.

use super::{Graph, NodeKind};
use crate::error::Error;
use crate::shape::TensorType;

/// Maximum bytes of results that are always kept between steps.
const MAX_SMALL_BYTES: usize = 64 * 1024;

/// Returns `true` if results may be kept between steps: they are not much larger than their
/// operands. Expanded vectors and dequantized weights would take memory, and reading them would
/// take longer than computing them.
pub fn may_be_kept<'a>(
    operands: impl IntoIterator<Item = &'a TensorType>,
    results: impl IntoIterator<Item = &'a TensorType>,
) -> bool {
    let bytes = |sum: usize, ty: &TensorType| sum.saturating_add(ty.bytes());
    let results = results.into_iter().fold(0, bytes);
    results <= MAX_SMALL_BYTES || results <= operands.into_iter().fold(0, bytes)
}

impl Graph {
    /// Returns for each node whether its value is the same in all steps: parameters, states and
    /// constants that the graph does not write, and calls that depend only on such nodes and whose
    /// results [may be kept](may_be_kept). No node of a graph with gradients is invariant: training
    /// changes its parameters.
    ///
    /// # Errors
    /// A cycle.
    pub fn invariant_nodes(&self) -> Result<Vec<bool>, Error> {
        let mut invariant = vec![false; self.nodes.len()];
        if !self.gradients.is_empty() {
            return Ok(invariant);
        }
        let mut written = vec![false; self.nodes.len()];
        for effect in &self.effects {
            written[effect.target.index()] = true;
        }
        for node in &self.nodes {
            for &(operand, _) in node.op().map_or(&[][..], |(op, _)| op.writes()) {
                written[node.inputs[operand].node.index()] = true;
            }
        }
        for id in self.topological_order()? {
            let node = &self.nodes[id.index()];
            invariant[id.index()] = match &node.kind {
                NodeKind::Parameter { .. } | NodeKind::State { .. } | NodeKind::Constant(_) => !written[id.index()],
                NodeKind::Op { op, .. } => {
                    op.writes().is_empty()
                        && node.inputs.iter().all(|v| invariant[v.node.index()])
                        && may_be_kept(node.inputs.iter().filter_map(|&v| self.ty(v)), &node.outputs)
                }
                NodeKind::Input | NodeKind::Scalar | NodeKind::Poison => false,
            };
        }
        Ok(invariant)
    }

    /// Returns the calls among the [invariant nodes](Self::invariant_nodes).
    ///
    /// # Errors
    /// A cycle.
    pub fn invariant_calls(&self) -> Result<Vec<bool>, Error> {
        let mut calls = self.invariant_nodes()?;
        for (index, is_invariant) in calls.iter_mut().enumerate() {
            *is_invariant &= self.nodes[index].is_op();
        }
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Graph, NodeId};

    fn invariant(g: &Graph, id: NodeId) -> bool {
        g.invariant_nodes().expect("no cycle")[id.index()]
    }

    #[test]
    fn what_depends_on_parameters_alone_is_invariant() {
        let mut g = Graph::new();
        let x = g.input("x", &[4, 8]);
        let w = g.parameter("w", &[8, 8]);
        let scale = g.state("scale", &[8]);
        let scaled = g.mul(w, scale);
        let y = g.matmul(x, scaled);
        g.set_outputs(vec![y]);
        assert!(invariant(&g, w) && invariant(&g, scale) && invariant(&g, scaled));
        assert!(!invariant(&g, x) && !invariant(&g, y));
        assert_eq!(g.invariant_calls().unwrap().iter().filter(|&&c| c).count(), 1);
    }

    #[test]
    fn what_the_graph_writes_is_not() {
        let mut g = Graph::new();
        let (old, new) = (g.state("old", &[4]), g.input("new", &[4]));
        let doubled = g.add(old, old);
        g.assign(old, new);
        g.set_outputs(vec![doubled]);
        assert!(!invariant(&g, old) && !invariant(&g, doubled));
    }

    #[test]
    fn large_results_of_small_operands_are_not_kept() {
        let mut g = Graph::new();
        let v = g.parameter("v", &[512, 1]);
        let w = g.parameter("w", &[1, 512]);
        let outer = g.mul(v, w);
        let corner = g.narrow(outer, 0, 0, 8);
        g.set_outputs(vec![corner]);
        assert!(!invariant(&g, outer) && !invariant(&g, corner));
    }
}
