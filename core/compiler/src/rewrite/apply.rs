//! Rules by name, applied to a graph wherever they match.

use std::sync::Arc;

use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId};

use super::greedy::{Budget, greedy};
use super::matcher::World;
use super::rule::Rule;
use super::terms::{Label, TermId, Terms};
use super::{pack_group, rule_sets};

/// Applies the registered rules with one of these titles (as [reports](crate::OptimizeReport) print them) wherever they
/// make the graph smaller by a call, whatever the device's rates say, and returns how often. What an intermediate result is
/// also used for elsewhere keeps it, so nothing is computed twice.
///
/// # Errors
/// What [`Graph::verify`] finds; [`Error::InvalidUse`] for a title that no registered rule has.
pub fn apply_rules(graph: &mut Graph, titles: &[&str]) -> Result<usize> {
    graph.verify()?;
    let sets = rule_sets();
    let rules: Vec<Arc<Rule>> = sets
        .iter()
        .flat_map(|set| &set.rules)
        .filter(|rule| titles.contains(&rule.title()))
        .cloned()
        .collect();
    if let Some(title) = titles.iter().find(|title| !rules.iter().any(|r| r.title() == **title)) {
        return Err(Error::misuse(
            format!("no registered rule is called '{title}'"),
            "link the crate that brings it, such as meganeura-rules; `meganeura plugins` lists the rule sets",
        ));
    }
    let count = |terms: &Terms, id: TermId| u64::from(matches!(terms.label(id), Label::Call { .. }));
    let no_group = |_: &str| 0;
    let group = |id: NodeId| pack_group(graph, id, &no_group);
    let world = World {
        // The caller says that the rules are wanted: those for inference too.
        caps: ["inference", "training"].map(str::to_owned).into_iter().collect(),
        pack_group: &group,
        invariant: Vec::new(),
    };
    let unlimited = Budget {
        steps: u64::MAX,
        time: None,
    };
    let list: Vec<&Rule> = rules.iter().map(|rule| &**rule).collect();
    let done = greedy(graph, &list, &world, &count, unlimited)?;
    let applied = done.applied.len();
    if applied > 0 {
        let rebuilt = done.rebuild(graph)?.graph;
        rebuilt.verify()?;
        *graph = rebuilt;
    }
    Ok(applied)
}
