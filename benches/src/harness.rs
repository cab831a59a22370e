//! Comparison of devices with criterion.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use meganeura::config::Config;
use meganeura::{Error, Result};

use super::arguments::{filters, selects};
use super::{BenchDevice, Comparison, Distribution, Options, Record, Sizes, Workload, WorkloadCost};

/// Environment variable with selectors of devices, separated by commas.
const DEVICES: &str = "MEGANEURA_BENCH_DEVICES";
/// Environment variable with the size of the workloads: small, medium or large.
const SIZES: &str = "MEGANEURA_BENCH_SIZES";

/// Defines the `main` of a benchmark program that compares the backend of a crate with other devices, such as the CPU backend.
///
/// ```no_run
/// # mod my_backend { pub use meganeura::cpu::PLUGIN; }
/// meganeura_bench::compare!(my_backend, "cpu", "mine");
/// ```
///
/// The first argument is the crate of the backend. It calls `register_plugin!`. The other arguments select devices;
/// the results of all devices are compared with the first one's. The program needs `harness = false` in its `[[bench]]`
/// section. [`compare_devices`] describes what it does.
#[macro_export]
macro_rules! compare {
    ($plugin:ident, $($device:expr),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            if let Err(error) = $crate::meganeura::link_plugins!($plugin) {
                eprintln!("{error}");
                return ::std::process::ExitCode::FAILURE;
            }
            $crate::compare_devices(&[$($device),+])
        }
    };
}

/// Runs the workloads of all suites with criterion on the devices with these selectors, and returns the exit code of the program.
/// Without selectors, all devices take part that are not emulated in software.
///
/// A criterion group has one workload, with one benchmark for each device. Devices take turns within every sample. Before a
/// workload is timed, the results of all devices are compared with those of the first; a device that differs or fails is
/// skipped for this workload, with the reason. After each workload, a line shows the share of the device's peak
/// ([`PeakRates`](crate::PeakRates)). At the end the program writes `meganeura.html`, a page with all results, and
/// `meganeura.json`, which `meganeura bench --compare` reads, to criterion's folder.
///
/// | argument or variable | meaning |
/// | --- | --- |
/// | `cargo bench -- matmul` | only workloads whose suite and name contain `matmul` |
/// | `cargo bench -- --test` | run each workload once, with small sizes, and compare the results |
/// | `MEGANEURA_BENCH_DEVICES=cpu,mine` | selectors of devices, instead of the program's |
/// | `MEGANEURA_BENCH_SIZES=small` | size of the workloads: small, medium or large; by default chosen for the slowest device |
/// | `CRITERION_HOME` | folder of the results; the default is `criterion` in cargo's target folder |
#[must_use]
pub fn compare_devices(selectors: &[&str]) -> ExitCode {
    let folder = output_folder();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(1))
        .output_directory(&folder)
        .configure_from_args();
    match run_all(&mut criterion, selectors, &folder) {
        Ok(()) => {
            criterion.final_summary();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(criterion: &mut Criterion, selectors: &[&str], folder: &Path) -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    // Cargo adds `--bench` in `cargo bench`, and not in `cargo test`.
    let is_test = has("--test") || !has("--bench");
    let filters = filters(&arguments);
    let devices = open(selectors)?;
    let sizes = std::env::var(SIZES).ok().filter(|text| !text.is_empty());
    let options = Options {
        sizes: match sizes {
            Some(text) => Some(text.parse::<Sizes>()?),
            None => is_test.then_some(Sizes::Small),
        },
        ..Options::default()
    };
    for device in &devices {
        println!("{}: {}", device.label(), device.peak_rates);
    }
    println!("workloads are {}", options.sizes(&devices));
    let mut workloads = options.workloads(&devices)?;
    workloads.retain(|workload| selects(&filters, &format!("{}/{}", workload.suite, workload.name)));
    if workloads.is_empty() {
        return Err(Error::misuse(
            format!("no workload contains {}", filters.join(" or ")),
            "run `cargo bench -- --list` for the names",
        ));
    }
    let mut record = Record::new(&devices, options.sizes(&devices));
    for workload in &workloads {
        compare_on(criterion, workload, &devices, &mut record);
    }
    if has("--list") {
        return Ok(());
    }
    save(&record, folder)
}

/// Opens the devices of the environment variable, of the program, or all devices.
fn open(selectors: &[&str]) -> Result<Vec<BenchDevice>> {
    let config = Config::load()?;
    let variable = std::env::var(DEVICES).unwrap_or_default();
    let mut wanted: Vec<&str> = variable.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    if wanted.is_empty() {
        wanted = selectors.to_vec();
    }
    if !wanted.is_empty() {
        let open = |selector| BenchDevice::open(Some(selector), &config);
        return wanted.into_iter().map(open).collect();
    }
    let found = BenchDevice::open_all(&config)?;
    for (selector, reason) in found.skipped {
        println!("{selector} is skipped: {reason}");
    }
    Ok(found.opened)
}

/// Runs a workload on all devices with criterion, and adds the results to the record.
fn compare_on(criterion: &mut Criterion, workload: &Workload, devices: &[BenchDevice], record: &mut Record) {
    let mut comparison = Comparison::new(workload, devices, None);
    // Criterion creates folders from names.
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
    for candidate in comparison.candidates.iter().filter(|c| !c.samples.is_empty()) {
        let spread = Distribution::of(&candidate.samples);
        let roofline = candidate.roofline.map(|roofline| {
            let share = 100.0 * roofline.seconds / spread.median;
            format!(", {share:.0} % of peak ({} bound)", roofline.bound)
        });
        println!(
            "{}: {}: {:.3} ms{}",
            workload.name,
            candidate.label(),
            spread.median * 1e3,
            roofline.unwrap_or_default()
        );
    }
    for skipped in &comparison.skipped {
        println!("{}: {} is skipped: {}", workload.name, skipped.device, skipped.reason);
    }
    record.results.extend(comparison.measurements());
    record.skipped.append(&mut comparison.skipped);
}

/// Returns the throughput for criterion: operations or bytes per run, if there are any.
fn throughput(cost: WorkloadCost) -> Option<Throughput> {
    match (cost.flops, cost.bytes) {
        (0, 0) => None,
        (0, bytes) => Some(Throughput::Bytes(bytes)),
        (elements, bytes) => Some(Throughput::ElementsAndBytes { elements, bytes }),
    }
}

/// Writes the HTML page and the record to a folder.
fn save(record: &Record, folder: &Path) -> Result<()> {
    let (page, json) = (folder.join("meganeura.html"), folder.join("meganeura.json"));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&page, record.html(None)));
    let text = record.to_json()?;
    written.and_then(|()| fs::write(&json, text)).map_err(|e| {
        let message = format!("the results cannot be written to {}: {e}", folder.display());
        Error::misuse(message, "set CRITERION_HOME to a folder that can be written")
    })?;
    println!("page with all results: {}", page.display());
    Ok(())
}

/// Returns criterion's folder: `CRITERION_HOME`, or `criterion` in the target folder of this program.
fn output_folder() -> PathBuf {
    let variable = std::env::var_os("CRITERION_HOME").map(PathBuf::from);
    let target = || {
        // `target/release/deps/PROGRAM`.
        let program = std::env::current_exe().ok()?;
        Some(program.ancestors().nth(3)?.join("criterion"))
    };
    variable.or_else(target).unwrap_or_else(|| "target/criterion".into())
}
