//! `meganeura train`.

mod data;
mod display;
mod logs;
mod options;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use meganeura::Graph;
use meganeura::nn::data::{Augmentation, Dataset};
use meganeura::nn::models::{MlpConfig, classifier, cnn_classifier, mlp_classifier};
use meganeura::nn::trainer::{Evaluation, OptimizerChoice, TrainConfig, TrainReport, Trainer};
use serde_json::{Value, json};

use super::Outcome;
use crate::output::line;
use data::{DataSet, FileOptions, Loaded, Source, load};
use logs::Logs;
use options::RunOptions;

const EXAMPLES: &str = "\
Examples:
  meganeura train digits --model cnn
  meganeura train --csv flowers.csv --label species --patience 20
  meganeura train --npz images.npz --model cnn --augment flip,shift=2 --log run.jsonl
  meganeura train digits --epochs 100 --checkpoint run --every 200 --resume
  meganeura train text --data data/alice/alice.txt --model tiny --out alice";

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Train a language model on a text file, from scratch or from a checkpoint.
    Text(Box<text::Args>),
}

/// Options of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<Subcommand>,

    #[command(flatten)]
    source: Source,

    /// Network to train.
    #[arg(long, value_enum, default_value_t = Model::Mlp)]
    model: Model,

    /// Change training examples at random: flip, shift=PIXELS, cutout=PIXELS, erase for images; noise=DEVIATION,
    /// brightness=AMOUNT, contrast=AMOUNT for all; with commas between.
    #[arg(long, value_name = "LIST")]
    augment: Option<Augmentation>,

    /// Folder with the MNIST files.
    #[arg(long, value_name = "DIR", default_value = "data/mnist")]
    data: PathBuf,

    #[command(flatten)]
    run: RunOptions,

    #[command(flatten)]
    files: FileOptions,
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
    if let Some(Subcommand::Text(args)) = &args.what {
        return text::run(args);
    }
    // Before anything that takes time: a path that cannot be written is an error at once.
    let logs = Logs::try_paths(&args.run)?;
    let loaded = load(
        &args.source,
        &args.files,
        &args.data,
        args.model,
        args.augment.is_some(),
    )?;
    let Loaded { train, test, .. } = &loaded;
    let mut trainer = Trainer::new(|batch| args.model.graph(batch, train), config(args, train))?;
    if !args.run.json {
        introduce(args, &loaded, &trainer)?;
    }
    let report = logs.fit(&mut trainer, train, Some(test), args.run.json)?;
    let evaluation = report.evaluation.ok_or("the model was not evaluated")?;
    if args.run.json {
        line(summary(args, &loaded, &report, &evaluation, &trainer))?;
    } else {
        conclude(args, &report, &evaluation)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what is going to happen.
fn introduce(args: &Args, loaded: &Loaded, trainer: &Trainer) -> std::io::Result<()> {
    if let Some(names) = &loaded.class_names {
        const MAX: usize = 10;
        let more = if names.len() > MAX { ", ..." } else { "" };
        line(format_args!(
            "{}: examples of shape {:?}, {} classes: {}{more}",
            loaded.name,
            loaded.train.feature_shape(),
            names.len(),
            names[..names.len().min(MAX)].join(", ")
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
    introduce_plan(trainer)
}

/// Says what is special of the plan.
fn introduce_plan(trainer: &Trainer) -> std::io::Result<()> {
    let plan = trainer.session().plan();
    if let Some(scaling) = plan.loss_scaling {
        let units = plan.dispatches.iter().filter(|d| d.use_coop).count();
        let precision = plan.precision;
        line(format_args!(
            "precision {precision}, loss scale {scaling}; {units} of {} dispatches on tensor cores",
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
    if let (true, Some(best)) = (args.run.patience.is_some(), report.best) {
        let early = if report.early_stopped { "stopped early, " } else { "" };
        line(format_args!(
            "{early}best weights are those of epoch {}, step {}",
            best.epoch, best.total_step
        ))?;
    }
    if report.skipped_updates > 0 {
        line(format_args!(
            "{} updates were skipped, because a gradient was not finite",
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
pub(super) fn default_rate(rule: &OptimizerChoice) -> f32 {
    match rule {
        OptimizerChoice::Sgd => 0.1,
        OptimizerChoice::Momentum | OptimizerChoice::Nesterov => 0.02,
        _ => TrainConfig::default().learning_rate,
    }
}

fn config(args: &Args, train: &Dataset) -> TrainConfig {
    let default = TrainConfig::default();
    let batch_size = args.run.batch.unwrap_or_else(|| default.batch_size.min(train.len()));
    let epochs = args.run.epochs;
    let epochs = epochs.unwrap_or_else(|| default_epochs(args, batch_size, train.len()));
    TrainConfig {
        augmentation: args.augment.clone().unwrap_or_default(),
        ..args.run.config(batch_size, epochs, default_rate(&args.run.optimizer))
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
        "seed": args.run.seed,
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
