//! Tests of faulty rule sets: wrong rules are reported with the failing case, endlessly growing
//! ones are stopped.
// A binary of its own: its rule sets are registered for the whole process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use meganeura_compiler::OptimizeReport;
use meganeura_compiler::rewrite::verify::{Outcome, RuleVerdict, VerifyOptions, verify_rule_set};
use meganeura_compiler::rewrite::{Pass, Request, RewriteConfig, RuleSet, SimulatedDevice, rewrite};
use meganeura_compiler::rewrite::{register_rule_set, rule_sets};
use meganeura_core::TensorType;
use meganeura_core::error::Error;
use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::ops::{
    Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, sample::Sample, sample::Sizes,
};
use meganeura_core::reference::evaluate;

/// An operator whose reference loop panics.
struct Panics;

impl Operator for Panics {
    fn name(&self) -> &'static str {
        "bad.panics"
    }
    fn doc(&self) -> Doc {
        Doc {
            shapes: "any",
            formula: "none",
            source: "test",
        }
    }
    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }
    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(vec![call.inputs[0].clone()])
    }
    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }
    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|_| panic!("out of cheese"))
    }
    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }
    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        Vec::new()
    }
}

static PANICS: Panics = Panics;

/// An operator that applies a function to each element: its name and the function.
struct ElementFunction(&'static str, fn(f64) -> f64);

impl Operator for ElementFunction {
    fn name(&self) -> &'static str {
        self.0
    }
    fn doc(&self) -> Doc {
        PANICS.doc()
    }
    fn arity(&self) -> Arity {
        PANICS.arity()
    }
    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        PANICS.infer(call)
    }
    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }
    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| vec![call.inputs[0].data.iter().map(|&x| (self.1)(x)).collect()])
    }
    fn cost(&self, call: &Call) -> Cost {
        PANICS.cost(call)
    }
    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        Vec::new()
    }
}

/// Returns the verdict on a set's only rule.
fn verdict(set: &RuleSet) -> RuleVerdict {
    let verdicts = verify_rule_set(set, &VerifyOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(verdicts.len(), 1);
    verdicts.into_iter().next().expect("one")
}

fn contains(verdict: &RuleVerdict, parts: &[&str]) {
    let text = verdict.to_string();
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in:\n{text}");
    }
}

#[test]
fn rules_that_are_wrong_for_small_or_large_numbers_alone_are_found() {
    static SMALL: ElementFunction = ElementFunction("bad.small", |x| if x.abs() < 5e-4 { 0.0 } else { -x });
    static LARGE: ElementFunction = ElementFunction("bad.large", |x| if x > 50.0 { -50.0 } else { -x });
    let small = RuleSet::new("bad", 1, "(rewrite (core.neg x) (bad.small x) :name \"small\")");
    let large = RuleSet::new("bad", 1, "(rewrite (core.neg x) (bad.large x) :name \"large\")");
    for set in [
        small.with_ops(const { &[OpRef::new(&SMALL)] }),
        large.with_ops(const { &[OpRef::new(&LARGE)] }),
    ] {
        let found = verdict(&set);
        assert!(matches!(found.outcome, Outcome::Wrong { .. }), "{found}");
    }
}

#[test]
fn wrong_numbers_are_found_with_the_failing_case() {
    let set = RuleSet::new("bad", 1, "\n(rewrite (core.sub a b) (core.sub b a) :name \"swap\")");
    let found = verdict(&set);
    assert!(matches!(found.outcome, Outcome::Wrong { .. }), "{found}");
    contains(
        &found,
        &[
            "bad/swap: wrong",
            "bad.egg:2:1",
            "before:",
            "after:",
            "core.sub(",
            "output 0 differs at [",
            "a = [",
        ],
    );
    assert_eq!(
        verdict(&set).to_string(),
        found.to_string(),
        "the case is the same every time"
    );
}

#[test]
fn wrong_only_where_a_size_or_value_is_special() {
    // True unless the reduced axis has another length than 1.
    let text = "(rewrite (core.mean axes true x) (core.sum axes true x) :name \"mean\")";
    assert!(matches!(
        verdict(&RuleSet::new("bad", 1, text)).outcome,
        Outcome::Wrong { .. }
    ));
    // The tolerance on the constant is too wide.
    let text = "(rule ((= e (core.mul x c)) (< (uniform c) 1.1) (> (uniform c) 0.4) (= (type e) (type x))) \
                ((union e x)) :name \"about one\")";
    assert!(matches!(
        verdict(&RuleSet::new("bad", 1, text)).outcome,
        Outcome::Wrong { .. }
    ));
}

#[test]
fn wrong_gradients_are_found_where_they_matter() {
    let early = "(rewrite (core.relu x) (core.stop_gradient (core.relu x)) :ruleset before_autodiff :name \"cut\")";
    let found = verdict(&RuleSet::new("bad", 1, early));
    assert!(matches!(found.outcome, Outcome::Wrong { .. }), "{found}");
    contains(&found, &["the gradient of x differs"]);
    let late = "(rewrite (core.relu x) (core.stop_gradient (core.relu x)) :name \"cut\")";
    assert!(verdict(&RuleSet::new("bad", 1, late)).is_sound());
}

