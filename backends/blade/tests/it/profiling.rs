//! Tests of the times of passes, and of the effects of debug options on a session.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use meganeura_blade::BladeBackend;
use meganeura_core::backend::{Backend as _, Device, Executable, PassTiming, StepArgs};
use meganeura_core::config::Config;
use meganeura_core::plan::{ExecutionPlan, compile_for};
use meganeura_core::{DebugOptions, Error, Graph, Session, autodiff};

fn chain(length: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", &[4]);
    for _ in 0..length {
        x = g.neg(x);
    }
    g.set_outputs(vec![x]);
    g
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

/// Runs the plan of a chain once, and measures its passes.
fn measured(executable: &mut dyn Executable, plan: &ExecutionPlan) -> Vec<PassTiming> {
    let input = plan.input_buffers[0].1;
    let data: Vec<u8> = [1.0f32, -2.0, 3.0, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    executable.write(input, 0, &data).expect("written");
    let args = StepArgs {
        segments: &[0],
        scalars: &[],
    };
    let before = Instant::now();
    let ticket = executable.run(&args).expect("submitted");
    let stats = executable.wait(ticket).expect("complete");
    let passes = executable.take_timings();
    let mut end = before;
    for pass in &passes {
        assert_eq!(pass.submission, ticket);
        assert!(end <= pass.start, "passes come one after the other");
        end = pass.start + pass.duration;
    }
    assert!(end <= Instant::now());
    let sum: Duration = passes.iter().map(|p| p.duration).sum();
    assert_eq!(stats.device_time, Some(sum).filter(|_| !passes.is_empty()));
    passes
}

fn dispatches(passes: &[PassTiming]) -> Vec<u32> {
    passes.iter().flat_map(|p| p.dispatches.iter().copied()).collect()
}

#[test]
fn every_pass_of_a_step_is_measured_also_beyond_the_limit_of_a_submission() {
    let Some(device) = common::device() else { return };
    // blade measures at most 1000 passes of a submission.
    for length in [3, 999, 1000, 2100] {
        let plan = compile_for(&chain(length), &*device).expect("a plan");
        let mut executable = device.compile(&plan).expect("compiles");
        executable.set_profiling(true);
        for _ in 0..2 {
            let passes = measured(&mut *executable, &plan);
            assert_eq!(dispatches(&passes), (0..length as u32).collect::<Vec<_>>());
            assert_eq!(&*passes[0].label, "upload");
            for pass in &passes[1..] {
                // The second step also copies the result to the host, because the host read it after the first step.
                let expected = if pass.dispatches.is_empty() {
                    "download"
                } else {
                    "core.neg"
                };
                assert_eq!(&*pass.label, expected);
            }
            assert!(passes.iter().any(|p| !p.duration.is_zero()), "they take time");
            let mut result = [0; 16];
            executable.read(plan.output_buffers[0], 0, &mut result).expect("read");
            let sign = if length % 2 == 0 { 1.0 } else { -1.0 };
            assert_eq!(floats(&result), [1.0, -2.0, 3.0, 0.5].map(|x: f32| sign * x));
        }
        executable.set_profiling(false);
        assert!(
            measured(&mut *executable, &plan).is_empty(),
            "nothing is measured unless asked for"
        );
    }
}

#[test]
fn steps_that_were_not_waited_for_are_measured_in_their_order() {
    let Some(device) = common::device() else { return };
    let plan = compile_for(&chain(2), &*device).expect("a plan");
    let mut session = Session::on(device, plan).expect("a session");
    session.set_input("x", &[1.0; 4]);
    session.set_profiling(true);
    for _ in 0..5 {
        session.step();
    }
    session.wait();
    let timings = session.take_timings();
    let count = |label: &str| timings.rows.iter().find(|r| r.label == label).map(|r| r.count);
    assert_eq!((count("core.neg"), count("upload")), (Some(10), Some(1)), "{timings}");
    session.dump_gpu_timings();
}

#[test]
fn measured_steps_compute_what_others_do_and_tell_faults() {
    let Some(device) = common::device() else { return };
    let plain = losses(branches(&device, DebugOptions::default()));
    let mut session = branches(&device, DebugOptions::default());
    session.set_profiling(true);
    assert_eq!(losses(session), plain);

    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let table = g.parameter("table", &[3, 2]);
    let rows = g.embedding(ids, table);
    let loss = g.mean_all(rows);
    g.set_outputs(vec![loss]);
    let plan = compile_for(&autodiff::differentiate(&g), &*device).expect("a plan");
    let mut session = Session::on(device, plan).expect("a session");
    session.set_parameter("table", &[1.0; 6]);
    session.set_learning_rate(1.0);
    session.set_profiling(true);
    session.set_input_u32("ids", &[1, 7]);
    let outcome = session.try_step().and_then(|()| session.try_wait());
    assert!(
        matches!(outcome, Err(Error::IndexOutOfRange { index: 7, .. })),
        "{outcome:?}"
    );
    assert_eq!(session.read_parameter("table"), [1.0; 6]);
    session.set_input_u32("ids", &[1, 1]);
    session.step();
    session.wait();
    assert_eq!(session.read_parameter("table"), [1.0, 1.0, 0.5, 0.5, 1.0, 1.0]);
    assert!(!session.take_timings().rows.is_empty());
}

/// Returns a training session whose graph has independent branches, so that levels have several dispatches.
fn branches(device: &Arc<dyn Device>, debug: DebugOptions) -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 6]);
    let sides = ["a", "b", "c"].map(|name| {
        let w = g.parameter(name, &[6, 6]);
        let y = g.matmul(x, w);
        g.tanh(y)
    });
    let sum = g.mul(sides[0], sides[1]);
    let sum = g.add(sum, sides[2]);
    let loss = g.mean_all(sum);
    g.set_outputs(vec![loss]);
    let plan = compile_for(&autodiff::differentiate(&g), &**device).expect("a plan");
    let mut session = Session::debugged(device.clone(), plan, debug).expect("a session");
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        let values: Vec<f32> = (0..36).map(|j| ((7 * j + i) % 11) as f32 / 11.0 - 0.5).collect();
        session.set_parameter(name, &values);
    }
    let values: Vec<f32> = (0..48).map(|j| (j % 13) as f32 / 13.0).collect();
    session.set_input("x", &values);
    session.set_learning_rate(0.1);
    session
}

