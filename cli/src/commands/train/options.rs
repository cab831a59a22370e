//! Options of `meganeura train` for classifiers and language models.

use std::path::PathBuf;

use clap::{ArgGroup, ValueEnum};
use meganeura::nn::trainer::{Checkpoints, EarlyStopping, Metric, OptimizerChoice, Schedule, TrainConfig, Warmup};
use meganeura::plan::MemoryBudget;
use meganeura::precision::Precision;
use meganeura::{GradientClip, LossScaling, ParameterGroup};

use crate::commands::precision::Choice;
use crate::commands::ranks::RankOptions;
use crate::output;

/// How to train, and what to save.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("logs").args(["log", "log_dir"]).multiple(true)))]
pub(super) struct RunOptions {
    /// TOML file of options, with their long names as keys, as in `batch = 64`; or the folder of a model, for the options
    /// that it was trained with. Options of the command line override those of the file.
    #[arg(long = "config", value_name = "FILE|MODEL")]
    #[allow(dead_code, reason = "it is read before the options are parsed")]
    config_file: Option<PathBuf>,

    /// Print all options as a file for --config, instead of training.
    #[arg(long)]
    pub(super) print_config: bool,

    #[command(flatten)]
    pub(super) ranks: RankOptions,

    /// With --distributed: shard the optimizer's states over the processes (ZeRO stage 1), so that each has the moments of a
    /// share of the parameters. Results are the same.
    #[arg(long, requires = "distributed")]
    pub(super) zero1: bool,

    /// The options as a file.
    #[arg(skip)]
    pub(super) settings: String,

    /// Device to train on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    pub(super) device: Option<String>,

    /// Memory limit of the plan: 4GB, 50% of the plan's memory, 50%:step of activation memory, or 80%:device; activations
    /// are recomputed (gradient checkpointing) to stay within it; results stay the same.
    #[arg(long, value_name = "BUDGET")]
    pub(super) memory_budget: Option<MemoryBudget>,

    /// Precision of matmuls and convolutions [default: that of the configuration file, or f32]
    #[arg(long, value_enum)]
    pub(super) precision: Option<Choice>,

    /// Loss scale in mixed precision: dynamic, dynamic:START, dynamic:START:INTERVAL (updates until it is doubled) or a
    /// fixed power of two [default: that of the configuration file, or dynamic:65536:2000]
    #[arg(long, value_name = "SCALE")]
    pub(super) loss_scale: Option<LossScaling>,

    /// Epochs; with 0, the model is only evaluated [default: depends on data and model]
    #[arg(long, value_name = "N")]
    pub(super) epochs: Option<usize>,

    /// Batch size [default: 32 (`train text`: 8), or the number of examples if that is less]
    #[arg(long, value_name = "N")]
    pub(super) batch: Option<usize>,

    /// Optimizer: sgd, momentum, nesterov, adam or adamw.
    #[arg(long, value_name = "OPTIMIZER", default_value = "adamw")]
    pub(super) optimizer: OptimizerChoice,

    /// Highest learning rate of the run [default: depends on the optimizer; for `train text` with adam and adamw: 3e-3 for a
    /// new model, 1e-3 for adapters, 1e-4 for a checkpoint]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) lr: Option<f32>,

    /// How the learning rate changes: constant, cosine (falls to 0), step (a tenth every 10 epochs) or onecycle
    /// (rises, then falls to almost 0).
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    pub(super) schedule: Schedule,

    /// Warm-up of the learning rate over the first steps: their number, or a percentage of all steps like 5%.
    #[arg(long, value_name = "STEPS", default_value = "0")]
    pub(super) warmup: Warmup,

    /// Scale gradients down to this Euclidean norm where they are longer [default: off; `train text`: 1; pass a huge value to
    /// disable]
    #[arg(long, value_name = "NORM")]
    pub(super) clip_norm: Option<f32>,

    /// Limit every element of the gradients to plus or minus this value.
    #[arg(long, value_name = "VALUE", conflicts_with = "clip_norm")]
    pub(super) clip_value: Option<f32>,

    /// Accumulate gradients: update after this number of steps, with their average.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    pub(super) accumulate: u32,

    /// Apply no weight decay to parameters whose names match; `*` stands for any characters, as in `*.bias`.
    #[arg(long, value_name = "PATTERN")]
    pub(super) no_decay: Vec<String>,

