//! Settings of the trainer.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use meganeura_core::LossScaling;
use meganeura_core::distributed::Communicator;
use meganeura_core::plan::MemoryBudget;
use meganeura_core::plan::optimizer::{Adam, GradientClip, Optimizer, ParameterGroup, Sgd, Update};
use meganeura_core::precision::Precision;
use serde_json::{Value, json};

use super::schedule::rate;
use super::{Checkpoints, EarlyStopping, Position, Schedule, TrainError, Warmup};
use crate::data::{Augmentation, Remainder};
use crate::models::{FEATURES, LABELS};

/// Maximum length of the queue of prefetched batches; a longer one only costs memory.
const MAX_PREFETCH: usize = 1024;

/// Settings of a [`Trainer`](super::Trainer). The default trains the default models of [`crate::models`]
/// on small image data sets.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Number of epochs; with 0, `fit` only evaluates.
    pub epochs: usize,
    /// Maximum number of steps, which may end within an epoch; none by default.
    pub max_steps: Option<u64>,
    /// Batch size, at least 1. It is the first axis of the model's inputs.
    pub batch_size: usize,
    /// Optimizer.
    pub optimizer: OptimizerChoice,
    /// Learning rate that the schedule scales: finite, at least 0. With 0, parameters stay as they are (the running
    /// statistics of batch norms still change).
    pub learning_rate: f32,
    /// Schedule of the learning rate during training.
    pub schedule: Schedule,
    /// Warm-up of the learning rate over the first steps, on top of the schedule; none by default.
    pub warmup: Warmup,
    /// Limit on the gradients; none by default.
    pub clip: Option<GradientClip>,
    /// Gradient accumulation: number of steps whose gradients are averaged for one update, at least 1. It has the
    /// effect of a larger batch, and needs memory of the parameters' size.
    pub accumulate: u32,
    /// Parameter groups, by name, with their own learning rates or weight decays.
    pub groups: Vec<ParameterGroup>,
    /// Seed of initial weights, order of the examples, augmentation and dropout. On one device, equal seeds give equal
    /// results, bit for bit.
    pub seed: u64,
    /// True if the examples are shuffled in every epoch.
    pub shuffle: bool,
    /// Handling of the last, incomplete batch.
    pub remainder: Remainder,
    /// Connection to the other ranks of a distributed run; none by default. Every rank has the same
    /// settings, except for the device. A batch is divided between the ranks, and gradients are
    /// averaged before each update. The run equals that of one process, up to rounding, except for
    /// dropout masks and the statistics of batch norms, which only cover a rank's own examples. All
    /// ranks have to call `fit` and `evaluate` at the same time.
    pub distributed: Option<Arc<dyn Communicator>>,
    /// ZeRO stage 1: if `true`, the optimizer's states are sharded over the ranks, so that each rank has only the
    /// moments of its share of the parameters
    /// ([`Session::try_shard_optimizer`](meganeura_core::Session::try_shard_optimizer)). Results are the same; with one
    /// rank nothing changes.
    pub zero1: bool,
    /// Device selector; without one, the environment and the configuration file decide.
    pub device: Option<String>,
    /// Memory limit of a training step; above it, activations are recomputed instead of being kept.
    /// Results are the same. Without one, the configuration file decides.
    pub memory_budget: Option<MemoryBudget>,
    /// Precision of matmuls and convolutions. Without one, the configuration file decides; by default training is in
    /// `f32`, and evaluation in the device's default precision.
    pub precision: Option<Precision>,
    /// Loss scaling in mixed precision. Without one, the configuration file decides; the default is
    /// [`LossScaling::default`].
    pub loss_scale: Option<LossScaling>,
    /// Evaluates every N epochs, and always after the last; with 0, only then.
    pub evaluate_every: usize,
    /// Evaluates every N steps, too, counted over the whole run; with 0, only after epochs.
    pub evaluate_every_steps: usize,
    /// Early stopping; needs test data.
    pub early_stopping: Option<EarlyStopping>,
    /// Reads the loss every N steps, for observers and to detect losses that are not finite; with 0, only the mean of
    /// each epoch. Reading synchronizes host and device, which costs time on a GPU. The mean loss of an epoch is over
    /// all its steps in any case: the device sums it up.
    pub loss_every: usize,
    /// Reports statistics of all parameters and gradients to observers every N steps, counted over the whole run; with
    /// 0, never. The host reads all of these tensors.
    pub statistics_every: usize,
    /// Augmentation of the training examples; none by default. Evaluation uses the original examples.
    pub augmentation: Augmentation,
    /// Weights of the classes in the loss, one for each, at least 0; all 1 by default. They multiply the loss of the
    /// class's examples, whose mean is over all examples of a batch, so weights with a mean of 1 over the training data
    /// ([`Dataset::balanced_class_weights`](crate::data::Dataset::balanced_class_weights)) keep the scale of the loss.
    /// The model has to take rows of class weights ([`crate::models::soft_classifier`]).
    pub class_weights: Option<Vec<f32>>,
    /// Label smoothing: the share of each label that is spread over all classes, at least 0 and less than 1; 0 by
    /// default. The model has to take rows of class weights ([`crate::models::soft_classifier`]).
    pub label_smoothing: f32,
    /// Number of batches to prefetch on a separate thread; with 0, they are assembled between the steps. Results are
    /// the same, bit for bit. It helps on GPUs, and where augmentation takes as long as a step; it needs memory for
    /// `prefetch + 2` batches.
    pub prefetch: usize,
    /// Checkpoints, from which an interrupted run resumes; none by default. The resumed run gives the same results as
    /// an uninterrupted one, bit for bit on one device.
    pub checkpoints: Option<Checkpoints>,
    /// Name of the input for the features, `f32 [batch, ...]`.
    pub features: String,
    /// Name of the input for the labels, either `u32 [batch]` for class ids or `f32 [batch, classes]` for one-hot rows.
    /// A model without this input, but with one named [`TARGET`](crate::models::TARGET), is for regression.
    pub labels: String,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 20,
            max_steps: None,
            batch_size: 32,
            optimizer: OptimizerChoice::AdamW { weight_decay: 0.05 },
            learning_rate: 2e-3,
            schedule: Schedule::Cosine { final_fraction: 0.0 },
            warmup: Warmup::default(),
            clip: None,
            accumulate: 1,
            groups: Vec::new(),
            seed: 0,
            shuffle: true,
            remainder: Remainder::Drop,
            distributed: None,
            zero1: false,
            device: None,
            memory_budget: None,
            precision: None,
            loss_scale: None,
            evaluate_every: 1,
            evaluate_every_steps: 0,
            early_stopping: None,
            loss_every: 10,
            statistics_every: 0,
            augmentation: Augmentation::default(),
            class_weights: None,
            label_smoothing: 0.0,
            prefetch: 0,
            checkpoints: None,
            features: FEATURES.to_owned(),
            labels: LABELS.to_owned(),
        }
    }
}

