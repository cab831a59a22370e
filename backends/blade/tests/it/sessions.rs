//! Tests of sessions on a device that are not in the conformance suite. Tests of other GPU backends include this
//! file, with their own `common`.

use std::sync::Arc;

use crate::common;
use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_core::plan::memory::fit_to_budget;
use meganeura_core::plan::{ExecutionPlan, MemoryBudget, compile_for, try_compile};
use meganeura_core::{DType, Error, Graph, Session, autodiff};

/// Returns a classifier with an embedding, which has a table whose index can be out of range.
pub(crate) fn classifier() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[4]);
    let table = g.parameter("table", &[7, 5]);
    let w = g.parameter("w", &[5, 3]);
    let x = g.embedding(ids, table);
    let logits = g.matmul(x, w);
    let labels = g.input_u32("labels", &[4]);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss, logits]);
    g
}

/// Returns a session on a device with an optimizer, whose parameters and inputs are set.
pub(crate) fn training(device: &Arc<dyn Device>) -> Session {
    let full = autodiff::differentiate(&classifier());
    let plan = compile_for(&full, &**device).expect("a plan");
    prepared(Session::on(device.clone(), plan).expect("a session"))
}

pub(crate) fn prepared(mut session: Session) -> Session {
    let spread = |n: usize| (0..n).map(|i| ((i * 7) % 11) as f32 / 5.0 - 1.0).collect::<Vec<f32>>();
    session.set_parameter("table", &spread(35));
    session.set_parameter("w", &spread(15));
    session.set_input_u32("ids", &[1, 6, 0, 1]);
    session.set_input_u32("labels", &[0, 2, 1, 0]);
    session.set_learning_rate(0.5);
    session
}

pub(crate) fn losses(session: &mut Session, steps: usize) -> Vec<u32> {
    let step = |_| {
        session.step();
        session.read_loss().to_bits()
    };
    (0..steps).map(step).collect()
}

#[test]
fn training_is_repeatable_and_learns() {
    let Some(device) = common::device() else { return };
    let first = losses(&mut training(&device), 30);
    assert_eq!(first, losses(&mut training(&device), 30));
    let (begin, end) = (f32::from_bits(first[0]), f32::from_bits(first[29]));
    assert!(end < 0.5 * begin, "{begin} to {end}");
}

/// Returns a perceptron with dropout and many rows. Its plan has large activations.
fn deep() -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", &[48, 8]);
    for i in 0..6 {
        let w = g.parameter(&format!("w{i}"), &[8, 8]);
        let y = g.matmul(x, w);
        let y = g.tanh(y);
        x = g.dropout(y, 0.2);
    }
    let square = g.square(x);
    let loss = g.mean_all(square);
    g.set_outputs(vec![loss]);
    g
}

#[test]
fn what_runs_twice_gives_the_same_bits() {
    let Some(device) = common::device() else { return };
    let plan = compile_for(&autodiff::differentiate(&deep()), &*device).expect("a plan");
    let limit = device.capabilities().max_buffer_bytes;
    let finish = |plan: &mut ExecutionPlan| plan.place_buffers(limit);
    let small = fit_to_budget(&plan, &MemoryBudget::OfStep(0.8), &device, None, &finish).expect("reached");
    assert!(small.recomputation.as_ref().is_some_and(|r| !r.repeated.is_empty()));
    assert!(small.memory.bytes < plan.memory.bytes);
    let run = |plan: ExecutionPlan| {
        let mut session = Session::on(device.clone(), plan).expect("a session");
        let spread = |n: usize| (0..n).map(|i| ((i * 7) % 11) as f32 / 5.0 - 1.0).collect::<Vec<f32>>();
        (0..6).for_each(|i| session.set_parameter(&format!("w{i}"), &spread(64 + i)[i..]));
        session.set_input("x", &spread(48 * 8));
        session.set_seed(3);
        session.set_learning_rate(0.5);
        let losses = losses(&mut session, 4);
        (losses, session.read_parameter("w0"), session.read_grad("w3"))
    };
    assert_eq!(run(small), run(plan));
}

#[test]
fn steps_that_nobody_waits_for_are_all_made() {
    let Some(device) = common::device() else { return };
    let mut waited = training(&device);
    let mut pipelined = training(&device);
    losses(&mut waited, 9);
    for _ in 0..9 {
        pipelined.step();
    }
    assert_eq!(pipelined.read_loss().to_bits(), waited.read_loss().to_bits());
    assert_eq!(pipelined.read_parameter("w"), waited.read_parameter("w"));
}

#[test]
fn sessions_and_threads_work_side_by_side() {
    let Some(device) = common::device() else { return };
    let alone = losses(&mut training(&device), 12);
    let (mut a, mut b) = (training(&device), training(&device));
    for &expected in &alone {
        a.step();
        b.step();
        assert_eq!([a.read_loss().to_bits(), b.read_loss().to_bits()], [expected; 2]);
    }
    let found: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| losses(&mut training(&device), 12)))
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert_eq!(found, [alone.clone(), alone]);
}

