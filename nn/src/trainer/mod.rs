//! The training loop for classifiers, regression and language models.
//!
//! [`Trainer::new`] builds a model twice: for training, with gradients and the optimizer's update,
//! and for evaluation, where dropout is off and batch norms use their running statistics.
//! [`Trainer::fit`] then iterates over the training data in shuffled batches, and measures loss and
//! accuracy on the test data, counting every example once.
//!
//! ```no_run
//! use meganeura_nn::data::digits_split;
//! use meganeura_nn::models::mlp_classifier;
//! use meganeura_nn::trainer::{SilentObserver, TrainConfig, TrainError, Trainer};
//!
//! # fn main() -> Result<(), TrainError> {
//! let (train, test) = digits_split()?;
//! let train = train.with_feature_shape(vec![64])?;
//! let test = test.with_feature_shape(vec![64])?;
//! let mut trainer = Trainer::new(|batch| mlp_classifier(batch, 64, 10), TrainConfig::default())?;
//! let report = trainer.fit(&train, Some(&test), &mut SilentObserver)?;
//! if let Some(evaluation) = report.evaluation {
//!     println!("{evaluation}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The model
//!
//! A graph with two inputs, `x` (`f32 [batch, feature_shape...]`) and `labels` (class ids, `u32 [batch]`, or
//! one-hot rows, `f32 [batch, classes]`), and two outputs, the loss (`f32 []`) and the logits
//! (`f32 [batch, classes]`). [`crate::models::classifier`] makes one of any function from features to
//! logits. Outputs after these are ignored.
//!
//! Or a regression ([`crate::models::regressor`]), for data sets with targets ([`Dataset::regression`]): instead of
//! `labels` it has the input `target`, `f32 [batch, outputs]`, and its second output is the prediction, of the same
//! shape. [`Dataset::standardised_targets`] scales the targets for training; evaluations are in original units.
//!
//! Or a language model ([`crate::models::language_model`]): tokens and labels `u32 [batch, rows]`, logits
//! `f32 [batch, rows, vocab]`. Its examples are pieces of text ([`Dataset::from_tokens`]).
//!
//! # During a run
//!
//! | Feature | Type or option |
//! |---|---|
//! | learning rate | [`Schedule`] and [`Warmup`] |
//! | evaluation between epochs or steps | [`TrainConfig::evaluate_every`], [`TrainConfig::evaluate_every_steps`] |
//! | early stopping, keeping the best weights | [`EarlyStopping`] |
//! | callbacks, which may end the run | [`Observer`] |
//! | a log file | [`JsonLinesLog`], [`CsvLog`], [`EventLog`] for TensorBoard, or all three in a [`LogFolder`] |
//! | statistics of parameters and gradients | [`TrainConfig::statistics_every`] |
//! | class weights, label smoothing | [`TrainConfig::class_weights`], [`TrainConfig::label_smoothing`] |
//! | augmentation | [`TrainConfig::augmentation`] |
//! | prefetching batches | [`TrainConfig::prefetch`] |
//! | checkpoints and resuming | [`TrainConfig::checkpoints`] |
//! | several processes | [`TrainConfig::distributed`] |
//!
//! # Reproducibility
//!
//! Initial weights, the order of the examples, augmentation and dropout masks all come from
//! [`TrainConfig::seed`]; equal seeds give equal results on a device whose kernels are deterministic.

mod checkpoint;
mod checkpoints;
mod classification;
mod config;
mod distributed;
mod early_stopping;
mod error;
pub(crate) mod evaluate;
mod feed;
mod log;
mod log_folder;
mod loss_sum;
mod metrics;
mod observer;
mod regression;
mod report;
mod run;
mod schedule;
mod sink;
mod source;
mod statistics;
mod tensorboard;

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use meganeura_compiler::SessionConfig;
use meganeura_compiler::builder::{Builder, build};
use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_core::{Graph, Mode, Session};

pub use checkpoints::Checkpoints;
pub use classification::{Averages, ClassMetrics, ClassificationReport, Confusion};
pub use config::{OptimizerChoice, TrainConfig};
pub use early_stopping::{EarlyStopping, Metric};
pub use error::TrainError;
pub use log::JsonLinesLog;
pub use log_folder::LogFolder;
pub use metrics::CsvLog;
pub use observer::{EpochBegin, EvaluationInfo, Observer, SilentObserver, StatisticsInfo, StepInfo, TrainBegin};
pub use regression::RegressionMetrics;
pub use report::{BestEvaluation, EpochReport, Evaluation, PartsReport, TrainReport};
pub use schedule::{Position, Schedule, Warmup};
pub use statistics::StatisticsLog;
pub use tensorboard::EventLog;

