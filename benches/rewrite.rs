//! Rewriting: how long it takes on training graphs of a language model, and what it gains on the CPU.
//!
//! The line after each model has the ratio of a training step without rewriting and clustering to one with them,
//! measured by turns in one run.

mod common;

use common::{Contestant, Race, cpu, noise};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::build::{build_rewritten, prepare};
use meganeura::graph::NodeKind;
use meganeura::nn::models::{LlamaConfig, cnn_classifier, language_model, mlp_classifier};
use meganeura::rewrite::{Modelled, RewriteConfig};
use meganeura::{Adam, DType, Graph, Mode, Session};

/// SmolLM2-135M with so many blocks, on one sequence of 128 tokens.
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
    let target = Modelled::discrete_gpu();
    let config = RewriteConfig::default();
    for layers in [4, 30, 60] {
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

fn session(graph: &Graph, config: &RewriteConfig) -> Session {
    let optimizer = Some(Adam::adamw(1e-3, 0.05).into());
    let mut session = match build_rewritten(graph, cpu(), Mode::Training, optimizer, config) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    };
    session.initialize_parameters(0);
    for node in graph.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Input)) {
        let name = node.name.as_deref().unwrap_or_default();
        let len = node.outputs[0].numel();
        if node.outputs[0].dtype == DType::U32 {
            let ids: Vec<u32> = (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761) % 10).collect();
            session.set_input_u32(name, &ids);
        } else {
            session.set_input(name, &noise(len));
        }
    }
    session
}

type Entry = (&'static str, fn() -> Graph);

const MODELS: &[Entry] = &[
    ("mlp, batch 32", || mlp_classifier(32, 784, 10)),
    ("cnn, batch 32, 28x28", || cnn_classifier(32, [1, 28, 28], 10)),
    ("llama, 4 blocks of 128, batch 4, 128 tokens", || {
        let config = LlamaConfig::small(1000);
        language_model(4, 128, |g, tokens| config.build(g, "").forward(g, tokens))
    }),
];

fn gains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rewrite/cpu training step");
    for (name, build) in MODELS {
        let graph = build();
        let mut rewritten = session(&graph, &RewriteConfig::default());
        let mut plain = session(&graph, &RewriteConfig::off());
        let dispatches = (plain.plan().dispatches.len(), rewritten.plan().dispatches.len());
        let contestants: Vec<Contestant> = vec![
            ("rewritten", Box::new(move || rewritten.step())),
            ("plain", Box::new(move || plain.step())),
        ];
        let mut race = Race::new(contestants, 1);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|turns| race.run(0, turns));
        });
        println!(
            "{name}: {:.3} ms rewritten, {:.3} ms plain, {:.2}x faster; {} -> {} dispatches",
            race.seconds(0) * 1e3,
            race.seconds(1) * 1e3,
            race.seconds(1) / race.seconds(0),
            dispatches.0,
            dispatches.1,
        );
    }
    group.finish();
}

criterion_group!(benches, rewriting, gains);
criterion_main!(benches);
