//! Tests of prepared values, which depend only on parameters and states. They are computed after a write, not in each
//! step.

use std::collections::HashMap;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::cpu::CpuDevice;
use meganeura::ops::Conv2dOptions;
use meganeura::plan::PREPARE;
use meganeura::reference::evaluate;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Builder, Graph, Session};

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

/// Builds a convolution with a bias and a batch norm with running statistics, and a rectifier.
fn convolution() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3, 9, 8]);
    let (w, b) = (g.parameter("w", &[6, 3, 3, 3]), g.parameter("b", &[6]));
    let (scale, shift) = (g.parameter("scale", &[6]), g.parameter("shift", &[6]));
    let (mean, var) = (g.state("mean", &[6]), g.state_filled("var", &[6], 1.0));
    let padded = Conv2dOptions {
        padding: [1, 1],
        ..Conv2dOptions::default()
    };
    let y = g.conv2d(x, w, padded);
    let y = g.channel_bias_add(y, b);
    let y = g.batch_norm(y, scale, shift, mean, var, 0.1, 1e-3);
    let y = g.relu(y);
    g.set_outputs(vec![y]);
    g
}

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let word = |i: usize| {
        (i as u32 + 1)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(40_503))
    };
    (0..len)
        .map(|i| (word(i) >> 8) as f32 / (1 << 24) as f32 - 0.4)
        .collect()
}

type Feeds = HashMap<String, Vec<f64>>;

/// Sets a tensor in the session and for the oracle.
fn set(session: &mut Session, feeds: &mut Feeds, name: &str, data: &[f32]) {
    match name {
        "x" => session.set_input(name, data),
        "mean" | "var" => session.set_state(name, data),
        _ => session.set_parameter(name, data),
    }
    feeds.insert(name.to_owned(), data.iter().map(|&v| f64::from(v)).collect());
}

fn fill(session: &mut Session, feeds: &mut Feeds) {
    for (name, len) in [
        ("x", 432),
        ("w", 162),
        ("b", 6),
        ("scale", 6),
        ("shift", 6),
        ("mean", 6),
    ] {
        set(session, feeds, name, &numbers(len, name.len() as u32));
    }
    set(session, feeds, "var", &[0.5, 1.5, 0.25, 2.0, 1.0, 0.75]);
}

/// Checks that the results of a step agree with the oracle.
fn check(session: &mut Session, graph: &Graph, feeds: &Feeds) {
    session.step();
    session.wait();
    let found = session.read_output(graph.shape(graph.outputs()[0]).iter().product());
    let values = evaluate(graph, feeds).expect("the graph can be evaluated");
    let expected = &values.get(graph.outputs()[0]).expect("the output").data;
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 2e-5, "{found} is not {expected}");
    }
}

fn build(device: &Arc<dyn Device>, config: RewriteConfig) -> Session {
    let (session, _) = Builder::on(device.clone())
        .inference()
        .rewrite(config)
        .build(&convolution())
        .expect("a session");
    session
}

#[test]
fn a_batch_norm_becomes_part_of_the_convolution() {
    let device = cpu();
    let mut session = build(&device, RewriteConfig::default());
    let plan = session.plan();
    assert_eq!(plan.segments.len(), 2, "{plan}");
    assert!(plan.segments[0].once && plan.segments[0].name == PREPARE, "{plan}");
    assert_eq!(plan.segments[1].count, 1, "{plan}");
    assert!(
        plan.dispatches.last().unwrap().title().contains("conv2d, add, relu"),
        "{plan}"
    );

    let graph = meganeura::optimize::for_inference(&convolution()).expect("an inference form");
    let mut feeds = Feeds::new();
    fill(&mut session, &mut feeds);
    check(&mut session, &graph, &feeds);
    // Every write takes effect from the next step on.
    for name in ["w", "b", "scale", "shift", "mean", "var", "x"] {
        let len = feeds[name].len();
        let mut data = numbers(len, 77);
        if name == "var" {
            data.iter_mut().for_each(|v| *v = v.abs() + 0.25);
        }
        set(&mut session, &mut feeds, name, &data);
        check(&mut session, &graph, &feeds);
        check(&mut session, &graph, &feeds);
    }
}

#[test]
fn weights_are_prepared_once_for_many_steps() {
    let device = cpu();
    let mut session = build(&device, RewriteConfig::default());
    let mut feeds = Feeds::new();
    fill(&mut session, &mut feeds);
    let prepared = |session: &mut Session| {
        session.set_profiling(true);
        session.step();
        session.wait();
        session.set_profiling(false);
        let rows = session.take_timings().rows;
        rows.iter()
            .filter(|row| !row.label.contains("conv2d"))
            .map(|row| row.count)
            .sum::<usize>()
    };
    assert!(prepared(&mut session) > 0);
    assert_eq!(prepared(&mut session), 0);
    session.set_parameter("scale", &[1.0; 6]);
    assert!(prepared(&mut session) > 0);
    session.set_input("x", &numbers(432, 9));
    assert_eq!(prepared(&mut session), 0);
}

