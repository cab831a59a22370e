//! Command `meganeura train`.

mod config_file;
mod data;
mod display;
mod interrupt;
mod logs;
mod onnx;
mod options;
mod text;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use meganeura::nn::data::{Augmentation, Dataset, Remainder};
use meganeura::nn::model::{Architecture, Loss, Model as Trained, Task};
use meganeura::nn::trainer::{Evaluation, OptimizerChoice, TrainConfig, TrainReport, Trainer};
use serde_json::{Value, json};

use super::Outcome;
use crate::commands::outputs::keep_inputs;
use crate::commands::ranks::Ranks;
use crate::output::{self, line, shortened};
use crate::signals;
pub(crate) use config_file::{effective, with_file};
pub(crate) use data::targets;
use data::{DataSet, ExampleFormat, FileOptions, NamedExamples, Source, load};
use logs::Logs;
use options::RunOptions;

const EXAMPLES: &str = "\
Examples:
  meganeura train digits --model cnn
  meganeura train --csv flowers.csv --label species --patience 20 --out flowers
  meganeura train --csv houses.csv --target price --missing mean --out houses
  meganeura train --images photos --image-size 64 --model resnet18 --augment flip --out photos-model
  meganeura train --npz images.npz --model cnn --augment flip,shift=2 --log run.jsonl
  meganeura train digits --epochs 100 --checkpoint run --every 200 --resume
  meganeura train --csv flowers.csv --lr 0.01 --print-config > flowers.toml
  meganeura train --config flowers.toml --epochs 50 --out flowers
  meganeura train text --data data/alice/alice.txt --model tiny --out alice
  mpirun -n 4 meganeura train digits --distributed mpi";

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

    /// ONNX classifier to train further, instead of a network of --model. --out names the resulting ONNX file. Features
    /// are standardised only with --scale; the resulting file always expects the original features.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "hidden"])]
    onnx: Option<PathBuf>,

    /// Pattern of parameters of --onnx to freeze, such as 'features.*'. May be repeated.
    #[arg(long, value_name = "PATTERN", requires = "onnx")]
    freeze: Vec<String>,

    /// Sizes of the hidden layers of mlp, or of the one hidden layer of cnn [default: 256,128; cnn: 64]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    hidden: Vec<usize>,

    /// Dropout probability after each hidden layer of mlp, or before each fully connected layer of cnn; 0 disables
    /// dropout [default: depends on the network]
    #[arg(long, value_name = "P", conflicts_with = "onnx", value_parser = probability)]
    dropout: Option<f32>,

    /// Folder to save the trained model to, for `predict` and `evaluate`; an earlier model in it is replaced. With
    /// --onnx, the ONNX file to write.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Weight classes by their inverse frequency, so that rare classes count as much as frequent ones.
    #[arg(long)]
    balance: bool,

    /// Label smoothing: fraction of each label that is spread over all classes, from 0 to below 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    label_smoothing: f32,

    /// Random augmentation of training examples, separated by commas: flip, shift=PIXELS, cutout=PIXELS and erase for
    /// images; noise=DEVIATION, brightness=AMOUNT and contrast=AMOUNT for all data.
    #[arg(long, value_name = "LIST")]
    augment: Option<Augmentation>,

    /// Folder of the MNIST files.
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
    /// MobileNetV2, for images; with half of the channels for images smaller than 64x64.
    Mobilenet,
    /// Small vision transformer, for images.
    Vit,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
            Model::Resnet18 => "resnet18",
            Model::Mobilenet => "mobilenet",
            Model::Vit => "vit",
        }
    }

    /// Returns the minimum height and width of images.
    fn least_image(self) -> usize {
        match self {
            Model::Mlp => 1,
            Model::Cnn | Model::Vit => 4,
            Model::Resnet18 | Model::Mobilenet => 8,
        }
    }
}

