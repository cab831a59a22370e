//! Command `meganeura bench`: single workloads here; suites, their table and loss curves in separate files.

mod curves;
pub(super) mod suites;
mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meganeura::backend::DeviceKind;
use meganeura::builder::Builder;
use meganeura::calibration::warm_up;
use meganeura::config::Config;
use meganeura::nn::models::{KV_POS, LOGITS_ROW};
use meganeura::precision::Precision;
use meganeura::{Mode, Session, measure_rates, select};
use meganeura_bench::{Sizes, feed, metric};
use serde_json::json;

use super::Outcome;
use super::precision::Choice;
use super::workload::ModelOptions;
use crate::output::line;

/// Exclusive upper bound of ids in inputs, small enough for every vocabulary.
const CLASSES: u32 = 2;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workloads: names of models (`meganeura explain` lists them), checkpoint folders and GGUF files (their shapes
    /// with random weights), ONNX files, and matmuls such as 4096x4096x4096 (m, n, k).
    #[arg(required_unless_present = "suite", conflicts_with = "suite", value_name = "WORKLOAD")]
    workload: Vec<String>,

    /// Run the workloads of a suite, each with its roofline bound: matmul, attention, pointwise, norm, conv, optimizer,
    /// models, session, or all. Separate several with commas.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suites::suites)]
    suite: Vec<suites::Suites>,

    /// Devices to run on; see `meganeura devices`. Separate several with commas: samples alternate between them, and
    /// their results are compared before the measurement. For suites, `all` selects every device except those emulated
    /// in software.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// Size of the workloads: small, medium or large [default: depends on the speed of the slowest device]
    #[arg(long, value_name = "SIZES", value_parser = suites::sizes)]
    sizes: Option<Sizes>,

    /// With --suite: run only workloads whose names contain this text.
    #[arg(long, value_name = "PART")]
    only: Option<String>,

    /// Number of samples per workload and device, at least 3; long workloads use fewer.
    #[arg(long, value_name = "N", default_value = "11", value_parser = suites::samples)]
    samples: usize,

    /// Compare with the JSON output of an earlier run, and mark changes that exceed the measurement noise.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Write an HTML page with the utilization of each workload (as a share of the device's peak), rooflines, and
    /// charts of speed by size.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Instead of measuring time, train the workloads for this number of steps on one batch, in f32 and in mixed
    /// precision, and compare the losses with those of f32 on the first device. Needs --train or a suite with models.
    #[arg(long, value_name = "STEPS", value_parser = curves::steps,
        conflicts_with_all = ["samples", "compare", "html", "steps", "passes", "cache", "operands"])]
    curve: Option<usize>,

    #[command(flatten)]
    models: ModelOptions,

    /// Precision of matmuls and convolutions [default: from the configuration file, else from the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Number of measured steps. They are submitted without waiting for each; then as many are measured with a wait
    /// after each. Before both, a quarter of this number runs as a warm-up. On a GPU, the warm-up continues for at
    /// least half a second, until steps no longer get faster or three seconds have passed.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "suite")]
    steps: u32,

    /// Also print the model-FLOPs utilization (MFU): the FLOP/s of the workload divided by the FLOP/s of a large matmul in the
    /// same precision. The command measures this matmul first.
    #[arg(long, conflicts_with_all = ["suite", "curve"])]
    utilization: bool,

    /// Print one JSON object per workload. With --suite, print one object for all workloads; --compare reads it.
    #[arg(long)]
    json: bool,

    /// Also print the time of each dispatch.
    #[arg(long, conflicts_with_all = ["json", "suite"])]
    passes: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if !args.suite.is_empty() {
        args.models.check_suites()?;
    }
    if let Some(steps) = args.curve {
        return curves::measure(args, steps);
    }
    if !args.suite.is_empty() {
        return suites::measure(args);
    }
    // Single workloads exclude suites, so the parser cannot require `--suite` for these options.
    let of_suites = [
        ("--sizes", args.sizes.is_some()),
        ("--only", args.only.is_some()),
        ("--compare", args.compare.is_some()),
        ("--html", args.html.is_some()),
    ];
    if let Some((option, _)) = of_suites.iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "{option} works only with suites: use --suite instead of {}",
            args.workload.join(" ")
        )
        .into());
    }
    let settings = Config::load()?;
    match &args.device[..] {
        [] => run_on(None, args, &settings)?,
        named => named
            .iter()
            .try_for_each(|device| run_on(Some(device), args, &settings))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the named workloads on one device.
fn run_on(selector: Option<&str>, args: &Args, settings: &Config) -> Result<(), Box<dyn Error>> {
    let selected = select::select(selector, settings)?;
    let device = selected.open(settings)?;
    let mut rewrite = settings.rewrite.clone();
    rewrite.precision = args.precision.map(Precision::from).or(rewrite.precision);
    let rates = args.utilization.then(|| measure_rates(&device)).transpose()?;
    for name in &args.workload {
        let workload = args.models.workload(name)?;
        let optimizer = workload.optimizer.clone();
        let (plan, _) = Builder::on(device.clone())
            .mode(workload.mode)
            .maybe_optimizer(optimizer.clone())
            .rewrite(rewrite.clone())
            .plan(&workload.graph)?;
        let (precision, dispatches) = (plan.precision, plan.step_dispatches().count());
        let units = plan.step_dispatches().filter(|d| d.use_coop).count();
        let memory = plan.memory_forecast().planned as u64 + device.workspace_bytes(&plan)?;
        let mut session = Session::on(device.clone(), plan)?;
        if let Some(optimizer) = optimizer {
            session.try_set_optimizer(optimizer)?;
        }
        feed(&mut session, CLASSES, &[])?;
        if args.models.cache.is_some() {
            place(&mut session, &args.models)?;
        }
        let (step, synchronized) = measure(&mut session, args.steps, selected.info.kind)?;
        let seconds = step.as_secs_f64();
        let tflops = workload.flops / seconds * 1e-12;
        let tokens = workload.tokens.map(|tokens| tokens as f64 / seconds);
        let peak = rates.as_ref().map(|rates| match precision {
            Precision::Mixed => rates.mixed_flops_per_second.unwrap_or(rates.flops_per_second),
            Precision::F32 => rates.flops_per_second,
        });
        if args.json {
            line(json!({
                "workload": name,
                "mode": if workload.mode == Mode::Training { "training" } else { "inference" },
                "device": selected.selector,
                "precision": precision.to_string(),
                "dispatches": dispatches,
                "on_tensor_cores": units,
                "step_ms": seconds * 1e3,
                "synchronized_step_ms": synchronized.as_secs_f64() * 1e3,
                "tflops": tflops,
                "matmul_tflops": peak.map(|peak| peak * 1e-12),
                "utilization": peak.map(|peak| tflops * 1e12 / peak),
                "tokens_per_second": tokens,
                "memory_bytes": memory,
            }))?;
            continue;
        }
        let tokens = tokens.map_or(String::new(), |rate| format!("{}tokens/s, ", metric(rate)));
        let utilization = peak.map_or(String::new(), |peak| {
            let share = 100.0 * tflops * 1e12 / peak;
            format!(" (MFU {share:.0} % of {}FLOP/s)", metric(peak))
        });
        line(format_args!(
            "{name}: {:.3} ms a step, {tokens}{}FLOP/s{utilization}, {:.3} ms synchronized; {}B, {precision}, {units} of {dispatches} \
             dispatches on tensor cores, {}",
            seconds * 1e3,
            metric(tflops * 1e12),
            synchronized.as_secs_f64() * 1e3,
            metric(memory as f64),
            selected.selector
        ))?;
        if args.passes {
            session.set_profiling(true);
            (0..args.steps).try_for_each(|_| session.try_step())?;
            session.wait();
            line(session.take_timings())?;
        }
    }
    Ok(())
}

/// Sets the cache position of each sequence, and the row whose logits are computed.
fn place(session: &mut Session, args: &ModelOptions) -> meganeura::Result<()> {
    session.try_set_input_u32(KV_POS, &vec![args.cached; args.language.sequences()])?;
    match args.seq.unwrap_or(1) {
        1 => Ok(()),
        rows => session.try_set_input_u32(LOGITS_ROW, &vec![rows as u32 - 1; args.language.sequences()]),
    }
}

/// Returns the mean time of a step: first submitted back to back, then synchronized after each step.
fn measure(session: &mut Session, steps: u32, kind: DeviceKind) -> meganeura::Result<(Duration, Duration)> {
    let steps = steps.max(1);
    let mut of = |steps: u32| -> meganeura::Result<Duration> {
        let start = Instant::now();
        for _ in 0..steps {
            session.try_step()?;
        }
        session.try_wait()?;
        Ok(start.elapsed())
    };
    of(steps.div_ceil(4))?;
    if !kind.is_host() {
        warm_up(|| of(steps))?;
    }
    let step = of(steps)? / steps;
    let start = Instant::now();
    for _ in 0..steps {
        session.try_step()?;
        session.wait();
    }
    Ok((step, start.elapsed() / steps))
}
