//! What a run writes while it goes on.

use std::error::Error;
use std::path::Path;

use meganeura::nn::data::Dataset;
use meganeura::nn::trainer::{JsonLinesLog, LogFolder, Observer, TrainReport, Trainer};

use super::display::{Display, JsonLines};
use super::interrupt::Interrupt;
use super::options::RunOptions;

/// Logs that were asked for.
pub(super) struct Logs<'a> {
    options: &'a RunOptions,
}

impl<'a> Logs<'a> {
    /// Tries whether they can be written. What is in them stays until the run begins, which may fail before.
    pub(super) fn try_paths(options: &'a RunOptions) -> Result<Self, Box<dyn Error>> {
        if let Some(path) = &options.log {
            JsonLinesLog::append(path).map_err(|e| unwritable(path, &e))?;
        }
        if let Some(path) = &options.log_dir {
            LogFolder::try_path(path).map_err(|e| unwritable(path, &e))?;
        }
        Ok(Logs { options })
    }

    /// Trains, prints how it goes, and ends the logs. `examples` is the name of what `test` has: validation or test examples.
    pub(super) fn fit(
        self,
        trainer: &mut Trainer,
        train: &Dataset,
        test: Option<&Dataset>,
        json: bool,
        examples: &'static str,
    ) -> Result<TrainReport, Box<dyn Error>> {
        let options = self.options;
        let mut log = options
            .log
            .as_deref()
            .map(|path| open_log(path, options.resume))
            .transpose()?;
        let folder = options.log_dir.as_deref().map(|path| open_folder(path, options));
        let mut folder = folder.transpose()?;
        let (mut display, mut lines) = (Display::of(examples), JsonLines { examples });
        let printing: &mut dyn Observer = if json { &mut lines } else { &mut display };
        let report = trainer.fit(train, test, &mut (printing, log.as_mut(), folder.as_mut(), Interrupt))?;
        if let (Some(log), Some(path)) = (log, &options.log) {
            log.finish().map_err(|e| unwritable(path, &e))?;
        }
        if let (Some(folder), Some(path)) = (folder, &options.log_dir) {
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
    let opened = if args.resume {
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
