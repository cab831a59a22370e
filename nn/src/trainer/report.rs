//! Results of training and evaluation.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::RegressionMetrics;

/// Quality of a classifier or a regression on a data set, every example counted once; of a language model, every token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean cross-entropy in nats, without class weights or label smoothing. For regression, the
    /// mean squared error in the units that the targets were standardised to.
    pub loss: f64,
    /// Number of examples whose largest logit is that of their label; 0 for regression.
    pub correct: usize,
    /// Number of examples.
    pub examples: usize,
    /// Errors of a regression, in original units.
    #[serde(default)]
    pub regression: Option<RegressionMetrics>,
}

impl Evaluation {
    /// Returns the share of correct examples, 0 to 1; 0 for regression.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples.max(1) as f64
    }

    /// Returns the [`accuracy`](Self::accuracy) of classification; `None` for regression.
    pub fn class_accuracy(&self) -> Option<f64> {
        self.regression.is_none().then(|| self.accuracy())
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.accuracy();
        let Evaluation {
            loss,
            correct,
            examples,
            regression,
        } = self;
        if let Some(metrics) = regression {
            return write!(f, "test loss {loss:.4}, {metrics} ({examples} examples)");
        }
        write!(
            f,
            "test loss {loss:.4}, accuracy {percent:.2} % ({correct} of {examples})"
        )
    }
}

/// One completed epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Number of completed steps of the epoch.
    pub steps: usize,
    /// Number of completed steps of the run, including this epoch.
    pub total_steps: u64,
    /// Number of examples trained, including the examples that were repeated to fill the last batch.
    pub examples: usize,
    /// Mean loss of all steps, each before its update and with dropout.
    pub train_loss: f64,
    /// Quality on the test data, if it was measured after this epoch.
    pub evaluation: Option<Evaluation>,
    /// Learning rate of the last step.
    pub learning_rate: f32,
    /// Seconds spent on training.
    pub train_seconds: f64,
    /// Seconds spent on evaluation, also between steps.
    pub evaluation_seconds: f64,
    /// Seconds from the start of the run to the end of this epoch.
    pub seconds: f64,
}

impl EpochReport {
    /// Returns the training steps per second.
    pub fn steps_per_second(&self) -> f64 {
        per_second(self.steps, self.train_seconds)
    }

    /// Returns the examples trained per second.
    pub fn examples_per_second(&self) -> f64 {
        per_second(self.examples, self.train_seconds)
    }
}

/// Returns a rate that is finite even if the clock did not advance.
pub(super) fn per_second(count: usize, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

impl fmt::Display for EpochReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}: train loss {:.4}", self.epoch, self.train_loss)?;
        if let Some(evaluation) = &self.evaluation {
            write!(f, ", {evaluation}")?;
        }
        write!(f, ", {:.0} steps/s", self.steps_per_second())
    }
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// Epoch of the evaluation, from 1; 0 before the first epoch.
    pub epoch: usize,
    /// Number of steps of the run that were completed before the evaluation.
    pub total_step: u64,
    /// Quality of the model.
    pub evaluation: Evaluation,
}

/// A training run on parts of a data set ([`Trainer::fit_parts`](super::Trainer::fit_parts)).
#[derive(Clone, Debug, PartialEq)]
pub struct PartsReport {
    /// The run; its evaluations are on the validation part, which early stopping may have used.
    pub training: TrainReport,
    /// Quality of the final weights on the test part. The run did not use this part.
    pub test: Option<Evaluation>,
}

/// A whole training run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// The completed epochs, first to last.
    pub epochs: Vec<EpochReport>,
    /// Quality of the final weights on the test data, if there were any. If early stopping used
    /// these data, the result is better than for unseen data; [`PartsReport::test`] is not.
    pub evaluation: Option<Evaluation>,
    /// Seconds that building both sessions took, when the trainer was made.
    pub compile_seconds: f64,
    /// Seconds of the run, training and evaluation together.
    pub seconds: f64,
    /// True if an observer ended the run.
    pub stopped: bool,
    /// True if early stopping ended the run.
    pub early_stopped: bool,
    /// The best evaluation, by the metric of `TrainConfig::early_stopping`, or else by the loss. With
    /// `restore_best`, the model now has the weights of this evaluation.
    pub best: Option<BestEvaluation>,
    /// Number of steps made.
    pub total_steps: u64,
    /// Number of updates that were skipped because a gradient was not finite, in mixed precision.
    pub skipped_updates: u64,
}
