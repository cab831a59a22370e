//! Graph optimization for every device.
//!
//! Removes unused nodes and merges equal computations. Fusion rule sets and equality saturation build on the same entry
//! points.

use std::collections::HashMap;
use std::time::Instant;

use crate::channels_last::channels_last;
use crate::cluster::{cluster_pass, join_projections};
use crate::rewrite::clean::clean;
pub use crate::rewrite::{Fusion, OptimizeReport};
use crate::rewrite::{Pass, Request, Simulated, apply_rules, join, rewrite};
use meganeura_core::config::Config;
use meganeura_core::error::{Result, unwrap_report};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::{Expansion, InferenceForm};
use meganeura_core::select;

/// Optimizes a graph for the device that environment and configuration file select: the rules for graphs with
/// gradients if it has some, else those for graphs that will be differentiated.
///
/// # Panics
/// With the report of [`try_optimize`]'s error.
#[must_use]
#[track_caller]
pub fn optimize(graph: &Graph) -> Graph {
    unwrap_report(try_optimize(graph)).0
}

/// [`optimize`], with a report.
///
/// # Panics
/// With the report of [`try_optimize`]'s error.
#[must_use]
#[track_caller]
pub fn optimize_with_report(graph: &Graph) -> (Graph, OptimizeReport) {
    unwrap_report(try_optimize(graph))
}

/// [`optimize_with_report`] with errors as values. Where no device can be opened, the graph is optimized for a simulated
/// discrete GPU.
///
/// # Errors
/// What [`Graph::verify`] finds; a configuration that cannot be read; an unsound rule.
pub fn try_optimize(graph: &Graph) -> Result<(Graph, OptimizeReport)> {
    graph.verify()?;
    let config = Config::load()?;
    let device = select::select(None, &config).and_then(|selected| selected.open(&config));
    let request = |target| Request {
        pass: match graph.gradients().is_empty() {
            true => Pass::Forward,
            false => Pass::Backward,
        },
        target,
        config: &config.rewrite,
        group_of: &|_| 0,
    };
    match &device {
        Ok(device) => optimize_for(graph, &request(device)),
        Err(_) => optimize_for(graph, &request(&Simulated::discrete_gpu())),
    }
}

/// Optimizes a graph: merges equal computations, removes unused nodes, applies the rules of a pass, and clusters
/// elementwise calls where no further pass follows.
///
/// # Errors
/// What [`Graph::verify`] finds; a rule set to leave out that does not exist; an unsound rule.
pub fn optimize_for(graph: &Graph, request: &Request) -> Result<(Graph, OptimizeReport)> {
    let _span = tracing::debug_span!("optimize", pass = ?request.pass, nodes = graph.nodes().len()).entered();
    graph.verify()?;
    let start = Instant::now();
    let (cleaned, merged, removed) = clean(graph)?;
    let cleaning = start.elapsed();
    let joined = match request.config.enabled && request.pass != Pass::Forward {
        true => join::join_writes(&cleaned, request.target)?,
        false => None,
    };
    let (cleaned, joined) = joined.unwrap_or((cleaned, Vec::new()));
    let (mut optimized, mut report) = rewrite(&cleaned, request)?;
    let fired = [("merge equal computations", merged), ("remove unused nodes", removed)];
    let fired = fired.into_iter().filter(|(_, count)| *count > 0);
    let fired = fired.map(|(rule, count)| (rule.to_owned(), count));
    report.rules_fired.splice(0..0, fired);
    report.nodes_before = graph.nodes().len();
    report.extract_time += cleaning;
    if request.config.channels_last
        && request.pass != Pass::Forward
        && let Some(converted) = channels_last(&optimized, request.target, request.pass)?
    {
        optimized = converted.graph;
        report.move_fusions(&converted.moved);
        report.nodes_after = optimized.nodes().len();
        report.images_channels_last = true;
    }
    if request.config.cluster && request.pass != Pass::Forward {
        let _span = tracing::debug_span!("cluster").entered();
        let (clustered, clusters) = cluster_pass(&optimized, request.target, request.pass)?;
        optimized = clustered;
        report.move_fusions(&clusters.moved);
        report.clustered_cost_ps = request.pass.cost(&optimized, request.target)?;
        report.nodes_after = clusters.nodes_after;
        report.cluster_time = clusters.time;
        report.clusters = clusters.clusters;
        if request.config.projections
            && let Some(joined) = join_projections(&optimized, request.target, request.pass)?
        {
            optimized = joined.graph;
            report.move_fusions(&joined.moved);
            report.take_into_projections(joined.clusters, &joined.moved);
            report.clustered_cost_ps = request.pass.cost(&optimized, request.target)?;
            report.nodes_after = optimized.nodes().len();
        }
    }
    report.add_joined(joined, &optimized);
    optimized.verify()?;
    Ok((optimized, report))
}

