//! Cases of inputs, steps, optimizers, random numbers and inference.

use meganeura_compiler::builder::Builder;
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::ops::random_word;
use meganeura_core::{Adam, DType, Session, Sgd};

use super::exact::{case, same, same_f32};
use crate::case::{Case, CaseRun, Check, SharedDevice, ensure};
use crate::compare::compare;
use crate::harness::numbers;
use crate::storage::{narrow, wide};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("steps/inputs persist and are overwritten", inputs_persist),
        case("steps/waiting twice", waiting_twice),
        case("steps/several steps without waiting", steps_in_flight),
        case("steps/the same step is bit-identical", deterministic),
        case("optimizer/cleared", optimizer_cleared),
        case("optimizer/changed", optimizer_changed),
        case("optimizer/new hyper-parameters keep the moments", moments_kept),
        case("optimizer/frozen and unused parameters", frozen_and_unused),
        case("random/dropout repeats by seed", dropout_repeats),
        case("random/dropout masks its gradient", dropout_gradient),
        case("random/words differ by call and step", random_words),
        case("inference/dropout and batch norm", inference),
    ]
}

/// Builds `loss = mean((x w - t)^2)` with `w` of shape [3, 2].
fn linear() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 3]);
    let t = g.input("t", &[4, 2]);
    let w = g.parameter("w", &[3, 2]);
    let y = g.matmul(x, w);
    let loss = g.mse_loss(y, t);
    g.set_outputs(vec![loss]);
    g
}

/// Creates a session of [`linear`] with inputs and weights.
fn linear_session(device: &SharedDevice) -> Result<Session> {
    let (mut session, _) = Builder::on(device.clone()).build(&linear())?;
    session.try_set_input("x", &narrow(&numbers(12, 1)))?;
    session.try_set_input("t", &narrow(&numbers(8, 2)))?;
    session.try_set_parameter("w", &narrow(&numbers(6, 3)))?;
    Ok(session)
}

fn inputs_persist(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let ids = g.input_u32("ids", &[1]);
    let table = g.constant(vec![10.0, 20.0], &[2, 1]);
    let row = g.gather(table, ids);
    let row = g.reshape(row, &[1]);
    let y = g.add(x, row);
    g.set_outputs(vec![y]);
    let mut session = crate::harness::open(device, &g)?;
    session.try_set_input("x", &[1.0, 2.0])?;
    session.try_set_input_u32("ids", &[1])?;
    for _ in 0..2 {
        session.try_step()?;
        same_f32("the output", &session.try_read_output(2)?, &[21.0, 22.0])?;
    }
    session.try_set_input("x", &[7.0, 7.0])?;
    session.try_set_input("x", &[3.0, 4.0])?;
    session.try_step()?;
    // Fed after the step, so that it must not be seen by it.
    session.try_set_input("x", &[9.0, 9.0])?;
    same_f32("the output", &session.try_read_output(2)?, &[23.0, 24.0])?;
    session.try_set_input_u32("ids", &[0])?;
    session.try_step()?;
    same_f32("the output", &session.try_read_output(2)?, &[19.0, 19.0])?;
    same_f32("a prefix of the output", &session.try_read_output(1)?, &[19.0])
}

fn waiting_twice(device: &SharedDevice) -> CaseRun {
    let mut session = linear_session(device)?;
    session.try_wait()?;
    session.try_step()?;
    session.try_wait()?;
    session.try_wait()?;
    let first = session.try_read_loss()?;
    session.try_wait()?;
    ensure!(first == session.try_read_loss()?, "the loss changed without a step");
    Ok(Check::default())
}

/// Counts steps in a state. Each step must see the count of the previous one.
fn steps_in_flight(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[100]);
    let x = g.input("x", &[100]);
    let next = g.add(s, x);
    let y = g.assign(s, next);
    g.set_outputs(vec![y]);
    let mut session = crate::harness::open(device, &g)?;
    let mut sum = 0.0;
    for step in 1..=20u8 {
        session.try_set_input("x", &[f32::from(step); 100])?;
        session.try_step()?;
        sum += f32::from(step);
    }
    same_f32("the state", &session.try_read_state("s")?, &[sum; 100])
}

