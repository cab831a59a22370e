//! A folder with the logs of a run.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{
    CsvLog, EpochReport, EvaluationInfo, EventLog, JsonLinesLog, Observer, StatisticsInfo, StatisticsLog, StepInfo,
    TrainBegin, TrainReport,
};

/// Writes the log of a run in three forms into a folder: `metrics.csv` ([`CsvLog`]), `metrics.jsonl`
/// ([`JsonLinesLog`]) and an event file for TensorBoard ([`EventLog`]).
///
/// With [`LogFolder::with_statistics`] there is a fourth file, `statistics.csv` ([`StatisticsLog`]).
///
/// All but event files replace those of an earlier run in the folder, unless that is gone on with; event files are added to
/// it.
#[derive(Debug)]
pub struct LogFolder {
    table: CsvLog,
    lines: JsonLinesLog,
    events: EventLog,
    statistics: Option<StatisticsLog>,
    folder: PathBuf,
    appends: bool,
}

impl LogFolder {
    /// Makes the folder if it is absent, and the files.
    ///
    /// # Errors
    /// A folder or file that cannot be written, at once.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), false)
    }

    /// Goes on with the files of a run that is resumed, or makes them.
    ///
    /// # Errors
    /// A folder or file that cannot be written, at once.
    pub fn append(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), true)
    }

    /// Tries whether the files could be written. What is in them stays.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn try_path(folder: impl AsRef<Path>) -> io::Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        CsvLog::append(folder.join("metrics.csv"))?;
        JsonLinesLog::append(folder.join("metrics.jsonl")).map(drop)
    }

    fn with(folder: &Path, appends: bool) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (table, lines) = (folder.join("metrics.csv"), folder.join("metrics.jsonl"));
        let (table, lines) = match appends {
            true => (CsvLog::append(table)?, JsonLinesLog::append(lines)?),
            false => (CsvLog::create(table)?, JsonLinesLog::create(lines)?),
        };
        Ok(LogFolder {
            table,
            lines,
            events: EventLog::create_in(folder)?,
            statistics: None,
            folder: folder.to_owned(),
            appends,
        })
    }

    /// Adds a table of statistics, for runs that tell them
    /// ([`TrainConfig::statistics_every`](super::TrainConfig::statistics_every)).
    ///
    /// # Errors
    /// A file that cannot be written, at once.
    pub fn with_statistics(mut self) -> io::Result<Self> {
        let path = self.folder.join("statistics.csv");
        self.statistics = Some(match self.appends {
            true => StatisticsLog::append(path)?,
            false => StatisticsLog::create(path)?,
        });
        Ok(self)
    }

    /// Flushes the files.
    ///
    /// # Errors
    /// The first error of the files since they were made.
    pub fn finish(self) -> io::Result<()> {
        let statistics = self.statistics.map_or(Ok(()), StatisticsLog::finish);
        let results = [
            self.table.finish(),
            self.lines.finish(),
            self.events.finish(),
            statistics,
        ];
        results.into_iter().collect()
    }

    fn all(
        &mut self,
    ) -> (
        &mut CsvLog,
        &mut JsonLinesLog,
        &mut EventLog,
        Option<&mut StatisticsLog>,
    ) {
        (
            &mut self.table,
            &mut self.lines,
            &mut self.events,
            self.statistics.as_mut(),
        )
    }
}

impl Observer for LogFolder {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        self.all().on_train_begin(run)
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        self.all().on_step(step)
    }

    fn on_statistics(&mut self, info: &StatisticsInfo) -> ControlFlow<()> {
        self.all().on_statistics(info)
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
