//! Ctrl-C, SIGTERM and SIGHUP while a model is trained, and signals of `mpirun`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura::nn::trainer::{EpochBegin, EpochReport, EvaluationInfo, Observer, StepInfo, TrainBegin, TrainReport};

use super::options::RunOptions;
use crate::commands::ranks::Ranks;
use crate::output::notice;
use crate::signals;

/// Number of processes that were stopped together.
static RANKS: AtomicUsize = AtomicUsize::new(1);

/// From now on a Ctrl-C, SIGTERM or SIGHUP ends training after the present step. Launchers of distributed runs send SIGTERM to ranks
/// that wait for one that is gone, so that it ends these at once.
pub(super) fn watch(options: &RunOptions) {
    signals::watch("training");
    if !options.ranks.is_asked_for() {
        signals::watch_termination();
    }
}

/// Notes that a run of several processes was stopped: which of them was told to does not matter.
pub(super) fn note_end(ranks: &Ranks, report: &TrainReport) {
    if let Some(others) = ranks.others().filter(|_| report.stopped) {
        RANKS.store(others.size(), Ordering::Relaxed);
        signals::note();
    }
}

/// Ends a run after a signal.
pub(super) struct Interrupt;

impl Interrupt {
    fn flow() -> ControlFlow<()> {
        match signals::happened() {
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
        let mut words = match RANKS.load(Ordering::Relaxed) {
            1 => Vec::new(),
            ranks => vec![format!("mpirun -n {ranks}")],
        };
        words.push("meganeura".to_owned());
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
