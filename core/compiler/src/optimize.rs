//! Device-independent optimization of graphs.
//!
//! The functions merge equal computations, remove unused nodes, and apply fusion rules by equality saturation.

use std::collections::HashMap;
use std::time::Instant;

use crate::channels_last::channels_last;
use crate::cluster::{cluster_pass, join_projections};
use crate::rewrite::clean::clean;
pub use crate::rewrite::{Fusion, OptimizeReport};
use crate::rewrite::{Pass, Request, SimulatedDevice, apply_rules, join, rewrite};
use meganeura_core::TensorType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::config::Config;
use meganeura_core::cost::Target;
use meganeura_core::error::{Error, Result, unwrap_report};
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::ops::{Expansion, InferenceForm};
use meganeura_core::reference::expand_into;
use meganeura_core::select;

/// Optimizes a graph for the device that environment and configuration file select. For a graph with gradients, it uses
/// the rules for such graphs, otherwise the rules for graphs before differentiation.
///
/// # Panics
/// Panics with the text of the error if [`try_optimize`] fails.
#[must_use]
#[track_caller]
pub fn optimize(graph: &Graph) -> Graph {
    unwrap_report(try_optimize(graph)).0
}

/// Optimizes like [`optimize`], and also returns a report.
///
/// # Panics
/// Panics with the text of the error if [`try_optimize`] fails.
#[must_use]
#[track_caller]
pub fn optimize_with_report(graph: &Graph) -> (Graph, OptimizeReport) {
    unwrap_report(try_optimize(graph))
}

/// Optimizes like [`optimize_with_report`], but returns errors instead of panicking. If no device can be opened, the
/// graph is optimized for a simulated discrete GPU.
///
/// # Errors
/// All errors of [`Graph::verify`]; a configuration that cannot be read; an unsound rule.
pub fn try_optimize(graph: &Graph) -> Result<(Graph, OptimizeReport)> {
    graph.verify()?;
    let config = Config::load()?;
    let device = select::select(None, &config).and_then(|selected| selected.open(&config));
    let request = |target| Request {
        pass: if graph.gradients().is_empty() {
            Pass::Forward
        } else {
            Pass::Backward
        },
        target,
        config: &config.rewrite,
        group_of: &|_| 0,
    };
    match &device {
        Ok(device) => optimize_for(graph, &request(device)),
        Err(_) => optimize_for(graph, &request(&SimulatedDevice::discrete_gpu())),
    }
}

