//! Report of clustering.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use meganeura_core::graph::NodeId;

/// A call made by clustering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The call in the new graph.
    pub node: NodeId,
    /// Name and location of the last call in the cluster.
    pub label: String,
    /// Number of original calls, including views that it reads through.
    pub calls: usize,
    /// Title of the cluster's program, such as `matmul, add, relu`.
    pub program: String,
    /// Estimated time of the original calls minus that of the fused one, in picoseconds.
    pub saving_ps: u64,
}

/// Report of clustering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterReport {
    /// The clusters in the order of the new graph.
    pub clusters: Vec<Cluster>,
    /// Maps each node that is still needed to its node in the new graph, or to the cluster that contains it.
    pub moved: HashMap<NodeId, NodeId>,
    /// Number of nodes of the input graph.
    pub nodes_before: usize,
    /// Number of nodes of the output graph.
    pub nodes_after: usize,
    /// Duration of clustering.
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
