//! The training loop of a run.

use std::ops::ControlFlow;
use std::time::Instant;

use meganeura_core::GradientClip;
use meganeura_core::error::TensorKind;

use super::checkpoint::{self, RunState};
use super::distributed;
use super::early_stopping::Tracker;
use super::loss_sum::LOSS_SUM;
use super::report::per_second;
use super::source::Source;
use super::{
    BestEvaluation, EpochBegin, EpochReport, Evaluation, EvaluationInfo, Observer, Position, StatisticsInfo, StepInfo,
    TrainBegin, TrainError, TrainReport, Trainer,
};
use crate::data::Dataset;

/// The cause of a run's early end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Observer,
    EarlyStopping,
}

/// The inputs and the state of a run.
pub(super) struct Run<'r, 'd> {
    trainer: &'r mut Trainer,
    source: Source<'d>,
    test: Option<&'r Dataset>,
    is_validation: bool,
    observer: &'r mut dyn Observer,
    /// Number of steps in each epoch, and number of examples that they train on.
    steps: usize,
    examples: usize,
    /// Number of steps in the current epoch: fewer in the last one if
    /// [`TrainConfig::max_steps`](super::TrainConfig::max_steps) ends it.
    epoch_steps: usize,
    start: Instant,
    tracker: Tracker,
    stop: Option<Stop>,
    /// The current epoch, from 1.
    epoch: usize,
    /// Number of completed steps.
    total: u64,
    learning_rate: f32,
    /// Seconds of evaluations between the steps of the current epoch.
    evaluating: f64,
    /// Last evaluation, with the number of steps before it.
    evaluated: Option<(u64, Evaluation)>,
    /// Completed epochs.
    reports: Vec<EpochReport>,
    /// Number of completed steps of the current epoch; `None` between epochs.
    in_epoch: Option<usize>,
    is_resumed: bool,
    settings: Vec<(String, String)>,
}

/// The inputs of a run.
pub(super) struct Begin<'r, 'd> {
    pub(super) source: Source<'d>,
    pub(super) steps: usize,
    /// Number of examples that each epoch trains on.
    pub(super) examples: usize,
    pub(super) test: Option<&'r Dataset>,
    /// True if `test` is the validation part.
    pub(super) is_validation: bool,
    pub(super) tracker: Tracker,
    /// Checkpoint that the run resumes from.
    pub(super) resumed: Option<RunState>,
    /// Settings that the next checkpoint has to match.
    pub(super) settings: Vec<(String, String)>,
}

impl<'r, 'd> Run<'r, 'd> {
    pub(super) fn new(trainer: &'r mut Trainer, begin: Begin<'r, 'd>, observer: &'r mut dyn Observer) -> Self {
        let resumed = begin.resumed;
        let config = &trainer.config;
        let mut reports = resumed.as_ref().map(|r| r.reports.clone()).unwrap_or_default();
        // Reserved at once, so that memory does not grow with the epochs.
        reports.reserve(config.epochs.saturating_sub(reports.len()).min(1024));
        Run {
            learning_rate: resumed.as_ref().map_or(config.learning_rate, |r| r.learning_rate),
            total: resumed.as_ref().map_or(0, |r| r.total),
            evaluated: resumed.as_ref().and_then(|r| r.evaluated),
            in_epoch: resumed.as_ref().and_then(|r| r.in_epoch),
            is_resumed: resumed.is_some(),
            reports,
            tracker: begin.tracker,
            source: begin.source,
            test: begin.test,
            is_validation: begin.is_validation,
            steps: begin.steps,
            examples: begin.examples,
            epoch_steps: begin.steps,
            settings: begin.settings,
            trainer,
            observer,
            start: Instant::now(),
            stop: None,
            epoch: 0,
            evaluating: 0.0,
        }
    }

