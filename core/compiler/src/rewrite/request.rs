//! Parameters of rewriting.

use meganeura_core::config::RewriteConfig;
use meganeura_core::cost::{Target, graph_cost, step_cost};
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::mode::Mode;

use super::rule::Phase;

/// Pass of rewriting. It selects the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Before differentiation, on the forward graph.
    Forward,
    /// After differentiation, on the graph with gradients.
    Backward,
    /// The only pass of a build for inference; it uses the rules of both training passes.
    Inference,
}

impl Pass {
    /// Returns the cost of a graph of this pass: of an inference step, or of the whole graph.
    ///
    /// # Errors
    /// A cycle.
    pub fn cost(self, graph: &Graph, target: &dyn Target) -> Result<u64> {
        match self {
            Pass::Inference => step_cost(graph, target),
            Pass::Forward | Pass::Backward => graph_cost(graph, target),
        }
    }

    /// Returns for each node of a graph of this pass whether it is invariant
    /// ([`Graph::invariant_nodes`]): in training, none is.
    ///
    /// # Errors
    /// A cycle.
    pub fn invariant_nodes(self, graph: &Graph) -> Result<Vec<bool>> {
        match self {
            Pass::Inference => graph.invariant_nodes(),
            Pass::Forward | Pass::Backward => Ok(vec![false; graph.nodes().len()]),
        }
    }

    pub(super) fn takes(self, phase: Phase) -> bool {
        match self {
            Pass::Forward => phase != Phase::AfterAutodiff,
            Pass::Backward => phase != Phase::BeforeAutodiff,
            Pass::Inference => true,
        }
    }

    /// Returns the property of the build that rules test with `(cap ..)`: `training` or `inference`.
    pub(super) fn cap(self) -> &'static str {
        match self.mode() {
            Mode::Training => "training",
            Mode::Inference => "inference",
        }
    }

    pub(super) fn mode(self) -> Mode {
        match self {
            Pass::Inference => Mode::Inference,
            Pass::Forward | Pass::Backward => Mode::Training,
        }
    }
}

/// Parameters of rewriting.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The pass of rewriting.
    pub pass: Pass,
    /// Rates and kernels of the device.
    pub target: &'a dyn Target,
    /// Settings of rewriting.
    pub config: &'a RewriteConfig,
    /// Function that returns the group of a parameter by its name: parameters of different groups are not packed
    /// together.
    pub group_of: &'a dyn Fn(&str) -> u64,
}
