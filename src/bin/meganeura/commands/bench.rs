//! `meganeura bench`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use meganeura::build::plan_for;
use meganeura::config::Config;
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{KV_POS, LOGITS_ROW, LogitsOf, PRESETS, Preset, preset};
use meganeura::plan::BufferRef;
use meganeura::precision::Precision;
use meganeura::{DType, Graph, Mode, Session, Sgd, TensorType, select};
use serde_json::json;

use super::Outcome;
use super::language::storage;
use super::precision::Choice;
use crate::output::line;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to run: models of `meganeura explain`, and matrix products such as 4096x4096x4096 (rows, columns, terms
    /// of a sum).
    #[arg(required = true, value_name = "WORK")]
    work: Vec<String>,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Train models with plain gradient descent instead of running them.
    #[arg(long)]
    train: bool,

    /// Rows of models: tokens of a sequence, or examples of a batch.
    #[arg(long, value_name = "N")]
    seq: Option<usize>,

    /// Run language models with a key-value cache of so many rows: `--seq` tokens, one by default, behind those that are
    /// cached. Logits are those of the last.
    #[arg(long, value_name = "ROWS", conflicts_with = "train")]
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
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: u32,

    /// Print one JSON object for each.
    #[arg(long)]
    json: bool,

    /// Print how long each pass takes, too.
    #[arg(long, conflicts_with = "json")]
    passes: bool,
}

/// A graph to run, and the operations of a step if they are known.
struct Work {
    graph: Graph,
    mode: Mode,
    flops: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let settings = Config::load()?;
    let selected = select::select(args.device.as_deref(), &settings)?;
    let device = selected.open(&settings)?;
    let mut rewrite = settings.rewrite;
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
        feed(&mut session)?;
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
    Ok(ExitCode::SUCCESS)
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

/// Numbers of a parameter in few bits: halves near 0.01 in `f16`, and words of all kinds.
fn packed(ty: &TensorType) -> Vec<u8> {
    match ty.dtype {
        DType::F16 | DType::BF16 => (0..ty.numel())
            .flat_map(|i| (0x2000 + (i % 512) as u16).to_le_bytes())
            .collect(),
        _ => (0..ty.bytes()).map(|i| (i * 131 % 251) as u8).collect(),
    }
}

/// Values that are neither all alike nor extreme. Memory that nothing was written to would be read faster than any other.
pub(super) fn feed(session: &mut Session) -> meganeura::Result<()> {
    session.initialize_parameters(0);
    let parameters = session.plan().parameters();
    for view in parameters.into_iter().filter(|view| view.ty.dtype != DType::F32) {
        session.try_set_parameter_bytes(&view.name, &packed(&view.ty))?;
    }
    let plan = session.plan();
    let of = |(name, buffer): &(String, BufferRef)| (name.clone(), plan.buffer_types[buffer.index()].clone());
    let inputs: Vec<(String, TensorType)> = plan.input_buffers.iter().map(of).collect();
    for (name, ty) in inputs {
        match ty.dtype {
            // Ids of any vocabulary.
            DType::U32 => {
                let ids: Vec<u32> = (0..ty.numel() as u32).map(|i| i % 2).collect();
                session.try_set_input_u32(&name, &ids)?;
            }
            _ => {
                let values: Vec<f32> = (0..ty.numel()).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
                session.try_set_input(&name, &values)?;
            }
        }
    }
    Ok(())
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
