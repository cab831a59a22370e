//! The training loop for classifiers.
//!
//! [`Trainer::new`] builds a model twice: for training, with gradients and the optimizer's update, and for
//! evaluation, where dropout is off and batch norms use their running statistics. [`Trainer::fit`] then
//! walks the training data in shuffled batches and measures loss and accuracy on the test data, where it
//! counts every example once.
//!
//! ```no_run
//! use meganeura_nn::data::digits_split;
//! use meganeura_nn::models::mlp_classifier;
//! use meganeura_nn::trainer::{Silent, TrainConfig, TrainError, Trainer};
//!
//! # fn main() -> Result<(), TrainError> {
//! let (train, test) = digits_split()?;
//! let train = train.with_feature_shape(vec![64])?;
//! let test = test.with_feature_shape(vec![64])?;
//! let mut trainer = Trainer::new(|batch| mlp_classifier(batch, 64, 10), TrainConfig::default())?;
//! let report = trainer.fit(&train, Some(&test), &mut Silent)?;
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
//! # Reproducibility
//!
//! Initial weights, the order of the examples and dropout masks all come from [`TrainConfig::seed`]; equal
//! seeds give equal results on a device whose kernels are deterministic.

mod config;
mod error;
mod evaluate;
mod feed;
mod observer;
mod report;
mod schedule;

use std::time::Instant;

use meganeura_core::build::{build, build_on};
use meganeura_core::{Graph, Mode, Session, SessionConfig};

pub use config::{OptimizerChoice, TrainConfig};
pub use error::TrainError;
pub use observer::{EpochBegin, Observer, Silent, StepInfo};
pub use report::{EpochReport, Evaluation, TrainReport};
pub use schedule::{Position, Schedule};

use crate::data::{Batches, Dataset};
use feed::Feed;

/// State in which the device sums up the losses of an epoch, so that their mean is exact without waiting
/// for every step.
const LOSS_SUM: &str = "trainer.loss_sum";

/// Trains and evaluates a classifier; see the [module documentation](self).
#[derive(Debug)]
pub struct Trainer {
    config: TrainConfig,
    training: Session,
    evaluation: Session,
    feed: Feed,
    /// Logits of one batch.
    logits: Vec<f32>,
    compile_seconds: f64,
    /// Epochs begun by all runs, so that a second one goes on with other orders of the examples.
    epochs_begun: u64,
}

/// Place of an epoch in a run.
#[derive(Clone, Copy)]
struct Place {
    /// From 1.
    epoch: usize,
    /// Steps in each epoch.
    steps: usize,
}

impl Trainer {
    /// Builds the model that `model` returns for the configured batch size, and fills its parameters by
    /// their initial distributions.
    ///
    /// # Errors
    /// [`TrainError::Config`], [`TrainError::Model`] and [`TrainError::BatchSize`] for settings and models
    /// that make no sense; [`TrainError::Core`] for a graph that does not build, or a device that cannot be
    /// opened or lacks memory.
    pub fn new(model: impl FnOnce(usize) -> Graph, config: TrainConfig) -> Result<Self, TrainError> {
        config.check()?;
        Trainer::from_graph(&model(config.batch_size), config)
    }

    /// [`Trainer::new`] for a graph that was built for the configured batch size.
    ///
    /// # Errors
    /// As there.
    pub fn from_graph(graph: &Graph, config: TrainConfig) -> Result<Self, TrainError> {
        config.check()?;
        graph.verify()?;
        let feed = Feed::of(graph, &config)?;
        let start = Instant::now();
        let training_config = SessionConfig {
            device: config.device.clone(),
            mode: Mode::Training,
            optimizer: Some(config.optimizer.rule(config.learning_rate).into()),
            ..SessionConfig::default()
        };
        let (mut training, _) = build(&training_graph(graph), training_config)?;
        training.try_initialize_parameters(config.seed)?;
        training.set_seed(config.seed);
        let device = training.device().clone();
        let (mut evaluation, _) = build_on(&evaluation_graph(graph)?, device, Mode::Inference, None)?;
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

    /// The settings.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The training session, whose parameters are the model's.
    pub fn session(&self) -> &Session {
        &self.training
    }

    /// The training session, to read or set parameters.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.training
    }

