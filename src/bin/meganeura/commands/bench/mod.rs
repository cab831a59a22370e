//! `meganeura bench`: single works here, suites in a file of their own.

mod suites;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meganeura::bench::{Sizes, feed};
use meganeura::build::plan_for;
use meganeura::config::Config;
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{KV_POS, LOGITS_ROW, LogitsOf, PRESETS, Preset, preset};
use meganeura::precision::Precision;
use meganeura::{Graph, Mode, Session, Sgd, select};
use serde_json::json;

use super::Outcome;
use super::language::storage;
use super::precision::Choice;
use crate::output::line;

/// Ids that are fed are below this: they are those of any vocabulary.
const CLASSES: u32 = 2;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to run: models of `meganeura explain`, and matrix products such as 4096x4096x4096 (rows, columns, terms
    /// of a sum).
    #[arg(required_unless_present = "suite", conflicts_with = "suite", value_name = "WORK")]
    work: Vec<String>,

    /// Run works that are listed in the program, each with its floor by the measured limits of the device: matmul, attention,
    /// pointwise, norm, conv, optimizer, models, session, or all. Several with commas.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suites::suites)]
    suite: Vec<suites::Suites>,

    /// Device to run on; see `meganeura devices`. Several with commas: they take turns, and results are compared before
    /// anything is timed. For suites, all stands for every device that is found, but for those emulated in software.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// How large the works of suites are: small, medium or large. By default what the slowest class of the devices is given.
    #[arg(long, value_name = "SIZES", value_parser = suites::sizes)]
    sizes: Option<Sizes>,

    /// Of suites, run works alone whose names contain this.
    #[arg(long, value_name = "PART")]
    only: Option<String>,

    /// Samples of each work of suites and device; fewer of works that take long, but three.
    #[arg(long, value_name = "N", default_value = "11", value_parser = suites::samples)]
    samples: usize,

    /// Compare suites with an earlier record, which `--json` has written, and mark what changed beyond the scatter.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Write suites as a page: shares of the limits, rooflines, series by size.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Train models with plain gradient descent instead of running them.
    #[arg(long, conflicts_with = "suite")]
    train: bool,

    /// Rows of models: tokens of a sequence, or examples of a batch.
    #[arg(long, value_name = "N", conflicts_with = "suite")]
    seq: Option<usize>,

    /// Run language models with a key-value cache of so many rows: `--seq` tokens, one by default, behind those that are
    /// cached. Logits are those of the last.
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["train", "suite"])]
    cache: Option<usize>,

    /// Tokens that are cached before a step.
    #[arg(long, value_name = "N", requires = "cache", default_value_t = 0)]
    cached: u32,

    /// Sequences side by side, each with a cache of its own.
    #[arg(long, value_name = "N", requires = "cache", default_value_t = 1)]
    sequences: usize,

    /// How weights of language models with a cache are stored on the device.
    #[arg(long, value_name = "f32|f16|q8|q4", requires = "cache", value_parser = storage, default_value = "f32")]
    weights: WeightStorage,

    /// How exactly products are computed; by default what the device does of itself.
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Steps to measure, after a quarter as many that are not. They are not waited for one by one.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "suite")]
    steps: u32,

    /// Print one JSON object for each; of suites one for all, a record to compare with.
    #[arg(long)]
    json: bool,

    /// Print how long each pass takes, too.
    #[arg(long, conflicts_with_all = ["json", "suite"])]
    passes: bool,
}

