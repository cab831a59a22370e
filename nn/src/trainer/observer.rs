//! Observers, which watch and stop a training run.

use std::ops::ControlFlow;

use meganeura_core::statistics::NamedStatistics;

use super::{EpochReport, Evaluation, TrainReport};

/// The information for observers before the first epoch of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainBegin {
    /// Maximum number of epochs; the run may end earlier.
    pub epochs: usize,
    /// Number of steps in each epoch.
    pub steps: usize,
    /// Number of examples in a step.
    pub batch_size: usize,
    /// Number of training examples in the data set.
    pub examples: usize,
    /// Number of examples that each epoch trains on: fewer than `examples` with
    /// [`Remainder::Drop`](crate::data::Remainder::Drop) if the last batch is not full.
    pub examples_per_epoch: usize,
    /// Number of test examples, if evaluations are on these.
    pub test_examples: Option<usize>,
    /// Number of validation examples, if evaluations are on these; see
    /// [`Trainer::fit_parts`](super::Trainer::fit_parts).
    pub validation_examples: Option<usize>,
    /// The configured learning rate, which schedule and warm-up scale.
    pub learning_rate: f32,
    /// The seed.
    pub seed: u64,
    /// Number of steps before the checkpoint that the run resumes from; else 0.
    pub resumed_steps: u64,
}

impl TrainBegin {
    /// Returns the name of the evaluated examples: `validation` or `test`.
    pub fn evaluated(&self) -> &'static str {
        match self.validation_examples {
            Some(_) => "validation",
            None => TEST,
        }
    }
}

/// Default name of the evaluated examples.
pub(super) const TEST: &str = "test";

/// The information for observers before an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochBegin {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Number of epochs of the run.
    pub epochs: usize,
    /// Number of steps in each epoch.
    pub steps: usize,
}

/// The information for observers after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The step in the epoch, from 1.
    pub step: usize,
    /// Number of steps in the epoch.
    pub steps: usize,
    /// The step in the run, from 1.
    pub total_step: u64,
    /// Number of examples in the step.
    pub examples: usize,
    /// Mean loss of the step's batch, if it was read; see `TrainConfig::loss_every`.
    pub loss: Option<f32>,
    /// Euclidean norm of all gradients of the last update before it was limited, if the loss was read and
    /// gradients are limited by their norm.
    pub gradient_norm: Option<f32>,
    /// Scale of the gradients after the step, and number of updates skipped so far because of a
    /// gradient that was not finite, if the loss was read and the run is in mixed precision.
    pub loss_scale: Option<(f32, u64)>,
    /// Learning rate of the step.
    pub learning_rate: f32,
    /// Seconds since the run began.
    pub seconds: f64,
    /// Examples trained per second in this epoch so far, without evaluations. On an asynchronous
    /// device these are the submitted examples.
    pub examples_per_second: f64,
}

/// The information for observers after an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluationInfo {
    /// The epoch, from 1; 0 before the first one.
    pub epoch: usize,
    /// Number of steps made in the run.
    pub total_step: u64,
    /// Quality on the test data, or the validation data.
    pub evaluation: Evaluation,
    /// True if it is the best one of the run so far, by the metric of
    /// `TrainConfig::early_stopping`, or else by the loss.
    pub best: bool,
    /// Learning rate of the last step.
    pub learning_rate: f32,
    /// Seconds since the run began.
    pub seconds: f64,
    /// Seconds that the evaluation took.
    pub evaluation_seconds: f64,
}

/// The information for observers about the tensors of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StatisticsInfo {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Number of steps made in the run.
    pub total_step: u64,
    /// All parameters after the step, then all gradients of its batch, before any limit is applied.
    pub tensors: Vec<NamedStatistics>,
}

