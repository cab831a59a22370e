//! The same work on every device: those that `MEGANEURA_BENCH_DEVICES` names, selectors with commas between them, or all that
//! are found.
//!
//! ```text
//! MEGANEURA_BENCH_DEVICES=cpu,blade:0 cargo bench --bench devices
//! MEGANEURA_PLUGINS=/path/to/libmine.so MEGANEURA_BENCH_DEVICES=cpu,mine cargo bench --bench devices -- matmul
//! ```
//!
//! Backends of plugins are devices like any other. Devices take turns within every sample. Before work is timed, what each
//! device makes of it is compared with what the first does; a device that differs, or cannot do it, is left out and named.
//! A step is timed until it is done. The throughput is in operations, as the operators declare them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Contestant, LLAMA, Race, feed, flops, is_wanted};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use meganeura::backend::{Device, DeviceInfo};
use meganeura::build::build_on;
use meganeura::config::Config;
use meganeura::nn::models::{cnn_classifier, mlp_classifier};
use meganeura::precision::Precision;
use meganeura::{Error, Graph, Mode, Result, Session, Sgd, plugins, select};

/// Selectors with commas between them.
const DEVICES: &str = "MEGANEURA_BENCH_DEVICES";

/// A device that takes part.
struct Entrant {
    /// Its selector, name, driver, and the sum of the plugin that it is from.
    label: String,
    device: Arc<dyn Device>,
}

/// Work by name, its graph, how it is run, and what its ids are below.
struct Work {
    name: &'static str,
    graph: Graph,
    mode: Mode,
    classes: u32,
}

fn inference(name: &'static str, build: impl FnOnce(&mut Graph)) -> Work {
    let mut graph = Graph::new();
    build(&mut graph);
    Work {
        name,
        graph,
        mode: Mode::Inference,
        classes: 2,
    }
}

fn training(name: &'static str, graph: Graph, classes: u32) -> Work {
    Work {
        name,
        graph,
        mode: Mode::Training,
        classes,
    }
}

fn works() -> Vec<Work> {
    let product = |name, size| {
        inference(name, move |g| {
            let [a, b] = ["a", "b"].map(|name| g.input(name, &[size, size]));
            let c = g.matmul(a, b);
            g.set_outputs(vec![c]);
        })
    };
    vec![
        product("matmul 64", 64),
        product("matmul 512", 512),
        inference("softmax, 512 rows of 1024", |g| {
            let x = g.input("x", &[512, 1024]);
            let y = g.softmax(x, -1);
            g.set_outputs(vec![y]);
        }),
        inference("attention, 4 heads of 32, 128 rows", |g| {
            let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, &[128, 4 * 32]));
            let y = g.causal_attention(q, k, v, 4, 4, 32);
            g.set_outputs(vec![y]);
        }),
        training("mlp step, batch 32", mlp_classifier(32, 784, 10), 10),
        training("cnn step, batch 32", cnn_classifier(32, [1, 8, 8], 10), 10),
        training(LLAMA.0, (LLAMA.1)(), LLAMA.2),
    ]
}

fn label(selector: &str, backend: &str, info: &DeviceInfo) -> String {
    let mut parts = vec![selector.to_owned(), info.name.clone()];
    parts.extend(info.driver.clone());
    let plugin = plugins::loaded()
        .into_iter()
        .find(|report| report.name.as_deref() == Some(backend));
    let sum = plugin.and_then(|report| report.sha256);
    parts.extend(sum.map(|sum| format!("sha256 {}", &sum[..8.min(sum.len())])));
    // Criterion makes folders of names.
    parts.join(", ").replace('/', "-")
}

