//! Tests of updates whose settings change between steps, and of the memory that they need.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::{Adam, GradientClip, Graph, ParameterGroup, Session, Sgd, Update};
use meganeura_cpu::CpuDevice;

/// Returns a session that trains `w`, whose gradient is the input.
fn session(update: impl Into<Update>) -> Session {
    let mut graph = Graph::new();
    let x = graph.input("x", &[3]);
    let w = graph.parameter("w", &[3]);
    let product = graph.mul(x, w);
    let loss = graph.sum_all(product);
    graph.set_outputs(vec![loss]);
    let device = Arc::new(CpuDevice::new(1));
    let (mut session, _) = Builder::on(device).optimizer(update).build(&graph).expect("a session");
    session.set_parameter("w", &[0.0; 3]);
    session
}

fn step(session: &mut Session, gradient: f32) {
    session.set_input("x", &[gradient; 3]);
    session.step();
}

#[test]
fn memory_of_moments_is_that_of_moments_alone() {
    let plain = session(Adam::new(0.1)).memory_summary();
    assert_eq!(plain.adam_state_bytes, 2 * 3 * 4);
    let all = session(Update::new(Adam::new(0.1)).accumulate(4).clip(GradientClip::Norm(1.0)));
    assert_eq!(all.memory_summary().adam_state_bytes, plain.adam_state_bytes);
    assert!(all.memory_summary().total_buffer_bytes > plain.total_buffer_bytes);
    let none = session(Update::new(Sgd::new(0.1)).accumulate(2)).memory_summary();
    assert_eq!(none.adam_state_bytes, 0);
}

#[test]
fn another_number_of_steps_starts_a_new_average() {
    let update = |steps| Update::new(Sgd::new(1.0)).accumulate(steps);
    let mut session = session(update(4));
    for _ in 0..3 {
        step(&mut session, 100.0);
    }
    session.try_set_optimizer(update(2)).expect("an update");
    step(&mut session, 1.0);
    assert_eq!(session.read_parameter("w"), [0.0; 3], "one of two steps");
    step(&mut session, 3.0);
    assert_eq!(session.read_parameter("w"), [-2.0; 3]);
    // A change of the rate does not change the average, and neither does a pause of the optimizer.
    step(&mut session, 2.0);
    session.clear_optimizer();
    step(&mut session, 1000.0);
    session
        .try_set_optimizer(Update::new(Sgd::new(0.5)).accumulate(2))
        .expect("an update");
    step(&mut session, 6.0);
    assert_eq!(session.read_parameter("w"), [-4.0; 3]);
}

#[test]
fn rates_of_groups_are_checked_with_the_rate() {
    let group = ParameterGroup::new(["w"]).learning_rate_scale(10.0);
    let mut session = session(Update::new(Sgd::new(1.0)).group(group));
    let error = session
        .try_adjust_learning_rate(f32::MAX)
        .expect_err("too large for the group");
    assert!(error.to_string().contains("group [\"w\"]"), "{error}");
    assert!(session.try_adjust_learning_rate(f32::NAN).is_err());
    step(&mut session, 1.0);
    assert_eq!(session.read_parameter("w"), [-10.0; 3], "the rate stays what it was");
}
