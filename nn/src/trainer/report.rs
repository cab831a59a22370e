//! Results of training and evaluation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Quality of a classifier on a data set, every example counted once; of a language model, every token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Examples whose largest logit is that of their label.
    pub correct: usize,
    /// All examples.
    pub examples: usize,
}

impl Evaluation {
    /// Share of correct examples, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples.max(1) as f64
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.accuracy();
        let Evaluation {
            loss,
            correct,
            examples,
        } = self;
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
    /// Steps made.
    pub steps: usize,
    /// Steps made in the run, this epoch included.
    pub total_steps: u64,
    /// Examples trained, counting the repeats of a filled last batch.
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
    /// Seconds from the begin of the run to the end of this epoch.
    pub seconds: f64,
}

impl EpochReport {
    /// Training steps a second.
    pub fn steps_per_second(&self) -> f64 {
        per_second(self.steps, self.train_seconds)
    }

    /// Examples trained a second.
    pub fn examples_per_second(&self) -> f64 {
        per_second(self.examples, self.train_seconds)
    }
}

/// A rate that is finite even if the clock did not advance.
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
pub struct Best {
    /// Its epoch, from 1; 0 before the first one.
    pub epoch: usize,
    /// Steps made in the run by then.
    pub total_step: u64,
    /// Its quality.
    pub evaluation: Evaluation,
}

/// A whole training run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// The completed epochs, first to last.
    pub epochs: Vec<EpochReport>,
    /// Quality of the final weights on the test data, if there were any.
    pub evaluation: Option<Evaluation>,
    /// Seconds that building both sessions took, when the trainer was made.
    pub compile_seconds: f64,
    /// Seconds of the run, training and evaluation together.
    pub seconds: f64,
    /// Whether an observer ended the run.
    pub stopped: bool,
    /// Whether early stopping ended the run.
    pub early_stopped: bool,
    /// The best evaluation, by the metric of `TrainConfig::early_stopping`, or else by the loss. With
    /// `restore_best` these are the weights that the model has now.
    pub best: Option<Best>,
    /// Steps made.
    pub total_steps: u64,
    /// Updates that were left out because a gradient was not finite, in mixed precision.
    pub skipped_updates: u64,
}
