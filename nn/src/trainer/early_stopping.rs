//! Early stopping: ends a run when evaluations stop improving, and keeps the best weights.

use meganeura_core::{DType, Session};

use super::loss_sum::LOSS_SUM;
use super::{BestEvaluation, Evaluation, TrainError};

/// The metric that compares evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// Lower loss. It changes earlier than the accuracy.
    #[default]
    Loss,
    /// Higher accuracy. On a small test set many evaluations are equally accurate; the first of
    /// them counts.
    Accuracy,
}

/// Settings of early stopping: a run ends after some evaluations without improvement.
///
/// ```
/// use meganeura_nn::trainer::{EarlyStopping, Metric, TrainConfig};
///
/// let config = TrainConfig {
///     epochs: 1000,
///     early_stopping: Some(EarlyStopping {
///         patience: 10,
///         metric: Metric::Accuracy,
///         ..EarlyStopping::default()
///     }),
///     ..TrainConfig::default()
/// };
/// # let _ = config;
/// ```
///
/// A schedule that is stretched over all epochs (`Cosine`, `OneCycle`) is not complete when early stopping ends the
/// run. With many epochs, prefer `Constant` or `Step`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// Number of consecutive evaluations without improvement after which the run ends; at least 1.
    pub patience: usize,
    /// Minimum improvement of a better evaluation, in the unit of the metric: nats, or 0 to 1. At
    /// least 0; an equal evaluation is never better.
    pub min_delta: f64,
    /// Compared metric.
    pub metric: Metric,
    /// True if the model gets the weights of the best evaluation at the end of the run, unless the
    /// run fails. They are kept in host memory: all parameters, and states such as running
    /// statistics, but not the moments of the optimizer.
    pub restore_best: bool,
}

impl Default for EarlyStopping {
    /// Returns a patience of five evaluations without a lower loss, with restoring of the best
    /// weights.
    fn default() -> Self {
        EarlyStopping {
            patience: 5,
            min_delta: 0.0,
            metric: Metric::Loss,
            restore_best: true,
        }
    }
}

impl EarlyStopping {
    /// Checks the numbers.
    pub(super) fn check(self) -> Result<(), String> {
        if self.patience == 0 {
            return Err("a patience of 0 would stop every run at its first evaluation; use at least 1".into());
        }
        if !self.min_delta.is_finite() || self.min_delta < 0.0 {
            return Err(format!(
                "min_delta is {}, not a finite number of at least 0",
                self.min_delta
            ));
        }
        Ok(())
    }
}

/// The best evaluation so far.
#[derive(Debug)]
pub(super) struct Tracker {
    settings: Option<EarlyStopping>,
    best: Option<BestEvaluation>,
    /// Number of evaluations since the best one.
    since: usize,
    weights: Weights,
}

impl Tracker {
    pub(super) fn new(settings: Option<EarlyStopping>) -> Self {
        Tracker {
            settings,
            best: None,
            since: 0,
            weights: Weights::default(),
        }
    }

    pub(super) fn best(&self) -> Option<BestEvaluation> {
        self.best
    }

    /// Returns the number of evaluations since the best one.
    pub(super) fn since(&self) -> usize {
        self.since
    }

    /// Returns the weights of the best evaluation; empty if they are not kept.
    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Continues from the state of another tracker.
    pub(super) fn go_on(&mut self, best: Option<BestEvaluation>, since: usize, weights: Weights) {
        self.best = best;
        self.since = since;
        self.weights = weights;
    }

    /// Returns true if the run should end.
    pub(super) fn out_of_patience(&self) -> bool {
        self.settings.is_some_and(|s| self.since >= s.patience)
    }

    /// Records an evaluation of the session's weights; returns true if it is the best one so far.
    pub(super) fn note(&mut self, candidate: BestEvaluation, session: &mut Session) -> Result<bool, TrainError> {
        let better = self.is_better(&candidate.evaluation);
        if !better {
            self.since += 1;
            return Ok(false);
        }
        if self.settings.is_some_and(|s| s.restore_best) {
            self.weights.save(session)?;
        }
        (self.best, self.since) = (Some(candidate), 0);
        Ok(true)
    }

    /// Copies the best weights to the session and returns their evaluation, if they were kept.
    pub(super) fn restore(&self, session: &mut Session) -> Result<Option<Evaluation>, TrainError> {
        match self.best {
            // A resumed run may not have kept the weights before.
            Some(best) if self.settings.is_some_and(|s| s.restore_best) && !self.weights.is_empty() => {
                self.weights.restore(session)?;
                Ok(Some(best.evaluation))
            }
            _ => Ok(None),
        }
    }