#[test]
fn wrong_types_are_found() {
    let flip = "(rewrite (core.matmul false false a b) (core.matmul false true a b) :name \"flip\")";
    let found = verdict(&RuleSet::new("bad", 1, flip));
    assert!(matches!(found.outcome, Outcome::IllTyped { .. }), "{found}");
    contains(&found, &["bad/flip: ill-typed", "core.matmul"]);
    let drop = "(rule ((= e (core.mul x c)) (= (uniform c) 1.0)) ((union e x)) :name \"drop\")";
    let found = verdict(&RuleSet::new("bad", 1, drop));
    assert!(matches!(found.outcome, Outcome::IllTyped { .. }), "{found}");
    contains(&found, &["it equates"]);
}

#[test]
fn what_cannot_be_shown_is_said() {
    let never = "(rule ((= e (core.add a b)) (= (rank (type a)) 9)) ((union e a)) :name \"never\")";
    let found = verdict(&RuleSet::new("bad", 1, never));
    assert_eq!(found.outcome, Outcome::NoWitness);
    contains(&found, &["untested", "no matching graph found"]);
    let panics = RuleSet::new("bad", 1, "(rewrite (core.neg x) (bad.panics x) :name \"boom\")")
        .with_ops(const { &[OpRef::new(&PANICS)] });
    let found = verdict(&panics);
    assert!(matches!(found.outcome, Outcome::Failed { .. }), "{found}");
    contains(&found, &["out of cheese"]);
}

/// Rewrites a graph with a newly registered set as the only one.
fn rewritten(graph: &Graph, set: RuleSet) -> Result<(Graph, OptimizeReport), Error> {
    let name = set.namespace.to_string();
    register_rule_set(set)?;
    let others = rule_sets().into_iter().map(|s| s.set.namespace.to_string());
    let config = RewriteConfig {
        disable: others.filter(|s| *s != name).collect(),
        time_ms: 500,
        ..RewriteConfig::default()
    };
    let request = Request {
        pass: Pass::Inference,
        target: &SimulatedDevice::discrete_gpu(),
        config: &config,
        group_of: &|_| 0,
    };
    rewrite(graph, &request)
}

/// Checks that a budget stops saturation with the set soon, and that the rewritten graph has the same values.
fn stopped(graph: &Graph, set: RuleSet) {
    let start = Instant::now();
    let (after, report) = rewritten(graph, set).unwrap_or_else(|e| panic!("{e}"));
    let elapsed = start.elapsed();
    assert!(report.budget_hit.is_some(), "{report}");
    // Without optimization, and with other tests running, everything takes longer.
    let limit = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 2 });
    assert!(elapsed < limit, "{elapsed:?}");
    let mut feeds = HashMap::new();
    for (i, node) in graph.nodes().iter().filter(|n| n.is_named_leaf()).enumerate() {
        let name = node.name.as_deref().expect("leaves are named");
        feeds.insert(name.to_owned(), vec![0.5 + i as f64, -1.25]);
    }
    let [before, after] = [graph, &after].map(|g| {
        let values = evaluate(g, &feeds).unwrap_or_else(|e| panic!("{e}"));
        values.get(g.outputs()[0]).expect("a value").data.clone()
    });
    for (a, b) in before.iter().zip(&after) {
        assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0), "{a} became {b}");
    }
}

fn leaves(g: &mut Graph, count: usize) -> Vec<NodeId> {
    (0..count).map(|i| g.input(&format!("x{i}"), &[2])).collect()
}

#[test]
fn reordering_a_long_sum_is_stopped() {
    let mut g = Graph::new();
    let terms = leaves(&mut g, 40);
    let mut sum = terms[0];
    for &term in &terms[1..] {
        sum = g.add(sum, term);
    }
    g.set_outputs(vec![sum]);
    let rules = "(rewrite (core.add a b) (core.add b a) :name \"commute\")
        (rewrite (core.add (core.add a b) c) (core.add a (core.add b c)) :name \"associate\")";
    stopped(&g, RuleSet::new("sums", 1, rules));
}

#[test]
fn rules_that_grow_are_stopped() {
    let mut g = Graph::new();
    let pair = leaves(&mut g, 2);
    let product = g.mul(pair[0], pair[1]);
    g.set_outputs(vec![product]);
    let rules = "(rewrite (core.mul x y) (core.neg (core.mul (core.neg x) y)) :name \"grow\")";
    stopped(&g, RuleSet::new("growing", 1, rules));
}

#[test]
fn an_unsound_shape_is_an_error_that_names_the_rule() {
    let mut g = Graph::new();
    let a = g.input("a", &[2, 3]);
    let b = g.input("b", &[3, 5]);
    let product = g.matmul(a, b);
    g.set_outputs(vec![product]);
    let rules = "(rewrite (core.matmul false false a b) (core.matmul false true a b) :name \"flip\")";
    let error = rewritten(&g, RuleSet::new("flips", 1, rules)).expect_err("the types do not fit");
    assert!(matches!(error, Error::RuleSet { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("'flips'") && text.contains("flip") && text.contains("core.matmul"),
        "{text}"
    );
}
