//! Tests that a step with a fault has no effect.

use std::sync::Arc;

use crate::common;
use meganeura_core::backend::Device;
use meganeura_core::plan::optimizer::{GradientClip, Update};
use meganeura_core::plan::{TensorView, compile_for};
use meganeura_core::{Adam, Error, Graph, Session, Sgd, autodiff};

const GOOD: [u32; 4] = [1, 6, 0, 1];
const BAD: [u32; 4] = [1, 7, 0, 9];

/// Source of the indices into the table: an input that the host checks before a step, or a computation in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indices {
    HostValidated,
    Computed,
}

/// Returns a classifier with a table, a random mask, and a state that is written before the table is read.
fn classifier(indices: Indices) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 5]);
    let seen = g.state("seen", &[4, 5]);
    let half = g.scalar(0.5);
    let old = g.mul(seen, half);
    let new = g.add(old, x);
    let seen = g.assign(seen, new);
    let mut ids = g.input_u32("ids", &[4]);
    if indices == Indices::Computed {
        let zeros = g.input_u32("zeros", &[4]);
        ids = g.add(ids, zeros);
    }
    let table = g.parameter("table", &[7, 5]);
    let w = g.parameter("w", &[5, 3]);
    let rows = g.embedding(ids, table);
    let rows = g.add(rows, seen);
    let rows = g.dropout(rows, 0.25);
    let logits = g.matmul(rows, w);
    let labels = g.input_u32("labels", &[4]);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

fn training(device: &Arc<dyn Device>, update: &Update) -> Session {
    let mut session = session(device, update, Indices::Computed);
    session.set_input_u32("zeros", &[0; 4]);
    session
}

fn session(device: &Arc<dyn Device>, update: &Update, indices: Indices) -> Session {
    let full = autodiff::differentiate(&classifier(indices));
    let plan = compile_for(&full, &**device).expect("a plan");
    let mut session = Session::on(device.clone(), plan).expect("a session");
    session.set_optimizer(update.clone());
    let spread = |n: usize| (0..n).map(|i| ((i * 7) % 11) as f32 / 5.0 - 1.0).collect::<Vec<f32>>();
    session.set_parameter("table", &spread(35));
    session.set_parameter("w", &spread(15));
    session.set_input("x", &spread(20));
    session.set_input_u32("ids", &GOOD);
    session.set_input_u32("labels", &[0, 2, 1, 0]);
    session.set_seed(7);
    session
}

fn updates() -> [Update; 3] {
    [
        Update::new(Sgd::new(0.5)),
        Update::new(Adam::new(0.1)).clip(GradientClip::Norm(0.5)),
        Update::new(Adam::new(0.1)).accumulate(3),
    ]
}

/// Returns all data on which later steps depend, as bits.
fn persistent(session: &mut Session) -> Vec<(String, Vec<u32>)> {
    let names = |views: Vec<TensorView>| -> Vec<String> { views.iter().map(|v| v.name.clone()).collect() };
    let (parameters, states) = (names(session.plan().parameters()), names(session.plan().states()));
    let bits = |values: Vec<f32>| values.iter().map(|v| v.to_bits()).collect();
    let mut all = vec![(format!("{:?}", session.progress()), Vec::new())];
    for name in parameters {
        let values = session.try_read_parameter(&name).expect("no fault");
        all.push((name, bits(values)));
    }
    for name in states {
        let values = session.try_read_state(&name).expect("no fault");
        all.push((name, bits(values)));
    }
    all
}

