//! Tests of registering rule sets: linked ones, ones added at run time, and rejected ones.
// A binary of its own: its rule sets are registered for the whole process, wrong ones among them.

use meganeura_compiler::rewrite::{BuildKind, RuleSet, register_rule_set, rule_set_problems, rule_sets};
use meganeura_core::ops::{
    Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, sample::Sample, sample::Sizes,
};
use meganeura_core::{Graph, TensorType, register_rule_set, registry};

/// An operator with this name that doubles a tensor.
struct Double(&'static str);

impl Operator for Double {
    fn name(&self) -> &'static str {
        self.0
    }
    fn doc(&self) -> Doc {
        Doc {
            shapes: "any",
            formula: "2 x",
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
        Gradient::Decomposed
    }
    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| Ok(vec![cx.graph.add(cx.inputs[0], cx.inputs[0]).into()]))
    }
    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }
    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        Vec::new()
    }
}

static LINKED: Double = Double("linked.double");
static LATE: Double = Double("late.double");
static STRAY: Double = Double("stray.double");
static BAD_NAME: Double = Double("Bad Name");

register_rule_set!(|| RuleSet::new(
    "linked",
    3,
    "(rewrite (core.add x x) (linked.double x) :name \"double\")"
)
.with_ops(const { &[OpRef::new(&LINKED)] })
.with_kernels(&[("cpu", "linked.double")])
.applying(BuildKind::Training));
register_rule_set!(|| RuleSet::new(
    "linked-broken",
    1,
    "(rewrite (core.add x x) (core.nothing x) :name \"broken\")"
));
register_rule_set!(|| RuleSet::new("linked", 4, ""));
register_rule_set!(|| RuleSet::new("thief", 1, "").with_ops(const { &[OpRef::new(&LINKED)] }));

fn namespaces() -> Vec<String> {
    let sets = rule_sets();
    sets.iter().map(|s| s.set.namespace.to_string()).collect()
}

#[test]
fn linked_sets_are_registered_and_the_broken_ones_reported() {
    let sets = rule_sets();
    let linked = sets.iter().find(|s| s.set.namespace == "linked").unwrap();
    assert_eq!((linked.set.version, linked.rules.len()), (3, 1));
    assert_eq!(linked.rules[0].full_name(), "linked/double");
    assert_eq!(linked.set.applies.name(), "training");
    assert!(registry::op("linked.double").is_some());
    let problems: Vec<String> = rule_set_problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems[0].contains("version 3"), "{problems:#?}");
    assert!(
        problems[1].contains("'linked-broken', rule 'broken' (linked-broken.egg:1:25: (core.nothing x))"),
        "{problems:#?}"
    );
    assert!(
        problems[2].contains("'thief'") && problems[2].contains("exists already"),
        "{problems:#?}"
    );
    assert!(!namespaces().iter().any(|n| n == "thief" || n == "linked-broken"));
}

#[test]
fn sets_are_registered_while_the_program_runs() {
    let rules = "(rewrite (core.add x x) (late.double x) :name \"double\")";
    let set = RuleSet::new("late", 1, rules).with_ops(const { &[OpRef::new(&LATE)] });
    assert!(registry::op("late.double").is_none());
    register_rule_set(set.clone()).unwrap();
    let op = registry::op("late.double").unwrap();
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.call(op, Default::default(), vec![x.into()]);
    g.set_outputs(vec![y]);
    g.verify().unwrap();
    assert!(registry::ops().contains(&op));
    let names = namespaces();
    assert!(names.is_sorted() && names.iter().any(|n| n == "late"));
    let again = register_rule_set(set).unwrap_err().to_string();
    assert!(
        again.contains("'late'") && again.contains("registered already"),
        "{again}"
    );
}

#[test]
fn a_rejected_set_leaves_nothing_behind() {
    let broken = RuleSet::new(
        "stray",
        1,
        "(rewrite (core.add x x) (stray.double x y) :name \"double\")",
    )
    .with_ops(const { &[OpRef::new(&STRAY)] });
    let error = register_rule_set(broken).unwrap_err().to_string();
    assert!(
        error.contains("rule 'double'") && error.contains("takes 1 arguments"),
        "{error}"
    );
    assert!(registry::op("stray.double").is_none());
    let taken = RuleSet::new("taken", 1, "").with_ops(const { &[OpRef::new(&LINKED)] });
    let error = register_rule_set(taken).unwrap_err().to_string();
    assert!(error.contains("'linked.double' exists already"), "{error}");
    let bad = RuleSet::new("bad", 1, "").with_ops(const { &[OpRef::new(&BAD_NAME)] });
    let error = register_rule_set(bad).unwrap_err().to_string();
    assert!(error.contains("'Bad Name'"), "{error}");
    assert!(!namespaces().iter().any(|n| n == "stray" || n == "taken" || n == "bad"));
}