/// Candidate patch sizes of a vision transformer. The largest one that divides height and width of an image is used.
const PATCHES: [usize; 5] = [16, 8, 4, 2, 1];
/// Minimum number of patches of an image in each direction, if possible.
const MIN_PATCHES: usize = 4;

impl Args {
    /// Stores the options in the form of a file.
    pub(crate) fn note_settings(&mut self, settings: String) {
        match &mut self.what {
            Some(Subcommand::Text(args)) => args.run.settings = settings,
            None => self.run.settings = settings,
        }
    }

    /// Returns the name of the network in reports.
    fn network(&self) -> String {
        match &self.onnx {
            Some(path) => path.display().to_string(),
            None => self.model.name().to_owned(),
        }
    }

    /// Returns the requested network for examples of this shape.
    fn architecture(&self, shape: &[usize], outputs: usize) -> Result<Architecture, Box<dyn Error>> {
        let mut architecture = match (self.model, shape) {
            (Model::Cnn, &[c, h, w]) => Architecture::cnn([c, h, w], outputs),
            (Model::Resnet18, &[c, h, w]) => Architecture::resnet18([c, h, w], h.min(w) < 64, outputs),
            (Model::Mobilenet, &[c, h, w]) => Architecture::mobilenet([c, h, w], h.min(w) < 64, outputs),
            (Model::Vit, &[c, h, w]) => {
                let fits = |p: &&usize| h.is_multiple_of(**p) && w.is_multiple_of(**p) && h.min(w) / **p >= MIN_PATCHES;
                let patch = PATCHES.iter().find(fits).copied().unwrap_or(1);
                Architecture::vit([c, h, w], patch, outputs)
            }
            _ => Architecture::mlp(shape, outputs),
        };
        match (&mut architecture, &self.hidden[..]) {
            (_, []) => {}
            (Architecture::Mlp { hidden, .. }, sizes) => *hidden = sizes.to_vec(),
            (Architecture::Cnn { hidden, .. }, &[size]) => *hidden = size,
            (Architecture::Cnn { .. }, sizes) => {
                return Err(format!("--hidden: expected one size for cnn, found {sizes:?}").into());
            }
            _ => return Err(format!("--hidden does not work with the network {}", self.model.name()).into()),
        }
        match (&mut architecture, self.dropout) {
            (_, None) => {}
            (Architecture::Mlp { dropout, .. } | Architecture::Cnn { dropout, .. }, Some(p)) => *dropout = p,
            _ => return Err(format!("--dropout does not work with the network {}", self.model.name()).into()),
        }
        Ok(architecture)
    }

    /// Returns the loss for the task and the options.
    fn loss(&self, task: &Task) -> Result<Loss, Box<dyn Error>> {
        let soft = self.balance || self.label_smoothing != 0.0;
        match (task.loss(), soft) {
            (Loss::Regression, true) => Err("--balance and --label-smoothing work only with classification".into()),
            (Loss::Classes, true) => Ok(Loss::SoftClasses),
            (loss, _) => Ok(loss),
        }
    }
}

/// Parses a dropout probability.
fn probability(text: &str) -> Result<f32, String> {
    let p = text.parse().ok().filter(|p| (0.0..1.0).contains(p));
    p.ok_or_else(|| "expected a number from 0 to below 1".to_owned())
}

/// Results of a run.
struct Results {
    report: TrainReport,
    /// Evaluation on the validation examples, if there are any.
    validation: Option<Evaluation>,
    test: Evaluation,
}