/// Fuses a matmul with the RMS normalisation of its left operand wherever nothing else reads the normalised rows, also
/// where the cost model would not, and returns the number of fusions.
///
/// # Panics
/// With the report of an error: a graph that does not verify, or the rule set `norm` (crate `meganeura-rules`) not linked;
/// [`apply_rules`] returns it instead.
#[track_caller]
pub fn apply_rms_norm_matmul_fusions(graph: &mut Graph) -> usize {
    let titles = [
        "MatMul(RmsNorm)→FusedRmsNormMatMul",
        "QuantizedMatMul(RmsNorm)→FusedRmsNormQuantizedMatMul",
    ];
    unwrap_report(apply_rules(graph, &titles))
}

/// Fuses a group normalisation with the SiLU that alone reads its result, in a graph for inference, and returns the number
/// of fusions. A graph with gradients is left as it is where they read the statistics.
///
/// # Panics
/// As [`apply_rms_norm_matmul_fusions`].
#[track_caller]
pub fn apply_group_norm_silu_fusions(graph: &mut Graph) -> usize {
    unwrap_report(apply_rules(graph, &["GroupNorm+Silu→GroupNormSilu"]))
}

/// The graph in the form for inference: every operator's own inference form (dropout disappears, batch
/// norms use their running statistics), and no writes of those that have none there.
///
/// # Errors
/// What [`Graph::verify`] finds, in the graph or in an operator's inference form.
pub fn for_inference(graph: &Graph) -> Result<Graph> {
    graph.verify()?;
    let mut out = Graph::new();
    let mut map: HashMap<Value, Value> = HashMap::new();
    for id in graph.topological_order()? {
        let node = &graph.nodes()[id.index()];
        let inputs: Vec<Value> = node.inputs.iter().map(|v| map[v]).collect();
        let ports = (0..node.outputs.len() as u32).map(|port| Value { node: id, port });
        let rewritten = match node.op().map(|(op, attrs)| (op.get().inference(), attrs)) {
            Some((InferenceForm::Rewrite(rewrite), attrs)) => {
                let expansion = |g: &mut Graph| {
                    rewrite(&mut Expansion {
                        graph: g,
                        attrs,
                        inputs: &inputs,
                        outputs: &node.outputs,
                    })
                };
                let provenance = graph.provenance(id);
                Some(out.with_provenance(provenance, expansion).map_err(|message| {
                    meganeura_core::error::Error::graph(format!("inference form of {}: {message}", graph.label(id)), "")
                })?)
            }
            _ => None,
        };
        match rewritten {
            Some(values) => map.extend(ports.zip(values)),
            None => {
                let new = out.copy_node(graph, id, inputs);
                map.extend(ports.map(|v| {
                    (
                        v,
                        Value {
                            node: new,
                            port: v.port,
                        },
                    )
                }));
            }
        }
    }
    out.adopt_roots(graph, |v| map[&v]);
    out.drop_idle_effects();
    // Scalars and whatever else fed only what is gone.
    let (out, _, _) = clean(&out)?;
    out.verify()?;
    Ok(out)
}
