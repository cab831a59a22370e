//! Clustering: neighbouring calls are fused into one, so that intermediate values never reach
//! memory.
//!
//! This is the last pass over a graph. Elementwise calls join across reshapes, permutations and
//! expansions. A reduction absorbs producers that only it uses. A matrix product or convolution
//! absorbs elementwise calls on its result and, if that is faster on a device, producers that only
//! it uses. Each operator defines its role in fusion ([`FusionRole`](meganeura_core::ops::FusionRole)); the
//! device decides for every candidate whether it can run it. A cluster grows if the merged call
//! moves fewer bytes, with launches counted as bytes, than the two separate calls, and only if no
//! path leaves the cluster and returns to it.
//!
//! The result is an ordinary graph: a cluster is a call of the operator
//! [`FUSED`](meganeura_core::ops::FUSED), whose decomposition is the original calls.

mod draft;
mod emit;
mod grow;
mod projections;
mod report;
mod spans;

pub(crate) use projections::join_projections;
pub use report::{Cluster, ClusterReport};

use std::time::Instant;

use crate::rewrite::request::Pass;
use meganeura_core::cost::Target;
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;

/// Merges neighbouring calls of a graph for a device.
///
/// Outputs, gradients, effects, names and locations do not change; the new graph has been verified.
/// The same graph and target give the same clusters.
///
/// # Errors
/// All errors of [`Graph::verify`].
pub fn cluster(graph: &Graph, target: &dyn Target) -> Result<(Graph, ClusterReport)> {
    let pass = if graph.gradients().is_empty() {
        Pass::Inference
    } else {
        Pass::Backward
    };
    cluster_pass(graph, target, pass)
}

/// Clusters like [`cluster`], for a pass: in inference, invariant calls are not fused with calls that run in every
/// step.
///
/// # Errors
/// All errors of [`Graph::verify`].
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