/// A set of callbacks during training: progress bars, logs, conditions to stop. The methods that
/// return a [`ControlFlow`] may end the run by [`ControlFlow::Break`]; the default implementations
/// do nothing and continue.
///
/// The order of the calls: `on_train_begin`; for each epoch `on_epoch_begin`, `on_step` after every
/// step, `on_statistics` after it when they are due, `on_evaluation` after every evaluation, also
/// one between steps, and `on_epoch_end` unless the epoch was cut short; `on_train_end`, unless the
/// run failed.
///
/// Several observers watch one run as a tuple or a `Vec`: each of them sees every event, and the
/// run ends if any of them requests it.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use meganeura_nn::trainer::{EvaluationInfo, Observer, SilentObserver, StepInfo};
///
/// /// Ends the run once the model is good enough.
/// struct GoodEnough(f64);
///
/// impl Observer for GoodEnough {
///     fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
///         if info.evaluation.accuracy() >= self.0 {
///             return ControlFlow::Break(());
///         }
///         ControlFlow::Continue(())
///     }
/// }
///
/// /// Counts examples.
/// #[derive(Default)]
/// struct Counter(usize);
///
/// impl Observer for Counter {
///     fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
///         self.0 += step.examples;
///         ControlFlow::Continue(())
///     }
/// }
///
/// let mut counter = Counter::default();
/// // The counter is lent, to be read after the run.
/// let mut observers = (GoodEnough(0.98), &mut counter, SilentObserver);
/// let observer: &mut dyn Observer = &mut observers;
/// # let _ = observer;
/// ```
pub trait Observer {
    /// Receives the settings of the run, before the first epoch.
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        let _ = run;
        ControlFlow::Continue(())
    }

    /// Receives the epoch, before its first step.
    fn on_epoch_begin(&mut self, epoch: &EpochBegin) -> ControlFlow<()> {
        let _ = epoch;
        ControlFlow::Continue(())
    }

    /// Receives a step after it was submitted; on an asynchronous device it need not be complete.
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let _ = step;
        ControlFlow::Continue(())
    }

    /// Receives statistics, after a step for which
    /// [`TrainConfig::statistics_every`](super::TrainConfig::statistics_every) requests them.
    fn on_statistics(&mut self, statistics: &StatisticsInfo) -> ControlFlow<()> {
        let _ = statistics;
        ControlFlow::Continue(())
    }

    /// Receives the result of an evaluation on the test or validation data.
    fn on_evaluation(&mut self, evaluation: &EvaluationInfo) -> ControlFlow<()> {
        let _ = evaluation;
        ControlFlow::Continue(())
    }

    /// Receives the report of an epoch, after the epoch and its evaluation, if there was one.
    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let _ = report;
        ControlFlow::Continue(())
    }

    /// Receives the report of the run, also after an early end; not called after a failure.
    fn on_train_end(&mut self, report: &TrainReport) {
        let _ = report;
    }
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {}

/// Implements [`Observer`] for pointers to an observer.
macro_rules! delegate {
    ($($pointer:ty),+) => {$(
        impl<O: Observer + ?Sized> Observer for $pointer {
            fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
                (**self).on_train_begin(run)
            }

            fn on_epoch_begin(&mut self, epoch: &EpochBegin) -> ControlFlow<()> {
                (**self).on_epoch_begin(epoch)
            }

            fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
                (**self).on_step(step)
            }

            fn on_statistics(&mut self, statistics: &StatisticsInfo) -> ControlFlow<()> {
                (**self).on_statistics(statistics)
            }

            fn on_evaluation(&mut self, evaluation: &EvaluationInfo) -> ControlFlow<()> {
                (**self).on_evaluation(evaluation)
            }

            fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
                (**self).on_epoch_end(report)
            }

            fn on_train_end(&mut self, report: &TrainReport) {
                (**self).on_train_end(report);
            }
        }
    )+};
}

delegate!(&mut O, Box<O>);

/// Implements [`Observer`] for several observers; `$each` iterates over them.
macro_rules! fan_out {
    ([$($observer:ident),+] $several:ty, $this:ident => $each:expr) => {
        impl<$($observer: Observer),+> Observer for $several {
            fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_train_begin(run))
            }

            fn on_epoch_begin(&mut self, epoch: &EpochBegin) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_epoch_begin(epoch))
            }

            fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_step(step))
            }

            fn on_statistics(&mut self, statistics: &StatisticsInfo) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_statistics(statistics))
            }

            fn on_evaluation(&mut self, evaluation: &EvaluationInfo) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_evaluation(evaluation))
            }

            fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
                let $this = self;
                all($each, |o| o.on_epoch_end(report))
            }

            fn on_train_end(&mut self, report: &TrainReport) {
                let $this = self;
                for o in $each {
                    o.on_train_end(report);
                }
            }
        }
    };
}

fan_out!([A, B] (A, B), this => [&mut this.0 as &mut dyn Observer, &mut this.1]);
fan_out!([A, B, C] (A, B, C), this => [&mut this.0 as &mut dyn Observer, &mut this.1, &mut this.2]);
fan_out!([A, B, C, D] (A, B, C, D), this => [&mut this.0 as &mut dyn Observer, &mut this.1, &mut this.2, &mut this.3]);
fan_out!([O] Vec<O>, this => this.iter_mut().map(|o| o as &mut dyn Observer));
fan_out!([O] Option<O>, this => this.iter_mut().map(|o| o as &mut dyn Observer));

/// Calls every observer, also after one that requests the end of the run.
fn all<'o>(
    observers: impl IntoIterator<Item = &'o mut (dyn Observer + 'o)>,
    mut call: impl FnMut(&mut (dyn Observer + 'o)) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut flow = ControlFlow::Continue(());
    for observer in observers {
        if call(observer).is_break() {
            flow = ControlFlow::Break(());
        }
    }
    flow
}
