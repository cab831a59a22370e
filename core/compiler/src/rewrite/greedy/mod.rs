//! The greedy matcher: applies rules one by one while each makes the whole graph cheaper.
//!
//! It uses the rules and costs of equality saturation without an e-graph. It is the fallback when a budget is
//! exhausted, and the baseline of reports. It does not find rewrites that reduce the cost only in combination.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::attr;
use super::matcher::{Bindings, Bound, Plan, Search, World, eval_plain};
use super::pattern::{Build, ScalarExpr, Shape, Step};
use super::rule::Rule;
use super::scalar::Scalar;
use super::terms::{Label, Mark, Refusal, TermCost, TermId, Terms};
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, Value};

/// Limits of the matcher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Maximum number of steps of matching.
    pub(super) steps: u64,
    /// Maximum time.
    pub(super) time: Option<Duration>,
}

/// A rewrite that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AppliedRewrite {
    /// Index of the rule that was applied.
    pub(super) rule: usize,
    /// Node whose name and location the new nodes inherit.
    pub(super) node: NodeId,
    /// Cost reduction of the whole graph, in picoseconds.
    pub(super) saving: u128,
}

/// Result of the matcher.
pub(super) struct Greedy<'a> {
    /// The terms after rewriting.
    pub(super) terms: Terms<'a>,
    /// Rewrites, in the order of their application.
    pub(super) applied: Vec<AppliedRewrite>,
    /// Cost of the input graph, after merging equal computations.
    pub(super) cost_before: u128,
    /// Cost after rewriting.
    pub(super) cost_after: u128,
    /// `true` if a fixpoint was reached; `false` if the budget was exhausted first.
    pub(super) finished: bool,
}

/// Maximum number of matches of a rule that are tried at one term.
const MAX_MATCHES: usize = 64;

/// Rewrites a graph with rules as long as its cost falls.
///
/// # Errors
/// A cycle in the graph; [`Error::RuleSet`] naming a rule whose result has another type than the
/// replaced value.
pub(super) fn greedy<'a>(
    graph: &Graph,
    rules: &[&Rule],
    world: &World,
    cost: TermCost<'a>,
    budget: Budget,
) -> Result<Greedy<'a>> {
    let terms = Terms::new(graph, cost, &world.invariant)?;
    let cost_before = terms.total();
    let mut driver = Driver {
        graph,
        rules,
        world,
        terms,
        plans: Vec::new(),
        by_operator: HashMap::new(),
        radius: 1,
        applied: Vec::new(),
        steps: 0,
        budget,
        deadline: budget.time.map(|time| Instant::now() + time),
    };
    driver.index();
    let finished = driver.run()?;
    Ok(Greedy {
        cost_before,
        cost_after: driver.terms.total(),
        terms: driver.terms,
        applied: driver.applied,
        finished,
    })
}

struct Driver<'r, 'a> {
    graph: &'r Graph,
    rules: &'r [&'r Rule],
    world: &'r World<'r>,
    terms: Terms<'a>,
    plans: Vec<Option<Plan>>,
    /// Rules, by the operator at which matching begins (the anchor).
    by_operator: HashMap<&'static str, Vec<usize>>,
    radius: usize,
    applied: Vec<AppliedRewrite>,
    steps: u64,
    budget: Budget,
    deadline: Option<Instant>,
}

impl Driver<'_, '_> {
    fn index(&mut self) {
        for (i, rule) in self.rules.iter().enumerate() {
            let plan = Plan::new(&rule.pattern);
            if let Some(plan) = &plan
                && let Some((op, _)) = plan.anchor(&rule.pattern)
            {
                self.radius = self.radius.max(plan.radius());
                self.by_operator.entry(op.get().name()).or_default().push(i);
            }
            self.plans.push(plan);
        }
    }

    /// Applies rules at all terms that may have changed, until none reduces the cost. Returns whether that fixpoint was
    /// reached.
    fn run(&mut self) -> Result<bool> {
        self.terms.take_touched();
        let mut places = self.terms.needed();
        while !places.is_empty() {
            for place in places {
                if !self.at(place)? {
                    return Ok(false);
                }
            }
            places = self.surroundings();
        }
        Ok(true)
    }