/// Optimizes a graph: merges equal computations, removes unused nodes, applies the rules of a pass,
/// and clusters elementwise calls if no further pass follows.
///
/// # Errors
/// All errors of [`Graph::verify`]; a disabled rule set that does not exist; an unsound rule.
pub fn optimize_for(graph: &Graph, request: &Request) -> Result<(Graph, OptimizeReport)> {
    let _span = tracing::debug_span!("optimize", pass = ?request.pass, nodes = graph.nodes().len()).entered();
    graph.verify()?;
    let start = Instant::now();
    let (cleaned, merged, removed) = clean(graph)?;
    let cleaning = start.elapsed();
    let joined = if request.config.enabled && request.pass != Pass::Forward {
        join::join_writes(&cleaned, request.target)?
    } else {
        None
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

/// Fuses every matmul with the RMS normalisation of its left operand if the normalised rows have no
/// other users, regardless of the cost model, and returns the number of fusions.
///
/// # Panics
/// With the report of an error: a graph that does not verify, or the rule set `norm` (crate `meganeura-rules`) not
/// linked; [`apply_rules`] returns it instead.
#[track_caller]
pub fn apply_rms_norm_matmul_fusions(graph: &mut Graph) -> usize {
    let titles = [
        "MatMul(RmsNorm)→FusedRmsNormMatMul",
        "QuantizedMatMul(RmsNorm)→FusedRmsNormQuantizedMatMul",
    ];
    unwrap_report(apply_rules(graph, &titles))
}

/// Fuses a group normalisation with the SiLU that is the only user of its result, in a graph for
/// inference, and returns the number of fusions. In a graph with gradients, nothing is fused if the
/// gradients use the statistics.
///
/// # Panics
/// As [`apply_rms_norm_matmul_fusions`].
#[track_caller]
pub fn apply_group_norm_silu_fusions(graph: &mut Graph) -> usize {
    unwrap_report(apply_rules(graph, &["GroupNorm+Silu→GroupNormSilu"]))
}

/// Returns the graph with every operator in its inference form: dropout disappears, and batch norms use their running
/// statistics and do not write them.
///
/// # Errors
/// All errors of [`Graph::verify`], for the graph or an operator's inference form.
pub fn for_inference(graph: &Graph) -> Result<Graph> {
    graph.verify()?;
    let mut out = replaced(graph, |out, id, inputs| {
        let node = &graph.nodes()[id.index()];
        let Some((op, attrs)) = node.op() else { return Ok(None) };
        let InferenceForm::Rewrite(rewrite) = op.get().inference() else {
            return Ok(None);
        };
        let values = rewrite(&mut Expansion {
            graph: out,
            attrs,
            inputs,
            outputs: &node.outputs,
        });
        values.map(Some).map_err(|message| {
            let label = graph.label(id);
            Error::graph(format!("inference form of {label}: {message}"), "")
        })
    })?;
    out.drop_idle_effects();
    // Remove scalars and other nodes that only removed nodes used.
    let (out, _, _) = clean(&out)?;
    out.verify()?;
    Ok(out)
}

/// Returns the graph with decompositions instead of the calls that ask for it
/// ([`Operator::expands_before_rewriting`](meganeura_core::ops::Operator::expands_before_rewriting)) and that the target
/// has no kernel for.
///
/// # Errors
/// Errors of a decomposition.
pub(crate) fn expand_unsupported(graph: Graph, target: &dyn Target) -> Result<Graph> {
    let expands = |id: NodeId| {
        let node = &graph.nodes()[id.index()];
        let (op, attrs) = node.op().filter(|(op, _)| op.get().expands_before_rewriting())?;
        let inputs: Vec<TensorType> = node
            .inputs
            .iter()
            .map(|&v| graph.ty(v).cloned())
            .collect::<Option<_>>()?;
        let kernel = KernelDesc {
            name: op.name(),
            version: op.version(),
            attrs,
            inputs: &inputs,
            outputs: &node.outputs,
        };
        target.launches(&kernel).is_none().then_some((op, attrs, &node.outputs))
    };
    let mut ids = (0..graph.nodes().len()).map(|i| NodeId::new(i as u32));
    if !ids.any(|id| expands(id).is_some()) {
        return Ok(graph);
    }
    replaced(&graph, |out, id, inputs| {
        let call = expands(id);
        call.map(|(op, attrs, outputs)| expand_into(out, op, attrs, inputs, outputs))
            .transpose()
    })
}

/// Copies a graph. `replace` receives the new graph, a node and its new operands; it builds other values for the node's
/// results, or returns `None` to copy the node.
fn replaced(
    graph: &Graph,
    replace: impl Fn(&mut Graph, NodeId, &[Value]) -> Result<Option<Vec<Value>>>,
) -> Result<Graph> {
    let mut out = Graph::new();
    let mut map: HashMap<Value, Value> = HashMap::new();
    for id in graph.topological_order()? {
        let node = &graph.nodes()[id.index()];
        let inputs: Vec<Value> = node.inputs.iter().map(|v| map[v]).collect();
        let ports = (0..node.outputs.len() as u32).map(|port| Value { node: id, port });
        let values = out.with_provenance(graph.provenance(id), |g: &mut Graph| replace(g, id, &inputs))?;
        match values {
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
    Ok(out)
}

#[cfg(test)]
mod tests {
    use meganeura_core::DType;
    use meganeura_core::backend::CostModel;
    use meganeura_core::cost::SimulatedDevice;

    use super::*;

    /// A device without a kernel for one operator.
    struct MissingKernel(&'static str);

    impl Target for MissingKernel {
        fn cost_model(&self) -> CostModel {
            SimulatedDevice::discrete_gpu().0
        }

        fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
            (kernel.name != self.0).then_some(1)
        }
    }

    #[test]
    fn products_of_bytes_are_expanded_for_devices_without_a_kernel() {
        let mut g = Graph::new();
        let x = g.input("x", &[3, 8]);
        let scale = g.scalar(0.1);
        let zero = g.scalar_of(DType::I32, 3.0);
        let words = g.parameter_typed("words", &[5, 2], DType::U32);
        let scales = g.parameter("scales", &[5]);
        let y = g.int8_matmul(x, scale, zero, words, scales, false);
        let y = g.relu(y);
        g.set_outputs(vec![y]);
        let names = |graph: &Graph| -> Vec<&str> {
            let ops = graph.nodes().iter().filter_map(|node| node.op());
            ops.map(|(op, _)| op.name()).collect()
        };
        let same = expand_unsupported(g.clone(), &MissingKernel("core.relu")).expect("a graph");
        assert_eq!(names(&same), ["core.int8_matmul", "core.relu"]);
        let expanded = expand_unsupported(g, &MissingKernel("core.int8_matmul")).expect("a graph");
        let names = names(&expanded);
        assert!(
            names.contains(&"core.matmul") && names.contains(&"core.relu"),
            "{names:?}"
        );
        assert!(!names.contains(&"core.int8_matmul"), "{names:?}");
        expanded.verify().expect("a graph that verifies");
    }
}
