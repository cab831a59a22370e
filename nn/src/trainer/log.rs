//! A log of a run as JSON lines.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::observer::TEST;
use super::sink::{ErrorKeepingWriter, open_at_end};
use super::statistics::StatisticsRow;
use super::{
    EpochReport, EvaluationInfo, Observer, RegressionMetrics, StatisticsInfo, StepInfo, TrainBegin, TrainReport,
};

/// A log with one line for every event of a run, each a JSON object.
///
/// | `event` | When | Fields besides it |
/// |---|---|---|
/// | `train_begin` | once, first | `epochs`, `steps_per_epoch`, `batch_size`, `examples`, `examples_per_epoch` (examples in each epoch), `test_examples` and `validation_examples` (null unless evaluations use these), `lr` (the configured one), `seed`, `resumed_steps` (steps before the checkpoint, if the run resumes) |
/// | `step` | after each step whose loss was read, see `TrainConfig::loss_every` | `epoch`, `step`, `loss`, `gradient_norm` (null unless gradients are limited by their norm), `loss_scale` and `skipped_updates` (both null unless in mixed precision), `lr`, `seconds`, `examples_per_second` |
/// | `statistics` | for each parameter and gradient, see `TrainConfig::statistics_every` | `epoch`, `step`, `kind` (`parameter` or `gradient`), `name`, `len`, `nan`, `positive_infinities`, `negative_infinities`, `zeros`, `min`, `max`, `mean`, `deviation` (these of the finite elements) |
/// | `evaluation` | after each evaluation | `epoch`, `step`, `on` (`test` or `validation`), `loss`, `accuracy` (null for regression, which has `rmse`, `mae` and `r2`), `correct`, `examples`, `best`, `lr`, `seconds`, `evaluation_seconds` |
/// | `epoch` | after each complete epoch | `epoch`, `step`, `loss` (mean of all its steps), `lr`, `seconds`, `examples_per_second`, `steps_per_second` |
/// | `train_end` | once, last, unless the run failed | `epochs` (complete ones), `step`, `on` (`test` or `validation`), `loss` and `accuracy` (of the final weights on these), `best_epoch`, `best_step`, `stopped`, `early_stopped`, `skipped_updates`, `seconds`, `compile_seconds` |
///
/// `epoch` counts from 1, `step` is the number of completed steps of the whole run, `seconds` is
/// the time since the run began, `accuracy` is from 0 to 1, `lr` is the learning rate of the last
/// step. Missing numbers, and numbers that are not finite, are null. Fields may be added in later
/// versions.
///
/// Each line is flushed, so that a killed run leaves the lines of all its steps. An error of the
/// file ends the run; [`finish`](Self::finish) returns it.
///
/// ```
/// use meganeura_nn::trainer::{EpochReport, JsonLinesLog, Observer, TrainBegin};
///
/// # fn main() -> std::io::Result<()> {
/// let mut lines = Vec::new();
/// let mut log = JsonLinesLog::new(&mut lines);
/// let _ = log.on_train_begin(&TrainBegin {
///     epochs: 2,
///     steps: 40,
///     batch_size: 32,
///     examples: 1300,
///     examples_per_epoch: 1280,
///     test_examples: None,
///     validation_examples: None,
///     learning_rate: 0.1,
///     seed: 0,
///     resumed_steps: 0,
/// });
/// log.finish()?;
/// assert!(lines.starts_with(br#"{"event":"train_begin","epochs":2,"steps_per_epoch":40,"#));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JsonLinesLog<W: Write = BufWriter<File>> {
    sink: ErrorKeepingWriter<W>,
    /// Name of the examples that evaluations use, `test` or `validation`.
    on: &'static str,
}

impl JsonLinesLog {
    /// Creates the file, or empties it if there is one.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(JsonLinesLog::new(BufWriter::new(File::create(path)?)))
    }

    /// Continues the file of a resumed run, or creates it.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let (file, _) = open_at_end(path.as_ref())?;
        Ok(JsonLinesLog::new(BufWriter::new(file)))
    }
}

impl<W: Write> JsonLinesLog<W> {
    /// Creates a log on any writer.
    pub fn new(writer: W) -> Self {
        JsonLinesLog {
            sink: ErrorKeepingWriter::new(writer),
            on: TEST,
        }
    }

    /// Flushes the lines.
    ///
    /// # Errors
    /// The first error of the writer since the log was made.
    pub fn finish(self) -> io::Result<()> {
        self.sink.finish(W::flush)
    }