use crate::data::{Dataset, Parts};
use early_stopping::Tracker;
use feed::Feed;
use loss_sum::training_graph;
use run::{Begin, Run};
use source::{Maker, Source};

/// A trainer of a model, which also evaluates it; see the [module documentation](self).
#[derive(Debug)]
pub struct Trainer {
    config: TrainConfig,
    training: Session,
    evaluation: Session,
    feed: Feed,
    /// Logits of one batch.
    logits: Vec<f32>,
    compile_seconds: f64,
    /// Number of epochs begun by all runs, so that a second run continues with other orders of the examples.
    epochs_begun: u64,
}

impl Trainer {
    /// Builds the model that `model` returns for the configured batch size (of a distributed run, for
    /// [`TrainConfig::local_batch_size`]), and fills its parameters by their initial distributions.
    ///
    /// # Errors
    /// [`TrainError::Config`], [`TrainError::Model`] and [`TrainError::BatchSize`] for invalid
    /// settings and models; [`TrainError::Core`] for a graph that does not build, or a device that
    /// cannot be opened or lacks memory.
    pub fn new(model: impl FnOnce(usize) -> Graph, config: TrainConfig) -> Result<Self, TrainError> {
        config.check()?;
        Trainer::from_graph(&model(config.local_batch_size()), config)
    }