    fn is_better(&self, new: &Evaluation) -> bool {
        let settings = self.settings.unwrap_or_default();
        let gain = |old: &Evaluation| match settings.metric {
            Metric::Loss => old.loss - new.loss,
            Metric::Accuracy => new.accuracy() - old.accuracy(),
        };
        // A loss that is NaN is never an improvement, for either metric.
        match &self.best {
            _ if new.loss.is_nan() => false,
            None => true,
            Some(best) => {
                let gain = gain(&best.evaluation);
                gain > 0.0 && gain >= settings.min_delta
            }
        }
    }
}

/// Values of parameters and states by name, in memory that is reused.
#[derive(Debug, Default)]
pub(super) struct Weights {
    pub(super) parameters: Vec<(String, Vec<f32>)>,
    pub(super) states: Vec<(String, Vec<f32>)>,
}

impl Weights {
    fn save(&mut self, session: &mut Session) -> Result<(), TrainError> {
        if self.parameters.is_empty() && self.states.is_empty() {
            let plan = session.plan();
            // Those that are stored in fewer bits are frozen.
            let trained = plan.parameters().into_iter().filter(|p| p.ty.dtype == DType::F32);
            let parameters = trained.map(|p| p.name);
            let states = plan.state_buffers.iter().filter(|s| !s.optimizer && s.name != LOSS_SUM);
            self.states = states.map(|s| (s.name.clone(), Vec::new())).collect();
            self.parameters = parameters.map(|name| (name, Vec::new())).collect();
        }
        for (name, values) in &mut self.parameters {
            *values = session.try_read_parameter(name)?;
        }
        for (name, values) in &mut self.states {
            *values = session.try_read_state(name)?;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.parameters.is_empty() && self.states.is_empty()
    }

    fn restore(&self, session: &mut Session) -> Result<(), TrainError> {
        for (name, values) in &self.parameters {
            session.try_set_parameter(name, values)?;
        }
        for (name, values) in &self.states {
            session.try_set_state(name, values)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(loss: f64, correct: usize) -> Evaluation {
        Evaluation {
            loss,
            correct,
            examples: 100,
            regression: None,
        }
    }

    /// Returns for each of these evaluations whether it is better than the best one before.
    fn better(metric: Metric, min_delta: f64, all: &[(f64, usize)]) -> Vec<bool> {
        let mut tracker = Tracker::new(Some(EarlyStopping {
            metric,
            min_delta,
            ..EarlyStopping::default()
        }));
        let mut is_better = |&(loss, correct): &(f64, usize)| {
            let evaluation = evaluation(loss, correct);
            let better = tracker.is_better(&evaluation);
            if better {
                tracker.best = Some(BestEvaluation {
                    epoch: 1,
                    total_step: 1,
                    evaluation,
                });
            }
            better
        };
        all.iter().map(&mut is_better).collect()
    }

    #[test]
    fn better_is_by_the_metric_and_the_least_difference() {
        let all = [(1.0, 50), (1.0, 50), (0.9, 40), (0.95, 60), (0.89, 61), (f64::NAN, 99)];
        assert_eq!(better(Metric::Loss, 0.0, &all), [true, false, true, false, true, false]);
        assert_eq!(
            better(Metric::Loss, 0.05, &all),
            [true, false, true, false, false, false]
        );
        assert_eq!(
            better(Metric::Accuracy, 0.0, &all),
            [true, false, false, true, true, false]
        );
        assert_eq!(
            better(Metric::Accuracy, 0.05, &all),
            [true, false, false, true, false, false]
        );
        // Small improvements add up, because each evaluation is compared with the best one and not with the previous
        // one.
        let slow = [(1.0, 0), (0.97, 0), (0.94, 0)];
        assert_eq!(better(Metric::Loss, 0.05, &slow), [true, false, true]);
        let nan_first = [(f64::NAN, 0), (2.0, 0), (f64::INFINITY, 0)];
        assert_eq!(better(Metric::Loss, 0.0, &nan_first), [false, true, false]);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let settings = EarlyStopping::default();
        assert!(settings.check().is_ok());
        for (patience, min_delta) in [(0, 0.0), (1, -1.0), (1, f64::NAN), (1, f64::INFINITY)] {
            let bad = EarlyStopping {
                patience,
                min_delta,
                ..settings
            };
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
