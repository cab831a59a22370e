//! Cases with several sessions on one device.

use std::thread;

use meganeura_compiler::builder::Builder;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::{Session, Sgd};

use super::exact::{case, same_f32};
use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::harness::numbers;
use crate::storage::narrow;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("sessions/two at once from two threads", two_threads),
        case("sessions/two at once on a busy device", busy_device),
        case("sessions/moved to another thread", moved),
        case("sessions/do not share memory", separate_memory),
        case("sessions/weights from training to inference", copied_weights),
        case("sessions/a plan survives storage", stored_plan),
    ]
}

fn model(width: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[16, width]);
    let w = g.parameter("w", &[width, 8]);
    let y = g.matmul(x, w);
    let y = g.tanh(y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    g
}

fn session(device: &SharedDevice, width: usize) -> Result<Session> {
    let (mut session, _) = Builder::on(device.clone())
        .optimizer(Sgd::new(0.5))
        .build(&model(width))?;
    session.try_set_input("x", &narrow(&numbers(16 * width, 1)))?;
    session.try_set_parameter("w", &narrow(&numbers(8 * width, 2)))?;
    Ok(session)
}

fn losses(session: &mut Session) -> Result<Vec<f32>> {
    let step = |_| {
        session.try_step()?;
        session.try_read_loss()
    };
    (0..5).map(step).collect()
}

fn two_threads(device: &SharedDevice) -> CaseRun {
    let alone = |width| -> Result<Vec<f32>> { losses(&mut session(device, width)?) };
    let expected = [alone(20)?, alone(33)?];
    for _ in 0..3 {
        let (a, b) = thread::scope(|scope| {
            let handles = [20, 33].map(|width| {
                let device = device.clone();
                scope.spawn(move || -> Result<Vec<f32>> { losses(&mut session(&device, width)?) })
            });
            let [a, b] = handles.map(|h| h.join().unwrap_or_else(|_| Err(Error::backend("device", "panicked"))));
            (a, b)
        });
        same_f32("the first session's losses", &a?, &expected[0])?;
        same_f32("the second session's losses", &b?, &expected[1])?;
    }
    Ok(Check::default())
}

/// Returns a session whose steps take a device much longer than those of [`model`].
fn long_session(device: &SharedDevice) -> Result<Session> {
    const WIDTH: usize = 192;
    let mut g = Graph::new();
    let x = g.input("x", &[WIDTH, WIDTH]);
    let w = g.parameter("w", &[WIDTH, WIDTH]);
    let y = (0..4).fold(x, |y, _| {
        let y = g.matmul(y, w);
        g.tanh(y)
    });
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let (mut session, _) = Builder::on(device.clone()).optimizer(Sgd::new(0.1)).build(&g)?;
    session.try_set_input("x", &narrow(&numbers(WIDTH * WIDTH, 3)))?;
    session.try_set_parameter("w", &narrow(&numbers(WIDTH * WIDTH, 4)))?;
    Ok(session)
}

/// Checks that sessions do not affect each other: two run from two threads while a third one keeps the device busy with
/// steps that nothing waits for. The results of all three must equal the results of separate runs.
fn busy_device(device: &SharedDevice) -> CaseRun {
    const LONG_STEPS: usize = 12;
    let long_losses = |session: &mut Session| -> Result<f32> {
        (0..LONG_STEPS).try_for_each(|_| session.try_step())?;
        session.try_read_loss()
    };
    let alone = |width| -> Result<Vec<f32>> { losses(&mut session(device, width)?) };
    let expected = [alone(20)?, alone(33)?];
    let expected_long = long_losses(&mut long_session(device)?)?;

    let mut long = long_session(device)?;
    let (found, of_long) = thread::scope(|scope| {
        let others = [20, 33].map(|width| {
            let device = device.clone();
            scope.spawn(move || -> Result<Vec<f32>> { losses(&mut session(&device, width)?) })
        });
        let of_long = long_losses(&mut long);
        let found = others.map(|h| h.join().unwrap_or_else(|_| Err(Error::backend("device", "panicked"))));
        (found, of_long)
    });
    for (found, expected) in found.into_iter().zip(&expected) {
        same_f32("the losses of a short session", &found?, expected)?;
    }
    same_f32("the loss of the long session", &[of_long?], &[expected_long])?;
    Ok(Check::default())
}

fn moved(device: &SharedDevice) -> CaseRun {
    let expected = losses(&mut session(device, 9)?)?;
    let mut here = session(device, 9)?;
    here.try_step()?;
    let first = here.try_read_loss()?;
    let there = thread::spawn(move || -> Result<f32> {
        here.try_step()?;
        here.try_read_loss()
    });
    match there.join() {
        Ok(second) => same_f32("the losses", &[first, second?], &expected[..2]),
        Err(_) => fail("the session panicked on another thread"),
    }
}

fn separate_memory(device: &SharedDevice) -> CaseRun {
    let mut a = session(device, 5)?;
    let mut b = session(device, 5)?;
    let start = b.try_read_parameter("w")?;
    a.try_step()?;
    ensure!(a.try_read_parameter("w")? != start, "the first session did not train");
    same_f32("w of the second session", &b.try_read_parameter("w")?, &start)?;
    drop(a);
    b.try_step()?;
    b.try_wait()?;
    Ok(Check::default())
}

fn copied_weights(device: &SharedDevice) -> CaseRun {
    let mut training = session(device, 7)?;
    losses(&mut training)?;
    let (mut inference, _) = Builder::on(device.clone()).inference().build(&model(7))?;
    inference.try_copy_weights_from(&mut training)?;
    let trained = training.try_read_parameter("w")?;
    same_f32("w", &inference.try_read_parameter("w")?, &trained)?;
    inference.try_set_input("x", &narrow(&numbers(16 * 7, 1)))?;
    inference.try_step()?;
    training.clear_optimizer();
    training.try_step()?;
    same_f32("the loss", &[inference.try_read_loss()?], &[training.try_read_loss()?])
}

/// Checks that a plan gives the same results after it was serialized and read.
fn stored_plan(device: &SharedDevice) -> CaseRun {
    let mut original = session(device, 6)?;
    let text = serde_json::to_string(original.plan()).map_err(|e| Error::plan(e.to_string()))?;
    let plan = serde_json::from_str(&text).map_err(|e| Error::plan(e.to_string()))?;
    ensure!(original.plan() == &plan, "the plan changed when it was stored");
    let mut again = Session::on(device.clone(), plan)?;
    again.try_set_input("x", &narrow(&numbers(16 * 6, 1)))?;
    again.try_set_parameter("w", &narrow(&numbers(8 * 6, 2)))?;
    original.clear_optimizer();
    original.try_step()?;
    again.try_step()?;
    same_f32("the loss", &[again.try_read_loss()?], &[original.try_read_loss()?])?;
    same_f32(
        "the gradient",
        &again.try_read_grad("w")?,
        &original.try_read_grad("w")?,
    )
}