impl TrainConfig {
    /// Returns the connection to the other ranks, if there are any.
    pub fn ranks(&self) -> Option<&Arc<dyn Communicator>> {
        self.distributed.as_ref().filter(|communicator| communicator.size() > 1)
    }

    /// Returns the number of this rank, from 0; 0 for a single process.
    pub fn rank(&self) -> usize {
        self.ranks().map_or(0, |communicator| communicator.rank())
    }

    /// Returns the number of examples of each batch on this rank: the batch size divided by the
    /// number of ranks.
    pub fn local_batch_size(&self) -> usize {
        self.batch_size / self.ranks().map_or(1, |communicator| communicator.size())
    }

    /// Checks that a batch can be divided evenly between the ranks, so that the mean of their
    /// gradients is that of the batch.
    ///
    /// # Errors
    /// [`TrainError::Config`] with valid batch sizes.
    pub fn check_ranks(&self) -> Result<(), TrainError> {
        let ranks = self.ranks().map_or(1, |communicator| communicator.size());
        if self.batch_size.is_multiple_of(ranks) {
            return Ok(());
        }
        let below = self.batch_size / ranks * ranks;
        let sizes = match below {
            0 => format!("{ranks}"),
            _ => format!("{below} or {}", below + ranks),
        };
        Err(TrainError::Config {
            field: "batch_size",
            message: format!(
                "{} examples cannot be divided between {ranks} ranks; use {sizes}",
                self.batch_size
            ),
        })
    }

    /// Returns the rows of a batch on this rank.
    pub(super) fn local_rows(&self) -> Range<usize> {
        let size = self.local_batch_size();
        size * self.rank()..size * (self.rank() + 1)
    }

    /// Returns the learning rate of a step: the configured one times schedule and warm-up.
    pub fn rate_at(&self, at: Position) -> f32 {
        rate(self.learning_rate, self.schedule, self.warmup, at)
    }

