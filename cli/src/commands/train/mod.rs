//! Command `meganeura train`.

mod config_file;
mod corpus;
mod data;
mod data_set;
mod display;
mod folds;
mod interrupt;
mod logs;
mod onnx;
mod options;
mod report;
mod seeds;
mod text;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::nn::data::{Augmentation, Dataset, Remainder, SplitOptions, quantile_edges};
use meganeura::nn::layers::Activation;
use meganeura::nn::model::{Architecture, Loss, Model as Trained, Task};
use meganeura::nn::trainer::{EarlyStopping, OptimizerChoice, TrainConfig, TrainReport, Trainer};
use meganeura::select::select;
use serde_json::json;

use super::Outcome;
use crate::commands::outputs::keep_inputs;
use crate::commands::ranks::Ranks;
use crate::output::{self, line, shortened};
use crate::signals;
pub(crate) use config_file::{effective, with_file};
use data::{ExampleFormat, FileOptions, NamedExamples, Source, load};
pub(crate) use data::{image_size, targets};
use data_set::DataSet;
use folds::{FoldRuns, Folds, LARGE_EPOCHS, MANY, Network};
use logs::Logs;
use options::RunOptions;
use report::{Results, conclude, introduce, metrics, summary};

const EXAMPLES: &str = "\
Examples:
  meganeura train digits --model cnn
  meganeura train --csv flowers.csv --label species --out flowers
  meganeura train --csv houses.csv --target price --missing mean --out houses
  meganeura train --images photos --image-size 64 --model resnet18 --augment flip --out photos-model
  meganeura train --npz images.npz --model cnn --augment flip,shift=2 --log run.jsonl
  meganeura train digits --epochs 100 --checkpoint run --every 200 --resume
  meganeura train --csv flowers.csv --lr 0.01 --print-config > flowers.toml
  meganeura train --config flowers.toml --epochs 50 --out flowers
  meganeura train text --data data/alice/alice.txt --model tiny --out alice
  mpirun -n 4 meganeura train digits --distributed mpi";

#[derive(Clone, Debug, clap::Subcommand)]
enum Subcommand {
    /// Train a language model on a text file, from scratch or from a checkpoint.
    Text(Box<text::Args>),
}

/// Options of `train`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<Subcommand>,

    #[command(flatten)]
    source: Source,

    /// Network to train [default: tabm for --csv, else mlp]
    #[arg(long, value_enum)]
    model: Option<Model>,

    /// ONNX classifier to train further, instead of a network of --model. --out names the resulting ONNX file. Features
    /// are standardised only with --scale; the resulting file always expects the original features.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "hidden"])]
    onnx: Option<PathBuf>,

    /// Pattern of parameters of --onnx to freeze, such as 'features.*'. May be repeated.
    #[arg(long, value_name = "PATTERN", requires = "onnx")]
    freeze: Vec<String>,

    /// Sizes of the hidden layers of mlp and tabm, or of the one hidden layer of cnn [default: mlp: 256,128; tabm: 128,128;
    /// cnn: 64]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = layer_size)]
    hidden: Vec<usize>,

    /// Dropout probability after each hidden layer of mlp and tabm, or before each fully connected layer of cnn; 0 disables
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

    /// Choose the network (tabm or a linear model, unless --model or --hidden is given) and the number of epochs by
    /// cross-validation with K folds, for tables; 0 disables it. Without --epochs and --patience, tables with fewer than
    /// 2,000 training examples use 5 folds, and larger ones stop early.
    #[arg(long, value_name = "K", conflicts_with_all = ["data_set", "npz", "images", "onnx", "epochs", "patience", "checkpoint", "distributed", "validation"], value_parser = folds)]
    cv: Option<usize>,

    /// Train N times, with seeds that count up from --seed and --split-seed, and report the mean and the standard deviation of
    /// the test results. No model is saved. With --json: the summary of each run, then one of all runs.
    #[arg(long, value_name = "N", conflicts_with_all = ["out", "checkpoint", "log", "log_dir", "distributed"], value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: Option<u64>,

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
    /// Ensemble of 16 perceptrons that share their hidden layers, for tables.
    Tabm,
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
            Model::Tabm => "tabm",
            Model::Cnn => "cnn",
            Model::Resnet18 => "resnet18",
            Model::Mobilenet => "mobilenet",
            Model::Vit => "vit",
        }
    }

    /// Returns the minimum height and width of images.
    fn least_image(self) -> usize {
        match self {
            Model::Mlp | Model::Tabm => 1,
            Model::Cnn | Model::Vit => 4,
            Model::Resnet18 | Model::Mobilenet => 8,
        }
    }
}