    /// Executes the whole run; `examples` is the number of training examples in the data set.
    pub(super) fn go(mut self, examples: usize) -> Result<TrainReport, TrainError> {
        let config = &self.trainer.config;
        let epochs = config.epochs;
        let begin = TrainBegin {
            epochs,
            steps: self.steps,
            batch_size: config.batch_size,
            examples,
            examples_per_epoch: self.examples,
            test_examples: self.test.filter(|_| !self.is_validation).map(Dataset::len),
            validation_examples: self.test.filter(|_| self.is_validation).map(Dataset::len),
            learning_rate: config.learning_rate,
            seed: config.seed,
            resumed_steps: self.total,
        };
        let flow = self.observer.on_train_begin(&begin);
        self.stop_if_requested(flow)?;
        if !self.is_resumed {
            // Written now, so that an error does not occur after hours.
            self.save()?;
        }
        let limit = self.total_steps();
        if self.is_resumed && self.stop.is_none() && self.reports.len() < epochs && self.tracker.out_of_patience() {
            // The saved run had already ended.
            self.stop = Some(Stop::EarlyStopping);
        }
        while self.stop.is_none() && self.reports.len() < epochs && (self.total < limit || self.in_epoch.is_some()) {
            self.epoch = self.reports.len() + 1;
            let Some(report) = self.epoch()? else { break };
            ::log::debug!("{report}");
            self.reports.push(report);
            let flow = self.observer.on_epoch_end(&report);
            self.stop_if_requested(flow)?;
        }
        if self.in_epoch.is_none() {
            self.save()?;
        }
        self.finish()
    }

    /// Writes a checkpoint, if they are enabled.
    fn save(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.trainer.config.checkpoints else {
            return Ok(());
        };
        self.trainer.training.try_average_states()?;
        let others = self.trainer.training.try_gather_states(0)?;
        let state = RunState {
            settings: self.settings.clone(),
            progress: self.trainer.training.progress(),
            epochs_begun: self.trainer.epochs_begun,
            in_epoch: self.in_epoch,
            total: self.total,
            learning_rate: self.learning_rate,
            evaluated: self.evaluated,
            reports: self.reports.clone(),
            best: self.tracker.best(),
            since: self.tracker.since(),
        };
        let saved = match self.trainer.config.rank() {
            0 => checkpoint::save(
                &checkpoints.folder,
                &state,
                &mut self.trainer.training,
                &others,
                self.tracker.weights(),
            ),
            _ => Ok(()),
        };
        distributed::done_by_first(&self.trainer.config, "the checkpoint", saved)
    }

    /// Returns true if a checkpoint is due after the last step.
    fn saves_step(&self) -> bool {
        let checkpoints = self.trainer.config.checkpoints.as_ref();
        checkpoints.is_some_and(|c| self.total.is_multiple_of(c.every as u64))
    }

    /// Evaluates the final weights, if that was not done yet, and restores the best ones if
    /// requested.
    fn finish(mut self) -> Result<TrainReport, TrainError> {
        if self.test.is_some() && self.evaluated.is_none_or(|(at, _)| at != self.total) {
            self.evaluate()?;
        }
        let last = self.evaluated.map(|(_, evaluation)| evaluation);
        let restored = self.tracker.restore(&mut self.trainer.training)?;
        // The last update may be the one that ruins the weights: no training loss was read after
        // it.
        if let Some(evaluation) = restored.or(last).filter(|found| !found.loss.is_finite()) {
            self.check_finite(evaluation.loss as f32, self.steps)?;
        }
        let report = TrainReport {
            epochs: std::mem::take(&mut self.reports),
            evaluation: restored.or(last),
            compile_seconds: self.trainer.compile_seconds,
            seconds: self.seconds(),
            stopped: self.stop == Some(Stop::Observer),
            early_stopped: self.stop == Some(Stop::EarlyStopping),
            best: self.tracker.best(),
            total_steps: self.total,
            skipped_updates: self.trainer.training.try_skipped_updates()?,
        };
        self.observer.on_train_end(&report);
        Ok(report)
    }

    /// Runs one epoch with its evaluation; returns `None` if it was cut short.
    fn epoch(&mut self) -> Result<Option<EpochReport>, TrainError> {
        let before = self.total - self.in_epoch.unwrap_or(0) as u64;
        let left = self.total_steps().saturating_sub(before);
        self.epoch_steps = usize::try_from(left).unwrap_or(usize::MAX).min(self.steps);
        let begin = EpochBegin {
            epoch: self.epoch,
            epochs: self.trainer.config.epochs,
            steps: self.epoch_steps,
        };
        let flow = self.observer.on_epoch_begin(&begin);
        self.stop_if_requested(flow)?;
        if self.stop.is_some() {
            return Ok(None);
        }
        let start = Instant::now();
        self.evaluating = 0.0;
        let Some(train_loss) = self.train(start)? else {
            return Ok(None);
        };
        self.in_epoch = None;
        let mut report = EpochReport {
            epoch: self.epoch,
            steps: self.epoch_steps,
            total_steps: self.total,
            examples: self.examples_of(self.epoch_steps),
            train_loss,
            evaluation: None,
            learning_rate: self.learning_rate,
            train_seconds: start.elapsed().as_secs_f64() - self.evaluating,
            evaluation_seconds: 0.0,
            seconds: 0.0,
        };
        if self.evaluates_epoch() {
            report.evaluation = self.evaluate()?;
        }
        report.evaluation_seconds = self.evaluating;
        report.seconds = self.seconds();
        Ok(Some(report))
    }