/// The devices that are named; all that can be opened where none is.
fn entrants() -> Result<Vec<Entrant>> {
    let config = Config::load()?;
    let named = std::env::var(DEVICES).unwrap_or_default();
    let named: Vec<&str> = named.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    let open = |selector: &str| {
        let selected = select::select(Some(selector), &config)?;
        let device = selected.open(&config)?;
        let label = label(&selected.selector, &selected.backend.info().name, &selected.info);
        Ok::<_, Error>(Entrant { label, device })
    };
    if !named.is_empty() {
        return named.into_iter().map(open).collect();
    }
    let listing = select::list(&config);
    let found = listing.iter().flat_map(|entry| {
        let devices = entry.devices.as_deref().unwrap_or_default().iter();
        let usable = devices.filter(|info| info.rejected.is_none());
        usable.map(|info| select::selector_of(&entry.name, info))
    });
    let opened = found.filter_map(|selector| {
        let opened = open(&selector);
        opened
            .inspect_err(|error| println!("{selector} is left out: {error}"))
            .ok()
    });
    Ok(opened.collect())
}

/// A session, and what it yields at the first step.
fn prepared(work: &Work, entrant: &Entrant) -> Result<(Session, Vec<f32>)> {
    let optimizer = (work.mode == Mode::Training).then(|| Sgd::new(1e-3).into());
    let (mut session, _) = build_on(&work.graph, entrant.device.clone(), work.mode, optimizer)?;
    session.initialize_parameters(0);
    feed(&mut session, &work.graph, work.classes);
    session.try_step()?;
    session.try_wait()?;
    let output = work.graph.outputs()[0];
    let len = work.graph.ty(output).map_or(0, |ty| ty.numel());
    let found = session.try_read_output(len)?;
    Ok((session, found))
}

/// The largest distance of results, of the largest number; infinite where one is not finite.
fn distance(found: &[f32], wanted: &[f32]) -> f32 {
    let size = wanted.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let pairs = found.iter().zip(wanted);
    pairs.fold(0.0f32, |m, (f, w)| {
        let distance = (f - w).abs();
        if distance.is_finite() {
            m.max(distance / size)
        } else {
            f32::INFINITY
        }
    })
}

/// What results may be off.
fn tolerance(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::Mixed => 2e-2,
    }
}

fn compare(criterion: &mut Criterion, work: &Work, entrants: &[Entrant]) {
    let mut sessions: Vec<(String, Session)> = Vec::new();
    let mut wanted: Option<Vec<f32>> = None;
    for entrant in entrants {
        let (session, found) = match prepared(work, entrant) {
            Ok(prepared) => prepared,
            Err(error) => {
                println!("{}: {} is left out: {error}", work.name, entrant.label);
                continue;
            }
        };
        let precision = session.plan().precision;
        let off = wanted.as_ref().map_or(0.0, |wanted| distance(&found, wanted));
        if off > tolerance(precision) {
            println!(
                "{}: {} is left out: its results are off by {off:.1e}",
                work.name, entrant.label
            );
            continue;
        }
        wanted.get_or_insert(found);
        sessions.push((format!("{}, {precision}", entrant.label), session));
    }
    let Some((_, first)) = sessions.first() else { return };
    let operations = flops(first) as u64;
    let contestants: Vec<Contestant> = sessions
        .iter_mut()
        .map(|(label, session)| {
            let step = || {
                session.step();
                session.wait();
            };
            (label.as_str(), Box::new(step) as Box<dyn FnMut()>)
        })
        .collect();
    let mut race = Race::new(contestants, 2);
    let mut group = criterion.benchmark_group(format!("devices/{}", work.name));
    group.throughput(Throughput::Elements(operations.max(1)));
    let names = race.names();
    for (i, name) in names.iter().enumerate() {
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|turns| race.run(i, turns));
        });
    }
    group.finish();
    for (i, name) in names.iter().enumerate() {
        println!(
            "{}: {name}: {:.3} ms, {:.2} GFLOP/s, {:.2} times the first",
            work.name,
            race.seconds(i) * 1e3,
            operations as f64 / race.seconds(i) * 1e-9,
            race.ratio(i)
        );
    }
}

fn devices(criterion: &mut Criterion) {
    let entrants = match entrants() {
        Ok(entrants) => entrants,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    for work in works().iter().filter(|work| is_wanted(work.name)) {
        compare(criterion, work, &entrants);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = devices
}
criterion_main!(benches);
