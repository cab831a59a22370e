//! What optimization did.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::join;
use crate::cluster::Cluster;
use meganeura_core::graph::{Graph, NodeId};

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
    /// Whether convolutions and what is between them are computed from images that are stored channels last.
    pub images_channels_last: bool,
    /// The estimated time after the choice of the images' layout, and clustering.
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
    pub fallback_dispatches: Vec<(String, String)>,
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

    /// Gives fusions their places after a pass that made other nodes of theirs.
    pub(crate) fn move_fusions(&mut self, moved: &HashMap<NodeId, NodeId>) {
        for fusion in &mut self.fusions {
            fusion.node = fusion.node.and_then(|node| moved.get(&node).copied());
        }
        self.fusions_applied = places(&self.fusions);
    }

    /// Adds the clusters that projections became, which other clusters may be a part of.
    pub(crate) fn take_into_projections(&mut self, projections: Vec<Cluster>, moved: &HashMap<NodeId, NodeId>) {
        self.clusters.retain_mut(|cluster| {
            cluster.node = moved.get(&cluster.node).copied().unwrap_or(cluster.node);
            projections.iter().all(|projection| projection.node != cluster.node)
        });
        self.clusters.extend(projections);
    }

    /// Adds what was joined before rewriting, with its places in the final graph.
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

/// Rules and the nodes that each made, as far as these are known.
pub(crate) fn places(fusions: &[Fusion]) -> Vec<(String, u32)> {
    let places = fusions.iter().filter_map(|f| Some((f.rule.clone(), f.node?.0)));
    places.collect()
}
