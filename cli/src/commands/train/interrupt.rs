//! Handling of Ctrl-C, SIGTERM and SIGHUP during training, and of signals from `mpirun`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura::nn::trainer::{EpochBegin, EpochReport, EvaluationInfo, Observer, StepInfo, TrainBegin, TrainReport};

use super::options::RunOptions;
use crate::commands::ranks::Ranks;
use crate::output::notice;
use crate::signals;

/// Number of processes of the run that was stopped.
static RANKS: AtomicUsize = AtomicUsize::new(1);

/// Ends training after the current step on Ctrl-C, SIGTERM or SIGHUP. Distributed runs handle only Ctrl-C: launchers send SIGTERM
/// to ranks that wait for a failed one, and these ranks must end at once.
pub(super) fn watch(options: &RunOptions) {
    signals::watch("training");
    if !options.ranks.is_asked_for() {
        signals::watch_termination();
    }
}

/// Records that a run of several processes was stopped, whichever process received the signal.
pub(super) fn note_end(ranks: &Ranks, report: &TrainReport) {
    if let Some(others) = ranks.others().filter(|_| report.stopped) {
        RANKS.store(others.size(), Ordering::Relaxed);
        signals::note();
    }
}

/// Observer that ends a run after a signal.
pub(super) struct Interrupt;

impl Interrupt {
    fn flow() -> ControlFlow<()> {
        if signals::happened() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
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

/// Prints how to resume a run that was interrupted after this number of steps.
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
            "interrupted after step {steps}; the checkpoint is in {}. Resume with:\n  {}",
            folder.display(),
            command(if resumes { &[] } else { &["--resume"] })
        )),
        (None, _) => notice(format_args!(
            "interrupted after step {steps}. Without --checkpoint the run cannot be resumed; to make the next run \
             resumable:\n  {}",
            command(&["--checkpoint", "DIR", "--resume"])
        )),
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
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