    /// Writes a line, and ends the run if that fails.
    fn line(&mut self, event: &impl Serialize) -> ControlFlow<()> {
        self.sink.write(|writer| {
            serde_json::to_writer(&mut *writer, event)?;
            writer.write_all(b"\n")?;
            writer.flush()
        })
    }
}

/// A line. The fields are in the order of the documentation; serde writes numbers that are not finite as null.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    TrainBegin {
        epochs: usize,
        steps_per_epoch: usize,
        batch_size: usize,
        examples: usize,
        examples_per_epoch: usize,
        test_examples: Option<usize>,
        validation_examples: Option<usize>,
        lr: f32,
        seed: u64,
        resumed_steps: u64,
    },
    Statistics(StatisticsRow<'a>),
    Step {
        epoch: usize,
        step: u64,
        loss: f32,
        gradient_norm: Option<f32>,
        loss_scale: Option<f32>,
        skipped_updates: Option<u64>,
        lr: f32,
        seconds: f64,
        examples_per_second: f64,
    },
    Evaluation {
        epoch: usize,
        step: u64,
        on: &'static str,
        loss: f64,
        accuracy: Option<f64>,
        correct: usize,
        examples: usize,
        #[serde(flatten)]
        regression: Option<RegressionMetrics>,
        best: bool,
        lr: f32,
        seconds: f64,
        evaluation_seconds: f64,
    },
    Epoch {
        epoch: usize,
        step: u64,
        loss: f64,
        lr: f32,
        seconds: f64,
        examples_per_second: f64,
        steps_per_second: f64,
    },
    TrainEnd {
        epochs: usize,
        step: u64,
        on: &'static str,
        loss: Option<f64>,
        accuracy: Option<f64>,
        best_epoch: Option<usize>,
        best_step: Option<u64>,
        stopped: bool,
        early_stopped: bool,
        skipped_updates: u64,
        seconds: f64,
        compile_seconds: f64,
    },
}

impl<W: Write> Observer for JsonLinesLog<W> {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        self.on = run.evaluated();
        let event = Event::TrainBegin {
            epochs: run.epochs,
            steps_per_epoch: run.steps,
            batch_size: run.batch_size,
            examples: run.examples,
            examples_per_epoch: run.examples_per_epoch,
            test_examples: run.test_examples,
            validation_examples: run.validation_examples,
            lr: run.learning_rate,
            seed: run.seed,
            resumed_steps: run.resumed_steps,
        };
        self.line(&event)
    }

    fn on_statistics(&mut self, info: &StatisticsInfo) -> ControlFlow<()> {
        StatisticsRow::of(info).try_for_each(|row| self.line(&Event::Statistics(row)))
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let Some(loss) = step.loss else {
            return ControlFlow::Continue(());
        };
        let event = Event::Step {
            epoch: step.epoch,
            step: step.total_step,
            loss,
            gradient_norm: step.gradient_norm,
            loss_scale: step.loss_scale.map(|(scale, _)| scale),
            skipped_updates: step.loss_scale.map(|(_, skipped)| skipped),
            lr: step.learning_rate,
            seconds: step.seconds,
            examples_per_second: step.examples_per_second,
        };
        self.line(&event)
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        let event = Event::Evaluation {
            epoch: info.epoch,
            step: info.total_step,
            on: self.on,
            loss: info.evaluation.loss,
            accuracy: info.evaluation.class_accuracy(),
            correct: info.evaluation.correct,
            examples: info.evaluation.examples,
            regression: info.evaluation.regression,
            best: info.best,
            lr: info.learning_rate,
            seconds: info.seconds,
            evaluation_seconds: info.evaluation_seconds,
        };
        self.line(&event)
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let event = Event::Epoch {
            epoch: report.epoch,
            step: report.total_steps,
            loss: report.train_loss,
            lr: report.learning_rate,
            seconds: report.seconds,
            examples_per_second: report.examples_per_second(),
            steps_per_second: report.steps_per_second(),
        };
        self.line(&event)
    }

    fn on_train_end(&mut self, report: &TrainReport) {
        let event = Event::TrainEnd {
            epochs: report.epochs.len(),
            step: report.total_steps,
            on: self.on,
            loss: report.evaluation.map(|e| e.loss),
            accuracy: report.evaluation.and_then(|e| e.class_accuracy()),
            best_epoch: report.best.map(|b| b.epoch),
            best_step: report.best.map(|b| b.total_step),
            stopped: report.stopped,
            early_stopped: report.early_stopped,
            skipped_updates: report.skipped_updates,
            seconds: report.seconds,
            compile_seconds: report.compile_seconds,
        };
        // An error is kept for `finish`; the run has already ended.
        let _ = self.line(&event);
    }
}