    /// Trains for the configured number of epochs, starting from the present weights, and evaluates on
    /// `test` as configured. The schedule starts anew with every call.
    ///
    /// # Errors
    /// [`TrainError::FeatureShape`] and [`TrainError::Classes`] for data that do not fit the model;
    /// [`TrainError::Data`] when there are fewer training examples than in one batch (test data may be of
    /// any size, and with 0 epochs so may training data); [`TrainError::NonFiniteLoss`]; [`TrainError::Core`] when a step fails.
    pub fn fit(
        &mut self,
        train: &Dataset,
        test: Option<&Dataset>,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport, TrainError> {
        let start = Instant::now();
        self.feed.check(train)?;
        if let Some(test) = test {
            self.feed.check(test)?;
        }
        let steps = match self.config.epochs {
            0 => 0,
            _ => self.batches(train)?.len(),
        };
        let mut report = TrainReport {
            epochs: Vec::with_capacity(self.config.epochs.min(1024)),
            evaluation: None,
            compile_seconds: self.compile_seconds,
            seconds: 0.0,
            stopped: false,
        };
        for epoch in 1..=self.config.epochs {
            let epoch_report = self.epoch(Place { epoch, steps }, train, test, observer)?;
            let Some(epoch_report) = epoch_report else {
                // Part of an epoch may have been trained since the last evaluation.
                (report.stopped, report.evaluation) = (true, None);
                break;
            };
            log::debug!("{epoch_report}");
            report.epochs.push(epoch_report);
            report.evaluation = epoch_report.evaluation;
            if observer.on_epoch_end(&epoch_report).is_break() {
                report.stopped = true;
                break;
            }
        }
        if let (None, Some(test)) = (report.evaluation, test) {
            report.evaluation = Some(self.evaluate(test)?);
        }
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Loss and accuracy of the present weights on a data set of any size, every example counted once.
    ///
    /// # Errors
    /// [`TrainError::FeatureShape`] and [`TrainError::Classes`] for data that do not fit the model;
    /// [`TrainError::Core`] when a step fails.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, TrainError> {
        self.evaluation.try_copy_weights_from(&mut self.training)?;
        evaluate::evaluate(&mut self.evaluation, &mut self.feed, &mut self.logits, data)
    }

    /// Batches of the next epoch.
    fn batches<'a>(&self, train: &'a Dataset) -> Result<Batches<'a>, TrainError> {
        let TrainConfig {
            batch_size,
            seed,
            remainder,
            ..
        } = self.config;
        let batches = match self.config.shuffle {
            true => Batches::new(train, batch_size, seed, self.epochs_begun, remainder),
            false => Batches::sequential(train, batch_size, remainder),
        };
        Ok(batches?)
    }

    /// One epoch with its evaluation, or `None` if the observer ended it.
    fn epoch(
        &mut self,
        place: Place,
        train: &Dataset,
        test: Option<&Dataset>,
        observer: &mut dyn Observer,
    ) -> Result<Option<EpochReport>, TrainError> {
        let epochs = self.config.epochs;
        let begin = EpochBegin {
            epoch: place.epoch,
            epochs,
            steps: place.steps,
        };
        if observer.on_epoch_begin(&begin).is_break() {
            return Ok(None);
        }
        let start = Instant::now();
        let Some(mut report) = self.train(place, train, observer)? else {
            return Ok(None);
        };
        report.train_seconds = start.elapsed().as_secs_f64();
        // No epoch is a multiple of 0, as they count from 1.
        let due = place.epoch == epochs || place.epoch.is_multiple_of(self.config.evaluate_every);
        if let (Some(test), true) = (test, due) {
            let start = Instant::now();
            report.evaluation = Some(self.evaluate(test)?);
            report.evaluation_seconds = start.elapsed().as_secs_f64();
        }
        Ok(Some(report))
    }

    /// The steps of one epoch, or `None` if the observer ended them.
    fn train(
        &mut self,
        place: Place,
        data: &Dataset,
        observer: &mut dyn Observer,
    ) -> Result<Option<EpochReport>, TrainError> {
        let mut batches = self.batches(data)?;
        self.epochs_begun += 1;
        self.training.try_set_state(LOSS_SUM, &[0.0])?;
        let mut info = StepInfo {
            epoch: place.epoch,
            step: 0,
            steps: place.steps,
            loss: None,
            learning_rate: self.config.learning_rate,
        };
        while self.feed.load(&mut batches, &mut self.training)?.is_some() {
            self.feed.load_labels(&mut self.training)?;
            info.learning_rate = self.rate(place, info.step);
            self.training.adjust_learning_rate(info.learning_rate);
            self.training.try_step()?;
            info.step += 1;
            info.loss = self.read_loss(info.step)?;
            if let Some(loss) = info.loss {
                check_finite(loss, &info)?;
            }
            if observer.on_step(&info).is_break() {
                return Ok(None);
            }
        }
        // Reading waits for the last step, so that the time of the epoch is all of its time.
        let sum = self.training.try_read_state(LOSS_SUM)?;
        let train_loss = sum.iter().copied().map(f64::from).sum::<f64>() / info.step as f64;
        check_finite(train_loss as f32, &info)?;
        Ok(Some(EpochReport {
            epoch: place.epoch,
            steps: info.step,
            train_loss,
            evaluation: None,
            learning_rate: info.learning_rate,
            train_seconds: 0.0,
            evaluation_seconds: 0.0,
        }))
    }

    /// Learning rate of a step, counted from 0 in its epoch.
    fn rate(&self, place: Place, step: usize) -> f32 {
        let steps = place.steps as u64;
        let position = Position {
            step: (place.epoch as u64 - 1) * steps + step as u64,
            steps_per_epoch: steps,
            total_steps: (self.config.epochs as u64).saturating_mul(steps),
        };
        self.config.schedule.rate(self.config.learning_rate, position)
    }

    /// Loss of the step just made, the `step`-th of its epoch, if it is one of those to be read.
    fn read_loss(&mut self, step: usize) -> Result<Option<f32>, TrainError> {
        if step.is_multiple_of(self.config.loss_every) {
            Ok(Some(self.training.try_read_loss()?))
        } else {
            Ok(None)
        }
    }
}

/// An error if a loss is not finite.
fn check_finite(loss: f32, at: &StepInfo) -> Result<(), TrainError> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(TrainError::NonFiniteLoss {
        epoch: at.epoch,
        step: at.step,
        loss,
        learning_rate: at.learning_rate,
    })
}

/// The model with the sum of its losses as a state.
fn training_graph(model: &Graph) -> Graph {
    let mut graph = model.clone();
    let loss = model.outputs().first().copied();
    // Any other loss is refused when the graph is differentiated, with a better message than `add` has.
    if let Some(loss) = loss.filter(|&loss| model.shape(loss).is_empty()) {
        let sum = graph.state(LOSS_SUM, &[]);
        let next = graph.add(sum, loss);
        graph.assign(sum, next);
        graph.named(next, LOSS_SUM);
    }
    graph
}

/// The model with nothing but the logits as output.
fn evaluation_graph(model: &Graph) -> Result<Graph, TrainError> {
    let mut graph = model.clone();
    graph.set_outputs(vec![feed::logits(model)?]);
    Ok(graph)
}
