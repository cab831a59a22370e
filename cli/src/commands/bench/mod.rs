//! `meganeura bench`: single workloads here, suites, their table and curves of losses in files of their
//! own.

mod curves;
pub(super) mod suites;
mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meganeura::backend::DeviceKind;
use meganeura::build::Builder;
use meganeura::calibration::warm_up;
use meganeura::config::Config;
use meganeura::nn::models::{KV_POS, LOGITS_ROW};
use meganeura::precision::Precision;
use meganeura::{Mode, Session, Sgd, select};
use meganeura_bench::{Sizes, feed};
use serde_json::json;

use super::Outcome;
use super::precision::Choice;
use super::workload::ModelOptions;
use crate::output::line;

/// Ids that are fed are below this: they are those of any vocabulary.
const CLASSES: u32 = 2;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workloads: models of `meganeura explain`, ONNX files, and matmuls such as 4096x4096x4096 (m, n, k).
    #[arg(required_unless_present = "suite", conflicts_with = "suite", value_name = "WORKLOAD")]
    workload: Vec<String>,

    /// Run the workloads of a suite, each with its roofline bound: matmul, attention, pointwise, norm, conv, optimizer,
    /// models, session, or all. Separate several with commas.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suites::suites)]
    suite: Vec<suites::Suites>,

    /// Device to run on; see `meganeura devices`. Separate several with commas: they take turns, and their results are
    /// compared before anything is timed. For suites, `all` is every device except those emulated in software.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// Size of the workloads: small, medium or large [default: chosen for the slowest device]
    #[arg(long, value_name = "SIZES", value_parser = suites::sizes)]
    sizes: Option<Sizes>,

    /// Run only workloads of the suites whose names contain this.
    #[arg(long, value_name = "PART")]
    only: Option<String>,

    /// Samples per workload and device (at least 3); fewer for long workloads.
    #[arg(long, value_name = "N", default_value = "11", value_parser = suites::samples)]
    samples: usize,

    /// Compare with an earlier record that `--json` has written, and mark changes that are larger than the scatter.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Write an HTML page: shares of peak, rooflines, series by size.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Train the workloads for this number of steps instead, on one batch, in f32 and mixed precision, and compare the
    /// losses with f32 on the first device; needs --train or a suite with models.
    #[arg(long, value_name = "STEPS", value_parser = curves::steps,
        conflicts_with_all = ["samples", "compare", "html", "steps", "passes", "cache", "operands"])]
    curve: Option<usize>,

    #[command(flatten)]
    models: ModelOptions,

    /// Precision of matmuls and convolutions [default: that of the configuration file, or of the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Steps to measure, after steps/4 of warm-up (and half a second on a GPU, whose clock rises first); the host does not
    /// wait for each step.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "suite")]
    steps: u32,

    /// Print one JSON object for each workload; with --suite one for all, which --compare reads.
    #[arg(long)]
    json: bool,

    /// Print the time of each dispatch, too.
    #[arg(long, conflicts_with_all = ["json", "suite"])]
    passes: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if let Some(steps) = args.curve {
        return curves::measure(args, steps);
    }
    if !args.suite.is_empty() {
        return suites::measure(args);
    }
    // Single workloads exclude suites, so the parser does not ask for these.
    let of_suites = [
        ("--sizes", args.sizes.is_some()),
        ("--only", args.only.is_some()),
        ("--compare", args.compare.is_some()),
        ("--html", args.html.is_some()),
    ];
    if let Some((option, _)) = of_suites.iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "{option} is for suites: give --suite instead of {}",
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

/// Measures the workloads that are named on one device.
fn run_on(selector: Option<&str>, args: &Args, settings: &Config) -> Result<(), Box<dyn Error>> {
    let selected = select::select(selector, settings)?;
    let device = selected.open(settings)?;
    let mut rewrite = settings.rewrite.clone();
    rewrite.precision = args.precision.map(Precision::from).or(rewrite.precision);
    for name in &args.workload {
        let workload = args.models.workload(name)?;
        let optimizer = (workload.mode == Mode::Training).then(|| Sgd::new(1e-3).into());
        let (plan, _) = Builder::on(device.clone())
            .mode(workload.mode)
            .maybe_optimizer(optimizer.clone())
            .rewrite(rewrite.clone())
            .plan(&workload.graph)?;
        let (precision, dispatches) = (plan.precision, plan.step_dispatches().count());
        let units = plan.step_dispatches().filter(|d| d.use_coop).count();
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
        let rate = workload.flops.map(|flops| flops / seconds * 1e-12);
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
                "tflops": rate,
            }))?;
            continue;
        }
        let rate = rate.map_or(String::new(), |rate| format!(", {rate:.2} TFLOP/s"));
        line(format_args!(
            "{name}: {:.3} ms a step{rate}, {:.3} ms synchronized; {precision}, {units} of {dispatches} dispatches on tensor \
             cores, {}",
            seconds * 1e3,
            synchronized.as_secs_f64() * 1e3,
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

/// Says where in their caches sequences are.
fn place(session: &mut Session, args: &ModelOptions) -> meganeura::Result<()> {
    session.try_set_input_u32(KV_POS, &vec![args.cached; args.sequences])?;
    match args.seq.unwrap_or(1) {
        1 => Ok(()),
        rows => session.try_set_input_u32(LOGITS_ROW, &vec![rows as u32 - 1; args.sequences]),
    }
}

/// The mean time of a step: first submitted back to back, then synchronized after each step.
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
