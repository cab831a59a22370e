//! A plugin without native code in use: the router of a memory layer, with and without the plugin's rule set.
//!
//! `cargo run --release --example data_plugin`, with `MEGANEURA_DEVICE_ID=blade` on a GPU.
//!
//! The plugin is `plugins/examples/router`; `docs/write-a-data-plugin.md` describes how one is written.

use std::path::Path;
use std::time::Instant;

use meganeura::config::Config;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, Mode, Result, Session, SessionConfig, build, plugins, profiler};

/// Number of tokens that are routed at once, and number of experts.
const TOKENS: usize = 32_768;
const EXPERTS: usize = 64;
const WIDTH: usize = 32;

/// Builds a network in which each token gets the mean of two rows of the memory, weighted by the router's
/// probabilities.
fn network() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[TOKENS, WIDTH]);
    let router = g.parameter("router", &[WIDTH, EXPERTS]);
    let logits = g.matmul(x, router);
    let probabilities = g.softmax(logits, -1);
    let best = g.top_k(probabilities, -1, 2);
    let weights = g.named(best, "router");
    let total = g.sum(weights, &[-1], true);
    let shares = g.div(weights, total);
    let chosen = g.port(best, 1);
    g.set_outputs(vec![shares.into(), chosen]);
    g
}

/// Creates a session with the parameters and inputs of a step.
fn session(disable: &[&str]) -> Result<Session> {
    let config = SessionConfig {
        mode: Mode::Inference,
        rewrite: Some(RewriteConfig {
            disable: disable.iter().map(ToString::to_string).collect(),
            ..RewriteConfig::default()
        }),
        ..SessionConfig::default()
    };
    let (mut session, report) = build(&network(), config)?;
    let numbers = |len: usize| {
        (0..len)
            .map(|i| ((i * 7919 % 10_007) as f32 - 5_000.0) * 1e-4)
            .collect::<Vec<_>>()
    };
    session.try_set_parameter("router", &numbers(WIDTH * EXPERTS))?;
    session.try_set_input("x", &numbers(TOKENS * WIDTH))?;
    let fired: Vec<&str> = report
        .fusions
        .iter()
        .filter(|f| f.rule_set == "router")
        .map(|f| f.rule.as_str())
        .collect();
    let dispatches = &session.plan().dispatches;
    let bytes = dispatches
        .iter()
        .flat_map(|d| d.inputs.iter().chain(&d.outputs))
        .map(|o| o.ty.bytes())
        .sum::<usize>();
    println!(
        "without {disable:?}: {} dispatches that move {:.2} MB, rules of the plugin that fired: {fired:?}",
        dispatches.len(),
        bytes as f64 / 1e6
    );
    Ok(session)
}

/// Returns the time of a step in microseconds: the mean of many consecutive steps, and the minimum of several rounds.
fn time(session: &mut Session) -> Result<f64> {
    const STEPS: usize = 20;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        for _ in 0..STEPS {
            session.try_step()?;
        }
        session.try_wait()?;
        least = least.min(begin.elapsed().as_secs_f64() * 1e6 / STEPS as f64);
    }
    Ok(least)
}

pub(crate) fn main() -> Result<()> {
    let _trace = profiler::from_environment()?;
    // The plugin that MEGANEURA_PLUGINS or the configuration would name.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/examples/router");
    let mut config = Config::default();
    config.plugins.load.push(folder);
    plugins::load(&config);
    for report in plugins::loaded() {
        println!("{report:?}");
    }
    let (mut plain, mut fused) = (session(&["router"])?, session(&[])?);
    let times = (time(&mut plain)?, time(&mut fused)?);
    println!("{:.1} us a step without, {:.1} us with", times.0, times.1);
    for session in [&mut plain, &mut fused] {
        // Times of a step's passes on the device are collected at the following one.
        session.set_profiling(true);
        for _ in 0..5 {
            session.try_step()?;
            session.try_wait()?;
        }
        session.dump_gpu_timings();
    }

    let (a, b) = (plain.try_read_output(2 * TOKENS)?, fused.try_read_output(2 * TOKENS)?);
    let difference = a.iter().zip(&b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    println!("largest difference: {difference:e}");
    assert!(difference < 1e-5, "the plugin changes the result");
    Ok(())
}
