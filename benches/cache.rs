//! Benchmarks of cached plans: the time to build a plan, the time to read it from a file, and the sizes of its files.
//!
//! `read` includes everything: the hash of the graph, the checksum, parsing, constants, verification.

mod common;

use std::path::Path;
use std::time::Duration;

use common::cpu;
use criterion::{Criterion, criterion_group, criterion_main};
use meganeura::Graph;
use meganeura::builder::Builder;
use meganeura::cache::{load_plan, save_plan};
use meganeura::nn::models::preset;
use meganeura_bench::is_selected;

/// Builds a graph with a table of 256 MB; a step adds up some of its rows.
fn large_constant() -> Graph {
    const ROWS: usize = 1 << 16;
    const COLUMNS: usize = 1 << 10;
    let mut g = Graph::new();
    let x = g.parameter("x", &[COLUMNS]);
    let table = (0..ROWS * COLUMNS).map(|i| (i % 1000) as f32 * 1e-3).collect();
    let table = g.constant(table, &[ROWS, COLUMNS]);
    let scaled = g.mul(table, x);
    let loss = g.mean_all(scaled);
    g.set_outputs(vec![loss]);
    g
}

fn kilobytes(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|e| e.metadata().ok().map(|m| m.len() / 1000));
    sizes.collect()
}

fn starts(criterion: &mut Criterion) {
    let known = |name: &str| {
        preset(name)
            .map(|p| p.graph(p.rows))
            .unwrap_or_else(|| panic!("no {name}"))
    };
    let graphs: [(&str, &dyn Fn() -> Graph); 3] = [
        ("smollm2-135m", &|| known("smollm2-135m")),
        ("resnet50", &|| known("resnet50")),
        ("a constant of 256 MB", &large_constant),
    ];
    let mut group = criterion.benchmark_group("cache/cpu training step");
    group.sample_size(10).warm_up_time(Duration::from_millis(300));
    for (name, build) in graphs.iter().filter(|(name, _)| is_selected(name)) {
        let graph = build();
        let make = || match Builder::on(cpu()).plan(&graph) {
            Ok((plan, _)) => plan,
            Err(e) => panic!("{e}"),
        };
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let path = folder.path().join("plan.ron");
        save_plan(&make(), &graph, &path).unwrap_or_else(|e| panic!("{e}"));
        println!("{name}: files of {:?} kB", kilobytes(folder.path()));
        group.bench_function(format!("make, {name}"), |b| b.iter(&make));
        group.bench_function(format!("read, {name}"), |b| b.iter(|| load_plan(&graph, &path)));
    }
    group.finish();
}

criterion_group!(benches, starts);
criterion_main!(benches);
