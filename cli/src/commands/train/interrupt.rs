//! Ctrl-C while a model is trained.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use meganeura::nn::trainer::{EpochBegin, EpochReport, EvaluationInfo, Observer, StepInfo, TrainBegin};

use super::options::RunOptions;
use crate::output::notice;

/// What the program ends with, as shells have it for the signal.
pub(super) const EXIT_CODE: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C ends training after the present step, and the second one the program at once.
pub(super) fn watch() {
    let handler = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_CODE.into());
        }
        // Nobody is left to tell if this fails.
        let _ = notice("\ninterrupted: training ends after this step; Ctrl-C again ends the program at once");
    };
    // It fails where the signal is ignored, as in the background of a script; it stays ignored then.
    if let Err(error) = ctrlc::try_set_handler(handler) {
        log::debug!("Ctrl-C is left as it is: {error}");
    }
}

/// Whether there was a Ctrl-C.
pub(super) fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Ends a run after a Ctrl-C.
pub(super) struct Interrupt;

impl Interrupt {
    fn flow() -> ControlFlow<()> {
        match happened() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Observer for Interrupt {
    fn on_train_begin(&mut self, _: &TrainBegin) -> ControlFlow<()> {
        Self::flow()
    }

    fn on_epoch_begin(&mut self, _: &EpochBegin) -> ControlFlow<()> {
        Self::flow()
    }

    fn on_step(&mut self, _: &StepInfo) -> ControlFlow<()> {
        Self::flow()
    }

    fn on_evaluation(&mut self, _: &EvaluationInfo) -> ControlFlow<()> {
        Self::flow()
    }

    fn on_epoch_end(&mut self, _: &EpochReport) -> ControlFlow<()> {
        Self::flow()
    }
}

/// Says how to go on with a run that was interrupted after so many steps.
pub(super) fn explain(options: &RunOptions, steps: u64) -> std::io::Result<()> {
    let command = |more: &[&str]| {
        let mut words = vec!["meganeura".to_owned()];
        words.extend(std::env::args().skip(1).map(|word| quoted(&word)));
        words.extend(more.iter().map(|&word| word.to_owned()));
        words.join(" ")
    };
    match (&options.checkpoint, options.resume) {
        (Some(folder), resumes) => notice(format_args!(
            "interrupted after step {steps}; the checkpoint is in {}. Go on with:\n  {}",
            folder.display(),
            command(if resumes { &[] } else { &["--resume"] })
        )),
        (None, _) => notice(format_args!(
            "interrupted after step {steps}. There is no checkpoint to go on from; with one, the next run could:\n  {}",
            command(&["--checkpoint", "DIR", "--resume"])
        )),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_shells_need_it() {
        for (word, expected) in [
            ("--lr=0.1", "--lr=0.1"),
            ("*.bias", "'*.bias'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("a b", "'a b'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