    /// Early stopping: stop after this number of evaluations in a row without improvement, and keep the best weights.
    #[arg(long, value_name = "N")]
    pub(super) patience: Option<usize>,

    /// Least improvement that counts for --patience.
    #[arg(long, value_name = "DELTA", default_value_t = 0.0, requires = "patience")]
    pub(super) min_delta: f64,

    /// Metric that must improve for --patience.
    #[arg(long, value_enum, default_value_t = MetricChoice::Loss, requires = "patience")]
    pub(super) metric: MetricChoice,

    /// Evaluate on the test examples every N steps, too, not only after epochs [0: off]
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) evaluate_every_steps: usize,

    /// Batches to prefetch on a separate thread; results are the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) prefetch: usize,

    /// Seed of initial weights, order of the examples, augmentation and dropout: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Folder of checkpoints; an interrupted run resumes from it with --resume.
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,

    /// Steps between checkpoints.
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    pub(super) every: usize,

    /// Resume from the --checkpoint, if there is one: the result is the same as that of an uninterrupted run.
    #[arg(long, requires = "checkpoint")]
    pub(super) resume: bool,

    /// Settings in which a resumed run may differ from the one that was saved, with commas between, such as
    /// learning-rate,schedule: without, a run of other data or settings is refused, with what differs.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "resume")]
    pub(super) allow_changes: Vec<String>,

    /// Print one JSON object a line: each epoch, then a summary.
    #[arg(long)]
    pub(super) json: bool,

    /// Write one JSON object a line to a file: start, steps, evaluations, epochs and end of the run.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Write the run into a folder: an event file for TensorBoard, metrics.csv and metrics.jsonl. If it holds a run, a new one
    /// goes into a folder in it: run-2, run-3 and so on.
    #[arg(long, value_name = "DIR")]
    pub(super) log_dir: Option<PathBuf>,

    /// Log statistics of parameters and gradients every N steps: range, mean, deviation, NaNs and infinities to --log and
    /// statistics.csv of --log-dir, and histograms for TensorBoard [0: off]
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logs")]
    pub(super) statistics: usize,
}

/// A learning rate that trains something; which others there are, the trainer knows.
fn rate(text: &str) -> Result<f32, String> {
    let rate: f32 = text
        .parse()
        .map_err(|_| format!("'{text}' is no number; a rate is written like 0.002 or 2e-3"))?;
    if rate == 0.0 {
        return Err(
            "with a rate of 0 every update is 0, so nothing is learned; give a rate above 0 (leave --lr out for the \
             default), or --epochs 0 to evaluate alone"
                .into(),
        );
    }
    Ok(rate)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MetricChoice {
    /// Lower loss.
    Loss,
    /// Higher accuracy.
    Accuracy,
}

impl RunOptions {
    /// Goes on where nobody reads what is printed, if the run makes a model. A log alone is ended as it should be.
    pub(super) fn outlast_reader(&self, has_out: bool) {
        if has_out || self.checkpoint.is_some() {
            output::outlast_reader();
        }
    }

    fn checkpoints(&self) -> Option<Checkpoints> {
        self.checkpoint.as_ref().map(|folder| Checkpoints {
            folder: folder.clone(),
            every: self.every,
            resume: self.resume,
            allow_changes: self.allow_changes.clone(),
        })
    }

    /// Whether the run goes on from a checkpoint.
    pub(super) fn resumes(&self) -> bool {
        self.checkpoints().is_some_and(|checkpoints| checkpoints.resumes())
    }

    /// The settings for batches of this size; the learning rate is the default if none is given.
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
            checkpoints: self.checkpoints(),
            ..TrainConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_train_nothing_are_refused() {
        assert_eq!(rate("2e-3"), Ok(0.002));
        for zero in ["0", "-0.0", "0e5", "1e-60"] {
            assert!(rate(zero).is_err_and(|e| e.contains("nothing is learned")), "{zero}");
        }
        assert!(rate("fast").is_err_and(|e| e.contains("a rate is written like")));
        // Which others are wrong, the trainer says of its field.
        assert!(rate("NaN").is_ok_and(f32::is_nan) && rate("-1").is_ok());
    }
}
