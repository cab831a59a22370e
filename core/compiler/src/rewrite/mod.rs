//! Rewriting by equality saturation.
//!
//! ```text
//! Graph -> encode (state) -> saturate -> snapshot -> extract -> decode -> pack parameters -> Graph
//! ```
//!
//! Rules come as text from [rule sets](RuleSet), a kind of plugin. Each operator defines its form in rules
//! ([`Operator::attributes`](meganeura_core::ops::Operator::attributes)), types and cost; nothing here refers to an
//! operator by name. `docs/rules.md` describes the language of rules.

mod apply;
mod attr;
mod baseline;
pub(crate) mod clean;
mod columns;
mod cost;
mod decode;
mod define;
mod dialect;
mod elaborate;
pub mod extract;
mod facts;
mod greedy;
pub(crate) mod join;
mod matcher;
pub(crate) mod outcome;
mod pack;
mod pattern;
pub mod problem;
pub(crate) mod registered;
mod report;
pub(crate) mod request;
pub mod rule;
#[cfg(test)]
mod rule_tests;
mod saturate;
mod scalar;
mod select;
mod snapshot;
mod state;
mod terms;
mod types;
mod validate;
pub mod verify;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use apply::apply_rules;
pub use meganeura_core::config::RewriteConfig;
pub use meganeura_core::cost::{SimulatedDevice, Target, call_cost, graph_cost, step_cost};
pub use meganeura_core::rule_set::{BuildKind, RuleSet};
pub use outcome::{Fusion, OptimizeReport};
pub use pack::{pack_calls, pack_parameters};
pub use registered::{RegisteredSet, register_rule_set, rule_set_problems, rule_sets};
pub use request::{Pass, Request};
pub use saturate::Limits;

use cost::Costs;
use extract::{Budget, extract};
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, NodeKind};
use outcome::places;
use pack::pack_group;
use rule::Rule;
use snapshot::Snapshot;
use state::{Setting, State};

/// Rewrites a graph.
///
/// # Errors
/// All errors of [`Graph::verify`]; [`Error::RuleSet`] for an unsound rule; [`Error::Config`] for a
/// rule set that does not exist.
pub fn rewrite(graph: &Graph, request: &Request) -> Result<(Graph, OptimizeReport)> {
    let mut report = OptimizeReport {
        nodes_before: graph.nodes().len(),
        nodes_after: graph.nodes().len(),
        ..OptimizeReport::default()
    };
    if !request.config.enabled {
        return Ok((graph.clone(), report));
    }
    let Some(rules) = select::rules(graph, request)? else {
        return Ok((graph.clone(), report));
    };
    // Without rules, adjacent parameters may still be packed.
    let parameters = graph
        .nodes()
        .iter()
        .any(|n| matches!(n.kind, NodeKind::Parameter { .. }));
    if rules.is_empty() && !parameters {
        report.extraction_exact = true;
        report.cost_before_ps = request.pass.cost(graph, request.target)?;
        report.cost_after_ps = report.cost_before_ps;
        report.greedy_cost_ps = request.config.baseline.then_some(report.cost_before_ps);
        return Ok((graph.clone(), report));
    }
    let dialect = select::dialect(rules)?;
    // A panic leaves nothing inconsistent: each graph uses its own clone.
    let _in_use = dialect.in_use.lock().unwrap_or_else(PoisonError::into_inner);
    let saturation = tracing::debug_span!("saturate").entered();
    let start = Instant::now();
    let pack_group = |graph: &Graph, id: NodeId| pack_group(graph, id, request.group_of);
    let setting = Setting {
        caps: &[request.pass.cap()],
        pack_group: &pack_group,
    };
    let mut state = State::new(graph, dialect.clone(), &setting)?;
    report.budget_hit = saturate::saturate(&mut state, &Limits::of(request.config))?.budget;
    report.egglog_time = start.elapsed();
    drop(saturation);
    let (_, counts) = state.fired()?;
    report.rules_fired = titles(&dialect.rules, &counts);
    report.egglog_program.clone_from(&dialect.program);

    let _extraction = tracing::debug_span!("extract").entered();
    let start = Instant::now();
    let mut chosen = choose(graph, &mut state, request, &mut report)?;
    report.extract_time = start.elapsed();
    report.cost_before_ps = request.pass.cost(graph, request.target)?;
    if request.config.baseline || report.budget_hit.is_some() {
        let baseline = baseline::rewrite(graph, &dialect.rules, setting.caps, request)?;
        report.greedy_cost_ps = Some(baseline.cost);
        // The greedy matcher can only be better if a budget ended saturation.
        if report.budget_hit.is_some() && baseline.cost < report.cost_after_ps {
            report.cost_after_ps = baseline.cost;
            report.extraction_exact = false;
            report.fusions = baseline.fusions;
            chosen = baseline.graph;
        }
    }
    report.nodes_after = chosen.nodes().len();
    report.fusions_applied = places(&report.fusions);
    Ok((chosen, report))
}

/// Selects the cheapest graph in a saturated e-graph, and adds its cost and fusions to the report.
fn choose(graph: &Graph, state: &mut State, request: &Request, report: &mut OptimizeReport) -> Result<Graph> {
    let mut costs = Costs::new(request.target);
    let snapshot = Snapshot::new(state, &mut costs, &request.pass.invariant_nodes(graph)?)?;
    report.num_eclasses = snapshot.classes.len();
    report.num_enodes = snapshot.num_enodes;
    let groups = state.class_facts("pack-group")?;
    let packable = |class: u32| groups.contains_key(&snapshot.keys[class as usize]);
    let problem = snapshot.problem(state, graph, &packable);
    let budget = Budget {
        steps: request.config.steps,
        time: Some(Duration::from_millis(request.config.time_ms)),
    };
    let extraction =
        extract(&problem, &budget).map_err(|e| Error::graph(e.to_string(), "this is a fault of a rule set"))?;
    report.extraction_exact = extraction.exact;
    let decoded = decode::decode(graph, state, &snapshot, &problem, &extraction.selection)?;
    let (packed, moved) =
        pack::pack_calls_mapped(&decoded.graph, &|id| decoded.packed.contains(&id), request.group_of)?;
    report.cost_after_ps = request.pass.cost(&packed, request.target)?;
    report.fusions = report::Fusions {
        graph,
        state,
        snapshot: &snapshot,
        problem: &problem,
        selection: &extraction.selection,
        place: &|class| {
            let value = decoded.values.get(&class)?;
            Some(moved.get(value).unwrap_or(value).node)
        },
    }
    .list()?;
    Ok(packed)
}

/// Adds up counts of rules with the same title, in the order of the rules.
fn titles(rules: &[Arc<Rule>], counts: &[usize]) -> Vec<(String, usize)> {
    let mut titles: Vec<(String, usize)> = Vec::new();
    for (rule, &count) in rules.iter().zip(counts).filter(|(_, count)| **count > 0) {
        match titles.iter_mut().find(|(title, _)| title == rule.title()) {
            Some((_, total)) => *total += count,
            None => titles.push((rule.title().to_owned(), count)),
        }
    }
    titles
}
