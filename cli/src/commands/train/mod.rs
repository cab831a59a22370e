//! `meganeura train`.

mod data;
mod display;
mod logs;
mod options;
mod text;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use meganeura::nn::data::{Augmentation, Dataset};
use meganeura::nn::model::{Architecture, Description, Model as Trained};
use meganeura::nn::trainer::{Evaluation, OptimizerChoice, TrainConfig, TrainReport, Trainer};
use serde_json::{Value, json};

use super::Outcome;
use crate::output::line;
pub(crate) use data::delimiter;
use data::{DataSet, FileOptions, Loaded, Source, load};
use logs::Logs;
use options::RunOptions;

const EXAMPLES: &str = "\
Examples:
  meganeura train digits --model cnn
  meganeura train --csv flowers.csv --label species --patience 20 --out flowers
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

    /// Units of each hidden layer of the perceptron, or of the one of the cnn [default: 256,128; cnn: 64]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    hidden: Vec<usize>,

    /// Folder for the trained model, from which `predict` and `evaluate` work; an earlier model in it is replaced.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

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
    /// Convolutional network with three blocks, for small images.
    Cnn,
    /// Residual network with 18 layers, for images.
    Resnet18,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
            Model::Resnet18 => "resnet18",
        }
    }

    /// Least height and width of the images that it takes.
    fn least_image(self) -> usize {
        match self {
            Model::Mlp => 1,
            Model::Cnn => 4,
            Model::Resnet18 => 8,
        }
    }
}

impl Args {
    /// The network that was asked for.
    fn architecture(&self) -> Result<Architecture, Box<dyn Error>> {
        let mut architecture = match self.model {
            Model::Mlp => Architecture::mlp(),
            Model::Cnn => Architecture::cnn(),
            Model::Resnet18 => Architecture::resnet18(),
        };
        match (&mut architecture, &self.hidden[..]) {
            (_, []) => {}
            (Architecture::Mlp { hidden, .. }, sizes) => *hidden = sizes.to_vec(),
            (Architecture::Cnn { hidden, .. }, &[size]) => *hidden = size,
            (Architecture::Cnn { .. }, sizes) => {
                return Err(format!("--hidden {sizes:?}: the network cnn has one hidden layer").into());
            }
            (other, _) => return Err(format!("--hidden: the network {} has no hidden layers", other.name()).into()),
        }
        Ok(architecture)
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
    let description = Description::new(args.architecture()?, loaded.input(), loaded.classes());
    description.check()?;
    if let Some(folder) = &args.out {
        Trained::prepare(folder)?;
    }
    let mut trainer = Trainer::new(|batch| description.graph(batch), config(args, train))?;
    if !args.run.json {
        introduce(args, &loaded, &trainer)?;
    }
    let report = logs.fit(&mut trainer, train, Some(test), args.run.json)?;
    let evaluation = report.evaluation.ok_or("the model was not evaluated")?;
    if let Some(folder) = &args.out {
        save(folder, description, args, &report, &evaluation, &mut trainer)?;
    }
    if args.run.json {
        line(summary(args, &loaded, &report, &evaluation, &trainer))?;
    } else {
        conclude(args, &report, &evaluation)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the model with what is known of its training.
fn save(
    folder: &Path,
    description: Description,
    args: &Args,
    report: &TrainReport,
    evaluation: &Evaluation,
    trainer: &mut Trainer,
) -> meganeura::Result<()> {
    let config = trainer.config();
    let training = [
        ("data", json!(source_name(args))),
        ("seed", json!(config.seed)),
        ("batch_size", json!(config.batch_size)),
        ("learning_rate", json!(config.learning_rate)),
        ("optimizer", json!(format!("{:?}", config.optimizer))),
        ("schedule", json!(format!("{:?}", config.schedule))),
        ("epochs", json!(report.epochs.len())),
        ("best_epoch", json!(report.best.map(|best| best.epoch))),
        ("device", json!(trainer.session().device().capabilities().name)),
    ];
    let mut model = Trained::trained(description, trainer)?;
    let finished = model.description_mut();
    finished.training = training.map(|(name, value)| (name.to_owned(), value)).into();
    finished
        .metrics
        .insert("test_accuracy".to_owned(), evaluation.accuracy());
    if evaluation.loss.is_finite() {
        finished.metrics.insert("test_loss".to_owned(), evaluation.loss);
    }
    model.save(folder)
}

fn source_name(args: &Args) -> String {
    let file = args.source.csv.as_ref().or(args.source.npz.as_ref());
    match (file, args.source.data_set) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(DataSet::Mnist)) => "mnist".to_owned(),
        (None, _) => "digits".to_owned(),
    }
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
    ))?;
    match &args.out {
        Some(folder) => line(format_args!(
            "saved to {0}; `meganeura predict --model {0}` uses it",
            folder.display()
        )),
        None => Ok(()),
    }
}

/// Passes after which the accuracy does not grow any more; for data of the user, enough for a thousand steps,
/// within reason.
fn default_epochs(args: &Args, batch: usize, examples: usize) -> usize {
    match (args.source.data_set, args.model) {
        (Some(DataSet::Digits), _) => TrainConfig::default().epochs,
        (Some(DataSet::Mnist), Model::Mlp) => 10,
        (Some(DataSet::Mnist), Model::Cnn | Model::Resnet18) => 3,
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
        "out": args.out,
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
