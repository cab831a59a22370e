//! Greedy rewriting with the rules and costs of a request. It is the fallback if the budget of saturation is exhausted,
//! and the baseline in reports.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::greedy::{Budget, greedy};
use super::matcher::World;
use super::outcome::Fusion;
use super::pack::{kind_of, pack_calls_mapped, pack_group};
use super::request::Request;
use super::rule::Rule;
use super::terms::{Label, TermId, Terms};
use meganeura_core::attrs::Attrs;
use meganeura_core::cost::{INVARIANT_COST, call_cost};
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::ops::Call;
use meganeura_core::shape::TensorType;

/// Result of greedy rewriting.
pub(super) struct Baseline {
    pub(super) graph: Graph,
    pub(super) cost: u64,
    pub(super) fusions: Vec<Fusion>,
}

/// Key of a cached cost: operator, attributes and operand types of the call.
type PriceKey = (&'static str, Attrs, Vec<TensorType>);

/// Rewrites a graph greedily.
///
/// # Errors
/// See [`greedy`].
pub(super) fn rewrite(graph: &Graph, rules: &[Arc<Rule>], caps: &[&str], request: &Request) -> Result<Baseline> {
    let known: RefCell<HashMap<PriceKey, u64>> = RefCell::default();
    let packable = |terms: &Terms, id: TermId| {
        let node = terms.node(id).filter(|_| matches!(terms.label(id), Label::Leaf(..)));
        node.is_some_and(|node| kind_of(graph, node, request.group_of).is_some())
    };
    let cost = |terms: &Terms, id: TermId| {
        let Label::Call { op, attrs, .. } = terms.label(id) else {
            return 0;
        };
        let children = terms.children(id);
        if op.packs(attrs).is_some() && children.len() > 1 && children.iter().all(|&c| packable(terms, c)) {
            return 0;
        }
        let inputs: Vec<TensorType> = children.iter().flat_map(|&c| terms.types(c).cloned()).collect();
        let key = (op.get().name(), attrs.clone(), inputs);
        if terms.is_kept(id) {
            return INVARIANT_COST;
        }
        if let Some(&price) = known.borrow().get(&key) {
            return price;
        }
        let outputs: Vec<TensorType> = terms.types(id).cloned().collect();
        let call = Call {
            attrs,
            inputs: &key.2,
            outputs: &outputs,
        };
        let price = call_cost(request.target, *op, &call);
        known.borrow_mut().insert(key, price);
        price
    };
    let group = |id: NodeId| pack_group(graph, id, request.group_of);
    let world = World {
        caps: caps.iter().map(|cap| (*cap).to_owned()).collect(),
        pack_group: &group,
        invariant: request.pass.invariant_nodes(graph)?,
    };
    let budget = Budget {
        steps: request.config.steps,
        time: Some(Duration::from_millis(request.config.time_ms)),
    };
    let list: Vec<&Rule> = rules.iter().map(|r| &**r).collect();
    let done = greedy(graph, &list, &world, &cost, budget)?;
    log::debug!(
        "greedy rewriting: {} ps to {} ps by {} rewrites{}",
        done.cost_before,
        done.cost_after,
        done.applied.len(),
        if done.finished { "" } else { ", ended by its budget" }
    );
    let rebuilt = done.rebuild(graph)?;
    let (packed, moved) = pack_calls_mapped(&rebuilt.graph, &|_| true, request.group_of)?;
    let place = |node: NodeId| {
        let value: Value = (*rebuilt.places.get(&node)?).into();
        Some(moved.get(&value).unwrap_or(&value).node)
    };
    let fusions = done.applied.iter().map(|applied| Fusion {
        rule: rules[applied.rule].title().to_owned(),
        rule_set: rules[applied.rule].set.clone(),
        node: place(applied.node),
        before_autodiff: false,
        node_name: super::decode::place(graph, applied.node.into()).to_string(),
        saving_ps: i64::try_from(applied.saving).unwrap_or(i64::MAX),
    });
    Ok(Baseline {
        fusions: fusions.collect(),
        cost: request.pass.cost(&packed, request.target)?,
        graph: packed,
    })
}
