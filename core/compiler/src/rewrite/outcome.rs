//! Report of optimization.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::join;
use crate::cluster::Cluster;
use meganeura_core::graph::{Graph, NodeId};

/// One application of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fusion {
    /// Title of the rule.
    pub rule: String,
    /// Namespace of its rule set.
    pub rule_set: String,
    /// The node of the final graph that it created, or the cluster that contains it; `None` if
    /// unavailable. Fusions before differentiation are identified by name, if their nodes still
    /// exist.
    pub node: Option<NodeId>,
    /// `true` if it was applied before differentiation.
    pub before_autodiff: bool,
    /// Names of the nodes that it replaced.
    pub node_name: String,
    /// Estimated saving per step, in picoseconds. One fusion may cost time that another one saves.
    pub saving_ps: i64,
}

/// Report of an optimization.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizeReport {
    /// `true` if the plan came from a file; then nothing was optimized, and the other fields are
    /// empty.
    pub from_cache: bool,
    /// The rewrite program, as egglog text; empty while no rule set is registered.
    pub egglog_program: String,
    /// Number of equivalence classes after saturation.
    pub num_eclasses: usize,
    /// Number of nodes of the e-graph after saturation.
    pub num_enodes: usize,
    /// Rules and how often each fired, in the order of first use.
    pub rules_fired: Vec<(String, usize)>,
    /// Number of nodes of the input graph.
    pub nodes_before: usize,
    /// Number of nodes of the output graph.
    pub nodes_after: usize,
    /// Fusions and the node that each produced, if it is available.
    pub fusions_applied: Vec<(String, u32)>,
    /// The fusions with their nodes and savings.
    pub fusions: Vec<Fusion>,
    /// Estimated time of a step before rewriting, in picoseconds, by the device's cost model.
    pub cost_before_ps: u64,
    /// Estimated time of a step after rewriting, in picoseconds.
    pub cost_after_ps: u64,
    /// `true` if convolutions and the calls between them use the channels-last layout.
    pub images_channels_last: bool,
    /// Estimated time of a step after clustering, in picoseconds; it includes the choice of the image layout.
    pub clustered_cost_ps: u64,
    /// Clusters: elementwise calls that were fused, among themselves or with other calls.
    pub clusters: Vec<Cluster>,
    /// Duration of clustering.
    pub cluster_time: Duration,
    /// Estimated time of a step after greedy rewriting with the same rules, if it was requested.
    pub greedy_cost_ps: Option<u64>,
    /// `true` if the graph provably has the lowest cost of all graphs that the rules reach.
    pub extraction_exact: bool,
    /// Budget that ended saturation; `None` if no rule changed anything any more.
    pub budget_hit: Option<String>,
    /// Labels of calls that run on the fallback device, with its name.
    pub fallback_dispatches: Vec<(String, String)>,
    /// Duration of saturation.
    pub egglog_time: Duration,
    /// Duration of selecting and rebuilding the graph.
    pub extract_time: Duration,
}

impl OptimizeReport {
    /// Sets the nodes of fusions before differentiation, by finding their names in the final graph.
    pub(crate) fn find_places(&mut self, graph: &Graph) {
        let named = graph.node_ids().filter(|id| graph.nodes()[id.index()].is_op());
        let named = named.filter_map(|id| Some((graph.nodes()[id.index()].name.as_deref()?, id)));
        let places: HashMap<&str, NodeId> = named.collect();
        for fusion in self.fusions.iter_mut().filter(|f| f.before_autodiff) {
            fusion.node = places.get(fusion.node_name.as_str()).copied();
        }
    }

    /// Updates the nodes of fusions after a pass that replaced nodes.
    pub(crate) fn move_fusions(&mut self, moved: &HashMap<NodeId, NodeId>) {
        for fusion in &mut self.fusions {
            fusion.node = fusion.node.and_then(|node| moved.get(&node).copied());
        }
        self.fusions_applied = places(&self.fusions);
    }

    /// Adds the clusters of fused projections, and removes the clusters that they contain.
    pub(crate) fn take_into_projections(&mut self, projections: Vec<Cluster>, moved: &HashMap<NodeId, NodeId>) {
        self.clusters.retain_mut(|cluster| {
            cluster.node = moved.get(&cluster.node).copied().unwrap_or(cluster.node);
            projections.iter().all(|projection| projection.node != cluster.node)
        });
        self.clusters.extend(projections);
    }

    /// Adds the joins (made before rewriting), with their nodes in the final graph.
    pub(crate) fn add_joined(&mut self, mut joined: Vec<Fusion>, graph: &Graph) {
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

    /// Adds the report of the pass after differentiation to the report of the pass before it.
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
        self.images_channels_last = later.images_channels_last;
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
        if self.images_channels_last {
            writeln!(f, "Images: channels last (NHWC)")?;
        }
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
        for (label, device) in &self.fallback_dispatches {
            writeln!(f, "On the fallback device {device}: {label}")?;
        }
        Ok(())
    }
}

/// Formats the first fusions, and the number of the rest.
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

/// Returns the rules and the node that each created, if it is available.
pub(crate) fn places(fusions: &[Fusion]) -> Vec<(String, u32)> {
    let places = fusions.iter().filter_map(|f| Some((f.rule.clone(), f.node?.0)));
    places.collect()
}
