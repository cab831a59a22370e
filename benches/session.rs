//! Benchmarks of the overhead of a session: replay of a dispatch, and a training step of a small network compared with the sum of
//! its kernels run separately.

mod common;

use std::time::Duration;

use common::{Candidate, Race, cpu, inference, noise};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::backend::{Executable, StepArgs};
use meganeura::builder::Builder;
use meganeura::plan::{ExecutionPlan, Segment};
use meganeura::{Adam, Graph, Session, Sgd};

/// Creates a session with a chain of dispatches of one element each, so that only the overhead is measured.
fn chain(dispatches: usize) -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[1]);
    let y = (0..dispatches).fold(x, |v, _| g.sin(v));
    g.set_outputs(vec![y]);
    let mut session = inference(&g);
    session.set_input("x", &[0.5]);
    session
}

fn replay(criterion: &mut Criterion) {
    const LONG: usize = 1001;
    let (mut short, mut long) = (chain(1), chain(LONG));
    let candidates: Vec<Candidate> = vec![
        ("1 dispatch", Box::new(move || short.step())),
        ("1001 dispatches", Box::new(move || long.step())),
    ];
    let mut race = Race::new(candidates, 20);
    let mut group = criterion.benchmark_group("session/cpu/replay");
    for (i, label) in race.names().iter().enumerate() {
        group.bench_function(BenchmarkId::from_parameter(label), |b| {
            b.iter_custom(|turns| race.run(i, turns))
        });
    }
    group.finish();
    let each = (race.seconds(1) - race.seconds(0)) / (LONG - 1) as f64;
    println!(
        "one replayed dispatch, its kernel included: {:.0} ns; a step of one: {:.0} ns; ratio of the steps {:.0}",
        each * 1e9,
        race.seconds(0) * 1e9,
        race.ratio(1)
    );
}

/// Creates a 784-128-10 network with ReLU and cross-entropy, batch 32, plain SGD.
fn mlp() -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[32, 784]);
    let labels = g.input("labels", &[32, 10]);
    let w1 = g.parameter("w1", &[784, 128]);
    let b1 = g.parameter("b1", &[128]);
    let w2 = g.parameter("w2", &[128, 10]);
    let b2 = g.parameter("b2", &[10]);
    let h = g.matmul(x, w1);
    let h = g.bias_add(h, b1);
    let h = g.relu(h);
    let h = g.matmul(h, w2);
    let logits = g.bias_add(h, b2);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    let optimizer = Sgd::new(0.01);
    let mut session = match Builder::on(cpu()).optimizer(optimizer).build(&g) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    };
    for (name, len) in [("w1", 784 * 128), ("w2", 1280)] {
        let values: Vec<f32> = noise(len).iter().map(|v| v * 0.05).collect();
        session.set_parameter(name, &values);
    }
    session.set_input("x", &noise(32 * 784));
    let one_hot: Vec<f32> = (0..320)
        .map(|i| if i % 10 == (i / 10) % 10 { 1.0 } else { 0.0 })
        .collect();
    session.set_input("labels", &one_hot);
    session
}

/// Returns the plan with only one dispatch.
fn only(plan: &ExecutionPlan, dispatch: usize) -> ExecutionPlan {
    let mut dispatch = plan.dispatches[dispatch].clone();
    dispatch.level = 0;
    ExecutionPlan {
        dispatches: vec![dispatch],
        segments: vec![Segment {
            name: "one".into(),
            first: 0,
            count: 1,
            skip_if: None,
            once: false,
        }],
        ..plan.clone()
    }
}

fn executable(plan: &ExecutionPlan) -> Box<dyn Executable> {
    match cpu().compile(plan) {
        Ok(executable) => executable,
        Err(e) => panic!("{e}"),
    }
}

/// Creates the convolutional network for the digits, batch 32, AdamW.
fn cnn() -> Session {
    let graph = meganeura::nn::models::cnn_classifier(32, [1, 8, 8], 10);
    let optimizer = Adam::adamw(1e-3, 0.05);
    let mut session = match Builder::on(cpu()).optimizer(optimizer).build(&graph) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    };
    session.initialize_parameters(0);
    session.set_input("x", &noise(32 * 64));
    let ids: Vec<u32> = (0..32).map(|i| i % 10).collect();
    session.set_input_u32("labels", &ids);
    session
}

/// Measures, in turns, a whole step and each of its kernels separately.
fn step_and_kernels(criterion: &mut Criterion, name: &str, mut session: Session) {
    let plan = session.plan().clone();
    let mut candidates: Vec<Candidate> = vec![("whole step", Box::new(move || session.step()))];
    let mut empty = plan.clone();
    empty.dispatches.clear();
    empty.segments.clear();
    let plans = std::iter::once(empty).chain((0..plan.dispatches.len()).map(|i| only(&plan, i)));
    for plan in plans {
        let mut one = executable(&plan);
        let segments: Vec<usize> = (0..plan.segments.len()).collect();
        let run = move || {
            let args = StepArgs {
                segments: &segments,
                scalars: &[],
            };
            if let Err(e) = one.run(&args) {
                panic!("{e}");
            }
        };
        candidates.push(("kernel", Box::new(run)));
    }
    let mut race = Race::new(candidates, 20);
    criterion.bench_function(&format!("session/cpu/{name}/step"), |b| {
        b.iter_custom(|turns| race.run(0, turns));
    });
    let empty = race.seconds(1);
    let kernels: f64 = (2..race.names().len()).map(|i| race.seconds(i) - empty).sum();
    println!(
        "{name}: step {:.1} us, sum of its {} kernels {:.1} us: ratio {:.2}",
        race.seconds(0) * 1e6,
        plan.dispatches.len(),
        kernels * 1e6,
        race.seconds(0) / kernels
    );
    for (i, d) in plan.dispatches.iter().enumerate() {
        let inputs: Vec<String> = d.inputs.iter().map(|o| o.ty.to_string()).collect();
        println!(
            "  {:>8.2} us  {}  {}",
            (race.seconds(i + 2) - empty) * 1e6,
            d.label,
            inputs.join(" ")
        );
    }
}

fn steps(criterion: &mut Criterion) {
    step_and_kernels(criterion, "mlp 784-128-10 batch 32", mlp());
    step_and_kernels(criterion, "cnn digits batch 32", cnn());
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(2));
    targets = replay, steps
}
criterion_main!(benches);
