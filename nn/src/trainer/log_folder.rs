//! A folder with the logs of a run.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{CsvLog, EpochReport, EvaluationInfo, EventLog, JsonLinesLog, Observer, StepInfo, TrainBegin, TrainReport};

/// Writes the log of a run in three forms into a folder: `metrics.csv` ([`CsvLog`]), `metrics.jsonl`
/// ([`JsonLinesLog`]) and an event file for TensorBoard ([`EventLog`]).
///
/// The first two replace those of an earlier run in the folder, unless that is gone on with; event files are added to
/// it.
#[derive(Debug)]
pub struct LogFolder {
    table: CsvLog,
    lines: JsonLinesLog,
    events: EventLog,
}

impl LogFolder {
    /// Makes the folder if it is absent, and the files.
    ///
    /// # Errors
    /// A folder or file that cannot be written, at once.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), CsvLog::create, JsonLinesLog::create)
    }

    /// Goes on with the files of a run that is resumed, or makes them.
    ///
    /// # Errors
    /// A folder or file that cannot be written, at once.
    pub fn append(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), CsvLog::append, JsonLinesLog::append)
    }

    fn with(
        folder: &Path,
        table: fn(PathBuf) -> io::Result<CsvLog>,
        lines: fn(PathBuf) -> io::Result<JsonLinesLog>,
    ) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(LogFolder {
            table: table(folder.join("metrics.csv"))?,
            lines: lines(folder.join("metrics.jsonl"))?,
            events: EventLog::create_in(folder)?,
        })
    }

    /// Flushes the files.
    ///
    /// # Errors
    /// The first error of the files since they were made.
    pub fn finish(self) -> io::Result<()> {
        let results = [self.table.finish(), self.lines.finish(), self.events.finish()];
        results.into_iter().collect()
    }

    fn all(&mut self) -> (&mut CsvLog, &mut JsonLinesLog, &mut EventLog) {
        (&mut self.table, &mut self.lines, &mut self.events)
    }
}

impl Observer for LogFolder {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        self.all().on_train_begin(run)
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        self.all().on_step(step)
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        self.all().on_evaluation(info)
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        self.all().on_epoch_end(report)
    }

    fn on_train_end(&mut self, report: &TrainReport) {
        self.all().on_train_end(report);
    }
}
