//! Watching and stopping a training run.

use std::ops::ControlFlow;

use super::EpochReport;

/// What an observer learns before an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochBegin {
    /// The epoch, from 1.
    pub epoch: usize,
    /// How many there will be.
    pub epochs: usize,
    /// Steps in each.
    pub steps: usize,
}

/// What an observer learns after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The step in the epoch, from 1.
    pub step: usize,
    /// Steps in the epoch.
    pub steps: usize,
    /// Mean loss of the step's batch, if it was read; see `TrainConfig::loss_every`.
    pub loss: Option<f32>,
    /// Learning rate of the step.
    pub learning_rate: f32,
}

/// Called during training: progress bars, logs, early stopping. Every method may end the training by
/// returning [`ControlFlow::Break`]; the default implementations do nothing and go on.
pub trait Observer {
    /// Before the first step of an epoch.
    fn on_epoch_begin(&mut self, epoch: &EpochBegin) -> ControlFlow<()> {
        let _ = epoch;
        ControlFlow::Continue(())
    }

    /// After a step was submitted; on an asynchronous device it need not be complete.
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let _ = step;
        ControlFlow::Continue(())
    }

    /// After an epoch and its evaluation, if there was one.
    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let _ = report;
        ControlFlow::Continue(())
    }
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
