//! Clustering: neighbouring calls become one, so that what lies between them never reaches memory.
//!
//! The last pass over a graph. Elementwise calls join across reshapes, permutations and expansions; a reduction
//! takes what is computed for it alone along, and a matrix product or convolution what is done with its result, and
//! where a device wants that, what is computed for it alone.
//! What an operator may be a part of, it says itself ([`Fusing`](meganeura_core::ops::Fusing)); which clusters a device can
//! run, the device says, as it is asked for every candidate. A cluster grows where the merged call moves fewer
//! bytes, launches counted as bytes, than the two calls before, and only where no path leaves it and comes back.
//!
//! The result is a graph like any other: a cluster is a call of the operator [`FUSED`](meganeura_core::ops::FUSED), whose
//! decomposition is the calls that it was made of.

mod draft;
mod emit;
mod grow;
mod projections;
mod spans;

pub(crate) use projections::join_projections;

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::rewrite::{Pass, Target};
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId};

/// A call that clustering made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its node in the new graph.
    pub node: NodeId,
    /// Name and place: those of the last call in it.
    pub label: String,
    /// Calls that became it, views that it reads through included.
    pub calls: usize,
    /// What it computes.
    pub program: String,
    /// Estimated time of the calls that became it, less that of the merged one, in picoseconds.
    pub saving_ps: u64,
}

/// What clustering did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterReport {
    /// The clusters in the order of the new graph.
    pub clusters: Vec<Cluster>,
    /// What each node that is still needed became, or became a part of.
    pub moved: HashMap<NodeId, NodeId>,
    /// Nodes of the graph that came in.
    pub nodes_before: usize,
    /// Nodes of the graph that went out.
    pub nodes_after: usize,
    /// How long it took.
    pub time: Duration,
}

impl fmt::Display for ClusterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Clusters: {} ({} -> {} nodes, {:.1}ms)",
            self.clusters.len(),
            self.nodes_before,
            self.nodes_after,
            self.time.as_secs_f64() * 1e3
        )?;
        for c in &self.clusters {
            writeln!(
                f,
                "  {}: {} calls, saves {:.2} us: {}",
                c.label,
                c.calls,
                c.saving_ps as f64 * 1e-6,
                c.program
            )?;
        }
        Ok(())
    }
}

/// Merges neighbouring calls of a graph for a device.
///
/// Outputs, gradients, effects, names and places stay what they were; the new graph has been verified. The same
/// graph and target give the same clusters.
///
/// # Errors
/// What [`Graph::verify`] finds.
pub fn cluster(graph: &Graph, target: &dyn Target) -> Result<(Graph, ClusterReport)> {
    let pass = match graph.gradients().is_empty() {
        true => Pass::Inference,
        false => Pass::Backward,
    };
    cluster_pass(graph, target, pass)
}

/// [`cluster`] for a pass: in inference, what steps leave alone is not clustered with what they compute.
///
/// # Errors
/// What [`Graph::verify`] finds.
pub(crate) fn cluster_pass(graph: &Graph, target: &dyn Target, pass: Pass) -> Result<(Graph, ClusterReport)> {
    graph.verify()?;
    let start = Instant::now();
    let clusters = grow::grow(graph, target, pass.invariant_nodes(graph)?)?;
    let emitted = emit::emit(graph, clusters)?;
    emitted.graph.verify()?;
    let report = ClusterReport {
        clusters: emitted.clusters,
        moved: emitted.moved,
        nodes_before: graph.nodes().len(),
        nodes_after: emitted.graph.nodes().len(),
        time: start.elapsed(),
    };
    Ok((emitted.graph, report))
}
