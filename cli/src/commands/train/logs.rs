//! What a run writes while it goes on.

use std::error::Error;
use std::path::{Path, PathBuf};

use meganeura::nn::data::Parts;
use meganeura::nn::trainer::{JsonLinesLog, LogFolder, Observer, PartsReport, Silent, Trainer};

use super::display::{Display, JsonLines};
use super::interrupt::Interrupt;
use super::options::RunOptions;
use crate::output::line;

/// Logs that were asked for.
pub(super) struct Logs<'a> {
    options: &'a RunOptions,
    /// Folder of the run.
    folder: Option<PathBuf>,
    /// Whether there are logs and a display of the progress.
    is_first: bool,
}

impl<'a> Logs<'a> {
    /// Tries whether they can be written. What is in them stays until the run begins, which may fail before.
    pub(super) fn try_paths(options: &'a RunOptions) -> Result<Self, Box<dyn Error>> {
        if let Some(path) = &options.log {
            JsonLinesLog::append(path).map_err(|e| unwritable(path, &e))?;
        }
        let place = |path: &PathBuf| {
            let place = match options.resumes() {
                true => LogFolder::last_run_in(path),
                false => LogFolder::new_run_in(path),
            };
            let tried = place.and_then(|place| LogFolder::try_path(&place).map(|()| place));
            tried.map_err(|e| unwritable(path, &e))
        };
        let folder = options.log_dir.as_ref().map(place).transpose()?;
        Ok(Logs {
            options,
            folder,
            is_first: true,
        })
    }

    /// No logs and no progress: those of a rank that is not the first.
    pub(super) fn none(options: &'a RunOptions) -> Self {
        Logs {
            options,
            folder: None,
            is_first: false,
        }
    }

    /// Folder of the run, in that of --log-dir or the same.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Says which folder the logs are in, if it is not that of --log-dir.
    pub(super) fn introduce(&self) -> std::io::Result<()> {
        match (&self.folder, &self.options.log_dir) {
            (Some(folder), Some(asked)) if folder != asked && !self.options.resumes() => line(format_args!(
                "logs are in {}, as {} holds an earlier run",
                folder.display(),
                asked.display()
            )),
            (Some(folder), Some(asked)) if folder != asked => line(format_args!("logs are in {}", folder.display())),
            _ => Ok(()),
        }
    }

    /// Trains, prints how it goes, and ends the logs. Evaluations are on the validation part if there is one, and then the
    /// test part is looked at in the end only.
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
        let (mut display, mut lines) = (Display::of(examples), JsonLines { examples });
        let mut silent = Silent;
        let printing: &mut dyn Observer = match (self.is_first, json) {
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