    /// Returns the optimizer with clipping, accumulation and parameter groups.
    pub fn update(&self) -> Update {
        Update {
            clip: self.clip,
            accumulate: self.accumulate,
            groups: self.groups.clone(),
            ..self.optimizer.rule(self.learning_rate).into()
        }
    }

    /// Returns the settings that determine the training result, as JSON, for storage with a model.
    /// Settings with several parts are texts.
    pub fn to_json(&self) -> Value {
        let text = |value: &dyn fmt::Debug| Value::String(format!("{value:?}"));
        let optional = |value: Option<&dyn fmt::Debug>| value.map_or(Value::Null, text);
        json!({
            "epochs": self.epochs,
            "max_steps": self.max_steps,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer.rule(self.learning_rate).kind().as_str(),
            "optimizer_settings": text(&self.optimizer),
            "learning_rate": self.learning_rate,
            "schedule": text(&self.schedule),
            "warmup": text(&self.warmup),
            "clip": optional(self.clip.as_ref().map(|c| c as _)),
            "accumulate": self.accumulate,
            "groups": self.groups.iter().map(|group| text(group)).collect::<Vec<_>>(),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "remainder": text(&self.remainder),
            "precision": self.precision.map(|precision| precision.to_string()),
            "early_stopping": optional(self.early_stopping.as_ref().map(|s| s as _)),
            "augmentation": text(&self.augmentation),
            "class_weights": self.class_weights,
            "label_smoothing": self.label_smoothing,
        })
    }

    /// Checks every setting that can be checked without a model.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        let refuse = |field, message| Err(TrainError::Config { field, message });
        if self.batch_size == 0 {
            return refuse("batch_size", "it is 0; use at least 1".into());
        }
        self.check_ranks()?;
        if !self.learning_rate.is_finite() || self.learning_rate < 0.0 {
            let message = format!("{} is not a finite number of at least 0", self.learning_rate);
            return refuse("learning_rate", message);
        }
        if let Err(message) = self.schedule.check() {
            return refuse("schedule", message);
        }
        if let Err(message) = self.warmup.check() {
            return refuse("warmup", message);
        }
        if let Some(Err(message)) = self.early_stopping.map(EarlyStopping::check) {
            return refuse("early_stopping", message);
        }
        if self.checkpoints.as_ref().is_some_and(|c| c.every == 0) {
            return refuse("checkpoints", "expected at least 1 step, found 0".into());
        }
        if self.prefetch > MAX_PREFETCH {
            let message = format!("{} batches are too many; use at most {MAX_PREFETCH}", self.prefetch);
            return refuse("prefetch", message);
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            let message = format!("{} is not at least 0 and less than 1", self.label_smoothing);
            return refuse("label_smoothing", message);
        }
        let weights = self.class_weights.as_deref().unwrap_or_default();
        if let Some(weight) = weights.iter().find(|w| !w.is_finite() || **w < 0.0) {
            return refuse(
                "class_weights",
                format!("{weight} is not a finite number of at least 0"),
            );
        }
        if let Err(message) = self.optimizer.rule(self.learning_rate).check() {
            return refuse("optimizer", message);
        }
        if let Err(message) = self.update().check() {
            return refuse("clip, accumulate or groups", message);
        }
        Ok(())
    }
}

/// An optimizer. Hyper-parameters that the variant does not name have the published values.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OptimizerChoice {
    /// Stochastic gradient descent.
    Sgd,
    /// Stochastic gradient descent with momentum 0.9.
    Momentum,
    /// Stochastic gradient descent with Nesterov's momentum 0.9.
    Nesterov,
    /// Adam.
    Adam,
    /// Adam with decoupled weight decay.
    AdamW {
        /// Weight decay: a step subtracts this fraction of each parameter, times the learning rate.
        weight_decay: f32,
    },
    /// Any optimizer; its learning rate is replaced by the configured one.
    Custom(Box<dyn Optimizer>),
}

impl OptimizerChoice {
    /// Returns the update rule with this learning rate.
    pub fn rule(&self, learning_rate: f32) -> Box<dyn Optimizer> {
        let sgd = Sgd::new(learning_rate);
        match self {
            OptimizerChoice::Sgd => Box::new(sgd),
            OptimizerChoice::Momentum => Box::new(Sgd { momentum: 0.9, ..sgd }),
            OptimizerChoice::Nesterov => Box::new(Sgd {
                momentum: 0.9,
                nesterov: true,
                ..sgd
            }),
            OptimizerChoice::Adam => Box::new(Adam::new(learning_rate)),
            OptimizerChoice::AdamW { weight_decay } => Box::new(Adam::adamw(learning_rate, *weight_decay)),
            OptimizerChoice::Custom(rule) => {
                let mut rule = rule.clone();
                rule.set_learning_rate(learning_rate);
                rule
            }
        }
    }
}