impl Results {
    /// Returns the loss on the training examples in the epoch whose weights were kept.
    fn train_loss(&self, kept_best: bool) -> f64 {
        let best = self.report.best.filter(|_| kept_best).map(|best| best.epoch);
        let kept = best.and_then(|epoch| self.report.epochs.iter().find(|e| e.epoch == epoch));
        kept.or(self.report.epochs.last()).map_or(f64::NAN, |e| e.train_loss)
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    if let Some(Subcommand::Text(args)) = &args.what {
        return text::run(args);
    }
    if args.run.print_config {
        output::text(&args.run.settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = Ranks::join(&args.run.ranks)?;
    ranks.end(train(args, &ranks))
}

fn train(args: &Args, ranks: &Ranks) -> Outcome {
    let inputs = args.source.inputs(&args.files).chain(args.onnx.as_deref());
    let file = args.out.as_deref().filter(|_| args.onnx.is_some());
    keep_inputs(&[("--log", args.run.log.as_deref()), ("--out", file)], inputs)?;
    args.run.outlast_reader(args.out.is_some());
    // Comes first, so that a path that cannot be written is reported immediately.
    let logs = if ranks.is_first() {
        Logs::try_paths(&args.run)?
    } else {
        Logs::none(&args.run)
    };
    let out = args.out.as_ref().filter(|_| ranks.is_first());
    match (out, &args.onnx) {
        (Some(file), Some(_)) => onnx::check_out(file)?,
        (Some(folder), None) => Trained::prepare(folder)?,
        (None, _) => {}
    }
    let reading = ExampleFormat {
        model: args.model,
        keep_shape: args.augment.is_some() || args.onnx.is_some(),
        unscaled: args.onnx.is_some(),
        validation: if args.run.patience.is_some() { 0.1 } else { 0.0 },
    };
    let mut loaded = load(&args.source, &args.files, &args.data, &reading)?;
    let imported = match &args.onnx {
        Some(path) => Some(onnx::open(path, args, &mut loaded)?),
        None => None,
    };
    let train = &loaded.parts.train;
    if loaded.parts.validation.is_none() && loaded.parts.test.is_none() {
        return Err(
            "there are neither test nor validation examples to evaluate the model on; give --validation, or a \
                    --test-fraction above 0"
                .into(),
        );
    }
    let mut config = config(args, train);
    config.distributed = ranks.communicator();
    config.zero1 = args.run.zero1;
    if config.batch_size == 0 {
        return Err("--batch: expected at least 1, found 0".into());
    }
    let mut loss = args.loss(&loaded.task)?;
    if !train.len().is_multiple_of(config.batch_size) {
        // The last batch has fewer examples; their weights are an input of the graph.
        config.remainder = Remainder::Keep;
        loss = match loss {
            Loss::Regression => Loss::WeightedRegression,
            _ => Loss::SoftClasses,
        };
    }
    let shape = train.feature_shape().to_vec();
    config.check_ranks()?;
    let (architecture, graph) = match &imported {
        Some(imported) => (None, imported.training_graph(config.local_batch_size(), &shape, loss)?),
        None => {
            let architecture = args.architecture(&shape, loaded.task.outputs())?;
            let graph = architecture.training_graph(config.local_batch_size(), loss)?;
            (Some(architecture), graph)
        }
    };
    let mut trainer = Trainer::from_graph(&graph, config)?;
    if let Some(imported) = &imported {
        imported.set_parameters(&mut trainer)?;
    }
    interrupt::watch(&args.run);
    if !args.run.json {
        introduce(args, &loaded, &trainer)?;
        ranks.introduce(trainer.config().batch_size, &graph)?;
        logs.introduce()?;
    }
    let results = fit(args, &logs, &loaded, &mut trainer)?;
    interrupt::note_end(ranks, &results.report);
    if let (Some(file), Some(imported)) = (out, &imported) {
        imported.save(file, &mut trainer, &loaded)?;
    }
    if let (Some(folder), Some(architecture)) = (out, architecture) {
        let (task, preprocessing) = (loaded.task.clone(), loaded.preprocessing.clone());
        let mut model = Trained::from_trainer(&mut trainer, architecture, task, preprocessing)?;
        model.metrics = metrics(&results);
        model.training[config_file::RECORDED] = config_file::without_results(&args.run.settings).into();
        model.save(folder)?;
    }
    if args.run.json {
        let mut summary = summary(args, &loaded, &results, &trainer);
        summary["log_dir"] = json!(logs.folder());
        line(summary)?;
    } else {
        conclude(args, &results)?;
    }
    ended(&args.run, &results.report)
}

/// Returns the exit code, and prints how to resume an interrupted run.
fn ended(options: &RunOptions, report: &TrainReport) -> Outcome {
    if !is_interrupted(report) {
        return Ok(ExitCode::SUCCESS);
    }
    interrupt::explain(options, report.total_steps)?;
    Ok(ExitCode::from(signals::exit_code()))
}

/// Returns true if a signal ended the run.
fn is_interrupted(report: &TrainReport) -> bool {
    report.stopped && signals::happened()
}

/// Trains, and evaluates on the test examples. If there are validation examples, the test examples are not used before.
fn fit(args: &Args, logs: &Logs, loaded: &NamedExamples, trainer: &mut Trainer) -> Result<Results, Box<dyn Error>> {
    let report = logs.fit(trainer, &loaded.parts, args.run.json)?;
    let training = report.training;
    // Without test examples (`--test-fraction 0`), the report contains the validation examples.
    let validation = loaded
        .parts
        .validation
        .as_ref()
        .and(training.evaluation)
        .filter(|_| report.test.is_some());
    let test = report
        .test
        .or(training.evaluation)
        .ok_or("the model was not evaluated")?;
    Ok(Results {
        report: training,
        validation,
        test,
    })
}

/// Returns the quality metrics that are stored in the model's folder.
fn metrics(results: &Results) -> Value {
    let mut metrics = json!({"test": evaluation_object(&results.test)});
    if let Some(validation) = &results.validation {
        metrics["validation"] = evaluation_object(validation);
    }
    metrics
}

fn evaluation_object(evaluation: &Evaluation) -> Value {
    match &evaluation.regression {
        Some(regression) => json!({
            "examples": evaluation.examples,
            "loss": finite(evaluation.loss),
            "rmse": finite(regression.rmse),
            "mae": finite(regression.mae),
            "r2": finite(regression.r2),
        }),
        None => json!({
            "examples": evaluation.examples,
            "loss": finite(evaluation.loss),
            "accuracy": evaluation.accuracy(),
        }),
    }
}

/// Prints a description of the run before it starts.
fn introduce(args: &Args, loaded: &NamedExamples, trainer: &Trainer) -> std::io::Result<()> {
    let parts = &loaded.parts;
    if !loaded.ships {
        const MAX: usize = 10;
        let shape = parts.train.feature_shape();
        match &loaded.task {
            Task::Regression { targets, .. } => line(format_args!(
                "{}: examples of shape {shape:?}, numbers to predict: {}",
                loaded.name,
                targets.join(", ")
            ))?,
            task => {
                let names = task.classes();
                let more = if names.len() > MAX { ", ..." } else { "" };
                let shown: Vec<String> = names.iter().take(MAX).map(|name| shortened(name, 100)).collect();
                line(format_args!(
                    "{}: examples of shape {shape:?}, {} classes: {}{more}",
                    loaded.name,
                    names.len(),
                    shown.join(", ")
                ))?;
            }
        }
    }
    if let Some(profile) = &loaded.profile {
        const MAX_COLUMNS: usize = 30;
        super::data::print(profile, MAX_COLUMNS)?;
    }
    for note in &loaded.notes {
        line(note)?;
    }
    let validation = parts
        .validation
        .as_ref()
        .map_or_else(String::new, |v| format!("{} to validate, ", v.len()));
    line(format_args!(
        "{} on {}: {} examples to train, {validation}{} to test, {} parameters",
        args.network(),
        trainer.session().device().capabilities().name,
        parts.train.len(),
        parts.test.as_ref().map_or(0, Dataset::len),
        parameters(trainer)
    ))?;
    introduce_plan(trainer)
}

/// Prints special properties of the plan.
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

/// Prints the results.
fn conclude(args: &Args, results: &Results) -> std::io::Result<()> {
    let report = &results.report;
    let kept_best = args.run.patience.is_some();
    if let (true, Some(best)) = (kept_best, report.best) {
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
    let quality = match &results.test.regression {
        Some(regression) => format!("test {regression} of {} examples", results.test.examples),
        None => format!(
            "test accuracy {:.2} % ({} of {})",
            100.0 * results.test.accuracy(),
            results.test.correct,
            results.test.examples
        ),
    };
    line(format_args!(
        "{quality}{}, compiled in {:.3} s, {:.1} s in all",
        display::training(results.train_loss(kept_best), steps_per_second(report)),
        report.compile_seconds,
        report.compile_seconds + report.seconds
    ))?;
    match &args.out {
        Some(file) if args.onnx.is_some() => line(format_args!(
            "saved to {0}; `meganeura run {0}` uses it",
            file.display()
        )),
        Some(folder) => line(format_args!(
            "saved to {0}; `meganeura predict --model {0}` uses it",
            folder.display()
        )),
        None if args.source.csv.is_some() => line("the model is not saved; --out DIR saves it"),
        None => Ok(()),
    }
}

/// Returns the epochs after which the accuracy no longer improves; for data of the user, enough epochs for a thousand steps,
/// between 20 and 200.
fn default_epochs(args: &Args, batch: usize, examples: usize) -> usize {
    match (args.source.data_set, args.model) {
        (Some(DataSet::Digits), _) => TrainConfig::default().epochs,
        (Some(DataSet::Mnist), Model::Mlp) => 10,
        (Some(DataSet::Mnist), _) => 3,
        (None, _) => 1000usize.div_ceil((examples / batch.max(1)).max(1)).clamp(20, 200),
    }
}

/// Returns the learning rate at which an optimizer learns the digits well.
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
        class_weights: args.balance.then(|| train.balanced_class_weights()),
        label_smoothing: args.label_smoothing,
        ..args.run.config(batch_size, epochs, default_rate(&args.run.optimizer))
    }
}

fn parameters(trainer: &Trainer) -> usize {
    let plan = trainer.session().plan();
    let sizes = plan.param_buffers.iter();
    sizes.map(|(_, b)| plan.buffer_types[b.index()].numel()).sum()
}

fn steps_per_second(report: &TrainReport) -> f64 {
    // Epochs that were cut short have no time.
    let steps: usize = report.epochs.iter().map(|e| e.steps).sum();
    let seconds: f64 = report.epochs.iter().map(|e| e.train_seconds).sum();
    if seconds > 0.0 { steps as f64 / seconds } else { 0.0 }
}

/// Returns a number, or null for values that JSON does not have.
fn finite(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn summary(args: &Args, loaded: &NamedExamples, results: &Results, trainer: &Trainer) -> Value {
    let device = &trainer.session().device().capabilities().name;
    let precision = trainer.session().plan().precision.to_string();
    let report = &results.report;
    let classes = (!loaded.ships && !loaded.task.classes().is_empty()).then(|| loaded.task.classes());
    let mut summary = json!({
        "data": loaded.name,
        "classes": classes,
        "model": args.network(),
        "seed": args.run.seed,
        "device": device,
        "epochs": report.epochs.len(),
        "early_stopped": report.early_stopped,
        "interrupted": is_interrupted(report),
        "best_epoch": report.best.map(|b| b.epoch),
        "out": args.out,
        "test_loss": finite(results.test.loss),
        "train_loss": finite(results.train_loss(args.run.patience.is_some())),
        "precision": precision,
        "skipped_updates": report.skipped_updates,
        "steps_per_second": steps_per_second(report),
        "compile_seconds": report.compile_seconds,
        "seconds": report.seconds,
    });
    display::add_quality(&mut summary, "test", &results.test);
    if let Some(validation) = &results.validation {
        summary["validation_loss"] = finite(validation.loss);
        display::add_quality(&mut summary, "validation", validation);
    }
    summary
}
