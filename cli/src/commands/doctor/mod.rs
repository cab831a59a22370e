//! `meganeura doctor`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use meganeura::backend::{Device, DeviceInfo, Fact};
use meganeura::calibration::{Calibrated, Calibration, Rates};
use meganeura::config::Config;
use meganeura::measure_rates;
use meganeura::registry::KNOWN_BACKENDS;
use meganeura::select::{self, BackendListing, SelectedDevice};
use meganeura_conformance::{Options, Report, Section, run as run_cases, wrong_special_values};
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::output::{aligned, line, lines};

/// Cases of the conformance suite that the self-test runs: steps of small models against the reference.
const SELF_TEST: &str = "training/mlp/";

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// Skip the self-test and the measurements.
    #[arg(long)]
    list: bool,

    /// Save the measured rates to FILE. Entries of FILE for other devices are kept. With MEGANEURA_CALIBRATION=FILE, or
    /// `calibration = "FILE"` in meganeura.toml, the cost model of graph rewriting uses these rates.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    calibrate: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let config = Config::load()?;
    let listing = select::list(&config);
    // A file that cannot be read is an error before anything is measured.
    let calibration = args.calibrate.as_deref().map(kept).transpose()?;
    let mut found: Vec<DoctorReport> = Vec::new();
    if !args.json {
        let host = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        line(format_args!("meganeura {} on {host}", env!("CARGO_PKG_VERSION")))?;
    }
    for entry in &listing {
        let findings = DoctorReport::of(entry, &config, !args.list);
        if !args.json {
            findings.show(entry)?;
        }
        found.push(findings);
    }
    let automatic = select::select(Some("auto"), &config);
    let in_use = select::select(None, &config);
    if args.json {
        let backends: Vec<Value> = listing.iter().zip(&found).map(|(e, f)| f.object(e)).collect();
        line(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "backends": backends,
            "automatic": choice(&automatic),
            "in_use": choice(&in_use),
        }))?;
    } else {
        for known in KNOWN_BACKENDS {
            if !listing.iter().any(|e| e.name == known.name) {
                line(format_args!("\n{}: not linked: {}", known.name, known.how))?;
            }
        }
        line("")?;
        match &automatic {
            Ok(s) => line(format_args!("automatic choice: {} ({})", s.selector, s.info.name))?,
            Err(error) => line(format_args!("automatic choice: none: {error}"))?,
        }
        match &in_use {
            Ok(s) => line(format_args!(
                "in use: {} ({}), chosen by {}",
                s.selector, s.info.name, s.source
            ))?,
            Err(error) => line(format_args!("in use: none: {error}"))?,
        }
    }
    if let (Some(path), Some(calibration)) = (&args.calibrate, calibration) {
        let count = calibrate(path, calibration, &listing, &found)?;
        if !args.json {
            line(format_args!(
                "\nrates of {count} devices are saved in {}",
                path.display()
            ))?;
        }
    }
    let failed = found.iter().flat_map(|f| &f.devices).any(DeviceReport::has_failed);
    Ok(if failed || in_use.is_err() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns the calibration in an existing file.
fn kept(path: &Path) -> meganeura::Result<Calibration> {
    if path.exists() {
        Calibration::read(path)
    } else {
        Ok(Calibration::default())
    }
}

/// Writes the measured rates to a file, and keeps its other entries; returns the number of devices.
fn calibrate(
    path: &Path,
    mut calibration: Calibration,
    listing: &[BackendListing],
    found: &[DoctorReport],
) -> meganeura::Result<usize> {
    let mut count = 0;
    for (entry, findings) in listing.iter().zip(found) {
        for device in &findings.devices {
            if let Some(Ok(DeviceTest { rates: Ok(rates), .. })) = &device.health {
                calibration.set(Calibrated::new(&entry.name, &device.info, rates));
                count += 1;
            }
        }
    }
    calibration.write(path)?;
    Ok(count)
}

fn rates_object(rates: &Rates) -> Value {
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    json!({
        "step_us": micros(rates.step),
        "launch_us": micros(rates.launch),
        "copy_bytes_per_second": rates.bytes_per_second,
        "matmul_edge": rates.edge,
        "matmul_flops_per_second": rates.flops_per_second,
        "matmul_mixed_flops_per_second": rates.mixed_flops_per_second,
    })
}

fn choice(selected: &meganeura::Result<SelectedDevice>) -> Value {
    match selected {
        Ok(s) => json!({ "selector": s.selector, "name": s.info.name, "chosen_by": s.source.to_string() }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// Environment and devices of a backend.
struct DoctorReport {
    environment: Vec<Fact>,
    devices: Vec<DeviceReport>,
}

/// A device and the results of its examination.
struct DeviceReport {
    info: DeviceInfo,
    /// None for a rejected device and with `--list`.
    health: Option<Result<DeviceTest, String>>,
}

/// Self-test and measurements of a device that could be opened.
struct DeviceTest {
    test: Report,
    /// Expressions with wrong results for NaN and infinity.
    wrong_special_values: Result<Vec<&'static str>, String>,
    rates: Result<Rates, String>,
}

impl DoctorReport {
    fn of(entry: &BackendListing, config: &Config, examine: bool) -> Self {
        let devices = entry.devices.as_deref().unwrap_or_default();
        let examined = devices.iter().map(|info| DeviceReport {
            health: (examine && info.rejected.is_none()).then(|| {
                let device = entry.backend.open(info.index, config).map_err(|e| e.to_string())?;
                Ok(DeviceTest::of(&device))
            }),
            info: info.clone(),
        });
        DoctorReport {
            environment: entry.backend.environment(),
            devices: examined.collect(),
        }
    }

    fn show(&self, entry: &BackendListing) -> std::io::Result<()> {
        let about = entry.backend.info();
        line(format_args!(
            "\n{}, from {} {}",
            about.name, about.origin, about.version
        ))?;
        show_facts(&self.environment, "  ")?;
        if let Err(error) = &entry.devices {
            line(format_args!("  failed: {error}"))?;
        } else if self.devices.is_empty() {
            let why = entry
                .backend
                .unavailable_reason()
                .unwrap_or_else(|| "unknown reason".into());
            line(format_args!("  no devices: {why}"))?;
        }
        for device in &self.devices {
            lines(
                format_args!("  {}", select::format_device(&entry.name, &device.info)),
                15,
            )?;
            show_facts(&device.info.details, "    ")?;
            device.show_health()?;
        }
        Ok(())
    }

    fn object(&self, entry: &BackendListing) -> Value {
        let about = entry.backend.info();
        json!({
            "name": about.name,
            "version": about.version,
            "origin": about.origin,
            "environment": facts_object(&self.environment),
            "error": entry.devices.as_ref().err().map(ToString::to_string),
            "unavailable_reason": entry.backend.unavailable_reason(),
            "devices": self.devices.iter().map(|d| d.object(&entry.name)).collect::<Vec<_>>(),
        })
    }
}

fn show_facts(facts: &[Fact], indent: &str) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = facts.iter().map(|f| vec![f.name.clone(), f.value.clone()]).collect();
    let name = facts.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    aligned(&rows)
        .iter()
        .try_for_each(|row| lines(format_args!("{indent}{row}"), indent.len() + name + 2))
}

fn facts_object(facts: &[Fact]) -> Map<String, Value> {
    facts.iter().map(|f| (f.name.clone(), json!(f.value))).collect()
}

impl DeviceReport {
    fn has_failed(&self) -> bool {
        match &self.health {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(health)) => !health.test.is_ok() || health.rates.is_err(),
        }
    }

    fn show_health(&self) -> std::io::Result<()> {
        let health = match &self.health {
            None => return Ok(()),
            Some(Err(error)) => return line(format_args!("    cannot be opened: {error}")),
            Some(Ok(health)) => health,
        };
        let (test, seconds) = (&health.test, health.test.elapsed.as_secs_f64());
        line(format_args!(
            "    self-test: {} of {} cases agree with the reference ({seconds:.1} s)",
            test.passed(),
            test.cases.len()
        ))?;
        for case in test.failures() {
            line(format_args!("      {}: {}", case.id, case.outcome.detail()))?;
        }
        match &health.wrong_special_values {
            Ok(wrong) if wrong.is_empty() => line("    NaN and infinity: kept")?,
            Ok(wrong) => lines(
                format_args!(
                    "    NaN and infinity: lost in {}; the driver assumes finite numbers, so results with NaN or infinity \
                     may be finite (docs/devices.md)",
                    wrong.join(", ")
                ),
                6,
            )?,
            Err(error) => line(format_args!("    NaN and infinity: {error}"))?,
        }
        match &health.rates {
            Ok(rates) => lines(format_args!("    measured: {rates}"), 6),
            Err(error) => line(format_args!("    measuring failed: {error}")),
        }
    }

    fn object(&self, backend: &str) -> Value {
        let mut object = super::devices::object(backend, &self.info);
        object["details"] = json!(facts_object(&self.info.details));
        match &self.health {
            None => {}
            Some(Err(error)) => object["open_error"] = json!(error),
            Some(Ok(health)) => {
                let failures = health.test.failures();
                let failures = failures.map(|c| json!({ "case": c.id, "message": c.outcome.detail() }));
                object["self_test"] = json!({
                    "passed": health.test.passed(),
                    "cases": health.test.cases.len(),
                    "failures": failures.collect::<Vec<_>>(),
                });
                object["wrong_special_values"] = match &health.wrong_special_values {
                    Ok(wrong) => json!(wrong),
                    Err(error) => json!({ "error": error }),
                };
                object["measured"] = match &health.rates {
                    Ok(rates) => rates_object(rates),
                    Err(error) => json!({ "error": error }),
                };
            }
        }
        object
    }
}

impl DeviceTest {
    fn of(device: &Arc<dyn Device>) -> Self {
        let options = Options {
            filter: Some(SELF_TEST.into()),
            sections: vec![Section::Training],
            ..Options::default()
        };
        let test = run_cases(device.clone(), &options);
        DeviceTest {
            test,
            wrong_special_values: guarded(|| wrong_special_values(device)),
            rates: guarded(|| measure_rates(device)),
        }
    }
}

/// Returns the result of `f`, or an error if a defective backend panics.
fn guarded<T>(f: impl FnOnce() -> meganeura::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(found) => found.map_err(|e| e.to_string()),
        Err(_) => Err("the backend panicked".into()),
    }
}
