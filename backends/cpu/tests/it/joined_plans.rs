//! Tests of several plans in one session with common parameters, states and memory.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_compiler::rewrite::{RewriteConfig, pack_parameters};
use meganeura_core::backend::Device;
use meganeura_core::{Error, ExecutionPlan, Graph, Session};
use meganeura_cpu::CpuDevice;

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn plan(graph: &Graph) -> ExecutionPlan {
    let config = RewriteConfig::default();
    Builder::on(device())
        .inference()
        .rewrite(config.clone())
        .plan(graph)
        .expect("a plan")
        .0
}

/// Returns a model: `x [rows, 3]` times `w`, scaled by `factor`. The state `count` counts rows over all steps.
fn model(rows: usize, factor: f32, wide: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[rows, 3]);
    let w = g.parameter("w", &[3, wide]);
    let y = g.matmul(x, w);
    let factor = g.constant(vec![factor; wide], &[wide]);
    let y = g.mul(y, factor);
    let y = g.exp(y);
    let y = g.log(y);
    let count = g.state("count", &[1]);
    let own = g.constant(vec![rows as f32], &[1]);
    let next = g.add(count, own);
    g.assign(count, next);
    g.set_outputs(vec![y]);
    g
}

#[test]
fn segments_share_weights_and_states() {
    let mut joined = plan(&model(2, 1.0, 2));
    let output = joined.join(&plan(&model(1, 10.0, 2)), "one", None).expect("they fit");
    assert_eq!(output, 1);
    assert_eq!(joined.param_buffers.len(), 1);
    let mut session = Session::on(device(), joined).expect("a session");
    session.set_parameter("w", &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    // Only the inputs that a segment reads have to be set.
    session.set_input("one.x", &[0.5, 0.25, 7.0]);
    session.try_step_of("one").expect("a step");
    let mut row = [0.0; 2];
    session.read_output_by_index(output, &mut row);
    let close = |found: &[f32], wanted: &[f32]| {
        let mut pairs = found.iter().zip(wanted);
        assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}, not {wanted:?}");
    };
    close(&row, &[5.0, 2.5]);
    assert_eq!(session.read_state("count"), [1.0]);
    let missing = session.try_step().expect_err("no input").to_string();
    assert!(missing.contains("'x'") && !missing.contains("one.x"), "{missing}");
    session.set_input("x", &[1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
    session.step();
    close(&session.read_output(4), &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(session.read_state("count"), [3.0]);
    // The result of the other segment is unchanged, and so is its input.
    session.set_parameter("w", &[2.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
    session.try_step_of("one").expect("a step");
    session.read_output_by_index(output, &mut row);
    close(&row, &[10.0, 5.0]);
    for absent in ["two", "forward_backward"] {
        let error = session.try_step_of(absent).expect_err("no such segment").to_string();
        assert!(error.contains(absent) && error.contains("one"), "{error}");
    }
}

#[test]
fn memory_within_steps_is_that_of_the_largest() {
    let hidden = |rows: usize| {
        let mut g = Graph::new();
        let x = g.input("x", &[rows, 3]);
        let [w, u] = [("w", [3, 64]), ("u", [64, 2])].map(|(name, shape)| g.parameter(name, &shape));
        let y = g.matmul(x, w);
        let y = g.matmul(y, u);
        g.set_outputs(vec![y]);
        plan(&g)
    };
    let (large, small) = (hidden(4096), hidden(2048));
    let mut joined = large.clone();
    joined.join(&small, "small", None).expect("they fit");
    let [large, small, joined] = [&large, &small, &joined].map(ExecutionPlan::memory_forecast);
    assert!(small.transient > 2048 * 64 * 4 - 1, "{small}");
    // The transient memory only grows by alignment.
    assert!(joined.transient < large.transient + small.transient / 100, "{joined}");
    assert_eq!(joined.parameters, large.parameters);
}

#[test]
fn what_is_stored_in_another_way_is_listed() {
    let mut first = plan(&model(2, 1.0, 2));
    let before = first.clone();
    let error = first
        .join(&plan(&model(2, 1.0, 3)), "wide", None)
        .expect_err("other shapes");
    assert!(
        matches!(&error, Error::ParametersDiffer { differences } if differences.len() == 1),
        "{error}"
    );
    let text = error.to_string();
    for part in ["1 of their tensors", "w: f32[3, 2] and f32[3, 3]"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(first, before, "nothing was changed");

    // Two plans contain the same two parameters, packed in one plan and separate in the other.
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let parts = ["a", "b"].map(|name| g.parameter(name, &[3, 2]));
    let both = g.concat(&parts, 1);
    let y = g.matmul(x, both);
    g.set_outputs(vec![y]);
    let packed = plan(&pack_parameters(&g, &|_| 0).expect("it packs"));
    assert_eq!(packed.derived_params.len(), 1);
    let mut apart = plan(&g);
    assert!(apart.derived_params.is_empty());
    let error = apart.join(&packed, "packed", None).expect_err("other packing");
    assert!(
        matches!(&error, Error::ParametersDiffer { differences } if differences.len() == 2),
        "{error}"
    );
    assert!(error.to_string().contains("at byte 8 of the packed"), "{error}");
    let mut twice = packed.clone();
    twice.join(&packed, "again", None).expect("the same packing");
    let mut session = Session::on(device(), twice).expect("a session");
    session.set_parameter("a", &[1.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    session.set_parameter("b", &[3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    session.set_input("again.x", &[1.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
    session.try_step_of("again").expect("a step");
    let mut rows = [0.0; 8];
    session.read_output_by_index(1, &mut rows);
    assert_eq!(rows, [1.0, 2.0, 3.0, 4.0, 2.0, 4.0, 6.0, 8.0]);
}

/// Returns a plan whose results are the double of the input `x`, and `x` itself.
fn passing(x: &str) -> ExecutionPlan {
    let mut g = Graph::new();
    let x = g.input(x, &[2]);
    let two = g.add(x, x);
    g.set_outputs(vec![two, x]);
    plan(&g)
}

#[test]
fn inputs_that_are_results_belong_to_their_segment() {
    let mut only = Graph::new();
    let x = only.input("x", &[2]);
    only.set_outputs(vec![x]);
    let mut joined = passing("x");
    let output = joined.join(&plan(&only), "only", None).expect("they fit");
    assert_eq!(output, 2);
    let mut session = Session::on(device(), joined).expect("a session");
    session.set_input("x", &[1.0, 2.0]);
    // This segment does not need the input that is a result of the other segment.
    session.try_step().expect("a step");
    assert_eq!(session.read_output(2), [2.0, 4.0]);
    let error = session.try_step_of("only").expect_err("no input").to_string();
    assert!(error.contains("'only.x'"), "{error}");
    session.set_input("only.x", &[3.0, 4.0]);
    session.try_step_of("only").expect("a step");
    let mut found = [0.0; 2];
    session.read_output_by_index(output, &mut found);
    assert_eq!(found, [3.0, 4.0]);
}

#[test]
fn inputs_belong_to_one_segment_by_their_names() {
    let mut own = passing("side.x");
    let error = own
        .join(&passing("x"), "side", None)
        .expect_err("ambiguous")
        .to_string();
    assert!(
        error.contains("an input 'side.x' already") && error.contains("another name"),
        "{error}"
    );
    own.join(&passing("x"), "sid", None).expect("another segment");
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let mut own = plan(&model(2, 1.0, 2));
    let other = plan(&model(1, 1.0, 2));
    own.join(&other, "one", None).expect("they fit");
    let error = own.join(&other, "one", None).expect_err("twice").to_string();
    assert!(error.contains("a segment 'one' already"), "{error}");
    for reserved in ["forward_backward", "accumulate", "loss_scale", "update"] {
        let error = own.join(&other, reserved, None).expect_err("reserved").to_string();
        assert!(
            error.contains(&format!("'{reserved}' is the name of a built-in segment")),
            "{error}"
        );
    }
    // The name only begins like a reserved one, so it is accepted.
    own.join(&other, "forward_backward_2", None).expect("they fit");
    let error = other.clone().join(&own, "both", None).expect_err("joined").to_string();
    assert!(error.contains("merged plans cannot be merged"), "{error}");
    let mut g = model(2, 1.0, 2);
    let y = g.outputs()[0];
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let (training, _) = Builder::on(device()).build(&g).expect("a session");
    let error = own
        .join(training.plan(), "training", None)
        .expect_err("it trains")
        .to_string();
    assert!(error.contains("train"), "{error}");
    let limited = own.join(&other, "small", Some(256)).err();
    assert!(limited.is_none(), "{limited:?}");
}
