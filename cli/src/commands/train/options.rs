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

/// Options of training and of its outputs.
#[derive(Clone, Debug, clap::Args)]
#[command(group(ArgGroup::new("logs").args(["log", "log_dir"]).multiple(true)))]
pub(super) struct RunOptions {
    /// TOML file of options, with their long names as keys (`batch = 64`), or a model folder, for the options that the
    /// model was trained with. Options on the command line override those of the file.
    #[arg(long = "config", value_name = "FILE|MODEL")]
    #[allow(dead_code, reason = "it is read before the options are parsed")]
    config_file: Option<PathBuf>,

    /// Print all options in the format of --config, instead of training.
    #[arg(long)]
    pub(super) print_config: bool,

    #[command(flatten)]
    pub(super) ranks: RankOptions,

    /// With --distributed: shard the optimizer state over the processes (ZeRO stage 1). Results do not change.
    #[arg(long, requires = "distributed")]
    pub(super) zero1: bool,

    /// Options of the run, in the format of `--config`.
    #[arg(skip)]
    pub(super) settings: String,

    /// Index of the run, if `--seeds` repeats it.
    #[arg(skip)]
    pub(super) repetition: Option<u64>,

    /// Device to train on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    pub(super) device: Option<String>,

    /// Memory limit of the plan: a size (4GB), or a share of the plan's memory without a limit (50%), of its
    /// activation memory (50%:step), or of the device's memory (80%:device). Activations are recomputed (gradient
    /// checkpointing) to stay below it; results do not change.
    #[arg(long, value_name = "BUDGET")]
    pub(super) memory_budget: Option<MemoryBudget>,

    /// Precision of matmuls and convolutions [default: from the configuration file, else f32]
    #[arg(long, value_enum)]
    pub(super) precision: Option<Choice>,

    /// Loss scale in mixed precision: dynamic, dynamic:START, dynamic:START:INTERVAL (doubled after INTERVAL updates),
    /// or a fixed power of two [default: from the configuration file, else dynamic:65536:2000]
    #[arg(long, value_name = "SCALE")]
    pub(super) loss_scale: Option<LossScaling>,

    /// Number of epochs; with 0, the model is only evaluated [default: depends on data and model]
    #[arg(long, value_name = "N")]
    pub(super) epochs: Option<usize>,

    /// Batch size [default: 32 (`train text`: 8), or the number of examples if that is less]
    #[arg(long, value_name = "N")]
    pub(super) batch: Option<usize>,

    /// Optimizer: sgd, momentum, nesterov, adam or adamw.
    #[arg(long, value_name = "OPTIMIZER", default_value = "adamw")]
    pub(super) optimizer: OptimizerChoice,

    /// Peak learning rate [default: depends on the optimizer; for `train text` with adam and adamw: 3e-3 for a new
    /// model, 1e-3 for adapters, 1e-4 for a checkpoint]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) lr: Option<f32>,

    /// Schedule of the learning rate: constant, cosine (decays to 0), step (divided by 10 every 10 epochs) or onecycle
    /// (rises, then decays to almost 0).
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    pub(super) schedule: Schedule,

    /// Length of the learning-rate warm-up, in steps or as a percentage of all steps, such as 5%.
    #[arg(long, value_name = "STEPS", default_value = "0")]
    pub(super) warmup: Warmup,

    /// Clip gradients to this Euclidean norm; a huge value disables clipping [default: 1 for `train text`, else no clipping]
    #[arg(long, value_name = "NORM")]
    pub(super) clip_norm: Option<f32>,

    /// Clip every element of the gradients to plus or minus this value.
    #[arg(long, value_name = "VALUE", conflicts_with = "clip_norm")]
    pub(super) clip_value: Option<f32>,

    /// Gradient accumulation: number of steps per update, which uses their average gradient.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    pub(super) accumulate: u32,

    /// Pattern of parameters without weight decay; `*` matches any text, as in `*.bias`.
    #[arg(long, value_name = "PATTERN")]
    pub(super) no_decay: Vec<String>,

    /// Early stopping: stop after this number of consecutive evaluations without improvement, and keep the best
    /// weights.
    #[arg(long, value_name = "N")]
    pub(super) patience: Option<usize>,

    /// Minimum improvement that resets --patience.
    #[arg(long, value_name = "DELTA", default_value_t = 0.0, requires = "patience")]
    pub(super) min_delta: f64,

    /// Metric that --patience compares.
    #[arg(long, value_enum, default_value_t = MetricChoice::Loss, requires = "patience")]
    pub(super) metric: MetricChoice,

    /// Also evaluate every N steps, not only after each epoch: on the validation examples if there are any, else on the
    /// test examples [0: off]
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) evaluate_every_steps: usize,

    /// Number of batches to prefetch on a separate thread; results do not change.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) prefetch: usize,

    /// Seed of initial weights, order of examples, augmentation and dropout; equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Folder for checkpoints, which --resume continues from.
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,

    /// Number of steps between checkpoints.
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    pub(super) every: usize,

    /// Resume from the checkpoint in --checkpoint, if it exists. The result is the same as that of an uninterrupted
    /// run.
    #[arg(long, requires = "checkpoint")]
    pub(super) resume: bool,

    /// Settings that may differ from those of the saved run, separated by commas, such as learning-rate,schedule. By
    /// default a run with different data or settings is refused, and the error lists the differences.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "resume")]
    pub(super) allow_changes: Vec<String>,

    /// Print one JSON object per line: each epoch, then a summary.
    #[arg(long)]
    pub(super) json: bool,

    /// Log file with one JSON object per line: start, steps, evaluations, epochs and end of the run.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Log folder for an event file of TensorBoard, metrics.csv and metrics.jsonl. If it already contains a run, the new
    /// run is written to a subfolder: run-2, run-3 and so on.
    #[arg(long, value_name = "DIR")]
    pub(super) log_dir: Option<PathBuf>,

    /// Log statistics of parameters and gradients every N steps; 0 disables them. --log and statistics.csv in --log-dir contain
    /// range, mean, standard deviation, and numbers of NaNs and infinities; TensorBoard shows histograms.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logs")]
    pub(super) statistics: usize,
}

/// Parses a learning rate other than 0; the trainer reports other invalid rates.
fn rate(text: &str) -> Result<f32, String> {
    let rate: f32 = text
        .parse()
        .map_err(|_| format!("expected a number such as 0.002 or 2e-3, found '{text}'"))?;
    if rate == 0.0 {
        return Err(
            "a rate of 0 trains nothing; give a rate above 0 (omit --lr for the default), or --epochs 0 to only \
             evaluate"
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
    /// Continues after standard output is closed, if the run saves a model or a checkpoint. With only a log, the run ends
    /// regularly.
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

    /// Returns true if the run resumes from a checkpoint.
    pub(super) fn resumes(&self) -> bool {
        self.checkpoints().is_some_and(|checkpoints| checkpoints.resumes())
    }

    /// Returns the settings for batches of this size; `learning_rate` is the default.
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
            groups: if self.no_decay.is_empty() {
                Vec::new()
            } else {
                vec![ParameterGroup::new(self.no_decay.iter().cloned()).weight_decay(0.0)]
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
            assert!(rate(zero).is_err_and(|e| e.contains("trains nothing")), "{zero}");
        }
        assert!(rate("fast").is_err_and(|e| e.contains("expected a number such as")));
        // The trainer reports other invalid rates.
        assert!(rate("NaN").is_ok_and(f32::is_nan) && rate("-1").is_ok());
    }
}