#[test]
fn it_can_be_switched_off() {
    let device = cpu();
    let mut session = build(
        &device,
        RewriteConfig {
            prepare: false,
            ..RewriteConfig::default()
        },
    );
    assert!(session.plan().segments.iter().all(|s| !s.once));
    let graph = meganeura::optimize::for_inference(&convolution()).expect("an inference form");
    let mut feeds = Feeds::new();
    fill(&mut session, &mut feeds);
    check(&mut session, &graph, &feeds);
}

/// Builds a product with a transposed weight, which needs a separate pass without rules.
fn product(name: &str) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 8]);
    let w = g.parameter(name, &[8, 8]);
    let w = g.square(w);
    let y = g.matmul(x, w);
    g.set_outputs(vec![y]);
    g
}

#[test]
fn merged_plans_prepare_their_own_weights() {
    let device = cpu();
    let plan = |name: &str| {
        let built = Builder::on(device.clone()).inference().plan(&product(name));
        built.expect("a plan").0
    };
    let mut merged = plan("w");
    merged
        .join(&plan("v"), "second", None)
        .expect("plans that fit together");
    assert_eq!(merged.segments.iter().filter(|s| s.once).count(), 2, "{merged}");
    let mut session = Session::on(device.clone(), merged).expect("a session");
    session.set_parameter("w", &[1.0; 64]);
    session.set_parameter("v", &[2.0; 64]);
    session.set_input("x", &[1.0; 32]);
    session.set_input("second.x", &[1.0; 32]);
    let sums = |session: &mut Session, second: bool| {
        if second {
            session.try_step_of("second").expect("a step")
        } else {
            session.step()
        }
        let mut out = [0.0; 32];
        session.read_output_by_index(usize::from(second), &mut out);
        out[0]
    };
    assert_eq!(sums(&mut session, true), 32.0);
    assert_eq!(sums(&mut session, false), 8.0);
    session.set_parameter("v", &[3.0; 64]);
    assert_eq!(sums(&mut session, false), 8.0);
    assert_eq!(sums(&mut session, true), 72.0);
    let error = session
        .try_step_of("second.prepare")
        .expect_err("no segment of its own");
    assert!(error.to_string().contains("second"), "{error}");
}

/// If one plan writes a value that another plan only reads, the other plan computes the dependent values in each of its
/// steps.
#[test]
fn what_another_part_writes_is_not_kept() {
    let device = cpu();
    let mut g = Graph::new();
    let (state, new) = (g.state("s", &[4]), g.input("new", &[4]));
    let written = g.assign(state, new);
    g.set_outputs(vec![written]);
    let writer = Builder::on(device.clone()).inference().plan(&g).expect("a plan").0;
    let mut g = Graph::new();
    let (x, state) = (g.input("x", &[4]), g.state("s", &[4]));
    let squared = g.square(state);
    let squared = g.sum_all(squared);
    let y = g.mul(x, squared);
    g.set_outputs(vec![y]);
    let reader = Builder::on(device.clone()).inference().plan(&g).expect("a plan").0;
    assert!(reader.segments.iter().any(|s| s.once), "{reader}");
    let mut merged = writer.clone();
    merged.join(&reader, "reader", None).expect("plans that fit together");
    assert!(merged.segments.iter().all(|s| !s.once), "{merged}");
    let mut session = Session::on(device.clone(), merged).expect("a session");
    session.set_input("reader.x", &[1.0; 4]);
    for value in [1.0, 2.0, 3.0f32] {
        session.set_input("new", &[value; 4]);
        session.step();
        session.try_step_of("reader").expect("a step");
        let mut out = [0.0; 4];
        session.read_output_by_index(1, &mut out);
        assert_eq!(out, [4.0 * value * value; 4]);
    }
}

#[test]
fn a_damaged_plan_is_refused() {
    let device = cpu();
    let plan = build(&device, RewriteConfig::default()).plan().clone();
    let mut last = plan.clone();
    last.segments.reverse();
    assert!(last.verify().is_err());
    let mut all = plan.clone();
    all.segments[1].once = true;
    let error = all.verify().expect_err("nothing follows");
    assert!(error.to_string().contains("prepares nothing"), "{error}");
    // An input is not persistent.
    let mut input = plan;
    let (x, w) = (input.input_buffers[0].1, input.param_buffers[0].1);
    for operand in input.dispatches[input.segments[0].range()]
        .iter_mut()
        .flat_map(|d| &mut d.inputs)
    {
        if operand.buffer == w {
            operand.buffer = x;
        }
    }
    let error = input.verify().expect_err("an input changes");
    assert!(error.to_string().contains("runs once"), "{error}");
}
