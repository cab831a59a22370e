//! Tests of operators and rules of plugins in builds.

use std::path::Path;

use meganeura::attrs::Attrs;
use meganeura::plugins::open_data;
use meganeura::reference::evaluate;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, Mode, SessionConfig, build, registry};

use super::{folder, write};

/// Manifest of a fused gate, with a rule that finds it in a graph.
const GATE: &str = r#"
format = 1
name = "gate"
version = "1.0"
rules_text = '''
(rewrite (core.mul x (core.sigmoid (core.mul x c))) (gate.quick v x)
         :when ((= v (uniform c)) (= (type x) (type (core.mul x c)))) :ruleset before_autodiff :name "Quick")
'''

[[op]]
name = "quick"
formula = "x sigmoid(slope x)"
attributes = [{ name = "slope", kind = "float", default = 1.702, samples = [0.5] }]
inputs = [{ name = "x", shape = ["..."] }]
outputs = [{ name = "y", shape = ["..."] }]
let = { y = "(core.mul x s)", s = "(core.sigmoid (core.mul x slope))" }
"#;

#[test]
fn gradients_go_through_the_decomposition() {
    let place = folder();
    let text = GATE
        .replace("'''\n(rewrite", "'''\n;")
        .replace("(= (type x) (type (core.mul x c)))", "");
    let rules_start = text.find("rules_text").expect("rules");
    let rules_end = text.find("[[op]]").expect("an operator");
    let text = format!("{}{}", &text[..rules_start], &text[rules_end..]);
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("it is fine");

    let op = registry::op("gate.quick").expect("registered");
    let mut g = Graph::new();
    let w = g.parameter("w", &[3]);
    let y = g.call(op, Attrs::new().with("slope", 2.0), vec![w.into()]);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let config = SessionConfig {
        device: Some("cpu".into()),
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("it trains");
    let x = [0.3f32, -1.2, 2.0];
    session.set_parameter("w", &x);
    session.step();
    let gradient = session.read_grad("w");
    for (x, found) in x.iter().zip(gradient) {
        let s = 1.0 / (1.0 + (-2.0 * x).exp());
        let expected = s + x * 2.0 * s * (1.0 - s);
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn calls_that_do_not_fit_are_errors_of_the_graph() {
    let place = folder();
    let text = "format = 1\nname = \"fits\"\nversion = \"1\"\n[[op]]\nname = \"dot\"\nformula = \"sum x y\"\n\
        inputs = [{ name = \"x\", shape = [\"m\", \"n\"] }, { name = \"y\", shape = [\"n\"] }]\n\
        outputs = [{ name = \"z\", shape = [\"m\"] }]\n\
        let = { z = \"(core.sum \\\"[1]\\\" false (core.mul x y))\" }\n";
    open_data(&write(place.path(), &[("plugin.toml", text)]), None).expect("it is fine");
    let op = registry::op("fits.dot").expect("registered");
    let call = |x: &[usize], y: &[usize]| {
        let mut g = Graph::new();
        let (x, y) = (g.input("x", x), g.input("y", y));
        let z = g.call(op, Attrs::new(), vec![x.into(), y.into()]);
        g.set_outputs(vec![z]);
        g
    };
    let good = call(&[2, 3], &[3]);
    let feeds = [("x", vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ("y", vec![1.0, 0.0, -1.0])];
    let feeds = feeds.into_iter().map(|(name, v)| (name.to_owned(), v)).collect();
    let evaluation = evaluate(&good, &feeds).expect("fits");
    assert_eq!(evaluation.get(good.outputs()[0]).expect("a value").data, [-2.0, -2.0]);
    let error = call(&[2, 3], &[4]).verify().expect_err("other sizes").to_string();
    assert!(error.contains("fits.dot") && error.contains("'n' is 3"), "{error}");
    let error = call(&[3], &[3]).verify().expect_err("another rank").to_string();
    assert!(error.contains("does not have 2 axes"), "{error}");
}

#[test]
fn a_rule_that_never_ends_costs_its_budget() {
    let place = folder();
    // The rule is sound, because the operator has no effect the second time; every match creates another one.
    let text = "format = 1\nname = \"onward\"\nversion = \"1\"\nrules_text = '(rewrite (onward.f x) (onward.f (onward.f x)) \
        :ruleset always :name \"F→F+F\")'\n[[op]]\nname = \"f\"\nformula = \"max(x, 0)\"\n\
        inputs = [{ name = \"x\", shape = [\"...\"] }]\noutputs = [{ name = \"y\", shape = [\"...\"] }]\n\
        let = { y = \"(core.relu x)\" }\n";
    open_data(&write(place.path(), &[("plugin.toml", text)]), None).expect("it holds");
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.call(
        registry::op("onward.f").expect("registered"),
        Attrs::new(),
        vec![x.into()],
    );
    g.set_outputs(vec![y]);
    let config = SessionConfig {
        device: Some("cpu".into()),
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("it ends");
    session.set_input("x", &[1.0, -2.0, 3.0]);
    session.step();
    assert_eq!(session.read_output(3), [1.0, 0.0, 3.0]);
}

/// Builds the router of a mixture of experts.
fn router(tokens: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[tokens, 16]);
    let w = g.parameter("w", &[16, 24]);
    let logits = g.matmul(x, w);
    let probabilities = g.softmax(logits, -1);
    let best = g.top_k(probabilities, -1, 2);
    let chosen = g.port(best, 1);
    g.set_outputs(vec![best.into(), chosen]);
    g
}

/// Loads the example plugin, once for all tests of this program.
pub(crate) fn load_router() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/examples/router");
        open_data(&path, None).expect("the example is fine");
    });
}

/// Runs the router without some rule sets. Returns the dispatches and bytes of its plan, and its results.
pub(crate) fn routed(device: &str, disable: &[&str]) -> (Vec<String>, usize, Vec<Vec<f32>>) {
    let config = SessionConfig {
        device: Some(device.into()),
        mode: Mode::Inference,
        rewrite: Some(RewriteConfig {
            disable: disable.iter().map(ToString::to_string).collect(),
            ..RewriteConfig::default()
        }),
        ..SessionConfig::default()
    };
    let tokens = 70;
    let (mut session, _) = build(&router(tokens), config).expect("a session");
    let numbers = |n: usize| {
        (0..n)
            .map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 2e-3)
            .collect::<Vec<_>>()
    };
    session.set_parameter("w", &numbers(16 * 24));
    session.set_input("x", &numbers(tokens * 16));
    session.step();
    let mut weights = vec![0.0; tokens * 2];
    session.read_output_by_index(0, &mut weights);
    let dispatches = &session.plan().dispatches;
    let moved = dispatches
        .iter()
        .flat_map(|d| d.inputs.iter().chain(&d.outputs))
        .map(|o| o.ty.bytes())
        .sum();
    (
        dispatches.iter().map(|d| d.kernel.name.clone()).collect(),
        moved,
        vec![weights],
    )
}

#[test]
fn an_operator_without_a_kernel_is_not_chosen_and_runs_decomposed() {
    load_router();
    let (with, _, _) = routed("cpu", &[]);
    assert!(
        with.iter().all(|name| name != "router.choose"),
        "the CPU has no kernel for it: {with:?}"
    );
}
