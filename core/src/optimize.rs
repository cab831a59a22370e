//! Graph optimization for every device.
//!
//! Removes unused nodes and merges equal computations. Fusion rule sets and equality saturation build on the same entry
//! points.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::attrs::Attrs;
use crate::cluster::{Cluster, cluster};
use crate::config::Config;
use crate::error::{Result, unwrap_report};
use crate::graph::{ConstantData, Graph, NodeId, NodeKind, Value};
use crate::ops::{Expansion, InferenceForm};
use crate::rewrite::{Pass, Request, Simulated, graph_cost, join, rewrite};
use crate::select;
use crate::shape::TensorType;

/// One application of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fusion {
    /// The rule.
    pub rule: String,
    /// Its rule set.
    pub rule_set: String,
    /// The node of the final graph that it created, or that contains what it created. `None` if that is not known: fusions
    /// before differentiation are identified by name, if their nodes still exist.
    pub node: Option<NodeId>,
    /// Whether its pass was the one before differentiation.
    pub before_autodiff: bool,
    /// Names of the nodes that it replaced.
    pub node_name: String,
    /// Estimated saving a step, in picoseconds. One fusion may cost what another saves.
    pub saving_ps: i64,
}

/// Report of an optimization.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizeReport {
    /// Whether the plan came from a file; then nothing was optimized, and the other fields are empty.
    pub from_cache: bool,
    /// Rewrite program; empty while no rule set is registered.
    pub egglog_program: String,
    /// Equivalence classes after saturation.
    pub num_eclasses: usize,
    /// Nodes of the e-graph after saturation.
    pub num_enodes: usize,
    /// Rules and how often each fired, in the order of first use.
    pub rules_fired: Vec<(String, usize)>,
    /// Nodes of the graph that came in.
    pub nodes_before: usize,
    /// Nodes of the graph that went out.
    pub nodes_after: usize,
    /// Fusions and the node that each produced, of those of which it is known.
    pub fusions_applied: Vec<(String, u32)>,
    /// The fusions with their places and savings.
    pub fusions: Vec<Fusion>,
    /// Estimated time of a step before rewriting, in picoseconds, by the device's cost model.
    pub cost_before_ps: u64,
    /// The same after rewriting.
    pub cost_after_ps: u64,
    /// The same after clustering.
    pub clustered_cost_ps: u64,
    /// Clusters of elementwise calls that were fused, with their neighbours.
    pub clusters: Vec<Cluster>,
    /// Time of clustering.
    pub cluster_time: Duration,
    /// Estimated time of a step after greedy rewriting with the same rules, if it was requested.
    pub greedy_cost_ps: Option<u64>,
    /// Whether the graph provably has the lowest cost of all that the rules reach.
    pub extraction_exact: bool,
    /// The budget that ended saturation, if one did.
    pub budget_hit: Option<String>,
    /// Labels of calls that run on the fallback device, with its name.
    pub elsewhere: Vec<(String, String)>,
    /// Time of saturation.
    pub egglog_time: Duration,
    /// Time of choosing and rebuilding the graph.
    pub extract_time: Duration,
}

impl OptimizeReport {
    /// Finds what was made before differentiation in the final graph, by its name.
    pub(crate) fn find_places(&mut self, graph: &Graph) {
        let named = graph.node_ids().filter(|id| graph.nodes()[id.index()].is_op());
        let named = named.filter_map(|id| Some((graph.nodes()[id.index()].name.as_deref()?, id)));
        let places: HashMap<&str, NodeId> = named.collect();
        for fusion in self.fusions.iter_mut().filter(|f| f.before_autodiff) {
            fusion.node = places.get(fusion.node_name.as_str()).copied();
        }
    }

