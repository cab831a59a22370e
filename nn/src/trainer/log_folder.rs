//! A folder with the logs of a run.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{
    CsvLog, EpochReport, EvaluationInfo, EventLog, JsonLinesLog, Observer, StatisticsInfo, StatisticsLog, StepInfo,
    TrainBegin, TrainReport,
};

/// A folder with the log of a run in three forms: `metrics.csv` ([`CsvLog`]), `metrics.jsonl` ([`JsonLinesLog`]) and an
/// event file for TensorBoard ([`EventLog`]).
///
/// With [`LogFolder::with_statistics`] there is a fourth file, `statistics.csv` ([`StatisticsLog`]).
///
/// Files of an earlier run in the folder are replaced, unless that run is resumed; event files are
/// only added. [`LogFolder::new_run_in`] finds a folder that contains no run.
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
    /// Creates the folder if it does not exist, and the files.
    ///
    /// # Errors
    /// A folder or file that cannot be written; checked immediately.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), false)
    }

    /// Continues the files of a resumed run, or creates them.
    ///
    /// # Errors
    /// A folder or file that cannot be written; checked immediately.
    pub fn append(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(folder.as_ref(), true)
    }

    /// Checks that the files can be written, without changing their contents.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn try_path(folder: impl AsRef<Path>) -> io::Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        CsvLog::append(folder.join("metrics.csv"))?;
        JsonLinesLog::append(folder.join("metrics.jsonl")).map(drop)
    }

    /// Returns the folder for a new run, separate from all others: the folder itself, or if it
    /// contains a run, the first of its subfolders `run-2`, `run-3` and so on that does not.
    /// TensorBoard shows each as a run.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn new_run_in(folder: impl AsRef<Path>) -> io::Result<PathBuf> {
        for run in runs_in(folder.as_ref()) {
            if !holds_run(&run)? {
                return Ok(run);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the folder of the last run in the numbering of [`new_run_in`](Self::new_run_in): the
    /// folder itself if it contains none.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn last_run_in(folder: impl AsRef<Path>) -> io::Result<PathBuf> {
        let mut last = folder.as_ref().to_owned();
        for run in runs_in(folder.as_ref()) {
            if !holds_run(&run)? {
                break;
            }
            last = run;
        }
        Ok(last)
    }

    fn with(folder: &Path, appends: bool) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (table, lines) = (folder.join("metrics.csv"), folder.join("metrics.jsonl"));
        let (table, lines) = if appends {
            (CsvLog::append(table)?, JsonLinesLog::append(lines)?)
        } else {
            (CsvLog::create(table)?, JsonLinesLog::create(lines)?)
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

    /// Adds a table of statistics, for runs that report them
    /// ([`TrainConfig::statistics_every`](super::TrainConfig::statistics_every)).
    ///
    /// # Errors
    /// A file that cannot be written; checked immediately.
    pub fn with_statistics(mut self) -> io::Result<Self> {
        let path = self.folder.join("statistics.csv");
        self.statistics = Some(if self.appends {
            StatisticsLog::append(path)?
        } else {
            StatisticsLog::create(path)?
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

/// Returns the folders of runs in their order.
fn runs_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    const MAX: usize = 1_000_000;
    let further = (2..MAX).map(|number| folder.join(format!("run-{number}")));
    std::iter::once(folder.to_owned()).chain(further)
}

/// Returns true if a folder contains a non-empty file of a run.
fn holds_run(folder: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_log = ["metrics.csv", "metrics.jsonl", "statistics.csv"].contains(&&*name);
        // `try_path` leaves empty files.
        if name.starts_with("events.out.tfevents.") || is_log && entry.metadata()?.len() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_folder_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("logs");
        let places = || {
            let places = [
                LogFolder::new_run_in(path).unwrap(),
                LogFolder::last_run_in(path).unwrap(),
            ];
            places.map(|p| p.strip_prefix(path).unwrap().display().to_string())
        };
        assert_eq!(places(), ["", ""]);
        // `try_path` leaves the folder free.
        LogFolder::try_path(path).unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        assert_eq!(places(), ["", ""]);
        LogFolder::create(path).unwrap().finish().unwrap();
        assert_eq!(places(), ["run-2", ""]);
        fs::create_dir(path.join("run-2")).unwrap();
        assert_eq!(places(), ["run-2", ""]);
        fs::write(path.join("run-2/metrics.jsonl"), "{}\n").unwrap();
        assert_eq!(places(), ["run-3", "run-2"]);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        LogFolder::new_run_in(&file).unwrap_err();
    }
}
