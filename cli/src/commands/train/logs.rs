//! Log files of a run.

use std::error::Error;
use std::path::{Path, PathBuf};

use meganeura::nn::data::Parts;
use meganeura::nn::trainer::{JsonLinesLog, LogFolder, Observer, PartsReport, SilentObserver, Trainer};

use super::display::{Display, JsonLines, SpeedUnit};
use super::interrupt::Interrupt;
use super::options::RunOptions;
use crate::output::line;

/// Requested logs.
pub(super) struct Logs<'a> {
    options: &'a RunOptions,
    /// Folder of the run.
    folder: Option<PathBuf>,
    /// True if logs are written and progress is shown.
    is_first: bool,
    unit: SpeedUnit,
}

impl<'a> Logs<'a> {
    /// Checks that the logs can be written. Existing contents are kept until the run begins, since the start may fail.
    pub(super) fn try_paths(options: &'a RunOptions) -> Result<Self, Box<dyn Error>> {
        if let Some(path) = &options.log {
            JsonLinesLog::append(path).map_err(|e| unwritable(path, &e))?;
        }
        let place = |path: &PathBuf| {
            let place = if options.resumes() {
                LogFolder::last_run_in(path)
            } else {
                LogFolder::new_run_in(path)
            };
            let tried = place.and_then(|place| LogFolder::try_path(&place).map(|()| place));
            tried.map_err(|e| unwritable(path, &e))
        };
        let folder = options.log_dir.as_ref().map(place).transpose()?;
        Ok(Logs {
            options,
            folder,
            is_first: true,
            unit: SpeedUnit::Steps,
        })
    }

    /// Creates neither logs nor progress output, for ranks other than the first.
    pub(super) fn none(options: &'a RunOptions) -> Self {
        Logs {
            options,
            folder: None,
            is_first: false,
            unit: SpeedUnit::Steps,
        }
    }

    /// Sets the unit of printed speeds.
    pub(super) fn with_unit(mut self, unit: SpeedUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Returns the folder of the run: that of --log-dir, or a folder in it.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Prints the folder of the logs, if it differs from --log-dir.
    pub(super) fn introduce(&self) -> std::io::Result<()> {
        match (&self.folder, &self.options.log_dir) {
            (Some(folder), Some(asked)) if folder != asked && !self.options.resumes() => line(format_args!(
                "logs are in {}, because {} contains an earlier run",
                folder.display(),
                asked.display()
            )),
            (Some(folder), Some(asked)) if folder != asked => line(format_args!("logs are in {}", folder.display())),
            _ => Ok(()),
        }
    }

    /// Trains, prints the progress, and completes the logs. Evaluations use the validation part if there is one; the test part is
    /// then used only at the end.
    pub(super) fn fit(&self, trainer: &mut Trainer, parts: &Parts, json: bool) -> Result<PartsReport, Box<dyn Error>> {
        let options = self.options;
        let mut log = options
            .log
            .as_deref()
            .filter(|_| self.is_first)
            .map(|path| open_log(path, options.resume))
            .transpose()?;
        let folder = self.folder().map(|path| open_folder(path, options));
        let mut folder = folder.transpose()?;
        let examples = if parts.validation.is_some() {
            "validation"
        } else {
            "test"
        };
        let (mut display, mut lines) = (Display::of(examples, self.unit), JsonLines { examples });
        let mut silent = SilentObserver;
        let printing: &mut dyn Observer = match (self.is_first && options.repetition.is_none(), json) {
            (false, _) => &mut silent,
            (true, true) => &mut lines,
            (true, false) => &mut display,
        };
        let observers = &mut (printing, log.as_mut(), folder.as_mut(), Interrupt);
        let report = match &parts.validation {
            Some(_) => trainer.fit_parts(parts, observers)?,
            None => {
                let training = trainer.fit(&parts.train, parts.test.as_ref(), observers)?;
                let test = training.evaluation;
                PartsReport { training, test }
            }
        };
        if let (Some(log), Some(path)) = (log, &options.log) {
            log.finish().map_err(|e| unwritable(path, &e))?;
        }
        if let (Some(folder), Some(path)) = (folder, self.folder()) {
            folder.finish().map_err(|e| unwritable(path, &e))?;
        }
        Ok(report)
    }
}

fn open_log(path: &Path, resume: bool) -> Result<JsonLinesLog, Box<dyn Error>> {
    let opened = if resume {
        JsonLinesLog::append(path)
    } else {
        JsonLinesLog::create(path)
    };
    Ok(opened.map_err(|e| unwritable(path, &e))?)
}

fn open_folder(path: &Path, args: &RunOptions) -> Result<LogFolder, Box<dyn Error>> {
    let opened = if args.resumes() {
        LogFolder::append(path)
    } else {
        LogFolder::create(path)
    };
    let opened = match args.statistics {
        0 => opened,
        _ => opened.and_then(LogFolder::with_statistics),
    };
    Ok(opened.map_err(|e| unwritable(path, &e))?)
}

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot write the log: {error}", path.display())
}
