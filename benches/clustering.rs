//! Training steps with and without clustering, on graphs that are the same otherwise.
//!
//! The line after each model has the ratio of the two times, median over turns, and the number of dispatches.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Contestant, Race, cpu, noise};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::backend::Device;
use meganeura::build::prepare;
use meganeura::cluster::cluster;
use meganeura::graph::NodeKind;
use meganeura::nn::models::{LlamaConfig, VitConfig, classifier, cnn_classifier, language_model, mlp_classifier};
use meganeura::plan::compile_for;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, DType, Graph, Mode, Result, Session, Update};

/// A session that trains a graph, with its gradients and as it is.
fn session(graph: &Graph, device: &Arc<dyn Device>, classes: u32) -> Result<Session> {
    let update = Update::from(Adam::adamw(1e-3, 0.05));
    let mut session = Session::on(device.clone(), compile_for(graph, &**device)?)?;
    session.try_set_optimizer(update)?;
    session.initialize_parameters(0);
    for node in graph.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Input)) {
        let name = node.name.as_deref().unwrap_or_default();
        let len = node.outputs[0].numel();
        if node.outputs[0].dtype == DType::U32 {
            let ids: Vec<u32> = (0..len as u32)
                .map(|i| i.wrapping_mul(2_654_435_761) % classes)
                .collect();
            session.set_input_u32(name, &ids);
        } else {
            session.set_input(name, &noise(len));
        }
    }
    Ok(session)
}

fn bench(criterion: &mut Criterion, name: &str, graph: &Graph, classes: u32) -> Result<()> {
    let device = cpu();
    let (plain, _) = prepare(graph, Mode::Training, &device, &RewriteConfig::off(), None)?;
    let (clustered, report) = cluster(&plain, &device)?;
    let [mut before, mut after] = [
        session(&plain, &device, classes)?,
        session(&clustered, &device, classes)?,
    ];
    if std::env::var_os("MEGANEURA_BENCH_REPORT").is_some() {
        println!("{report}");
        for session in [&mut before, &mut after] {
            session.step();
            session.set_profiling(true);
            (0..5).for_each(|_| session.step());
            println!("{}", session.take_timings());
            session.set_profiling(false);
        }
    }
    let dispatches = [&before, &after].map(|s| s.plan().dispatches.len());
    let contestants: Vec<Contestant> = vec![
        ("clustered", Box::new(move || after.step())),
        ("plain", Box::new(move || before.step())),
    ];
    let mut race = Race::new(contestants, 2);
    let mut group = criterion.benchmark_group("clustering/cpu");
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        b.iter_custom(|turns| race.run(0, turns));
    });
    group.finish();
    println!(
        "{name}: {:.3} ms clustered, {:.3} ms plain, {:.3} times as fast; {} of {} dispatches; clustering took {:.1} ms",
        race.seconds(0) * 1e3,
        race.seconds(1) * 1e3,
        race.ratio(1),
        dispatches[1],
        dispatches[0],
        report.time.as_secs_f64() * 1e3
    );
    Ok(())
}

/// A model by name, built only if it is asked for.
type Entry = (&'static str, fn() -> Graph, u32);

const MODELS: &[Entry] = &[
    ("mlp training, batch 32", || mlp_classifier(32, 784, 10), 10),
    ("mlp training, batch 256", || mlp_classifier(256, 784, 10), 10),
    ("cnn training, batch 32, 8x8", || cnn_classifier(32, [1, 8, 8], 10), 10),
    (
        "llama training, 4 blocks of 128, batch 4, 128 tokens",
        || {
            let config = LlamaConfig::small(1000);
            language_model(4, 128, |g, tokens| config.build(g, "").forward(g, tokens))
        },
        1000,
    ),
    (
        "vit training, 4 blocks of 64, batch 16, 32x32",
        || {
            let config = VitConfig::new([3, 32, 32], 4, 10);
            classifier(16, &[3, 32, 32], |g, x| config.build(g, "").forward(g, x))
        },
        10,
    ),
];

fn models(criterion: &mut Criterion) {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for (name, build, classes) in MODELS {
        if (filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())))
            && let Err(e) = bench(criterion, name, &build(), *classes)
        {
            panic!("{e}");
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(2));
    targets = models
}
criterion_main!(benches);