fn deterministic(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[32, 64]);
    let w = g.parameter("w", &[64, 48]);
    let y = g.matmul(x, w);
    let y = g.dropout(y, 0.3);
    let y = g.softmax(y, -1);
    let y = g.square(y);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let run = || -> Result<Vec<u32>> {
        let (mut session, _) = Builder::on(device.clone()).optimizer(Adam::new(0.1)).build(&g)?;
        session.set_seed(5);
        session.try_set_input("x", &narrow(&numbers(32 * 64, 1)))?;
        session.try_set_parameter("w", &narrow(&numbers(64 * 48, 2)))?;
        let mut bits = Vec::new();
        for _ in 0..2 {
            session.try_step()?;
            bits.push(session.try_read_loss()?.to_bits());
            bits.extend(session.try_read_grad("w")?.iter().map(|v| v.to_bits()));
            bits.extend(session.try_read_parameter("w")?.iter().map(|v| v.to_bits()));
        }
        Ok(bits)
    };
    let first = run()?;
    for _ in 0..3 {
        let again = run()?;
        let differing = first.iter().zip(&again).filter(|(a, b)| a != b).count();
        ensure!(
            differing == 0,
            "{differing} of {} numbers differ between two runs",
            first.len()
        );
    }
    Ok(Check::default())
}

fn optimizer_cleared(device: &SharedDevice) -> CaseRun {
    let mut session = linear_session(device)?;
    let start = session.try_read_parameter("w")?;
    session.try_step()?;
    same_f32("w without an optimizer", &session.try_read_parameter("w")?, &start)?;
    let gradient = session.try_read_grad("w")?;
    ensure!(
        gradient.iter().any(|&v| v != 0.0),
        "without an optimizer there is no gradient"
    );
    session.try_set_learning_rate(0.1)?;
    session.try_step()?;
    same_f32("the gradient", &session.try_read_grad("w")?, &gradient)?;
    let moved = session.try_read_parameter("w")?;
    ensure!(moved != start, "the optimizer did not change w");
    session.clear_optimizer();
    session.try_step()?;
    same_f32("w after clearing", &session.try_read_parameter("w")?, &moved)?;
    let later = session.try_read_grad("w")?;
    ensure!(later != gradient, "the gradient does not follow the new parameter");
    Ok(Check::default())
}

fn optimizer_changed(device: &SharedDevice) -> CaseRun {
    let mut session = linear_session(device)?;
    session.try_set_learning_rate(0.05)?;
    session.try_step()?;
    let start = session.try_read_parameter("w")?;
    session.try_set_adam(0.01, 0.9, 0.999, 1e-8)?;
    same_f32("w after the change", &session.try_read_parameter("w")?, &start)?;
    session.try_step()?;
    // The first step of Adam moves every weight by the learning rate.
    let moved = session.try_read_parameter("w")?;
    for (a, b) in start.iter().zip(&moved) {
        let distance = (a - b).abs();
        ensure!(
            (distance - 0.01).abs() < 1e-4,
            "the first step of Adam moved a weight by {distance}"
        );
    }
    session.adjust_learning_rate(0.0);
    session.try_step()?;
    same_f32("w at a rate of zero", &session.try_read_parameter("w")?, &moved)?;
    // The gradient at the same weights as in the step that follows.
    let gradient = session.try_read_grad("w")?;
    session.try_set_learning_rate(0.05)?;
    session.try_step()?;
    let found = session.try_read_parameter("w")?;
    let expected: Vec<f64> = moved
        .iter()
        .zip(&gradient)
        .map(|(p, g)| f64::from(p - 0.05 * g))
        .collect();
    compare(
        "w after plain descent again",
        DType::F32,
        &wide(&found),
        &expected,
        1e-5,
    )
}

fn moments_kept(device: &SharedDevice) -> CaseRun {
    let mut session = linear_session(device)?;
    let rule = |lr| Sgd {
        momentum: 0.5,
        ..Sgd::new(lr)
    };
    session.try_set_optimizer(rule(0.1))?;
    session.try_step()?;
    let first = session.try_read_grad("w")?;
    session.try_set_optimizer(rule(0.01))?;
    session.try_step()?;
    let second = session.try_read_grad("w")?;
    let velocity = wide(&session.try_read_state("optimizer.velocity.w")?);
    let expected: Vec<f64> = first.iter().zip(&second).map(|(a, b)| f64::from(0.5 * a + b)).collect();
    compare("the velocity", DType::F32, &velocity, &expected, 1e-5)
}

fn frozen_and_unused(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let used = g.parameter("used", &[2]);
    let frozen = g.parameter("frozen", &[2]);
    g.parameter("unused", &[2]);
    g.trainable(frozen, false);
    let y = g.mul(x, used);
    let y = g.mul(y, frozen);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let (mut session, _) = Builder::on(device.clone()).optimizer(Sgd::new(1.0)).build(&g)?;
    session.try_set_input("x", &[1.0, 2.0])?;
    for name in ["used", "frozen", "unused"] {
        session.try_set_parameter(name, &[3.0, 4.0])?;
    }
    session.try_step()?;
    same_f32("used", &session.try_read_parameter("used")?, &[0.0, -4.0])?;
    same_f32("frozen", &session.try_read_parameter("frozen")?, &[3.0, 4.0])?;
    same_f32("unused", &session.try_read_parameter("unused")?, &[3.0, 4.0])?;
    same_f32("the gradient of unused", &session.try_read_grad("unused")?, &[0.0, 0.0])?;
    ensure!(
        session.try_read_grad("frozen").is_err(),
        "a frozen parameter has a gradient"
    );
    Ok(Check::default())
}