fn expect_fault(outcome: Result<(), Error>) {
    match outcome {
        // The error contains the largest of several invalid indices.
        Err(Error::IndexOutOfRange { index: 9, rows: 7, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Type of the test actions: a step with an invalid index, followed by a wait at some later time.
type Faulty = fn(&mut Session);

const CALLERS: [(&str, Faulty); 4] = [
    ("waits", |s| {
        s.set_input_u32("ids", &BAD);
        expect_fault(s.try_step().and_then(|()| s.try_wait().map(|_| ())));
    }),
    ("makes a good step before waiting", |s| {
        s.set_input_u32("ids", &BAD);
        s.step();
        s.set_input_u32("ids", &GOOD);
        expect_fault(s.try_step().and_then(|()| s.try_wait().map(|_| ())));
    }),
    ("never waits", |s| {
        s.set_input_u32("ids", &BAD);
        s.step();
        s.set_input_u32("ids", &GOOD);
        let next = (0..5).map(|_| s.try_step()).find(Result::is_err);
        expect_fault(next.expect("it is told sooner or later"));
    }),
    ("writes the state", |s| {
        let seen = s.read_state("seen");
        s.set_state("seen", &[9.0; 20]);
        s.set_input_u32("ids", &BAD);
        s.step();
        s.set_state("seen", &seen);
        s.set_input_u32("ids", &GOOD);
        expect_fault(s.try_step().and_then(|()| s.try_wait().map(|_| ())));
    }),
];

#[test]
fn a_faulty_step_is_as_if_it_had_not_been_made() {
    let Some(device) = common::device() else { return };
    for update in updates() {
        for (caller, faulty) in CALLERS {
            let (mut good, mut other) = (training(&device, &update), training(&device, &update));
            for step in 0..7 {
                faulty(&mut other);
                other.set_input_u32("ids", &GOOD);
                for session in [&mut good, &mut other] {
                    session.step();
                }
                let (a, b) = (good.try_read_loss(), other.try_read_loss());
                let bits = |loss: Result<f32, Error>| loss.expect("a loss").to_bits();
                assert_eq!(bits(a), bits(b), "{caller}, loss of step {step}");
                assert_eq!(
                    persistent(&mut good),
                    persistent(&mut other),
                    "{caller}, step {step}, {update:?}"
                );
            }
        }
    }
}

/// The host checks indices in inputs before a step. It reports an invalid index at once, and the step does not run.
/// Hence no data has to be saved for a rollback.
#[test]
fn fed_indices_are_looked_at_before_a_step() {
    let Some(device) = common::device() else { return };
    for update in updates() {
        let mut sessions = [0, 1].map(|_| session(&device, &update, Indices::HostValidated));
        let beside = |indices| {
            let graph = autodiff::differentiate(&classifier(indices));
            let plan = compile_for(&graph, &*device).expect("a plan");
            device.workspace_bytes(&plan).expect("kernels")
        };
        assert!(beside(Indices::HostValidated) < beside(Indices::Computed));
        for step in 0..5 {
            let [good, other] = &mut sessions;
            other.set_input_u32("ids", &BAD);
            match other.try_step() {
                Err(Error::IndexOutOfRange { index: 7, rows: 7, .. }) => {}
                outcome => panic!("{outcome:?}"),
            }
            other.set_input_u32("ids", &GOOD);
            good.step();
            other.step();
            assert_eq!(persistent(good), persistent(other), "step {step}, {update:?}");
        }
    }
}

#[test]
fn counters_are_taken_back_before_anything_else_is_done() {
    let Some(device) = common::device() else { return };
    let [sgd, _, accumulating] = updates();
    let mut session = training(&device, &accumulating);
    session.step();
    session.wait();
    let before = session.progress();
    assert_eq!((before.steps, before.accumulated), (1, 1));
    session.set_input_u32("ids", &BAD);
    session.step();
    expect_fault(session.try_wait().map(|_| ()));
    assert_eq!(session.progress(), before);
    // A new update rule recompiles the plan and keeps the state.
    session.set_optimizer(sgd);
    session.set_input_u32("ids", &GOOD);
    session.step();
    session.wait();
    assert_eq!(session.progress().steps, 2);
    // If the first step has a fault, there is no result to read.
    let mut session = training(&device, &accumulating);
    session.set_input_u32("ids", &BAD);
    session.step();
    expect_fault(session.try_read_loss().map(|_| ()));
    assert!(matches!(session.try_read_loss(), Err(Error::InvalidUse { .. })));
}

/// A rollback restores states that are written before, in and after the level of the fault, including states that the
/// kernel with the fault writes.
#[test]
fn the_order_of_writes_and_faults_does_not_matter() {
    const ROWS: usize = 3_000;
    const DEPTHS: usize = 4;
    let Some(device) = common::device() else { return };
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[ROWS]);
    let zeros = g.input_u32("zeros", &[ROWS]);
    let updates = g.input("updates", &[ROWS, 8]);
    let name = |depth: usize| format!("depth {depth}");
    let mut value = updates;
    for depth in 0..DEPTHS {
        value = g.add(value, updates);
        let state = g.state(&name(depth), &[ROWS, 8]);
        g.assign(state, value);
    }
    let ids = g.add(ids, zeros);
    let ids = g.add(ids, zeros);
    let within = g.state("within", &[ROWS, 8]);
    let scattered = g.scatter(within, ids, updates, 0);
    let written = g.assign(within, scattered);
    let sum = g.sum_all(written);
    g.set_outputs(vec![sum]);
    let plan = compile_for(&g, &*device).expect("a plan");
    let mut session = Session::on(device, plan).expect("a session");
    session.set_input("updates", &vec![1.0; ROWS * 8]);
    session.set_input_u32("zeros", &[0; ROWS]);
    let names: Vec<String> = (0..DEPTHS).map(name).chain(["within".into()]).collect();
    for round in 0..20 {
        // Three invalid indices, at changing positions.
        let id = |i: usize| if i % 1_000 == 50 * round { ROWS + i / 1_000 } else { i };
        let ids: Vec<u32> = (0..ROWS).map(|i| id(i) as u32).collect();
        session.set_input_u32("ids", &ids);
        match session.try_step().and_then(|()| session.try_wait().map(|_| ())) {
            Err(Error::IndexOutOfRange { index, rows: ROWS, .. }) => assert_eq!(index, 3_002),
            other => panic!("{other:?}"),
        }
        for name in &names {
            let clean = session.read_state(name).iter().all(|&v| v == 0.0);
            assert!(clean, "{name} in round {round}");
        }
    }
    let ids: Vec<u32> = (0..ROWS as u32).collect();
    session.set_input_u32("ids", &ids);
    session.step();
    for (name, expected) in names.iter().zip([2.0, 3.0, 4.0, 5.0, 1.0]) {
        assert!(session.read_state(name).iter().all(|&v| v == expected), "{name}");
    }
}