/// Candidate patch sizes of a vision transformer. The largest one that divides height and width of an image is used.
const PATCHES: [usize; 5] = [16, 8, 4, 2, 1];
/// Maximum number of bins of a feature of a table.
const MAX_BINS: usize = 16;
/// Minimum number of examples in a bin.
const MIN_BIN: usize = 12;
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
            None => self.model().name().to_owned(),
        }
    }

    /// Returns the network to train.
    fn model(&self) -> Model {
        let is_table = self.source.csv.is_some() && self.onnx.is_none();
        self.model.unwrap_or(if is_table { Model::Tabm } else { Model::Mlp })
    }

    /// Returns the requested network for these training examples.
    fn architecture(&self, train: &Dataset, task: &Task) -> Result<Architecture, Box<dyn Error>> {
        let (shape, outputs) = (train.feature_shape(), task.outputs());
        let mut architecture = match (self.model(), shape) {
            (Model::Tabm, &[features]) => {
                let edges = quantile_edges(train, MAX_BINS.min(train.len() / MIN_BIN));
                Architecture::tabm(features, edges, !train.is_regression(), outputs)
            }
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
            (Architecture::Mlp { hidden, .. } | Architecture::TabM { hidden, .. }, sizes) => *hidden = sizes.to_vec(),
            (Architecture::Cnn { hidden, .. }, &[size]) => *hidden = size,
            (Architecture::Cnn { .. }, sizes) => {
                return Err(format!("--hidden: expected one size for cnn, found {sizes:?}").into());
            }
            _ => return Err(format!("--hidden does not work with the network {}", self.model().name()).into()),
        }
        match (&mut architecture, self.dropout) {
            (_, None) => {}
            (
                Architecture::Mlp { dropout, .. }
                | Architecture::TabM { dropout, .. }
                | Architecture::Cnn { dropout, .. },
                Some(p),
            ) => *dropout = p,
            _ => return Err(format!("--dropout does not work with the network {}", self.model().name()).into()),
        }
        Ok(architecture)
    }

    /// Returns the networks that cross-validation compares: the requested one, and a linear model unless the options request a
    /// network.
    fn candidates(&self, architecture: &Architecture, rate: f32) -> Vec<Network> {
        /// Factor of the learning rate of a linear model. It needs more epochs than a network with the same rate.
        const LINEAR: f32 = 20.0;
        let mut all = vec![Network {
            name: self.model().name(),
            architecture: architecture.clone(),
            rate,
        }];
        if self.model.is_none() && self.hidden.is_empty() && self.dropout.is_none() {
            let linear = Architecture::Mlp {
                features: architecture.feature_shape(),
                hidden: Vec::new(),
                activation: Activation::Relu,
                dropout: 0.0,
                outputs: architecture.outputs(),
            };
            let is_adaptive = matches!(
                self.run.optimizer,
                OptimizerChoice::Adam | OptimizerChoice::AdamW { .. }
            );
            all.push(Network {
                name: "linear",
                architecture: linear,
                rate: if is_adaptive && self.run.lr.is_none() {
                    LINEAR * rate
                } else {
                    rate
                },
            });
        }
        all
    }

    /// Returns true if the command chooses the length of the run: a table, and no option that determines it.
    fn chooses_length(&self) -> bool {
        let run = &self.run;
        let is_given =
            run.epochs.is_some() || run.patience.is_some() || run.checkpoint.is_some() || run.ranks.is_asked_for();
        self.source.csv.is_some() && self.onnx.is_none() && !is_given
    }

    /// Returns the number of folds of the cross-validation that chooses the number of epochs, if there is one.
    fn folds(&self, loaded: &NamedExamples) -> Option<usize> {
        const DEFAULT: usize = 5;
        let is_small = loaded.parts.train.len() < MANY;
        let folds = self.cv.unwrap_or(if is_small { DEFAULT } else { 0 });
        (folds > 0 && self.chooses_length() && loaded.parts.validation.is_none()).then_some(folds)
    }

    /// Holds a tenth of a large table out for validation, unless the options determine the length of the run. Returns the rule that
    /// stops the run.
    fn hold_out(&self, loaded: &mut NamedExamples) -> Result<Option<EarlyStopping>, Box<dyn Error>> {
        let parts = &mut loaded.parts;
        if parts.train.len() < MANY || self.cv.is_some() || !self.chooses_length() {
            return Ok(None);
        }
        if parts.validation.is_none() {
            let split = parts.train.split_parts(SplitOptions {
                validation: 0.1,
                test: 0.0,
                seed: self.files.split_seed,
                stratify: true,
            })?;
            (parts.train, parts.validation) = (split.train, split.validation);
        }
        Ok(Some(EarlyStopping {
            patience: 10,
            ..EarlyStopping::default()
        }))
    }

    /// Suggests --balance if a class is rare.
    fn imbalance(&self, loaded: &NamedExamples) -> Option<String> {
        /// Minimum factor between the numbers of examples of two classes.
        const FACTOR: usize = 10;
        let counts = loaded.parts.train.class_counts();
        let (rare, count) = counts.iter().copied().min_by_key(|(_, count)| *count)?;
        let most = counts.iter().map(|(_, count)| *count).max()?;
        let is_imbalanced = count > 0 && most >= count.saturating_mul(FACTOR);
        let name = loaded
            .task
            .classes()
            .get(rare as usize)
            .filter(|_| is_imbalanced && !self.balance)?;
        Some(format!(
            "'{}' has {count} of {} training examples; --balance makes all classes count the same",
            shortened(name, 100),
            loaded.parts.train.len()
        ))
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

/// Returns the loss for batches whose last one has fewer examples.
fn soft(loss: Loss) -> Loss {
    match loss {
        Loss::Regression | Loss::WeightedRegression => Loss::WeightedRegression,
        _ => Loss::SoftClasses,
    }
}

/// Parses the size of a hidden layer.
fn layer_size(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|&size| size > 0)
        .ok_or_else(|| "expected sizes separated by commas, such as 256,128".into())
}