    /// Applies rules at a term as long as they reduce the cost. Returns `false` if the budget is exhausted.
    fn at(&mut self, place: TermId) -> Result<bool> {
        'again: loop {
            if !self.terms.is_needed(place) || self.terms.find(place) != place {
                return Ok(true);
            }
            let Label::Call { op, .. } = self.terms.label(place) else {
                return Ok(true);
            };
            let Some(rules) = self.by_operator.get(op.get().name()).cloned() else {
                return Ok(true);
            };
            for rule in rules {
                if self.exhausted() {
                    return Ok(false);
                }
                for bindings in self.matches(rule, place) {
                    if self.attempt(rule, bindings)? {
                        continue 'again;
                    }
                }
            }
            return Ok(true);
        }
    }

    fn exhausted(&self) -> bool {
        self.steps >= self.budget.steps || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn matches(&mut self, rule: usize, place: TermId) -> Vec<Bindings> {
        let Some(plan) = &self.plans[rule] else {
            return Vec::new();
        };
        let mut search = Search {
            terms: &self.terms,
            world: self.world,
            pattern: &self.rules[rule].pattern,
            steps: self.steps,
            limit: self.budget.steps,
        };
        let found = search.matches(plan, place, MAX_MATCHES);
        self.steps = search.steps + 1;
        found
    }

    /// Applies a rule, and keeps the result if it reduces the cost of the whole graph.
    fn attempt(&mut self, rule: usize, bindings: Bindings) -> Result<bool> {
        let mark = self.terms.mark();
        let before = self.terms.total();
        let node = self.place_of(rule, &bindings);
        match self.act(rule, bindings, node) {
            Ok(()) => {}
            Err(Refusal::Impossible) => {
                self.terms.undo(&mark);
                return Ok(false);
            }
            Err(Refusal::IllTyped(message)) => {
                self.terms.undo(&mark);
                return Err(self.ill_typed(rule, node, &message));
            }
        }
        Ok(self.settle(rule, node, before, &mark))
    }

    fn settle(&mut self, rule: usize, node: NodeId, before: u128, mark: &Mark) -> bool {
        let after = self.terms.total();
        if after >= before {
            self.terms.undo(mark);
            return false;
        }
        self.terms.commit();
        self.applied.push(AppliedRewrite {
            rule,
            node,
            saving: before - after,
        });
        true
    }

    /// Returns the node whose name and location the results of a rule get: the first node with a name that the rule
    /// matched.
    fn place_of(&self, rule: usize, bindings: &Bindings) -> NodeId {
        let atoms = &self.rules[rule].pattern.atoms;
        let mut origins = atoms
            .iter()
            .filter(|atom| !matches!(atom.shape, Shape::Leaf(_)))
            .filter_map(|atom| match bindings[atom.root] {
                Some(Bound::Term(term)) => Some(self.terms.origin(term)),
                _ => None,
            });
        let first = origins.next().unwrap_or(NodeId::new(0));
        let named = |id: &NodeId| self.graph.nodes().get(id.index()).is_some_and(|n| n.name.is_some());
        if named(&first) {
            return first;
        }
        origins.find(named).unwrap_or(first)
    }

    fn act(&mut self, rule: usize, mut bindings: Bindings, node: NodeId) -> Result<(), Refusal> {
        let pattern = &self.rules[rule].pattern;
        for step in &pattern.head {
            match step {
                Step::LetScalar(v, expr) => {
                    bindings[*v] = Some(eval_plain(expr, &bindings).ok_or(Refusal::Impossible)?);
                }
                Step::Let(v, build) => {
                    let term = self.build(build, &bindings, node)?;
                    bindings[*v] = Some(Bound::Term(term));
                }
                Step::Make(build) => {
                    self.build(build, &bindings, node)?;
                }
                Step::Union(a, b) => {
                    let (a, b) = (self.build(a, &bindings, node)?, self.build(b, &bindings, node)?);
                    // Rewrite the side that exists in the graph.
                    let (old, new) = if self.terms.is_needed(a) || !self.terms.is_needed(b) {
                        (a, b)
                    } else {
                        (b, a)
                    };
                    self.terms.replace(old, new)?;
                }
            }
        }
        Ok(())
    }

    fn build(&mut self, build: &Build, bindings: &Bindings, node: NodeId) -> Result<TermId, Refusal> {
        let (shape, scalars, children) = match build {
            Build::Var(v) => {
                return match bindings[*v] {
                    Some(Bound::Term(term)) => Ok(self.terms.find(term)),
                    _ => Err(Refusal::Impossible),
                };
            }
            Build::Node {
                shape,
                scalars,
                children,
            } => (shape, scalars, children),
        };
        let mut operands = Vec::with_capacity(children.len());
        for child in children {
            operands.push(self.build(child, bindings, node)?);
        }
        let scalars = scalars
            .iter()
            .map(|expr| scalar(expr, bindings))
            .collect::<Option<Vec<Scalar>>>()
            .ok_or(Refusal::Impossible)?;
        match (shape, scalars.as_slice(), operands.as_slice()) {
            (Shape::Call(constructor), _, _) => {
                let literals: Vec<_> = scalars.iter().map(Scalar::to_literal).collect();
                let attrs = attr::attrs(constructor.op, &literals)
                    .ok_or_else(|| Refusal::IllTyped(format!("{}: an attribute has no valid value", shape)))?;
                self.terms.call(*constructor, attrs, operands, node)
            }
            (Shape::Get, [Scalar::Int(port)], [tuple]) => self.terms.port(*tuple, *port, node),
            (Shape::Leaf(kind), [Scalar::Int(number)], []) => self.terms.leaf(*kind, *number),
            _ => Err(Refusal::Impossible),
        }
    }

    fn ill_typed(&self, rule: usize, node: NodeId, message: &str) -> Error {
        let rule = self.rules[rule];
        Error::RuleSet {
            set: rule.set.clone(),
            rule: Some(rule.name.clone()),
            span: Some(rule.place()),
            message: format!("its result has a type error at {}: {message}", self.graph.label(node)),
        }
    }

    /// Returns the needed terms near changed terms, operands first. They are near if a match could contain both.
    fn surroundings(&mut self) -> Vec<TermId> {
        let mut seen = std::collections::HashSet::new();
        let mut layer = Vec::new();
        for id in self.terms.take_touched() {
            let id = self.terms.find(id);
            if self.terms.is_needed(id) && seen.insert(id) {
                layer.push(id);
            }
        }
        for _ in 0..self.radius {
            let mut next = Vec::new();
            for id in layer {
                for &near in self.terms.children(id).iter().chain(self.terms.parents(id)) {
                    if self.terms.is_needed(near) && seen.insert(near) {
                        next.push(near);
                    }
                }
            }
            layer = next;
        }
        let mut places: Vec<TermId> = seen.into_iter().collect();
        places.sort_by_key(|&id| (self.terms.level(id), id));
        places
    }
}