    /// Adds what was joined before rewriting, with its places in the final graph.
    fn add_joined(&mut self, mut joined: Vec<Fusion>, graph: &Graph) {
        join::find_joined(&mut joined, graph);
        for fusion in &joined {
            self.cost_before_ps += fusion.saving_ps.max(0) as u64;
            match self.rules_fired.iter_mut().find(|(rule, _)| *rule == fusion.rule) {
                Some((_, count)) => *count += 1,
                None => self.rules_fired.push((fusion.rule.clone(), 1)),
            }
        }
        self.fusions_applied.extend(places(&joined));
        self.fusions.extend(joined);
    }

    /// Adds the report of the pass after differentiation to that of the one before.
    pub fn merge(&mut self, later: OptimizeReport) {
        for fusion in &mut self.fusions {
            fusion.before_autodiff = true;
            fusion.node = None;
        }
        for (rule, count) in later.rules_fired {
            match self.rules_fired.iter_mut().find(|(r, _)| *r == rule) {
                Some((_, total)) => *total += count,
                None => self.rules_fired.push((rule, count)),
            }
        }
        self.egglog_program += &later.egglog_program;
        self.num_eclasses = self.num_eclasses.max(later.num_eclasses);
        self.num_enodes = self.num_enodes.max(later.num_enodes);
        self.nodes_before = later.nodes_before;
        self.nodes_after = later.nodes_after;
        self.fusions_applied.extend(later.fusions_applied);
        self.fusions.extend(later.fusions);
        self.cost_before_ps = later.cost_before_ps;
        self.cost_after_ps = later.cost_after_ps;
        self.clustered_cost_ps = later.clustered_cost_ps;
        self.clusters = later.clusters;
        self.cluster_time += later.cluster_time;
        self.greedy_cost_ps = later.greedy_cost_ps;
        self.extraction_exact &= later.extraction_exact;
        self.budget_hit = self.budget_hit.take().or(later.budget_hit);
        self.egglog_time += later.egglog_time;
        self.extract_time += later.extract_time;
    }
}

impl fmt::Display for OptimizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        writeln!(f, "=== Optimization Report ===")?;
        if self.from_cache {
            return writeln!(f, "The plan came from a file; nothing was optimized.");
        }
        writeln!(
            f,
            "Egglog saturation: {:.1}ms ({} e-classes, {} e-nodes)",
            ms(self.egglog_time),
            self.num_eclasses,
            self.num_enodes
        )?;
        writeln!(f, "Rules fired:")?;
        for (rule, count) in &self.rules_fired {
            writeln!(f, "  {rule}  x{count}")?;
        }
        writeln!(
            f,
            "Graph: {} nodes -> {} active nodes ({} fused away)",
            self.nodes_before,
            self.nodes_after,
            self.nodes_before.saturating_sub(self.nodes_after)
        )?;
        writeln!(f, "Fusions: {}", shortened(&self.fusions_applied))?;
        writeln!(f, "Extract time: {:.1}ms", ms(self.extract_time))?;
        let us = |ps: u64| ps as f64 * 1e-6;
        let (before, after) = (us(self.cost_before_ps), us(self.cost_after_ps));
        if self.cost_before_ps > 0 {
            write!(f, "Estimated step: {before:.1}us -> {after:.1}us")?;
            if let Some(greedy) = self.greedy_cost_ps {
                write!(f, " (greedy rewriting: {:.1}us)", us(greedy))?;
            }
            writeln!(f)?;
            if self.clustered_cost_ps > 0 {
                let calls: usize = self.clusters.iter().map(|c| c.calls).sum();
                let (count, time) = (self.clusters.len(), ms(self.cluster_time));
                let clustered = us(self.clustered_cost_ps);
                writeln!(
                    f,
                    "Clusters: {count} of {calls} calls -> {clustered:.1}us ({time:.1}ms)"
                )?;
            }
            writeln!(
                f,
                "Extraction: {}",
                if self.extraction_exact { "exact" } else { "not exact" }
            )?;
            writeln!(f, "Budget hit: {}", self.budget_hit.as_deref().unwrap_or("none"))?;
        }
        for (label, device) in &self.elsewhere {
            writeln!(f, "On the fallback device {device}: {label}")?;
        }
        Ok(())
    }
}

