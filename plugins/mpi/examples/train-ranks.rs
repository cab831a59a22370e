//! A rank of a run that the tests start with `mpirun`:
//! `train-ranks TASK STEPS [zero1] [checkpoints=DIR]`, where TASK is `mlp`, `cnn` or `llama`. Every
//! process prints its process id, and the first rank prints the loss of each step. A resumed run
//! begins with its first new step.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use meganeura_core::distributed::{CommunicatorOptions, open};
use meganeura_nn::trainer::{Checkpoints, Observer, StepInfo, Trainer};

#[path = "../../../nn/tests/common/ranks.rs"]
#[allow(dead_code, reason = "the other tests have more of it")]
mod ranks;

use ranks::Task;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Observer that prints losses, and ends the run after the given step.
struct Print {
    is_first: bool,
    last: u64,
}

impl Observer for Print {
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        if let (true, Some(loss)) = (self.is_first, step.loss) {
            say(&format!("step {} {loss:e}", step.total_step));
        }
        if step.total_step >= self.last {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Prints a line in a single write, because other ranks print at the same time. Errors are ignored: the reader may have
/// ended.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

fn main() -> ExitCode {
    say(&format!("pid {}", std::process::id()));
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = std::io::stderr().write_all(format!("error: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: train-ranks mlp|cnn|llama STEPS [zero1] [checkpoints=DIR]";
    let [task, steps, more @ ..] = &words[..] else {
        return Err(usage.into());
    };
    let task = Task::named(task).ok_or(usage)?;
    let options = CommunicatorOptions::with_time_limit(Duration::from_secs(60));
    let communicator = open(meganeura_mpi::NAME, &options)?;
    let mut config = task.config(Some(communicator.clone()));
    // Only the number of steps ends the run.
    config.epochs = 1_000_000;
    for word in more {
        match word.split_once('=') {
            None if word == "zero1" => config.zero1 = true,
            Some(("checkpoints", folder)) => {
                config.checkpoints = Some(Checkpoints {
                    folder: folder.into(),
                    every: 1,
                    resume: true,
                    allow_changes: Vec::new(),
                });
            }
            _ => return Err(usage.into()),
        }
    }
    let mut observer = Print {
        is_first: communicator.rank() == 0,
        last: steps.parse()?,
    };
    Trainer::new(task.model, config)?.fit(&task.train, None, &mut observer)?;
    Ok(())
}
