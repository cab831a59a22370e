//! A custom fusion rule: a new operator, the rule that introduces it, and a CPU kernel for it.
//!
//! `cargo run --release --example custom_fusion_rule`
//!
//! Your crate would contain everything above `main`; linking it is enough to apply it in every build. `docs/rules.md` describes
//! the language of rules.

use meganeura::cpu::{CpuKernel, register_kernel};
use meganeura::ops::{Composite, OpRef};
use meganeura::rewrite::{RewriteConfig, RuleSet};
use meganeura::{Graph, Mode, OptimizeReport, Result, SessionConfig, build, profiler, register_rule_set};

// The operator is its decomposition: shapes, gradient and definition follow from it.
static SQUARED_RELU: Composite = Composite::new("mine.squared_relu", 1, "max(x, 0)^2", |g, x, _| {
    let positive = g.relu(x[0]);
    Ok(vec![g.square(positive).into()])
});

// The rule allows the replacement; the estimated cost of a step on the device decides whether it is used.
register_rule_set!(|| RuleSet::new(
    "mine",
    1,
    r#"(rewrite (core.square (core.relu x)) (mine.squared_relu x) :ruleset always :name "Square(Relu)→SquaredRelu")"#
)
.with_ops(const { &[OpRef::new(&SQUARED_RELU)] })
.with_kernels(&[("cpu", "mine.squared_relu")]));

// One pass over memory. It is called with parts of the operand and of the result, on several threads.
register_kernel!(CpuKernel::elementwise("mine.squared_relu", 1, |_, x, out| {
    for (out, x) in out.iter_mut().zip(x[0]) {
        *out = x.max(0.0) * x.max(0.0);
    }
}));

/// Builds a network that does not use the operator.
fn network() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[64, 256]);
    let up = g.parameter("up", &[256, 1024]);
    let down = g.parameter("down", &[1024, 256]);
    let h = g.matmul(x, up);
    let h = g.relu(h);
    let h = g.square(h);
    let h = g.named(h, "activation");
    let y = g.matmul(h, down);
    g.set_outputs(vec![y]);
    g
}

/// Returns the result of the network and the report of its rewriting, with these rule sets disabled.
fn run(disable: &[&str]) -> Result<(Vec<f32>, OptimizeReport)> {
    let config = SessionConfig {
        device: Some("cpu".into()),
        mode: Mode::Inference,
        // Clustering would also join the two calls; without it, the difference is only due to the rule.
        rewrite: Some(RewriteConfig {
            disable: disable.iter().map(ToString::to_string).collect(),
            cluster: false,
            ..RewriteConfig::default()
        }),
        ..SessionConfig::default()
    };
    let (mut session, report) = build(&network(), config)?;
    let numbers = |len: usize, scale: f32| {
        (0..len)
            .map(|i| ((i * 31 % 101) as f32 - 50.0) * scale)
            .collect::<Vec<_>>()
    };
    session.try_set_parameter("up", &numbers(256 * 1024, 1e-3))?;
    session.try_set_parameter("down", &numbers(1024 * 256, 1e-3))?;
    session.try_set_input("x", &numbers(64 * 256, 1e-2))?;
    session.try_step()?;
    Ok((session.try_read_output(64 * 256)?, report))
}

pub(crate) fn main() -> Result<()> {
    let _trace = profiler::from_environment()?;
    let (fused, report) = run(&[])?;
    println!("{report}");
    let mine = report.fusions.iter().filter(|f| f.rule_set == "mine");
    for fusion in mine.clone() {
        let saving = fusion.saving_ps as f64 * 1e-6;
        println!("{} at {}: {saving:.1} us a step", fusion.rule, fusion.node_name);
    }
    assert_eq!(mine.count(), 1, "the rule fires once");

    let (plain, without) = run(&["mine"])?;
    assert!(without.fusions.iter().all(|f| f.rule_set != "mine"));
    let scale = plain.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let difference = fused.iter().zip(&plain).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    println!("largest difference to the network without the rule: {difference:e} of {scale:e}");
    assert!(scale > 0.0 && difference <= 1e-5 * scale, "the rule changes the result");
    Ok(())
}
