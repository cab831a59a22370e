//! Selection of the rules that take part in rewriting a graph.
//!
//! Loading and searching rules takes time per rule, for any graph. Therefore, a rule is skipped if its left-hand side
//! contains an operator that neither the graph nor the result of any possible rule contains. The result is the same,
//! but small graphs, for which most rules cannot match, are rewritten several times faster.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashSet;

use super::dialect::{Dialect, leaf_constructor};
use super::pattern::{Build, Shape, Step};
use super::registered;
use super::request::Request;
use super::rule::Rule;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, Node};
use meganeura_core::mode::Mode;
use meganeura_core::rule_set::BuildKind;

/// An operator with its number of operands, or a kind of leaf.
type Key = (&'static str, usize);

/// Returns the rules that a request selects and that can fire on a graph, sorted by set; `None` if
/// it selects none.
///
/// # Errors
/// [`Error::Config`] if a disabled set does not exist.
pub(super) fn rules(graph: &Graph, request: &Request) -> Result<Option<Vec<Arc<Rule>>>> {
    let requested = requested(request)?;
    Ok((!requested.is_empty()).then(|| possible(graph, requested)))
}

/// Returns the rules that configuration and pass select.
fn requested(request: &Request) -> Result<Vec<Arc<Rule>>> {
    let sets = registered::rule_sets();
    for name in &request.config.disable {
        if !sets.iter().any(|s| s.set.namespace == *name) {
            let known: Vec<&str> = sets.iter().map(|s| s.set.namespace.as_ref()).collect();
            return Err(Error::Config {
                origin: "rewrite.disable".into(),
                message: format!("there is no rule set '{name}'; there are: {}", known.join(", ")),
            });
        }
    }
    let applies = |applies: BuildKind| match applies {
        BuildKind::Always => true,
        BuildKind::Training => request.pass.mode() == Mode::Training,
        BuildKind::Inference => request.pass.mode() == Mode::Inference,
    };
    Ok(sets
        .iter()
        .filter(|s| applies(s.set.applies) && !request.config.disable.iter().any(|d| s.set.namespace == *d))
        .flat_map(|s| s.rules.iter())
        .filter(|rule| request.pass.takes(rule.phase))
        .cloned()
        .collect())
}

/// Returns the rules whose left-hand side can match: each of its calls is in the graph, or another of these rules can
/// create it.
fn possible(graph: &Graph, rules: Vec<Arc<Rule>>) -> Vec<Arc<Rule>> {
    let mut there: FxHashSet<Key> = graph.nodes().iter().map(key_of_node).collect();
    let mut taken = vec![false; rules.len()];
    loop {
        let mut grown = false;
        for (rule, taken) in rules.iter().zip(&mut taken).filter(|(_, taken)| !**taken) {
            let mut needed = rule.pattern.atoms.iter().filter_map(|atom| key(atom.shape));
            if needed.all(|key| there.contains(&key)) {
                *taken = true;
                grown = true;
                for_each_created(rule, &mut |shape| there.extend(key(shape)));
            }
        }
        if !grown {
            break;
        }
    }
    let mut taken = taken.into_iter();
    rules.into_iter().filter(|_| taken.next() == Some(true)).collect()
}

fn key_of_node(node: &Node) -> Key {
    match node.op() {
        Some((op, _)) => (op.get().name(), node.inputs.len()),
        None => (leaf_constructor(&node.kind), 0),
    }
}

/// Returns the key of a kind of node; `None` for the selection of a result (`Get`), which exists whenever its call
/// does.
fn key(shape: Shape) -> Option<Key> {
    match shape {
        Shape::Call(constructor) => Some((constructor.op.get().name(), constructor.operands)),
        Shape::Leaf(kind) => Some((kind.name(), 0)),
        Shape::Get => None,
    }
}

/// Visits the nodes that the head of a rule creates.
fn for_each_created(rule: &Rule, visit: &mut dyn FnMut(Shape)) {
    fn walk(build: &Build, visit: &mut dyn FnMut(Shape)) {
        if let Build::Node { shape, children, .. } = build {
            visit(*shape);
            children.iter().for_each(|child| walk(child, visit));
        }
    }
    for step in &rule.pattern.head {
        match step {
            Step::Let(_, build) | Step::Make(build) => walk(build, visit),
            Step::Union(a, b) => [a, b].into_iter().for_each(|side| walk(side, visit)),
            Step::LetScalar(..) => {}
        }
    }
}

/// Returns the dialect with these rules. Loading rules takes longer than rewriting a small graph, so the most recent
/// dialects are cached.
pub(super) fn dialect(rules: Vec<Arc<Rule>>) -> Result<Arc<Dialect>> {
    static KEPT: Mutex<VecDeque<Arc<Dialect>>> = Mutex::new(VecDeque::new());
    const MAX: usize = 16;
    let same =
        |d: &Arc<Dialect>| d.rules.len() == rules.len() && d.rules.iter().zip(&rules).all(|(a, b)| Arc::ptr_eq(a, b));
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let found = kept.iter().position(same).and_then(|at| kept.remove(at));
    let dialect = match found {
        Some(dialect) => dialect,
        None => Arc::new(Dialect::new(rules)?),
    };
    kept.push_back(dialect.clone());
    if kept.len() > MAX {
        kept.pop_front();
    }
    Ok(dialect)
}