    /// Returns true if an evaluation is due after the current epoch.
    fn evaluates_epoch(&self) -> bool {
        let config = &self.trainer.config;
        // No epoch is a multiple of 0, as they count from 1.
        let due = self.is_last_epoch() || self.epoch.is_multiple_of(config.evaluate_every);
        self.test.is_some() && due
    }

    /// Runs the steps of one epoch; returns their mean loss, or `None` if they were cut short.
    fn train(&mut self, start: Instant) -> Result<Option<f64>, TrainError> {
        let done = match self.in_epoch {
            // Continues after a checkpoint, which contained the sum of the losses. If the run was
            // ended at that step, an evaluation may have been skipped, which counts for early
            // stopping.
            Some(done) => {
                self.evaluate_if_due(done)?;
                if self.stop.is_some() {
                    self.save()?;
                    return Ok(None);
                }
                done
            }
            None => {
                self.trainer.epochs_begun += 1;
                self.trainer.training.try_set_state(LOSS_SUM, &[0.0])?;
                0
            }
        };
        for step in done + 1..=self.epoch_steps {
            let info = self.step(step, start)?;
            self.in_epoch = Some(step);
            let flow = self.observer.on_step(&info);
            self.stop_if_requested(flow)?;
            self.report_statistics()?;
            if self.stop.is_none() {
                self.evaluate_if_due(step)?;
            }
            // The end of a run is saved, also within an epoch.
            if self.saves_step() || self.stop.is_some() {
                self.save()?;
            }
            if self.stop.is_some() {
                return Ok(None);
            }
        }
        // Reading waits for the last step, so that the time of the epoch includes all of its steps.
        let sum = self.trainer.training.try_read_state(LOSS_SUM)?;
        let sum = sum.iter().copied().map(f64::from).sum::<f64>();
        let sum = distributed::mean(&self.trainer.config, "the mean loss", sum)?;
        let train_loss = sum / self.epoch_steps as f64;
        self.check_finite(train_loss as f32, self.epoch_steps)?;
        Ok(Some(train_loss))
    }

    /// Reports statistics of parameters and gradients, if they are due.
    fn report_statistics(&mut self) -> Result<(), TrainError> {
        if !self.total.is_multiple_of(self.trainer.config.statistics_every as u64) {
            return Ok(());
        }
        let session = &mut self.trainer.training;
        let mut tensors = session.try_statistics(TensorKind::Parameter)?;
        tensors.extend(session.try_statistics(TensorKind::Gradient)?);
        let flow = self.observer.on_statistics(&StatisticsInfo {
            epoch: self.epoch,
            total_step: self.total,
            tensors,
        });
        self.stop_if_requested(flow)?;
        Ok(())
    }

    /// Evaluates if that is due after the `step`-th step of the epoch, unless it was done or the
    /// epoch's end does it.
    fn evaluate_if_due(&mut self, step: usize) -> Result<(), TrainError> {
        let every = self.trainer.config.evaluate_every_steps as u64;
        let done = self.evaluated.is_some_and(|(at, _)| at == self.total);
        let left_to_epoch = step == self.epoch_steps && self.evaluates_epoch();
        if self.total.is_multiple_of(every) && !done && !left_to_epoch {
            self.evaluate()?;
        }
        Ok(())
    }