    /// Creates a trainer like [`Trainer::new`] for a graph that was built for the configured batch
    /// size.
    ///
    /// # Errors
    /// The errors of [`Trainer::new`].
    pub fn from_graph(graph: &Graph, config: TrainConfig) -> Result<Self, TrainError> {
        config.check()?;
        graph.verify()?;
        let feed = Feed::of(graph, &config)?;
        let start = Instant::now();
        let training_config = SessionConfig {
            device: distributed::device(&config),
            mode: Mode::Training,
            optimizer: distributed::first_update(&config),
            memory_budget: config.memory_budget,
            precision: config.precision,
            loss_scale: config.loss_scale,
            ..SessionConfig::default()
        };
        let (mut training, _) = build(&training_graph(graph), training_config)?;
        training.try_initialize_parameters(config.seed)?;
        training.set_seed(distributed::dropout_seed(&config));
        if let Some(communicator) = config.ranks() {
            training.try_set_communicator(communicator.clone())?;
            if config.zero1 {
                training.try_shard_optimizer()?;
                training.try_set_optimizer(config.update())?;
            }
        }
        let device = training.device().clone();
        let rewrite = RewriteConfig {
            precision: config.precision,
            ..RewriteConfig::default()
        };
        let graph = evaluation_graph(graph)?;
        let (mut evaluation, _) = Builder::on(device).inference().rewrite(rewrite.clone()).build(&graph)?;
        feed.load_no_labels(&mut evaluation)?;
        Ok(Trainer {
            config,
            training,
            evaluation,
            feed,
            logits: Vec::new(),
            compile_seconds: start.elapsed().as_secs_f64(),
            epochs_begun: 0,
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Returns the training session, whose parameters are the model's.
    pub fn session(&self) -> &Session {
        &self.training
    }

    /// Returns the training session, to read or set parameters.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.training
    }

    /// Trains for the configured number of epochs, starting from the current weights, and evaluates on `test` as
    /// configured. The schedule restarts with every call, and early stopping ignores earlier calls.
    ///
    /// # Errors
    /// [`TrainError::FeatureShape`] and [`TrainError::Classes`] for data that do not fit the model;
    /// [`TrainError::Data`] if there are fewer training examples than in one batch (test data may
    /// be of any size, and with 0 epochs so may training data), or if the augmentation does not
    /// support the examples; [`TrainError::Config`] for early stopping without test data;
    /// [`TrainError::NonFiniteLoss`]; [`TrainError::Prefetch`] if no thread can be started;
    /// [`TrainError::Core`] if a step fails, or a checkpoint cannot be read or written.
    pub fn fit(
        &mut self,
        train: &Dataset,
        test: Option<&Dataset>,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport, TrainError> {
        self.run(train, test, false, observer)
    }

    /// Runs [`fit`](Self::fit), where `test` may be the validation part.
    fn run(
        &mut self,
        train: &Dataset,
        test: Option<&Dataset>,
        is_validation: bool,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport, TrainError> {
        let report = self.run_as_rank(train, test, is_validation, observer);
        if let (Err(error), Some(communicator)) = (&report, self.config.ranks()) {
            communicator.abort(&error.to_string());
        }
        report
    }

    fn run_as_rank(
        &mut self,
        train: &Dataset,
        test: Option<&Dataset>,
        is_validation: bool,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport, TrainError> {
        self.feed.check(train)?;
        if let Some(test) = test {
            self.feed.check(test)?;
        }
        self.check_run(train, test)?;
        let epochs = self.config.epochs;
        let (steps, examples) = match epochs {
            0 => (0, 0),
            _ => {
                let maker = Maker::new(train, &self.config, self.epochs_begun, 0)?;
                (maker.steps()?, maker.examples()?)
            }
        };
        let mut tracker = Tracker::new(self.config.early_stopping);
        let settings = checkpoint::settings(self, train, test);
        distributed::begin(self, &settings, test, steps)?;
        // The folder is locked until the run ends.
        let (resumed, _lock) = match self.config.checkpoints.clone() {
            Some(checkpoints) => checkpoint::begin(&checkpoints, self, &mut tracker, &settings, steps)?,
            None => (None, None),
        };
        self.training.set_seed(distributed::dropout_seed(&self.config));
        // The current epoch of a resumed run has already begun.
        let skip = resumed.as_ref().and_then(|state| state.in_epoch);
        let first = self.epochs_begun - u64::from(skip.is_some());
        let maker = Maker::new(train, &self.config, first, skip.unwrap_or(0))?;
        let begin = |source| Begin {
            source,
            steps,
            examples,
            test,
            is_validation,
            tracker,
            resumed,
            settings,
        };
        match self.config.prefetch {
            0 => Run::new(self, begin(Source::direct(maker)), observer).go(train.len()),
            ahead => thread::scope(|scope| {
                let (source, thread) = Source::thread(scope, maker, epochs, ahead).map_err(TrainError::Prefetch)?;
                // The run drops the source, which ends the thread.
                let report = Run::new(self, begin(source), observer).go(train.len());
                match thread.join() {
                    Ok(()) => report,
                    Err(panic) => resume_unwind(panic),
                }
            }),
        }
    }

    /// Trains on the training part like [`fit`](Self::fit), with the validation part for
    /// evaluations and early stopping, and then measures the final weights on the test part, which
    /// influenced no decision. Logs call these evaluations `validation`.
    ///
    /// # Errors
    /// The errors of [`fit`](Self::fit); [`TrainError::Config`] for early stopping without a
    /// validation part.
    pub fn fit_parts(&mut self, parts: &Parts, observer: &mut dyn Observer) -> Result<PartsReport, TrainError> {
        if let Some(test) = &parts.test {
            // Checked now, so that an error does not occur after hours.
            self.feed.check(test)?;
            check_scales(&parts.train, test)?;
        }
        let training = self.run(&parts.train, parts.validation.as_ref(), true, observer)?;
        let test = parts.test.as_ref().map(|test| self.evaluate(test)).transpose()?;
        Ok(PartsReport { training, test })
    }

    /// Checks the settings that depend on whether there is test data.
    fn check_run(&self, train: &Dataset, test: Option<&Dataset>) -> Result<(), TrainError> {
        if let Some(test) = test {
            check_scales(train, test)?;
        }
        let metric = self.config.early_stopping.map(|stopping| stopping.metric);
        if train.is_regression() && metric == Some(Metric::Accuracy) {
            return Err(TrainError::Config {
                field: "early_stopping",
                message: "regression has no accuracy; use the loss".into(),
            });
        }
        match (self.config.early_stopping, test) {
            (Some(_), None) => Err(TrainError::Config {
                field: "early_stopping",
                message: "there is no test data to evaluate on; pass it to `fit`".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Measures loss and accuracy of the current weights on a data set of any size, every example counted once. In a
    /// distributed run, every rank calls this, evaluates its part of the examples, and gets the result for all.
    ///
    /// # Errors
    /// [`TrainError::FeatureShape`] and [`TrainError::Classes`] for data that do not fit the model;
    /// [`TrainError::Core`] when a step fails.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, TrainError> {
        self.training.try_average_states()?;
        self.evaluation.try_copy_weights_from(&mut self.training)?;
        let ranks = self.config.ranks().map(|communicator| &**communicator);
        evaluate::evaluate(&mut self.evaluation, &mut self.feed, &mut self.logits, data, ranks)
    }
}

/// Checks that the targets of both are in the same units.
fn check_scales(train: &Dataset, test: &Dataset) -> Result<(), TrainError> {
    if test.target_scale() == train.target_scale() {
        Ok(())
    } else {
        Err(TrainError::Targets {
            data: test.name().to_owned(),
            message: "they are not standardised like those of the training data".into(),
        })
    }
}

/// Returns the model with the logits as its only output.
fn evaluation_graph(model: &Graph) -> Result<Graph, TrainError> {
    let mut graph = model.clone();
    graph.set_outputs(vec![feed::logits(model)?]);
    Ok(graph)
}
