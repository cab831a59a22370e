//! Benchmarks of rewriting: its time for training graphs of a language model, and its gain on the CPU.
//!
//! The line after each model contains the ratio of a training step without rewriting and clustering to one with both, and to one
//! with only clustering: medians over turns in one run. With `MEGANEURA_BENCH_REPORT` set, the report of the passes and the times
//! of the steps' stages come first.

mod common;

use std::time::Duration;

use common::{Candidate, Entry, LLAMA, Race, VIT, cpu, feed};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::builder::{Builder, prepare};
use meganeura::nn::models::{LlamaConfig, cnn_classifier, mlp_classifier};
use meganeura::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura::{Adam, Graph, Mode, Session};
use meganeura_bench::is_selected;

/// Builds SmolLM2-135M with `layers` blocks, for one sequence of 128 tokens.
fn language_graph(layers: usize) -> Graph {
    let config = LlamaConfig {
        layers,
        ..LlamaConfig::smollm2_135m()
    };
    let mut g = Graph::new();
    let tokens = g.input_u32("tokens", &[128]);
    let targets = g.input_u32("targets", &[128]);
    let logits = config.build(&mut g, "").forward(&mut g, tokens);
    let loss = g.cross_entropy_loss(logits, targets);
    g.set_outputs(vec![loss, logits]);
    g
}

fn rewriting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rewrite/smollm2-135m training");
    group.sample_size(10);
    let target = SimulatedDevice::discrete_gpu();
    let config = RewriteConfig::default();
    for layers in [4, 30, 60].into_iter().filter(|l| is_selected(&format!("layers/{l}"))) {
        let graph = language_graph(layers);
        let run = || prepare(&graph, Mode::Training, &target, &config, None);
        group.bench_function(BenchmarkId::new("layers", layers), |b| b.iter(run));
        match run() {
            Ok((_, report)) => println!(
                "{layers} layers: saturation {:.1} ms, extraction {:.1} ms, clustering {:.1} ms, exact {}, budget {:?}",
                report.egglog_time.as_secs_f64() * 1e3,
                report.extract_time.as_secs_f64() * 1e3,
                report.cluster_time.as_secs_f64() * 1e3,
                report.extraction_exact,
                report.budget_hit,
            ),
            Err(e) => panic!("{e}"),
        }
    }
    group.finish();
}

/// Creates a session that trains a graph with AdamW; returns it with a report of the passes.
fn session(graph: &Graph, classes: u32, config: &RewriteConfig) -> (Session, String) {
    let optimizer = Some(Adam::adamw(1e-3, 0.05).into());
    let (mut session, report) = match Builder::on(cpu())
        .maybe_optimizer(optimizer)
        .rewrite(config.clone())
        .build(graph)
    {
        Ok((session, report)) => (session, report.to_string()),
        Err(e) => panic!("{e}"),
    };
    feed(&mut session, classes);
    (session, report)
}

const MODELS: &[Entry] = &[
    ("mlp, batch 32", || mlp_classifier(32, 784, 10), 10),
    ("mlp, batch 256", || mlp_classifier(256, 784, 10), 10),
    ("cnn, batch 32, 28x28", || cnn_classifier(32, [1, 28, 28], 10), 10),
    ("cnn, batch 32, 8x8", || cnn_classifier(32, [1, 8, 8], 10), 10),
    LLAMA,
    VIT,
];

/// Returns the number of steps in a turn of about 5 ms.
fn calls(session: &mut Session) -> u32 {
    session.step();
    let start = std::time::Instant::now();
    session.step();
    let step = start.elapsed().max(Duration::from_micros(1));
    (Duration::from_millis(5).as_nanos() / step.as_nanos()).clamp(1, 50) as u32
}

/// Prints the time of each stage of a step.
fn print_stages(session: &mut Session) {
    (0..5).for_each(|_| session.step());
    session.set_profiling(true);
    (0..20).for_each(|_| session.step());
    println!("{}", session.take_timings());
    session.set_profiling(false);
}

fn gains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rewrite/cpu training step");
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(3));
    let clustering = RewriteConfig {
        cluster: true,
        ..RewriteConfig::off()
    };
    for &(name, build, classes) in MODELS.iter().filter(|m| is_selected(m.0)) {
        let graph = build();
        let configs = [RewriteConfig::default(), clustering.clone(), RewriteConfig::off()];
        let mut sessions = configs.map(|config| session(&graph, classes, &config));
        if std::env::var_os("MEGANEURA_BENCH_REPORT").is_some() {
            for (session, report) in &mut sessions {
                println!("{report}");
                print_stages(session);
            }
        }
        let dispatches: Vec<String> = sessions
            .iter()
            .map(|(s, _)| s.plan().step_dispatches().count().to_string())
            .collect();
        let calls = calls(&mut sessions[0].0);
        let names = ["rewritten", "clustered", "plain"];
        let candidates = names.into_iter().zip(sessions).map(|(label, (mut session, _))| {
            let step = move || session.step();
            (label, Box::new(step) as Box<dyn FnMut()>)
        });
        let mut race = Race::new(candidates.collect::<Vec<Candidate>>(), calls);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|turns| race.run(0, turns));
        });
        let [rewritten, clustered, plain] = [0, 1, 2].map(|i| race.seconds(i) * 1e3);
        println!(
            "{name}: {rewritten:.3} ms rewritten, {clustered:.3} ms clustered only, {plain:.3} ms plain: {:.3} times as \
             fast as plain, {:.3} as clustered only; dispatches {}",
            race.ratio(2),
            race.ratio(1),
            dispatches.join(", "),
        );
    }
    group.finish();
}

criterion_group!(benches, rewriting, gains);
criterion_main!(benches);
