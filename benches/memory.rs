//! Benchmarks of the memory of training steps, and of the cost of reducing it.
//!
//! For each model, a line contains the memory of the plan. For each budget, a line contains the memory, the estimated slow-down,
//! and the measured one: the median over turns of the time of a step with the budget divided by that of a step without. Updates
//! are not included. Well-known models are too large to be measured; their lines contain only estimates.

mod common;

use std::time::Duration;

use common::{Candidate, Entry, LLAMA, Race, VIT, cpu, feed};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::builder::Builder;
use meganeura::nn::models::{ResNetConfig, classifier, preset};
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, Session};
use meganeura_bench::is_selected;

const BUDGETS: [&str; 4] = ["75%:step", "50%:step", "40%:step", "50%"];

fn config(budget: Option<&str>) -> RewriteConfig {
    let parsed = budget.map(str::parse).transpose();
    RewriteConfig {
        memory_budget: parsed.unwrap_or_else(|e| panic!("{e}")),
        ..RewriteConfig::default()
    }
}

/// Prints the memory forecasts of plans of large models.
fn forecasts() {
    for (name, rows) in [("smollm2-135m", 512), ("resnet50", 8)] {
        let Some(preset) = preset(name).filter(|_| is_selected(name)) else {
            continue;
        };
        let graph = preset.graph(rows);
        match Builder::on(cpu()).rewrite(config(None)).plan(&graph) {
            Ok((plan, _)) => {
                let forecast = plan.memory_forecast();
                println!(
                    "{name}, {rows} rows: {forecast}; lower bound {:.1} MB",
                    forecast.lower_bound as f64 / 1e6
                );
            }
            Err(e) => panic!("{e}"),
        }
        for budget in BUDGETS {
            match Builder::on(cpu()).rewrite(config(Some(budget))).plan(&graph) {
                Ok((plan, _)) => println!("  {budget}: {}", plan.recomputation.unwrap_or_default()),
                Err(e) => println!("  {budget}: {e}"),
            }
        }
    }
}

const MODELS: &[Entry] = &[
    (
        "resnet50, batch 8, 64x64",
        || {
            let config = ResNetConfig::resnet50(100);
            classifier(8, &[3, 64, 64], |g, x| config.build(g, "").forward(g, x))
        },
        100,
    ),
    LLAMA,
    VIT,
];

fn session(graph: &Graph, classes: u32, budget: Option<&str>) -> Option<Session> {
    let built = Builder::on(cpu()).rewrite(config(budget)).build(graph);
    let (mut session, _) = match (built, budget) {
        (Ok(built), _) => built,
        (Err(e), Some(budget)) => {
            println!("  {budget}: {e}");
            return None;
        }
        (Err(e), None) => panic!("{e}"),
    };
    feed(&mut session, classes);
    Some(session)
}

fn recomputation(criterion: &mut Criterion) {
    forecasts();
    let mut group = criterion.benchmark_group("memory/cpu training step");
    group.sample_size(10).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(20));
    for &(name, build, classes) in MODELS.iter().filter(|m| is_selected(m.0)) {
        let graph = build();
        let Some(mut plain) = session(&graph, classes, None) else {
            continue;
        };
        println!("{name}: {}", plain.plan().memory_forecast());
        let with = BUDGETS
            .iter()
            .filter_map(|b| Some((*b, session(&graph, classes, Some(b))?)));
        let (mut said, mut candidates): (Vec<(&str, String)>, Vec<Candidate>) = (Vec::new(), Vec::new());
        candidates.push(("all kept", Box::new(move || plain.step())));
        for (budget, mut session) in with {
            let what = session.plan().recomputation.as_ref().map(ToString::to_string);
            said.push((budget, what.unwrap_or_default()));
            candidates.push((budget, Box::new(move || session.step())));
        }
        let mut race = Race::new(candidates, 1);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|turns| race.run(0, turns));
        });
        println!("{name}: {:.2} ms with all kept", race.seconds(0) * 1e3);
        for (i, (budget, what)) in said.iter().enumerate() {
            println!(
                "  {budget}: {what}; measured {:.1} % more",
                (race.ratio(i + 1) - 1.0) * 100.0
            );
        }
    }
    group.finish();
}

criterion_group!(benches, recomputation);
criterion_main!(benches);
