//! Options that `meganeura train` has whatever it trains.

use std::path::PathBuf;

use clap::{ArgGroup, ValueEnum};
use meganeura::nn::trainer::{Checkpoints, EarlyStopping, Metric, OptimizerChoice, Schedule, TrainConfig, Warmup};
use meganeura::plan::MemoryBudget;
use meganeura::precision::Precision;
use meganeura::{GradientClip, LossScaling, ParameterGroup};

use crate::commands::precision::Choice;

/// How to train, and what to keep of it.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("logs").args(["log", "log_dir"]).multiple(true)))]
pub(super) struct RunOptions {
    /// Device to train on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    pub(super) device: Option<String>,

    /// Memory that a training step may take, such as 4GB, 50% of what it takes otherwise, 50%:step of what it keeps on
    /// the way, or 80%:device; parts of it run twice to keep to it, and results are the same.
    #[arg(long, value_name = "BUDGET")]
    pub(super) memory_budget: Option<MemoryBudget>,

    /// How exactly products are computed [default: that of the configuration file, or f32]
    #[arg(long, value_enum)]
    pub(super) precision: Option<Choice>,

    /// Scale of the gradients in mixed precision: dynamic, dynamic:START, dynamic:START:INTERVAL (updates from one doubling
    /// to the next) or a fixed power of two [default: that of the configuration file, or dynamic:65536:2000]
    #[arg(long, value_name = "SCALE")]
    pub(super) loss_scale: Option<LossScaling>,

    /// Passes over the training examples; with 0, only evaluates [default: depends on data and model]
    #[arg(long, value_name = "N")]
    pub(super) epochs: Option<usize>,

    /// Examples in a step [default: 32, 8 of text, or all there are if they are fewer]
    #[arg(long, value_name = "N")]
    pub(super) batch: Option<usize>,

    /// Update rule: sgd, momentum, nesterov, adam or adamw.
    #[arg(long, value_name = "RULE", default_value = "adamw")]
    pub(super) optimizer: OptimizerChoice,

    /// Highest learning rate of the run [default: depends on the rule; 3e-3, of text, for a new model, 1e-3 for adapters, 1e-4 for a checkpoint, all with adam and adamw]
    #[arg(long, value_name = "RATE")]
    pub(super) lr: Option<f32>,

    /// How the learning rate changes: constant, cosine (falls to 0), step (a tenth every 10 epochs) or onecycle
    /// (rises, then falls to almost 0).
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    pub(super) schedule: Schedule,

    /// Let the learning rate rise over the first steps: their number, or a percentage of all steps like 5%.
    #[arg(long, value_name = "STEPS", default_value = "0")]
    pub(super) warmup: Warmup,

    /// Scale gradients down to this Euclidean norm where they are longer [default: does not; 1 of text, where a huge one does not]
    #[arg(long, value_name = "NORM")]
    pub(super) clip_norm: Option<f32>,

    /// Limit every element of the gradients to plus or minus this value.
    #[arg(long, value_name = "VALUE", conflicts_with = "clip_norm")]
    pub(super) clip_value: Option<f32>,

    /// Average the gradients of so many steps for each update.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    pub(super) accumulate: u32,

    /// Apply no weight decay to parameters with such names; `*` stands for any characters, as in `*.bias`.
    #[arg(long, value_name = "PATTERN")]
    pub(super) no_decay: Vec<String>,

    /// Stop after so many evaluations in a row without a better one, and keep the best weights.
    #[arg(long, value_name = "N")]
    pub(super) patience: Option<usize>,

    /// How much better an evaluation must be to count for --patience.
    #[arg(long, value_name = "DELTA", default_value_t = 0.0, requires = "patience")]
    pub(super) min_delta: f64,

    /// What makes an evaluation better for --patience.
    #[arg(long, value_enum, default_value_t = MetricChoice::Loss, requires = "patience")]
    pub(super) metric: MetricChoice,

    /// Evaluate on the test examples also after every so many steps, not only after epochs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) evaluate_every_steps: usize,

    /// Batches to assemble ahead on a thread of their own; results are the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) prefetch: usize,

    /// Seed of initial weights, order of the examples, augmentation and dropout: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Folder in which the run is saved, to go on from there after it was ended in whatever way.
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,

    /// Steps from one --checkpoint to the next.
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    pub(super) every: usize,

    /// Go on from the --checkpoint, if there is one: the result is that of a run that was never ended.
    #[arg(long, requires = "checkpoint")]
    pub(super) resume: bool,

    /// Print one JSON object a line: each epoch, then a summary.
    #[arg(long)]
    pub(super) json: bool,

    /// Write one JSON object a line to a file: begin, steps, evaluations, epochs and end of the run.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Write the run into a folder: an event file for TensorBoard, metrics.csv and metrics.jsonl.
    #[arg(long, value_name = "DIR")]
    pub(super) log_dir: Option<PathBuf>,

    /// Log what is in parameters and gradients after every so many steps: range, mean, deviation, NaNs and infinities
    /// to --log and statistics.csv of --log-dir, and histograms for TensorBoard.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logs")]
    pub(super) statistics: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MetricChoice {
    /// Lower loss.
    Loss,
    /// Higher accuracy.
    Accuracy,
}

impl RunOptions {
    /// The settings for batches of this size; the passes and the learning rate are those that are meant if none are given.
    pub(super) fn config(&self, batch_size: usize, epochs: usize, learning_rate: f32) -> TrainConfig {
        let early_stopping = self.patience.map(|patience| EarlyStopping {
            patience,
            min_delta: self.min_delta,
            metric: match self.metric {
                MetricChoice::Loss => Metric::Loss,
                MetricChoice::Accuracy => Metric::Accuracy,
            },
            ..EarlyStopping::default()
        });
        TrainConfig {
            epochs,
            batch_size,
            optimizer: self.optimizer.clone(),
            learning_rate: self.lr.unwrap_or(learning_rate),
            schedule: self.schedule,
            warmup: self.warmup,
            clip: self
                .clip_norm
                .map(GradientClip::Norm)
                .or(self.clip_value.map(GradientClip::Value)),
            accumulate: self.accumulate,
            groups: match self.no_decay.is_empty() {
                true => Vec::new(),
                false => vec![ParameterGroup::new(self.no_decay.iter().cloned()).weight_decay(0.0)],
            },
            seed: self.seed,
            device: self.device.clone(),
            memory_budget: self.memory_budget,
            precision: self.precision.map(Precision::from),
            loss_scale: self.loss_scale,
            evaluate_every_steps: self.evaluate_every_steps,
            statistics_every: self.statistics,
            early_stopping,
            prefetch: self.prefetch,
            checkpoints: self.checkpoint.as_ref().map(|folder| Checkpoints {
                folder: folder.clone(),
                every: self.every,
                resume: self.resume,
            }),
            ..TrainConfig::default()
        }
    }
}