#[test]
fn a_fault_trains_nothing_and_passes() {
    let Some(device) = common::device() else { return };
    let mut session = training(&device);
    let before = session.read_parameter("table");
    session.set_input_u32("ids", &[1, 7, 0, 1]);
    let error = session
        .try_step()
        .and_then(|()| session.try_wait().map(|_| ()))
        .expect_err("a fault");
    let Error::IndexOutOfRange { label, index, rows } = &error else {
        panic!("{error}")
    };
    assert_eq!((*index, *rows), (7, 7), "{label}");
    assert_eq!(session.read_parameter("table"), before);
    session.set_input_u32("ids", &[1, 6, 0, 1]);
    session.step();
    session.wait();
    assert_ne!(session.read_parameter("table"), before, "the session goes on");
}

#[test]
fn writes_are_seen_in_their_order() {
    let Some(device) = common::device() else { return };
    let mut g = Graph::new();
    let x = g.input("x", &[64]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &*device).expect("a plan");
    let buffer = plan.input_buffers[0].1;
    let mut executable = device.compile(&plan).expect("an executable");
    executable.write(buffer, 0, &[1; 256]).expect("written");
    executable.write(buffer, 8, &[2; 8]).expect("written");
    executable.write(buffer, 0, &[3; 12]).expect("written");
    let mut bytes = [0; 20];
    executable.read(buffer, 0, &mut bytes).expect("read");
    assert_eq!(bytes[..], [[3; 12].as_slice(), &[2; 4], &[1; 4]].concat());
    // The same range is read again. The read is expected, but its copy must come after the submission of the write.
    executable.write(buffer, 0, &[4; 20]).expect("written");
    executable.read(buffer, 0, &mut bytes).expect("read");
    assert_eq!(bytes, [4; 20]);
    assert!(executable.write(buffer, 252, &[0; 8]).is_err());
    assert!(executable.read(buffer, u64::MAX, &mut bytes).is_err());
}

#[test]
fn a_buffer_beyond_the_limit_is_an_error_with_its_size() {
    let Some(device) = common::device() else { return };
    let limit = device.capabilities().max_buffer_bytes.expect("a limit") as usize;
    let mut g = Graph::new();
    let x = g.input("wide", &[limit / 4 + 64]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    // The error is the same for a plan that is compiled for the device, and for a plan that is not.
    let made = compile_for(&g, &*device).map(|_| ());
    let custom = try_compile(&g).and_then(|plan| device.compile(&plan).map(|_| ()));
    for outcome in [made, custom] {
        match outcome {
            Err(Error::BufferTooLarge {
                tensor,
                bytes,
                limit: most,
            }) => {
                assert!(tensor.contains("input 'wide'"), "{tensor}");
                assert_eq!((bytes, most), (limit as u64 + 256, limit as u64));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn devices_that_are_not_there_are_errors() {
    let Some(_) = common::device() else { return };
    let error = common::BACKEND
        .open(999, &Config::default())
        .map(|_| ())
        .expect_err("no such device");
    assert!(error.to_string().contains("no index 999"), "{error}");
}

#[test]
fn scalars_and_single_elements_of_half_precision() {
    let Some(device) = common::device() else { return };
    for dtype in [DType::F16, DType::BF16] {
        let mut g = Graph::new();
        let x = g.input_typed("x", &[5], dtype);
        let [single, number] = [("single", &[1][..]), ("number", &[])].map(|(n, s)| g.input_typed(n, s, dtype));
        let [a, b] = ["a", "b"].map(|name| g.scalar_input(name, dtype));
        let scaled = g.mul(x, a);
        let shifted = g.add(scaled, b);
        let sum = g.add(shifted, single);
        let sum = g.add(sum, number);
        let small = g.mul(number, a);
        g.set_outputs(vec![sum, small]);
        let mut session = Session::on(device.clone(), compile_for(&g, &*device).expect("a plan")).expect("a session");
        let bytes = |values: &[f32]| -> Vec<u8> {
            let half = |&v: &f32| match dtype {
                DType::F16 => half::f16::from_f32(v).to_le_bytes(),
                _ => half::bf16::from_f32(v).to_le_bytes(),
            };
            values.iter().flat_map(half).collect()
        };
        for (name, values) in [
            ("x", &[1.0, -2.0, 0.5, 0.0, 8.0][..]),
            ("single", &[4.0]),
            ("number", &[16.0]),
        ] {
            session.try_set_input_bytes(name, &bytes(values)).expect("an input");
        }
        for (a, b) in [(3.0, 0.25), (-0.5, 1.0)] {
            session.set_scalar("a", a);
            session.set_scalar("b", b);
            session.try_step().expect("a step");
            let (mut sum, mut small) = ([0.0; 5], [0.0]);
            session.read_output_by_index(0, &mut sum);
            session.read_output_by_index(1, &mut small);
            let (a, b) = (a as f32, b as f32);
            assert_eq!(sum, [1.0, -2.0, 0.5, 0.0, 8.0].map(|x| x * a + b + 20.0), "{dtype}");
            assert_eq!(small, [16.0 * a], "{dtype}");
        }
    }
}

/// A program may open and close devices repeatedly. Drivers remain loaded, because some cannot be loaded twice.
#[test]
fn devices_are_opened_again_and_again() {
    let mut first = None;
    for _ in 0..12 {
        let Some(device) = common::device() else { return };
        let found = losses(&mut training(&device), 2);
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found);
    }
}