/// Creates a session that computes `y = dropout(x)` with `x` all ones, the sum of `y` as loss, and the gradient of `x`.
fn dropout_session(device: &SharedDevice) -> Result<Session> {
    let mut g = Graph::new();
    let x = g.input("x", &[2000]);
    g.require_grad(x);
    let y = g.dropout(x, 0.25);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss, y]);
    let (mut session, _) = Builder::on(device.clone()).build(&g)?;
    session.try_set_input("x", &[1.0; 2000])?;
    Ok(session)
}

/// Runs a step and returns its output, which shows the dropout mask.
fn next_mask(session: &mut Session) -> Result<Vec<f32>> {
    session.try_step()?;
    let mut mask = vec![0.0; 2000];
    session.try_read_output_by_index(1, &mut mask)?;
    Ok(mask)
}

fn dropout_repeats(device: &SharedDevice) -> CaseRun {
    let (mut a, mut b) = (dropout_session(device)?, dropout_session(device)?);
    a.set_seed(3);
    b.set_seed(3);
    let first = next_mask(&mut a)?;
    ensure!(first == next_mask(&mut b)?, "one seed gives two masks");
    let second = next_mask(&mut a)?;
    ensure!(
        second == next_mask(&mut b)?,
        "one seed gives two masks in the second step"
    );
    ensure!(first != second, "two steps have one mask");
    b.set_seed(4);
    ensure!(next_mask(&mut a)? != next_mask(&mut b)?, "two seeds give one mask");
    let dropped = first.iter().filter(|&&v| v == 0.0).count();
    // Six standard deviations around a quarter.
    ensure!(
        (384..=616).contains(&dropped),
        "{dropped} of 2000 elements were dropped at 0.25"
    );
    let kept = first.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6);
    ensure!(kept, "what is kept is not scaled by 1 / 0.75");
    Ok(Check::default())
}

fn dropout_gradient(device: &SharedDevice) -> CaseRun {
    let mut session = dropout_session(device)?;
    for _ in 0..2 {
        let mask = next_mask(&mut session)?;
        same_f32("the gradient", &session.try_read_grad("x")?, &mask)?;
    }
    Ok(Check::default())
}

fn random_words(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let a = g.random_bits(&[50]);
    let b = g.random_bits(&[50]);
    g.set_outputs(vec![a, b]);
    let (mut session, _) = Builder::on(device.clone()).inference().build(&g)?;
    let mut read = |index| -> Result<Vec<f64>> {
        if index == 0 {
            session.try_step()?;
        }
        crate::harness::output(&mut session, index)
    };
    let (a0, b0, a1) = (read(0)?, read(1)?, read(0)?);
    ensure!(a0 != b0, "two calls give the same words");
    ensure!(a0 != a1, "two steps give the same words");
    let expected = random_word(0, 1, 0, 0);
    same("the first word", &a0[..1], &[expected.into()])
}

fn inference(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 2]);
    let scale = g.parameter("scale", &[2]);
    let shift = g.parameter("shift", &[2]);
    let mean = g.state("mean", &[2]);
    let var = g.state_filled("var", &[2], 1.0);
    let y = g.batch_norm(x, scale, shift, mean, var, 0.5, 0.0);
    let y = g.dropout(y, 0.5);
    g.set_outputs(vec![y]);
    let (mut session, _) = Builder::on(device.clone()).inference().build(&g)?;
    session.try_set_parameter("scale", &[2.0, 1.0])?;
    session.try_set_parameter("shift", &[0.0, 1.0])?;
    session.try_set_state("mean", &[1.0, 2.0])?;
    session.try_set_state("var", &[4.0, 0.25])?;
    session.try_set_input("x", &[3.0, 2.0, 1.0, 3.0])?;
    session.try_step()?;
    let found = wide(&session.try_read_output(4)?);
    let check = compare("the output", DType::F32, &found, &[2.0, 1.0, 0.0, 3.0], 1e-6)?;
    same_f32("the running mean", &session.try_read_state("mean")?, &[1.0, 2.0])?;
    same_f32("the running variance", &session.try_read_state("var")?, &[4.0, 0.25])?;
    Ok(check)
}
