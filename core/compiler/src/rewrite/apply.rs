//! Application of rules by name to a graph, wherever they match.

use std::sync::Arc;

use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId};

use super::greedy::{Budget, greedy};
use super::matcher::World;
use super::pack::pack_group;
use super::registered::rule_sets;
use super::rule::Rule;
use super::terms::{Label, TermId, Terms};

/// Applies the registered rules with one of these titles (as [reports](crate::OptimizeReport) print
/// them) wherever they reduce the number of calls by one, regardless of the device's rates, and
/// returns the number of applications. An intermediate result with other users is kept, so nothing
/// is computed twice.
///
/// # Errors
/// All errors of [`Graph::verify`]; [`Error::InvalidUse`] for a title that no registered rule has.
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
            "link the crate that provides it, such as meganeura-rules; `meganeura plugins` lists the rule sets",
        ));
    }
    let count = |terms: &Terms, id: TermId| u64::from(matches!(terms.label(id), Label::Call { .. }));
    let no_group = |_: &str| 0;
    let group = |id: NodeId| pack_group(graph, id, &no_group);
    let world = World {
        // The caller requests the rules explicitly, including those for inference.
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
