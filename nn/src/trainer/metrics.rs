//! A log of a run as a CSV table.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::observer::TEST;
use super::sink::{ErrorKeepingWriter, open_at_end};
use super::{EpochReport, EvaluationInfo, Observer, StepInfo, TrainBegin};

/// A table with a row for every step whose loss was read, for every evaluation and for every epoch.
///
/// The columns are `event` (`step`, `evaluation` or `epoch`), `epoch`, `step`, `loss` (of training
/// examples), then those of evaluations, `test_loss`, `test_accuracy`, `test_rmse`, `test_mae` and
/// `test_r2`, then `gradient_norm`, `loss_scale`, `skipped_updates`, `lr`, `seconds` and
/// `examples_per_second`. They are defined as in [`JsonLinesLog`](super::JsonLinesLog). If
/// evaluations use validation examples ([`Trainer::fit_parts`](super::Trainer::fit_parts)), their
/// columns are `validation_loss` and so on. A cell without a value is empty; numbers that are not
/// finite are `NaN`, `inf` and `-inf`. Rows are flushed as they are written.
#[derive(Debug)]
pub struct CsvLog<W: Write = File> {
    sink: ErrorKeepingWriter<csv::Writer<W>>,
    /// Name of the examples that evaluations use, `test` or `validation`.
    on: &'static str,
    /// True if the table has a header.
    begun: bool,
}

/// Names of the columns of an evaluation, after the name of the examples.
const EVALUATED: [&str; 5] = ["loss", "accuracy", "rmse", "mae", "r2"];

/// A row.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    event: &'static str,
    epoch: usize,
    step: u64,
    loss: Option<f64>,
    /// Values of [`EVALUATED`].
    evaluated: [Option<f64>; 5],
    gradient_norm: Option<f32>,
    loss_scale: Option<f32>,
    skipped_updates: Option<u64>,
    lr: f32,
    seconds: f64,
    examples_per_second: Option<f64>,
}

impl Row {
    fn names(on: &str) -> Vec<String> {
        let mut names = ["event", "epoch", "step", "loss"].map(str::to_owned).to_vec();
        names.extend(EVALUATED.map(|what| format!("{on}_{what}")));
        let rest = [
            "gradient_norm",
            "loss_scale",
            "skipped_updates",
            "lr",
            "seconds",
            "examples_per_second",
        ];
        names.extend(rest.map(str::to_owned));
        names
    }

    fn cells(&self) -> Vec<String> {
        fn cell(value: Option<impl ToString>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        let mut cells = vec![
            self.event.to_owned(),
            self.epoch.to_string(),
            self.step.to_string(),
            cell(self.loss),
        ];
        cells.extend(self.evaluated.map(cell));
        cells.extend([
            cell(self.gradient_norm),
            cell(self.loss_scale),
            cell(self.skipped_updates),
            self.lr.to_string(),
            self.seconds.to_string(),
            cell(self.examples_per_second),
        ]);
        cells
    }
}

impl CsvLog {
    /// Creates the file, or empties it if there is one.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(CsvLog::new(File::create(path)?))
    }

    /// Continues the file of a resumed run, or creates it.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let (file, begun) = open_at_end(path.as_ref())?;
        Ok(CsvLog {
            begun,
            ..CsvLog::new(file)
        })
    }
}

impl<W: Write> CsvLog<W> {
    /// Creates a log on any writer; rows are buffered before they are passed on.
    pub fn new(writer: W) -> Self {
        CsvLog {
            sink: ErrorKeepingWriter::new(csv::Writer::from_writer(writer)),
            on: TEST,
            begun: false,
        }
    }

    /// Flushes the rows.
    ///
    /// # Errors
    /// The first error of the writer since the log was made.
    pub fn finish(self) -> io::Result<()> {
        self.sink.finish(csv::Writer::flush)
    }

    fn row(&mut self, row: Row) -> ControlFlow<()> {
        let names = (!self.begun).then(|| Row::names(self.on));
        self.begun = true;
        self.sink.write(|table| {
            if let Some(names) = names {
                table.write_record(names)?;
            }
            table.write_record(row.cells())?;
            table.flush()
        })
    }
}

impl<W: Write> Observer for CsvLog<W> {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        self.on = run.evaluated();
        ControlFlow::Continue(())
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let Some(loss) = step.loss else {
            return ControlFlow::Continue(());
        };
        self.row(Row {
            event: "step",
            epoch: step.epoch,
            step: step.total_step,
            loss: Some(f64::from(loss)),
            gradient_norm: step.gradient_norm,
            loss_scale: step.loss_scale.map(|(scale, _)| scale),
            skipped_updates: step.loss_scale.map(|(_, skipped)| skipped),
            lr: step.learning_rate,
            seconds: step.seconds,
            examples_per_second: Some(step.examples_per_second),
            ..Row::default()
        })
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        let evaluation = &info.evaluation;
        let errors = evaluation.regression;
        self.row(Row {
            event: "evaluation",
            epoch: info.epoch,
            step: info.total_step,
            evaluated: [
                Some(evaluation.loss),
                evaluation.class_accuracy(),
                errors.map(|e| e.rmse),
                errors.map(|e| e.mae),
                errors.map(|e| e.r2),
            ],
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
            loss: Some(report.train_loss),
            lr: report.learning_rate,
            seconds: report.seconds,
            examples_per_second: Some(report.examples_per_second()),
            ..Row::default()
        })
    }
}

/// Continues a table after its last whole row, or begins it with a header.
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
