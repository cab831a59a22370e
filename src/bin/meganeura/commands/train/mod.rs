//! `meganeura train`.

mod data;
mod display;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, ValueEnum};
use meganeura::nn::data::{Augmentation, Dataset};
use meganeura::nn::models::{MlpConfig, classifier, cnn_classifier, mlp_classifier};
use meganeura::nn::trainer::{
    Checkpoints, EarlyStopping, Evaluation, JsonLinesLog, LogFolder, Metric, Observer, OptimizerChoice, Schedule,
    TrainConfig, TrainReport, Trainer, Warmup,
};
use meganeura::plan::MemoryBudget;
use meganeura::precision::Precision;
use meganeura::{GradientClip, Graph, LossScaling, ParameterGroup};
use serde_json::{Value, json};

use super::Outcome;
use super::precision::Choice;
use crate::output::line;
use data::{DataSet, FileOptions, Loaded, Source, load};
use display::{Display, JsonLines};

const EXAMPLES: &str = "\
Examples:
  meganeura train digits --model cnn
  meganeura train --csv flowers.csv --label species --patience 20
  meganeura train --npz images.npz --model cnn --augment flip,shift=2 --log run.jsonl
  meganeura train digits --epochs 100 --checkpoint run --every 200 --resume";

/// Options of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("logs").args(["log", "log_dir"]).multiple(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Network to train.
    #[arg(long, value_enum, default_value_t = Model::Mlp)]
    model: Model,

    /// Device to train on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Memory that a training step may take, such as 4GB, 50% of what it takes otherwise, 50%:step of what it keeps on
    /// the way, or 80%:device; parts of it run twice to keep to it, and results are the same.
    #[arg(long, value_name = "BUDGET")]
    memory_budget: Option<MemoryBudget>,

    /// How exactly products are computed [default: that of the configuration file, or f32]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Scale of the gradients in mixed precision: dynamic, dynamic:START, dynamic:START:INTERVAL (updates from one doubling
    /// to the next) or a fixed power of two [default: that of the configuration file, or dynamic:65536:2000]
    #[arg(long, value_name = "SCALE")]
    loss_scale: Option<LossScaling>,

    /// Passes over the training examples; with 0, only evaluates [default: depends on data and model]
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,

    /// Examples in a step [default: 32, or all there are if they are fewer]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,

    /// Update rule: sgd, momentum, nesterov, adam or adamw.
    #[arg(long, value_name = "RULE", default_value = "adamw")]
    optimizer: OptimizerChoice,

    /// Highest learning rate of the run [default: depends on the rule]
    #[arg(long, value_name = "RATE")]
    lr: Option<f32>,

    /// How the learning rate changes: constant, cosine (falls to 0), step (a tenth every 10 epochs) or onecycle
    /// (rises, then falls to almost 0).
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    schedule: Schedule,

    /// Let the learning rate rise over the first steps: their number, or a percentage of all steps like 5%.
    #[arg(long, value_name = "STEPS", default_value = "0")]
    warmup: Warmup,

    /// Scale gradients down to this Euclidean norm where they are longer.
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f32>,

    /// Limit every element of the gradients to plus or minus this value.
    #[arg(long, value_name = "VALUE", conflicts_with = "clip_norm")]
    clip_value: Option<f32>,

    /// Average the gradients of so many steps for each update.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    accumulate: u32,

    /// Apply no weight decay to parameters with such names; `*` stands for any characters, as in `*.bias`.
    #[arg(long, value_name = "PATTERN")]
    no_decay: Vec<String>,

    /// Stop after so many evaluations in a row without a better one, and keep the best weights.
    #[arg(long, value_name = "N")]
    patience: Option<usize>,

    /// How much better an evaluation must be to count for --patience.
    #[arg(long, value_name = "DELTA", default_value_t = 0.0, requires = "patience")]
    min_delta: f64,

    /// What makes an evaluation better for --patience.
    #[arg(long, value_enum, default_value_t = MetricChoice::Loss, requires = "patience")]
    metric: MetricChoice,

    /// Evaluate on the test examples also after every so many steps, not only after epochs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    evaluate_every_steps: usize,

    /// Change training examples at random: flip, shift=PIXELS, cutout=PIXELS, erase for images; noise=DEVIATION,
    /// brightness=AMOUNT, contrast=AMOUNT for all; with commas between.
    #[arg(long, value_name = "LIST")]
    augment: Option<Augmentation>,

    /// Batches to assemble ahead on a thread of their own; results are the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    prefetch: usize,

    /// Seed of initial weights, order of the examples, augmentation and dropout: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Folder with the MNIST files.
    #[arg(long, value_name = "DIR", default_value = "data/mnist")]
    data: PathBuf,

    /// Folder in which the run is saved, to go on from there after it was ended in whatever way.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,

    /// Steps from one --checkpoint to the next.
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    every: usize,

    /// Go on from the --checkpoint, if there is one: the result is that of a run that was never ended.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    /// Print one JSON object a line: each epoch, then a summary.
    #[arg(long)]
    json: bool,

    /// Write one JSON object a line to a file: begin, steps, evaluations, epochs and end of the run.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write the run into a folder: an event file for TensorBoard, metrics.csv and metrics.jsonl.
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Log what is in parameters and gradients after every so many steps: range, mean, deviation, NaNs and infinities
    /// to --log and statistics.csv of --log-dir, and histograms for TensorBoard.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logs")]
    statistics: usize,

    #[command(flatten)]
    files: FileOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MetricChoice {
    /// Lower loss.
    Loss,
    /// Higher accuracy.
    Accuracy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// Multi-layer perceptron.
    Mlp,
    /// Convolutional network.
    Cnn,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
        }
    }

    /// The graph for a batch of examples like those.
    fn graph(self, batch: usize, like: &Dataset) -> Graph {
        let classes = like.classes();
        match (self, like.feature_shape()) {
            (Model::Cnn, &[c, h, w]) => cnn_classifier(batch, [c, h, w], classes),
            (_, &[features]) => mlp_classifier(batch, features, classes),
            (_, shape) => classifier(batch, shape, |g, x| {
                let x = g.flatten(x);
                MlpConfig::new(like.feature_len(), classes).build(g, "").forward(g, x)
            }),
        }
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    // Before anything that takes time: a path that cannot be written is an error at once.
    let mut log = args
        .log
        .as_deref()
        .map(|path| open_log(path, args.resume))
        .transpose()?;
    let folder = args.log_dir.as_deref().map(|path| open_folder(path, args));
    let mut folder = folder.transpose()?;
    let loaded = load(
        &args.source,
        &args.files,
        &args.data,
        args.model,
        args.augment.is_some(),
    )?;
    let Loaded { train, test, .. } = &loaded;
    let mut trainer = Trainer::new(|batch| args.model.graph(batch, train), config(args, train))?;
    let mut display = Display::default();
    let printing: &mut dyn Observer = if args.json {
        &mut JsonLines
    } else {
        introduce(args, &loaded, &trainer)?;
        &mut display
    };
    let report = trainer.fit(train, Some(test), &mut (printing, log.as_mut(), folder.as_mut()))?;
    if let (Some(log), Some(path)) = (log, &args.log) {
        log.finish().map_err(|e| unwritable(path, &e))?;
    }
    if let (Some(folder), Some(path)) = (folder, &args.log_dir) {
        folder.finish().map_err(|e| unwritable(path, &e))?;
    }
    let evaluation = report.evaluation.ok_or("the model was not evaluated")?;
    if args.json {
        line(summary(args, &loaded, &report, &evaluation, &trainer))?;
    } else {
        conclude(args, &report, &evaluation)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn open_log(path: &Path, resume: bool) -> Result<JsonLinesLog, Box<dyn Error>> {
    let opened = if resume {
        JsonLinesLog::append(path)
    } else {
        JsonLinesLog::create(path)
    };
    Ok(opened.map_err(|e| unwritable(path, &e))?)
}

fn open_folder(path: &Path, args: &Args) -> Result<LogFolder, Box<dyn Error>> {
    let opened = if args.resume {
        LogFolder::append(path)
    } else {
        LogFolder::create(path)
    };
    let opened = match args.statistics {
        0 => opened,
        _ => opened.and_then(LogFolder::with_statistics),
    };
    Ok(opened.map_err(|e| unwritable(path, &e))?)
}

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot write the log: {error}", path.display())
}

/// Says what is going to happen.
fn introduce(args: &Args, loaded: &Loaded, trainer: &Trainer) -> std::io::Result<()> {
    if let Some(names) = &loaded.class_names {
        const MOST: usize = 10;
        let more = if names.len() > MOST { ", ..." } else { "" };
        line(format_args!(
            "{}: examples of shape {:?}, {} classes: {}{more}",
            loaded.name,
            loaded.train.feature_shape(),
            names.len(),
            names[..names.len().min(MOST)].join(", ")
        ))?;
    }
    line(format_args!(
        "{} on {}: {} examples to train, {} to test, {} parameters",
        args.model.name(),
        trainer.session().device().capabilities().name,
        loaded.train.len(),
        loaded.test.len(),
        parameters(trainer)
    ))?;
    let plan = trainer.session().plan();
    if let Some(scaling) = plan.loss_scaling {
        let units = plan.dispatches.iter().filter(|d| d.use_coop).count();
        let precision = plan.precision;
        line(format_args!(
            "precision {precision}, loss scale {scaling}; {units} of {} dispatches on matrix units",
            plan.dispatches.len()
        ))?;
    }
    match &plan.recomputation {
        Some(recomputation) => line(format_args!("memory budget: {recomputation}")),
        None => Ok(()),
    }
}

/// Says what came out.
fn conclude(args: &Args, report: &TrainReport, evaluation: &Evaluation) -> std::io::Result<()> {
    if let (true, Some(best)) = (args.patience.is_some(), report.best) {
        let early = if report.early_stopped { "stopped early, " } else { "" };
        line(format_args!(
            "{early}best weights are those of epoch {}, step {}",
            best.epoch, best.total_step
        ))?;
    }
    if report.skipped_updates > 0 {
        line(format_args!(
            "{} updates were left out, because a gradient was not finite",
            report.skipped_updates
        ))?;
    }
    line(format_args!(
        "test accuracy {:.2} % ({} of {}), train loss {:.4}, {:.0} steps/s, compiled in {:.3} s, {:.1} s in all",
        100.0 * evaluation.accuracy(),
        evaluation.correct,
        evaluation.examples,
        train_loss(report),
        steps_per_second(report),
        report.compile_seconds,
        report.compile_seconds + report.seconds
    ))
}

/// Passes after which the accuracy does not grow any more; for data of the user, enough for a thousand steps,
/// within reason.
fn default_epochs(args: &Args, batch: usize, examples: usize) -> usize {
    match (args.source.data_set, args.model) {
        (Some(DataSet::Digits), _) => TrainConfig::default().epochs,
        (Some(DataSet::Mnist), Model::Mlp) => 10,
        (Some(DataSet::Mnist), Model::Cnn) => 3,
        (None, _) => 1000usize.div_ceil((examples / batch.max(1)).max(1)).clamp(20, 200),
    }
}

/// Rates at which each rule learns the digits well.
fn default_rate(rule: &OptimizerChoice) -> f32 {
    match rule {
        OptimizerChoice::Sgd => 0.1,
        OptimizerChoice::Momentum | OptimizerChoice::Nesterov => 0.02,
        _ => TrainConfig::default().learning_rate,
    }
}

fn config(args: &Args, train: &Dataset) -> TrainConfig {
    let default = TrainConfig::default();
    let batch_size = args.batch.unwrap_or_else(|| default.batch_size.min(train.len()));
    let early_stopping = args.patience.map(|patience| EarlyStopping {
        patience,
        min_delta: args.min_delta,
        metric: match args.metric {
            MetricChoice::Loss => Metric::Loss,
            MetricChoice::Accuracy => Metric::Accuracy,
        },
        ..EarlyStopping::default()
    });
    let epochs = args.epochs;
    TrainConfig {
        epochs: epochs.unwrap_or_else(|| default_epochs(args, batch_size, train.len())),
        batch_size,
        optimizer: args.optimizer.clone(),
        learning_rate: args.lr.unwrap_or_else(|| default_rate(&args.optimizer)),
        schedule: args.schedule,
        warmup: args.warmup,
        clip: args
            .clip_norm
            .map(GradientClip::Norm)
            .or(args.clip_value.map(GradientClip::Value)),
        accumulate: args.accumulate,
        groups: match args.no_decay.is_empty() {
            true => Vec::new(),
            false => vec![ParameterGroup::new(args.no_decay.iter().cloned()).weight_decay(0.0)],
        },
        seed: args.seed,
        device: args.device.clone(),
        memory_budget: args.memory_budget,
        precision: args.precision.map(Precision::from),
        loss_scale: args.loss_scale,
        evaluate_every_steps: args.evaluate_every_steps,
        statistics_every: args.statistics,
        early_stopping,
        augmentation: args.augment.clone().unwrap_or_default(),
        prefetch: args.prefetch,
        checkpoints: args.checkpoint.as_ref().map(|folder| Checkpoints {
            folder: folder.clone(),
            every: args.every,
            resume: args.resume,
        }),
        ..default
    }
}

fn parameters(trainer: &Trainer) -> usize {
    let plan = trainer.session().plan();
    let sizes = plan.param_buffers.iter();
    sizes.map(|(_, b)| plan.buffer_types[b.index()].numel()).sum()
}

fn train_loss(report: &TrainReport) -> f64 {
    report.epochs.last().map_or(f64::NAN, |e| e.train_loss)
}

fn steps_per_second(report: &TrainReport) -> f64 {
    // Epochs that were cut short have no time.
    let steps: usize = report.epochs.iter().map(|e| e.steps).sum();
    let seconds: f64 = report.epochs.iter().map(|e| e.train_seconds).sum();
    if seconds > 0.0 { steps as f64 / seconds } else { 0.0 }
}

/// A number, or null where JSON has none for it.
fn finite(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn summary(args: &Args, loaded: &Loaded, report: &TrainReport, evaluation: &Evaluation, trainer: &Trainer) -> Value {
    let device = &trainer.session().device().capabilities().name;
    let precision = trainer.session().plan().precision.to_string();
    json!({
        "data": loaded.name,
        "classes": loaded.class_names,
        "model": args.model.name(),
        "seed": args.seed,
        "device": device,
        "epochs": report.epochs.len(),
        "early_stopped": report.early_stopped,
        "best_epoch": report.best.map(|b| b.epoch),
        "test_accuracy": evaluation.accuracy(),
        "test_loss": finite(evaluation.loss),
        "train_loss": finite(train_loss(report)),
        "precision": precision,
        "skipped_updates": report.skipped_updates,
        "steps_per_second": steps_per_second(report),
        "compile_seconds": report.compile_seconds,
        "seconds": report.seconds,
    })
}
