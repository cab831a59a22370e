//! Benchmarks of whole models on the CPU: inference of ResNet-50, and a training step of each model.
//!
//! The line after each model contains its share of the rate of a large matmul, by the operations that its operators declare.

mod common;

use std::time::Duration;

use common::{Candidate, Race, cpu, feed, flops, inference, product};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::builder::Builder;
use meganeura::nn::models::{
    LlamaConfig, ResNetConfig, UnetConfig, VitConfig, classifier, cnn_classifier, language_model, mlp_classifier,
    segmentation,
};
use meganeura::{Adam, Graph, Session};
use meganeura_bench::is_selected;

fn training(graph: &Graph, classes: u32) -> Session {
    let mut session = match Builder::on(cpu()).optimizer(Adam::adamw(1e-3, 0.05)).build(graph) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    };
    feed(&mut session, classes);
    session
}

/// Number of rows of the square matmul whose rate is the reference.
const SIDE: usize = 768;

fn bench(criterion: &mut Criterion, name: &str, mut session: Session) {
    let (flops, memory) = (flops(&session), session.memory_summary());
    let (dispatches, mut product) = (session.plan().step_dispatches().count(), product(SIDE));
    let candidates: Vec<Candidate> = vec![
        ("model", Box::new(move || session.step())),
        ("product", Box::new(move || product.step())),
    ];
    let mut race = Race::new(candidates, 1);
    let mut group = criterion.benchmark_group("models/cpu");
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        b.iter_custom(|turns| race.run(0, turns));
    });
    group.finish();
    let rate = 2.0 * (SIDE * SIDE * SIDE) as f64 / race.seconds(1);
    println!(
        "{name}: {:.2} ms, {dispatches} dispatches, {:.2} GFLOP, {:.1} GFLOP/s, {:.2} of the matmul rate; {memory}",
        race.seconds(0) * 1e3,
        flops * 1e-9,
        flops / race.seconds(0) * 1e-9,
        flops / rate / race.seconds(0),
    );
}

fn resnet50() -> Session {
    let config = ResNetConfig::resnet50(1000).folded(true);
    let mut g = Graph::new();
    let x = g.input("x", &[1, 3, 224, 224]);
    let y = config.build(&mut g, "").forward(&mut g, x);
    g.set_outputs(vec![y]);
    let mut session = inference(&g);
    feed(&mut session, 1);
    session
}

/// Name of a model, and function that builds its session on demand.
type Entry = (&'static str, fn() -> Session);

const MODELS: &[Entry] = &[
    ("resnet50 inference, batch 1, 224x224, folded", resnet50),
    ("mlp training, batch 32", || training(&mlp_classifier(32, 784, 10), 10)),
    ("cnn training, batch 32, 8x8", || {
        training(&cnn_classifier(32, [1, 8, 8], 10), 10)
    }),
    ("resnet18 training, batch 8, 32x32", || {
        let config = ResNetConfig::resnet18(10).small_images(true);
        let graph = classifier(8, &[3, 32, 32], |g, x| config.build(g, "").forward(g, x));
        training(&graph, 10)
    }),
    ("resnet50 training, batch 2, 128x128", || {
        let config = ResNetConfig::resnet50(1000);
        let graph = classifier(2, &[3, 128, 128], |g, x| config.build(g, "").forward(g, x));
        training(&graph, 1000)
    }),
    ("llama training, 4 blocks of 128, batch 4, 128 tokens", || {
        let config = LlamaConfig::small(1000);
        let graph = language_model(4, 128, |g, tokens| config.build(g, "").forward(g, tokens));
        training(&graph, 1000)
    }),
    ("vit training, 4 blocks of 64, batch 16, 32x32", || {
        let config = VitConfig::new([3, 32, 32], 4, 10);
        let graph = classifier(16, &[3, 32, 32], |g, x| config.build(g, "").forward(g, x));
        training(&graph, 10)
    }),
    ("unet training, width 16, batch 4, 64x64", || {
        let config = UnetConfig::new(3, 4);
        let graph = segmentation(4, [3, 64, 64], |g, x| config.build(g, "").forward(g, x));
        training(&graph, 4)
    }),
];

fn models(criterion: &mut Criterion) {
    for (name, build) in MODELS {
        if is_selected(name) {
            bench(criterion, name, build());
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