/// A graph to run, and the operations of a step if they are known.
struct Work {
    graph: Graph,
    mode: Mode,
    flops: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if !args.suite.is_empty() {
        return suites::measure(args);
    }
    // Single works exclude suites, so the parser does not ask for these.
    let of_suites = [
        ("--sizes", args.sizes.is_some()),
        ("--only", args.only.is_some()),
        ("--compare", args.compare.is_some()),
        ("--html", args.html.is_some()),
    ];
    if let Some((option, _)) = of_suites.iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "{option} is for suites: give --suite instead of {}",
            args.work.join(" ")
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

/// Measures the works that are named on one device.
fn run_on(selector: Option<&str>, args: &Args, settings: &Config) -> Result<(), Box<dyn Error>> {
    let selected = select::select(selector, settings)?;
    let device = selected.open(settings)?;
    let mut rewrite = settings.rewrite.clone();
    rewrite.precision = args.precision.map(Precision::from).or(rewrite.precision);
    for name in &args.work {
        let work = work(name, args)?;
        let optimizer = (work.mode == Mode::Training).then(|| Sgd::new(1e-3).into());
        let (plan, _) = plan_for(&work.graph, &device, work.mode, optimizer.as_ref(), &rewrite)?;
        let (precision, dispatches) = (plan.precision, plan.dispatches.len());
        let units = plan.dispatches.iter().filter(|d| d.use_coop).count();
        let mut session = Session::on(device.clone(), plan)?;
        if let Some(optimizer) = optimizer {
            session.try_set_optimizer(optimizer)?;
        }
        feed(&mut session, CLASSES, &[])?;
        if args.cache.is_some() {
            place(&mut session, args)?;
        }
        let (step, waited) = measure(&mut session, args.steps)?;
        let seconds = step.as_secs_f64();
        let rate = work.flops.map(|flops| flops / seconds * 1e-12);
        if args.json {
            line(json!({
                "work": name,
                "mode": if work.mode == Mode::Training { "training" } else { "inference" },
                "device": selected.selector,
                "precision": precision.to_string(),
                "dispatches": dispatches,
                "on_matrix_units": units,
                "step_ms": seconds * 1e3,
                "waited_step_ms": waited.as_secs_f64() * 1e3,
                "tflops": rate,
            }))?;
            continue;
        }
        let rate = rate.map_or(String::new(), |rate| format!(", {rate:.2} TFLOP/s"));
        line(format_args!(
            "{name}: {:.3} ms a step{rate}, {:.3} ms if each is waited for; {precision}, {units} of {dispatches} dispatches \
             on matrix units, {}",
            seconds * 1e3,
            waited.as_secs_f64() * 1e3,
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

fn work(name: &str, args: &Args) -> Result<Work, String> {
    if let Some(model) = preset(name) {
        let graph = match args.cache {
            Some(capacity) => cached_graph(model, capacity, args)?,
            None => model.graph(args.seq.unwrap_or(model.rows)),
        };
        return Ok(Work {
            graph,
            mode: if args.train { Mode::Training } else { Mode::Inference },
            flops: None,
        });
    }
    if args.cache.is_some() {
        return Err(format!("--cache is for language models, which '{name}' is not"));
    }
    let sizes: Vec<usize> = name.split('x').filter_map(|size| size.parse().ok()).collect();
    let [m, n, k] = sizes[..] else {
        let known: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
        return Err(format!(
            "there is no model '{name}', and it is no product such as 512x512x512; the models are: {}",
            known.join(", ")
        ));
    };
    let mut graph = Graph::new();
    let (a, b) = (graph.input("a", &[m, k]), graph.input("b", &[k, n]));
    let product = graph.matmul(a, b);
    graph.set_outputs(vec![product]);
    Ok(Work {
        graph,
        mode: Mode::Inference,
        flops: Some(2.0 * m as f64 * n as f64 * k as f64),
    })
}

/// A graph that reads some tokens of each sequence behind those that are cached.
fn cached_graph(model: &Preset, capacity: usize, args: &Args) -> Result<Graph, String> {
    let Some(mut config) = model.language_model() else {
        return Err(format!("--cache is for language models, which '{}' is not", model.name));
    };
    let (rows, cached) = (args.seq.unwrap_or(1), args.cached as usize);
    if rows == 0 || args.sequences == 0 || cached.saturating_add(rows) > capacity {
        return Err(format!(
            "{} sequences of {cached} cached tokens and {rows} more do not fit caches of {capacity} rows; raise --cache",
            args.sequences
        ));
    }
    config.weights = args.weights;
    let logits = if rows == 1 { LogitsOf::AllRows } else { LogitsOf::OneRow };
    Ok(match args.sequences {
        1 => config.decode_graph(&[], rows, capacity, logits),
        sequences => config.decode_graph(&[sequences], rows, capacity, logits),
    })
}

/// Says where in their caches sequences are.
fn place(session: &mut Session, args: &Args) -> meganeura::Result<()> {
    session.try_set_input_u32(KV_POS, &vec![args.cached; args.sequences])?;
    match args.seq.unwrap_or(1) {
        1 => Ok(()),
        rows => session.try_set_input_u32(LOGITS_ROW, &vec![rows as u32 - 1; args.sequences]),
    }
}

/// The mean time of a step, of steps that follow each other without waiting and of steps that are waited for.
fn measure(session: &mut Session, steps: u32) -> meganeura::Result<(Duration, Duration)> {
    let steps = steps.max(1);
    for _ in 0..steps.div_ceil(4) {
        session.try_step()?;
    }
    session.wait();
    let start = Instant::now();
    for _ in 0..steps {
        session.try_step()?;
    }
    session.wait();
    let step = start.elapsed() / steps;
    let start = Instant::now();
    for _ in 0..steps {
        session.try_step()?;
        session.wait();
    }
    Ok((step, start.elapsed() / steps))
}