impl FromStr for OptimizerChoice {
    type Err = String;

    /// Parses `sgd`, `momentum`, `nesterov`, `adam` or `adamw`, the last with a weight decay of 0.05.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sgd" => Ok(OptimizerChoice::Sgd),
            "momentum" => Ok(OptimizerChoice::Momentum),
            "nesterov" => Ok(OptimizerChoice::Nesterov),
            "adam" => Ok(OptimizerChoice::Adam),
            "adamw" => Ok(OptimizerChoice::AdamW { weight_decay: 0.05 }),
            _ => Err(format!(
                "there is no optimizer '{text}'; use sgd, momentum, nesterov, adam or adamw"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        TrainConfig::default().check().expect("valid");
    }

    #[test]
    fn settings_become_json() {
        let json = TrainConfig {
            clip: Some(GradientClip::Norm(1.0)),
            seed: u64::MAX,
            ..TrainConfig::default()
        };
        let json = json.to_json();
        assert_eq!((&json["optimizer"], &json["batch_size"]), (&json!("adamw"), &json!(32)));
        assert_eq!(
            (&json["seed"], &json["early_stopping"]),
            (&json!(u64::MAX), &Value::Null)
        );
        assert!(json["clip"].as_str().is_some_and(|text| text.contains("Norm")));
    }

    #[test]
    fn wrong_settings_name_their_field() {
        let base = TrainConfig::default;
        let nan_decay = OptimizerChoice::AdamW { weight_decay: f32::NAN };
        let zero_steps = Schedule::Step {
            every_epochs: 0,
            factor: 0.1,
        };
        let stopping = |patience, min_delta| {
            Some(EarlyStopping {
                patience,
                min_delta,
                ..EarlyStopping::default()
            })
        };
        type Change<'c> = Box<dyn Fn(&mut TrainConfig) + 'c>;
        let cases: [(&str, Change); 15] = [
            ("batch_size", Box::new(|c| c.batch_size = 0)),
            ("learning_rate", Box::new(|c| c.learning_rate = f32::NAN)),
            ("learning_rate", Box::new(|c| c.learning_rate = -1.0)),
            ("learning_rate", Box::new(|c| c.learning_rate = f32::INFINITY)),
            ("optimizer", Box::new(|c| c.optimizer = nan_decay.clone())),
            ("schedule", Box::new(|c| c.schedule = zero_steps)),
            ("warmup", Box::new(|c| c.warmup = Warmup::Fraction(1.5))),
            ("early_stopping", Box::new(|c| c.early_stopping = stopping(0, 0.0))),
            ("early_stopping", Box::new(|c| c.early_stopping = stopping(3, -0.1))),
            ("early_stopping", Box::new(|c| c.early_stopping = stopping(3, f64::NAN))),
            ("label_smoothing", Box::new(|c| c.label_smoothing = 1.0)),
            ("label_smoothing", Box::new(|c| c.label_smoothing = f32::NAN)),
            ("class_weights", Box::new(|c| c.class_weights = Some(vec![1.0, -1.0]))),
            ("class_weights", Box::new(|c| c.class_weights = Some(vec![f32::NAN]))),
            ("prefetch", Box::new(|c| c.prefetch = usize::MAX)),
        ];
        for (expected, change) in cases {
            let mut config = base();
            change(&mut config);
            let error = config.check().expect_err(expected);
            assert!(
                matches!(error, TrainError::Config { field, .. } if field == expected),
                "{error}"
            );
        }
    }

    #[test]
    fn every_choice_becomes_its_rule_with_the_configured_rate() {
        let kinds = ["sgd", "momentum", "nesterov", "adam", "adamw"];
        for kind in kinds {
            let rule = kind.parse::<OptimizerChoice>().expect(kind).rule(0.25);
            assert_eq!((rule.kind().as_str(), rule.learning_rate()), (kind, 0.25));
        }
        let custom = OptimizerChoice::Custom(Box::new(Adam::new(9.0)));
        assert_eq!(custom.rule(0.5).learning_rate(), 0.5);
        let error = "lion".parse::<OptimizerChoice>().expect_err("unknown");
        assert!(error.contains("adamw"), "{error}");
    }
}
