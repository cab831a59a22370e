//! `meganeura train`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use meganeura::Graph;
use meganeura::nn::data::{self, DataError, Dataset};
use meganeura::nn::models::{cnn_classifier, mlp_classifier};
use meganeura::nn::trainer::{
    EpochBegin, EpochReport, Evaluation, Observer, OptimizerChoice, StepInfo, TrainConfig, TrainReport, Trainer,
};
use serde_json::{Value, json};

use super::Outcome;
use crate::output::line;

/// Options of `train`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data set: digits ships with the program; mnist is read from a folder.
    data_set: DataSet,

    /// Network to train.
    #[arg(long, value_enum, default_value_t = Model::Mlp)]
    model: Model,

    /// Device to train on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Passes over the training images; with 0, only evaluates [default: depends on data set and model]
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,

    /// Images in a step.
    #[arg(long, value_name = "N", default_value_t = TrainConfig::default().batch_size)]
    batch: usize,

    /// Update rule: sgd, momentum, nesterov, adam or adamw.
    #[arg(long, value_name = "RULE", default_value = "adamw")]
    optimizer: OptimizerChoice,

    /// Learning rate at the start [default: depends on the rule]
    #[arg(long, value_name = "RATE")]
    lr: Option<f32>,

    /// Seed of initial weights, order of the images and dropout: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Folder with the MNIST files.
    #[arg(long, value_name = "DIR", default_value = "data/mnist")]
    data: PathBuf,

    /// Print one JSON object a line: each epoch, then a summary.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DataSet {
    /// 1,797 handwritten digits of 8x8 pixels; a fixed fifth is held out.
    Digits,
    /// 70,000 handwritten digits of 28x28 pixels, read from a folder.
    Mnist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// Multi-layer perceptron.
    Mlp,
    /// Convolutional network.
    Cnn,
}

impl DataSet {
    fn name(self) -> &'static str {
        match self {
            DataSet::Digits => "digits",
            DataSet::Mnist => "mnist",
        }
    }
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
        }
    }

    /// The graph for a batch of images `[channels, height, width]`.
    fn graph(self, batch: usize, image: &Dataset) -> Graph {
        match (self, image.feature_shape()) {
            (Model::Cnn, &[c, h, w]) => cnn_classifier(batch, [c, h, w], image.classes()),
            _ => mlp_classifier(batch, image.feature_len(), image.classes()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let (train, test) = load(args)?;
    let config = config(args);
    let mut trainer = Trainer::new(|batch| args.model.graph(batch, &train), config)?;
    let device = trainer.session().device().capabilities().name.clone();
    let observer: &mut dyn Observer = if args.json {
        &mut JsonLines
    } else {
        line(format_args!(
            "{} on {device}: {} images to train, {} to test, {} parameters",
            args.model.name(),
            train.len(),
            test.len(),
            parameters(&trainer)
        ))?;
        &mut Display::default()
    };
    let report = trainer.fit(&train, Some(&test), observer)?;
    let evaluation = report.evaluation.ok_or("the model was not evaluated")?;
    if args.json {
        line(summary(args, &report, &evaluation, &device))?;
    } else {
        line(format_args!(
            "test accuracy {:.2} % ({} of {}), train loss {:.4}, {:.0} steps/s, compiled in {:.3} s, {:.1} s in all",
            100.0 * evaluation.accuracy(),
            evaluation.correct,
            evaluation.examples,
            train_loss(&report),
            steps_per_second(&report),
            report.compile_seconds,
            report.compile_seconds + report.seconds
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &Args) -> Result<(Dataset, Dataset), DataError> {
    let (train, test) = match args.data_set {
        DataSet::Digits => data::digits_split()?,
        DataSet::Mnist => data::mnist(&args.data)?,
    };
    if args.model == Model::Cnn {
        return Ok((train, test));
    }
    let flat = |d: Dataset| {
        let len = d.feature_len();
        d.with_feature_shape(vec![len])
    };
    Ok((flat(train)?, flat(test)?))
}

/// Passes after which the accuracy does not grow any more.
fn default_epochs(args: &Args) -> usize {
    match (args.data_set, args.model) {
        (DataSet::Digits, _) => TrainConfig::default().epochs,
        (DataSet::Mnist, Model::Mlp) => 10,
        (DataSet::Mnist, Model::Cnn) => 3,
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

fn config(args: &Args) -> TrainConfig {
    TrainConfig {
        epochs: args.epochs.unwrap_or_else(|| default_epochs(args)),
        batch_size: args.batch,
        optimizer: args.optimizer.clone(),
        learning_rate: args.lr.unwrap_or_else(|| default_rate(&args.optimizer)),
        seed: args.seed,
        device: args.device.clone(),
        ..TrainConfig::default()
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
    let steps: usize = report.epochs.iter().map(|e| e.steps).sum();
    let seconds: f64 = report.epochs.iter().map(|e| e.train_seconds).sum();
    if seconds > 0.0 { steps as f64 / seconds } else { 0.0 }
}

/// A number, or null where JSON has none for it.
fn finite(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn summary(args: &Args, report: &TrainReport, evaluation: &Evaluation, device: &str) -> Value {
    json!({
        "data": args.data_set.name(),
        "model": args.model.name(),
        "seed": args.seed,
        "device": device,
        "epochs": report.epochs.len(),
        "test_accuracy": evaluation.accuracy(),
        "test_loss": finite(evaluation.loss),
        "train_loss": finite(train_loss(report)),
        "steps_per_second": steps_per_second(report),
        "compile_seconds": report.compile_seconds,
        "seconds": report.seconds,
    })
}

/// Prints each epoch as a JSON object.
struct JsonLines;

impl Observer for JsonLines {
    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let printed = line(json!({
            "epoch": report.epoch,
            "train_loss": finite(report.train_loss),
            "test_loss": report.evaluation.map(|e| e.loss),
            "test_accuracy": report.evaluation.map(|e| e.accuracy()),
            "learning_rate": report.learning_rate,
            "steps_per_second": report.steps as f64 / report.train_seconds.max(1e-9),
        }));
        // Nobody reads any more: stop training for nobody.
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A progress bar for each epoch, and a line after it.
#[derive(Default)]
struct Display {
    bar: Option<ProgressBar>,
    epochs: usize,
}

impl Observer for Display {
    fn on_epoch_begin(&mut self, begin: &EpochBegin) -> ControlFlow<()> {
        let bar = ProgressBar::new(begin.steps as u64);
        let template = "epoch {prefix} [{bar:30}] {pos}/{len} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        self.epochs = begin.epochs;
        bar.set_prefix(format!("{}/{}", begin.epoch, begin.epochs));
        self.bar = Some(bar);
        ControlFlow::Continue(())
    }

    fn on_step(&mut self, info: &StepInfo) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.set_position(info.step as u64);
            if let Some(loss) = info.loss {
                bar.set_message(format!("loss {loss:.4}"));
            }
        }
        ControlFlow::Continue(())
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let test = report.evaluation.map_or_else(String::new, |e| {
            format!("  test loss {:.4}  test accuracy {:.2} %", e.loss, 100.0 * e.accuracy())
        });
        let width = self.epochs.to_string().len();
        let printed = line(format_args!(
            "epoch {:>width$}/{}  train loss {:.4}{test}  {:.0} steps/s",
            report.epoch,
            self.epochs,
            report.train_loss,
            report.steps as f64 / report.train_seconds.max(1e-9)
        ));
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