fn losses(mut session: Session) -> Vec<u32> {
    let step = |_| {
        session.step();
        session.read_loss().to_bits()
    };
    (0..4).map(step).collect()
}

#[test]
fn debug_options_change_no_result() {
    let Some(device) = common::device() else { return };
    let plain = losses(branches(&device, DebugOptions::default()));
    assert_ne!(plain[0], plain[3], "it learns something");
    for words in ["serial", "no-aliasing", "serial,no-aliasing"] {
        let debug = DebugOptions::parse(words).expect("options");
        assert_eq!(losses(branches(&device, debug)), plain, "{words}");
    }
}

#[test]
fn serial_sessions_have_a_pass_for_each_dispatch() {
    let Some(device) = common::device() else { return };
    let several = |debug: &str| {
        let mut session = branches(&device, DebugOptions::parse(debug).expect("options"));
        session.set_profiling(true);
        session.step();
        session.wait();
        let rows = session.take_timings().rows;
        rows.into_iter().any(|r| r.label.starts_with("3 "))
    };
    assert!(several(""), "the branches run together");
    assert!(!several("serial"), "one after the other");
}

#[test]
fn kernels_are_written_to_a_folder() {
    let Some(device) = common::device() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deep/er");
    let debug = DebugOptions {
        dump: Some(path.clone()),
        ..DebugOptions::default()
    };
    let session = branches(&device, debug.clone());
    // There is one file for the plan without an update, and one for the plan with an update.
    let mut plans: Vec<_> = fs::read_dir(&path)
        .expect("made")
        .map(|e| e.expect("readable").path())
        .collect();
    plans.sort_by_key(|p| fs::read_dir(p).map_or(0, Iterator::count));
    assert_eq!(plans.len(), 2);
    let last = &plans[1];
    let text = fs::read_to_string(last.join("plan.txt")).expect("the plan");
    assert_eq!(text, session.plan().to_string());
    for (i, dispatch) in session.plan().dispatches.iter().enumerate() {
        let name = dispatch.kernel.name.replace('.', "_");
        let kernel = fs::read_to_string(last.join(format!("{i:04}-0-{name}.wgsl"))).expect("a kernel");
        assert!(kernel.contains("@compute") && kernel.contains("fn main"), "{kernel}");
    }

    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let wrong = DebugOptions {
        dump: Some(file),
        ..debug
    };
    let error = Session::debugged(device, session.plan().clone(), wrong).expect_err("not a folder");
    assert!(error.to_string().contains("MEGANEURA_DEBUG"), "{error}");
}

#[test]
fn without_times_of_passes_steps_are_the_same() {
    let setting = |timing: &str| -> Config {
        toml::from_str(&format!("[backend.blade]\ntiming = '{timing}'")).expect("a configuration")
    };
    let listed = BladeBackend.devices(&Config::default()).expect("a listing");
    let Some(info) = listed.into_iter().find(|d| d.rejected.is_none()) else {
        return;
    };
    let error = BladeBackend
        .open(info.index, &setting("maybe"))
        .err()
        .expect("an error");
    assert!(error.to_string().contains("use 'on' or 'off'"), "{error}");
    let device = BladeBackend.open(info.index, &setting("off")).expect("it opens");
    let plan = compile_for(&chain(3), &*device).expect("a plan");
    let mut executable = device.compile(&plan).expect("an executable");
    executable.set_profiling(true);
    assert!(measured(&mut *executable, &plan).is_empty());
    let mut bytes = [0; 16];
    executable.read(plan.output_buffers[0], 0, &mut bytes).expect("read");
    assert_eq!(floats(&bytes), [-1.0, 2.0, -3.0, -0.5]);
}