    /// Runs the `step`-th step of the current epoch, which began at `start`.
    fn step(&mut self, step: usize, start: Instant) -> Result<StepInfo, TrainError> {
        let total_steps = self.total_steps();
        let examples_so_far = self.examples_of(step);
        let examples = examples_so_far - self.examples_of(step - 1);
        let Trainer {
            config, training, feed, ..
        } = &mut *self.trainer;
        self.source.next(feed.buffer())?;
        feed.upload(training)?;
        feed.upload_labels(training)?;
        let steps = self.steps as u64;
        self.learning_rate = config.rate_at(Position {
            step: self.total,
            steps_per_epoch: steps,
            total_steps,
        });
        training.try_adjust_learning_rate(self.learning_rate)?;
        training.try_step()?;
        self.total += 1;
        let loss = if step.is_multiple_of(config.loss_every) {
            let own = f64::from(training.try_read_loss()?);
            Some(distributed::mean(config, "the loss", own)? as f32)
        } else {
            None
        };
        let gradient_norm = match (loss, config.clip) {
            (Some(_), Some(GradientClip::Norm(_))) => {
                training.try_read_state(GradientClip::NORM_STATE)?.first().copied()
            }
            _ => None,
        };
        let scale = match loss {
            Some(_) => training.try_loss_scale()?,
            None => None,
        };
        let loss_scale = match scale {
            Some(scale) => Some((scale, training.try_skipped_updates()?)),
            None => None,
        };
        if let Some(loss) = loss {
            self.check_finite(loss, step)?;
        }
        Ok(StepInfo {
            epoch: self.epoch,
            step,
            steps: self.epoch_steps,
            total_step: self.total,
            examples,
            loss,
            gradient_norm,
            loss_scale,
            learning_rate: self.learning_rate,
            seconds: self.seconds(),
            examples_per_second: per_second(examples_so_far, start.elapsed().as_secs_f64() - self.evaluating),
        })
    }

    /// Evaluates the current weights and calls the observer; may stop the run.
    fn evaluate(&mut self) -> Result<Option<Evaluation>, TrainError> {
        let Some(test) = self.test else { return Ok(None) };
        let start = Instant::now();
        let evaluation = self.trainer.evaluate(test)?;
        let candidate = BestEvaluation {
            epoch: self.epoch,
            total_step: self.total,
            evaluation,
        };
        let best = self.tracker.note(candidate, &mut self.trainer.training)?;
        let evaluation_seconds = start.elapsed().as_secs_f64();
        self.evaluating += evaluation_seconds;
        self.evaluated = Some((self.total, evaluation));
        let flow = self.observer.on_evaluation(&EvaluationInfo {
            epoch: self.epoch,
            total_step: self.total,
            evaluation,
            best,
            learning_rate: self.learning_rate,
            seconds: self.seconds(),
            evaluation_seconds,
        });
        self.stop_if_requested(flow)?;
        let unfinished = self.total < self.total_steps();
        if self.stop.is_none() && unfinished && self.tracker.out_of_patience() {
            self.stop = Some(Stop::EarlyStopping);
        }
        Ok(Some(evaluation))
    }

    /// Ends the run if the observer requests it, unless it is ending.
    fn stop_if_requested(&mut self, flow: ControlFlow<()>) -> Result<(), TrainError> {
        let config = &self.trainer.config;
        let ends = flow.is_break() || config.ranks().is_some_and(|ranks| ranks.stop_requested());
        // If one rank ends the run, all ranks end it after the same step.
        if distributed::any(config, "whether the run ends", ends)? && self.stop.is_none() {
            self.stop = Some(Stop::Observer);
        }
        Ok(())
    }

    /// Returns the number of steps of the whole run.
    fn total_steps(&self) -> u64 {
        let config = &self.trainer.config;
        let all = (config.epochs as u64).saturating_mul(self.steps as u64);
        config.max_steps.map_or(all, |most| most.min(all))
    }

    /// Returns the number of examples in the first steps of an epoch.
    fn examples_of(&self, steps: usize) -> usize {
        (steps * self.trainer.config.batch_size).min(self.examples)
    }

    /// Returns true if the run ends with the current epoch.
    fn is_last_epoch(&self) -> bool {
        self.epoch == self.trainer.config.epochs || self.total >= self.total_steps()
    }

    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns an error if a loss, detected at that step of the current epoch, is not finite.
    fn check_finite(&self, loss: f32, step: usize) -> Result<(), TrainError> {
        if loss.is_finite() {
            return Ok(());
        }
        Err(TrainError::NonFiniteLoss {
            epoch: self.epoch,
            step,
            loss,
            learning_rate: self.learning_rate,
        })
    }
}
