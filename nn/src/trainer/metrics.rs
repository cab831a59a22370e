//! A log of a run as a table.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::sink::{Sink, open_at_end};
use super::{EpochReport, EvaluationInfo, Observer, StepInfo};

/// Writes a table with a row for every step whose loss was read, for every evaluation and for every epoch.
///
/// The columns are `event` (`step`, `evaluation` or `epoch`), `epoch`, `step`, `loss`, `accuracy`,
/// `gradient_norm`, `loss_scale`, `skipped_updates`, `lr`, `seconds` and `examples_per_second`, with the meaning that
/// [`JsonLinesLog`](super::JsonLinesLog) gives them. A cell that has no value is empty; numbers that are not finite
/// are `NaN`, `inf` and `-inf`. Rows are flushed as they are written.
#[derive(Debug)]
pub struct CsvLog<W: Write = File>(Sink<csv::Writer<W>>);

/// A row; the fields are the columns.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Row {
    event: &'static str,
    epoch: usize,
    step: u64,
    loss: f64,
    accuracy: Option<f64>,
    gradient_norm: Option<f32>,
    loss_scale: Option<f32>,
    skipped_updates: Option<u64>,
    lr: f32,
    seconds: f64,
    examples_per_second: Option<f64>,
}

impl CsvLog {
    /// Creates the file, or empties it if there is one.
    ///
    /// # Errors
    /// A path that cannot be written, at once.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(CsvLog::new(File::create(path)?))
    }

    /// Goes on with the file of a run that is resumed, or creates it.
    ///
    /// # Errors
    /// A path that cannot be written, at once.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        append_table(path.as_ref()).map(|table| CsvLog(Sink::new(table)))
    }
}

impl<W: Write> CsvLog<W> {
    /// Writes to any writer; rows are gathered before they are passed on.
    pub fn new(writer: W) -> Self {
        CsvLog(Sink::new(csv::Writer::from_writer(writer)))
    }

    /// Flushes the rows.
    ///
    /// # Errors
    /// The first error of the writer since the log was made.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish(csv::Writer::flush)
    }

    fn row(&mut self, row: Row) -> ControlFlow<()> {
        self.0.write(|table| write_rows(table, [row]))
    }
}

impl<W: Write> Observer for CsvLog<W> {
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let Some(loss) = step.loss else {
            return ControlFlow::Continue(());
        };
        self.row(Row {
            event: "step",
            epoch: step.epoch,
            step: step.total_step,
            loss: f64::from(loss),
            accuracy: None,
            gradient_norm: step.gradient_norm,
            loss_scale: step.loss_scale.map(|(scale, _)| scale),
            skipped_updates: step.loss_scale.map(|(_, skipped)| skipped),
            lr: step.learning_rate,
            seconds: step.seconds,
            examples_per_second: Some(step.examples_per_second),
        })
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        self.row(Row {
            event: "evaluation",
            epoch: info.epoch,
            step: info.total_step,
            loss: info.evaluation.loss,
            accuracy: info.evaluation.class_accuracy(),
            lr: info.learning_rate,
            seconds: info.seconds,
            ..Row::default()
        })
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        self.row(Row {
            event: "epoch",
            epoch: report.epoch,
            step: report.total_steps,
            loss: report.train_loss,
            lr: report.learning_rate,
            seconds: report.seconds,
            examples_per_second: Some(report.examples_per_second()),
            ..Row::default()
        })
    }
}

/// Goes on with a table behind its last whole row, or begins it with the names of the columns.
pub(super) fn append_table(path: &Path) -> io::Result<csv::Writer<File>> {
    let (file, begun) = open_at_end(path)?;
    Ok(csv::WriterBuilder::new().has_headers(!begun).from_writer(file))
}

/// Writes rows and flushes them.
pub(super) fn write_rows<W: Write>(
    table: &mut csv::Writer<W>,
    rows: impl IntoIterator<Item = impl Serialize>,
) -> io::Result<()> {
    rows.into_iter().try_for_each(|row| table.serialize(row))?;
    table.flush()
}