fn scalar(expr: &ScalarExpr, bindings: &Bindings) -> Option<Scalar> {
    match eval_plain(expr, bindings)? {
        Bound::Scalar(value) => Some(value),
        Bound::Term(_) => None,
    }
}

impl Greedy<'_> {
    /// Returns the rewritten graph. Nodes of `source`, the original graph, keep name and location;
    /// new ones inherit them from the nodes that they replace. Unused leaves are kept.
    ///
    /// # Errors
    /// All errors of [`Graph::verify`].
    pub(super) fn rebuild(&self, source: &Graph) -> Result<RebuiltGraph> {
        let mut out = Graph::new();
        let mut places: HashMap<NodeId, NodeId> = HashMap::new();
        let mut map: HashMap<TermId, Value> = HashMap::new();
        let mut leaves: HashMap<NodeId, Value> = HashMap::new();
        for id in source.node_ids() {
            let node = &source.nodes()[id.index()];
            if !node.is_op() {
                leaves.insert(id, out.copy_node(source, id, Vec::new()).into());
            }
        }
        for id in self.terms.needed() {
            let inputs: Vec<Value> = self.terms.children(id).iter().map(|c| map[c]).collect();
            let value = match (self.terms.label(id), self.terms.node(id)) {
                (Label::Leaf(_, node), _) => leaves[node],
                (Label::Get(port), _) => Value {
                    node: inputs[0].node,
                    port: *port,
                },
                (_, Some(node)) => {
                    let copy = out.copy_node(source, node, inputs);
                    places.entry(node).or_insert(copy);
                    copy.into()
                }
                (Label::Call { op, attrs, .. }, None) => {
                    let origin = self.terms.origin(id);
                    let make = |g: &mut Graph| g.call(*op, attrs.clone(), inputs);
                    let made = out.with_provenance(source.provenance(origin), make);
                    places.insert(origin, made);
                    made.into()
                }
                (Label::Write(node), None) => out.copy_node(source, *node, inputs).into(),
            };
            map.insert(id, value);
        }
        let new = |value: Value| {
            let term = self.terms.value(value).and_then(|id| map.get(&id));
            term.or_else(|| leaves.get(&value.node)).copied().unwrap_or(value)
        };
        out.adopt_roots(source, new);
        out.verify()?;
        Ok(RebuiltGraph { graph: out, places })
    }
}

/// A graph built from terms.
#[derive(Debug)]
pub(super) struct RebuiltGraph {
    pub(super) graph: Graph,
    /// For each node of the input graph, the node that now has its name and location: itself, or its replacement.
    pub(super) places: HashMap<NodeId, NodeId>,
}

#[cfg(test)]
mod tests;
