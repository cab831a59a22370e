//! The workloads of `meganeura bench --suite` under criterion: on the devices that `MEGANEURA_BENCH_DEVICES` names (selectors,
//! separated by commas), or on all devices except those emulated in software.
//!
//! ```text
//! MEGANEURA_BENCH_DEVICES=cpu,blade:0 cargo bench -p meganeura-bench --bench devices
//! MEGANEURA_PLUGINS=/path/to/libmine.so MEGANEURA_BENCH_DEVICES=cpu,mine cargo bench -p meganeura-bench --bench devices -- matmul
//! ```
//!
//! `-- matmul` runs the workloads whose suite and name (`matmul/matmul 64x64x64`) contain it; `MEGANEURA_BENCH_SIZES` is small,
//! medium or large, by default chosen for the slowest device. Devices take turns within every sample. Before a workload is
//! timed, the results of all devices are compared with that of the first; a device that differs or fails is left out and named.
//! Throughput is in FLOPs and bytes, as operators declare them; the line after each workload has its share of the device's
//! peak ([`meganeura_bench`]).

mod common;

use std::time::Duration;

use common::is_wanted;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use meganeura::Result;
use meganeura::config::Config;
use meganeura_bench::{BenchDevice, Comparison, Options, Sizes, Spread, Workload, WorkloadCost};

/// Selectors, separated by commas.
const DEVICES: &str = "MEGANEURA_BENCH_DEVICES";
/// Size of the workloads.
const SIZES: &str = "MEGANEURA_BENCH_SIZES";

/// The devices that are named; all that can be opened where none is.
fn devices() -> Result<Vec<BenchDevice>> {
    let config = Config::load()?;
    let named = std::env::var(DEVICES).unwrap_or_default();
    let named: Vec<&str> = named.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    if !named.is_empty() {
        return named
            .into_iter()
            .map(|selector| BenchDevice::open(Some(selector), &config))
            .collect();
    }
    let found = BenchDevice::open_all(&config)?;
    for (selector, reason) in found.skipped {
        println!("{selector} is left out: {reason}");
    }
    Ok(found.opened)
}

fn workloads(devices: &[BenchDevice]) -> Result<Vec<Workload>> {
    let sizes = std::env::var(SIZES).ok().filter(|text| !text.is_empty());
    let options = Options {
        sizes: sizes.map(|text| text.parse::<Sizes>()).transpose()?,
        ..Options::default()
    };
    println!("workloads are {}", options.sizes(devices));
    options.workloads(devices)
}

/// What criterion counts: operations and bytes, as far as there are any.
fn throughput(cost: WorkloadCost) -> Option<Throughput> {
    match (cost.flops, cost.bytes) {
        (0, 0) => None,
        (0, bytes) => Some(Throughput::Bytes(bytes)),
        (elements, bytes) => Some(Throughput::ElementsAndBytes { elements, bytes }),
    }
}

fn compare(criterion: &mut Criterion, workload: &Workload, devices: &[BenchDevice]) {
    let mut comparison = Comparison::new(workload, devices, None);
    // Criterion makes folders of names.
    let as_name = |text: &str| text.replace('/', "-");
    let mut group = criterion.benchmark_group(format!("{}/{}", workload.suite, as_name(&workload.name)));
    let mut at = 0;
    while let Some(candidate) = comparison.candidates.get(at) {
        let id = BenchmarkId::from_parameter(as_name(&candidate.label()));
        if let Some(throughput) = throughput(candidate.prepared.cost) {
            group.throughput(throughput);
        }
        group.bench_function(id, |b| {
            b.iter_custom(|turns| {
                let mut seconds = 0.0;
                for _ in 0..turns {
                    comparison.turn();
                    let sample = comparison.candidates.get(at).and_then(|c| c.samples.last());
                    seconds += sample.copied().unwrap_or_default();
                }
                Duration::from_secs_f64(seconds)
            });
        });
        at += 1;
    }
    group.finish();
    for candidate in &comparison.candidates {
        let spread = Spread::of(&candidate.samples);
        let roofline = candidate.roofline.map(|roofline| {
            format!(
                ", {:.0} % of peak ({} bound)",
                100.0 * roofline.seconds / spread.median,
                roofline.bound
            )
        });
        println!(
            "{}: {}: {:.3} ms{}",
            workload.name,
            candidate.label(),
            spread.median * 1e3,
            roofline.unwrap_or_default()
        );
    }
    for left in &comparison.skipped {
        println!("{}: {} is left out: {}", workload.name, left.device, left.reason);
    }
}

fn all(criterion: &mut Criterion) {
    let measured = devices().and_then(|devices| {
        for device in &devices {
            println!("{}: {}", device.label(), device.peak_rates);
        }
        let workloads = workloads(&devices)?;
        let wanted = |workload: &&Workload| is_wanted(&format!("{}/{}", workload.suite, workload.name));
        workloads
            .iter()
            .filter(wanted)
            .for_each(|workload| compare(criterion, workload, &devices));
        Ok(())
    });
    if let Err(error) = measured {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(1));
    targets = all
}
criterion_main!(benches);