/// Parses a number of folds.
fn folds(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count != 1 && *count <= 100);
    count.ok_or_else(|| "expected 0, or a number of folds from 2 to 100".to_owned())
}

/// Parses a dropout probability.
fn probability(text: &str) -> Result<f32, String> {
    let p = text.parse().ok().filter(|p| (0.0..1.0).contains(p));
    p.ok_or_else(|| "expected a number from 0 to below 1".to_owned())
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
    let outcome = match args.seeds {
        Some(count) => seeds::run(args, count, &ranks),
        None => train(args, &ranks).and_then(|results| ended(&args.run, &results.report)),
    };
    ranks.end(outcome)
}

/// Trains, saves the model and prints the results, as the options ask for.
fn train(args: &Args, ranks: &Ranks) -> Result<Results, Box<dyn Error>> {
    let run = &args.run;
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
        model: args.model(),
        keep_shape: args.augment.is_some() || args.onnx.is_some(),
        unscaled: args.onnx.is_some(),
        validation: if args.run.patience.is_some() { 0.1 } else { 0.0 },
    };
    let mut loaded = load(&args.source, &args.files, &args.data, &reading)?;
    let suggestion = args.imbalance(&loaded);
    loaded.notes.extend(suggestion);
    let early_stopping = args.hold_out(&mut loaded)?;
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
    if early_stopping.is_some() {
        (config.early_stopping, config.epochs) = (early_stopping, config.epochs.max(LARGE_EPOCHS));
    }
    config.distributed = ranks.communicator();
    config.zero1 = args.run.zero1;
    if config.batch_size == 0 {
        return Err("--batch: expected at least 1, found 0".into());
    }
    let mut loss = args.loss(&loaded.task)?;
    if !train.len().is_multiple_of(config.batch_size) {
        // The last batch has fewer examples; their weights are an input of the graph.
        config.remainder = Remainder::Keep;
        loss = soft(loss);
    }
    let shape = train.feature_shape().to_vec();
    config.check_ranks()?;
    let mut network = args.network();
    let (mut architecture, mut graph) = match &imported {
        Some(imported) => (None, imported.training_graph(config.local_batch_size(), &shape, loss)?),
        None => {
            let architecture = args.architecture(train, &loaded.task)?;
            let graph = architecture.training_graph(config.local_batch_size(), loss)?;
            (Some(architecture), graph)
        }
    };
    interrupt::watch(&args.run);
    let mut cross_validation = None;
    if let (Some(folds), Some(architecture)) = (args.folds(&loaded), &mut architecture) {
        let cpu = cpu(args)?;
        let runs = FoldRuns {
            folds,
            train,
            networks: args.candidates(architecture, config.learning_rate),
            loss: soft(loss),
            config: &config,
            prints: !run.json && run.repetition.is_none(),
            cpu: cpu.as_ref(),
        };
        cross_validation = runs.choose()?;
        if let Some(best) = cross_validation.as_ref().and_then(Folds::best) {
            (config.epochs, config.learning_rate) = (best.epochs, best.network.rate);
            if best.network.architecture != *architecture {
                *architecture = best.network.architecture.clone();
                network = best.network.name.to_owned();
                graph = architecture.training_graph(config.local_batch_size(), loss)?;
            }
        }
    }
    let mut trainer = Trainer::from_graph(&graph, config)?;
    if let Some(imported) = &imported {
        imported.set_parameters(&mut trainer)?;
    }
    if !run.json && run.repetition.unwrap_or(0) == 0 {
        introduce(&network, &loaded, &trainer)?;
        ranks.introduce(trainer.config().batch_size, &graph)?;
        logs.introduce()?;
    }
    let results = fit(args, &logs, &loaded, &mut trainer, cross_validation)?;
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
        let mut summary = summary(args, &network, &loaded, &results, &trainer);
        summary["log_dir"] = json!(logs.folder());
        line(summary)?;
    } else if run.repetition.is_none() {
        conclude(args, &results)?;
    }
    Ok(results)
}

/// Returns the CPU device if the run uses it.
fn cpu(args: &Args) -> Result<Option<CpuDevice>, Box<dyn Error>> {
    let config = Config::load()?;
    let selected = select(args.run.device.as_deref(), &config)?;
    let is_cpu = selected.backend.info().name == "cpu";
    Ok(is_cpu.then(|| CpuDevice::from_config(&config)).transpose()?)
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
fn fit(
    args: &Args,
    logs: &Logs,
    loaded: &NamedExamples,
    trainer: &mut Trainer,
    cross_validation: Option<Folds>,
) -> Result<Results, Box<dyn Error>> {
    let kept_best = trainer.config().early_stopping.is_some();
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
        kept_best,
        cross_validation,
        validation,
        test,
    })
}

/// Returns the epochs after which the accuracy no longer improves; for data of the user, enough epochs for a thousand steps,
/// between 20 and 200.
fn default_epochs(args: &Args, batch: usize, examples: usize) -> usize {
    match (args.source.data_set, args.model()) {
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