/// The first fusions, and how many more there are.
fn shortened(fusions: &[(String, u32)]) -> String {
    const SHOWN: usize = 12;
    let mut list: Vec<String> = fusions
        .iter()
        .take(SHOWN)
        .map(|(name, node)| format!("{name} @node{node}"))
        .collect();
    if fusions.len() > SHOWN {
        list.push(format!("... ({} more)", fusions.len() - SHOWN));
    }
    list.join(", ")
}

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
    if request.config.cluster && request.pass != Pass::Forward {
        let _span = tracing::debug_span!("cluster").entered();
        let (clustered, clusters) = cluster(&optimized, request.target)?;
        optimized = clustered;
        for fusion in &mut report.fusions {
            fusion.node = fusion.node.and_then(|node| clusters.moved.get(&node).copied());
        }
        report.fusions_applied = places(&report.fusions);
        report.clustered_cost_ps = graph_cost(&optimized, request.target)?;
        report.nodes_after = clusters.nodes_after;
        report.cluster_time = clusters.time;
        report.clusters = clusters.clusters;
    }
    report.add_joined(joined, &optimized);
    optimized.verify()?;
    Ok((optimized, report))
}

/// Rules and the nodes that each made, as far as these are known.
pub(crate) fn places(fusions: &[Fusion]) -> Vec<(String, u32)> {
    let places = fusions.iter().filter_map(|f| Some((f.rule.clone(), f.node?.0)));
    places.collect()
}

/// What makes two nodes compute the same.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Constant(ConstantData, TensorType),
    Call(&'static str, Attrs, Vec<Value>),
}

/// Rebuilds the graph from its roots, one node for each distinct computation. Leaves stay even when
/// unused: they are what the user feeds by name.
pub(crate) fn clean(graph: &Graph) -> Result<(Graph, usize, usize)> {
    let order = graph.topological_order()?;
    let mut live = vec![false; graph.nodes().len()];
    for root in graph.roots() {
        live[root.node.index()] = true;
    }
    for id in order.iter().rev() {
        let node = &graph.nodes()[id.index()];
        live[id.index()] |= node.is_named_leaf();
        if live[id.index()] {
            for v in &node.inputs {
                live[v.node.index()] = true;
            }
        }
    }
    let mut out = Graph::new();
    let mut map: Vec<NodeId> = vec![NodeId(0); graph.nodes().len()];
    let mut known: HashMap<Key, NodeId> = HashMap::new();
    let (mut merged, mut removed) = (0, 0);
    for id in order {
        if !live[id.index()] {
            removed += 1;
            continue;
        }
        let node = &graph.nodes()[id.index()];
        let inputs: Vec<Value> = node
            .inputs
            .iter()
            .map(|v| Value {
                node: map[v.node.index()],
                port: v.port,
            })
            .collect();
        let key = match &node.kind {
            NodeKind::Constant(data) => Some(Key::Constant((**data).clone(), node.outputs[0].clone())),
            // A write happens where it stands.
            NodeKind::Op { op, attrs } if op.writes().is_empty() => {
                Some(Key::Call(op.name(), attrs.clone(), inputs.clone()))
            }
            _ => None,
        };
        let existing = key.as_ref().and_then(|k| known.get(k)).copied();
        map[id.index()] = match existing {
            Some(same) => {
                merged += 1;
                out.name_if_unnamed(same, node);
                same
            }
            None => {
                let new = out.copy_node(graph, id, inputs);
                if let Some(key) = key {
                    known.insert(key, new);
                }
                new
            }
        };
    }
    out.adopt_roots(graph, |v| Value {
        node: map[v.node.index()],
        port: v.port,
    });
    Ok((out, merged, removed))
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
                    crate::error::Error::graph(format!("inference form of {}: {message}", graph.label(id)), "")
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
