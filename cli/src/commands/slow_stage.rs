//! Progress of stages whose length is unknown, such as compiling a plan.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{is_silent, notice};

/// Time after which a stage is shown. If standard error is not a terminal, further lines follow after the pause.
const DELAY: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(10);

/// A stage of a command. If it takes long, standard error shows its name and time until this is dropped.
pub(super) struct SlowStage {
    /// `None` after the end of the stage.
    ends: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl SlowStage {
    /// Begins a stage with a name such as `loading the weights`.
    pub(super) fn begin(name: &'static str) -> Self {
        let (ends, ended) = channel();
        let watcher = std::thread::Builder::new().name("progress".to_owned());
        // Without a thread, the stage is not shown.
        let watcher = watcher.spawn(move || watch(name, &ended)).ok();
        SlowStage {
            ends: Some(ends),
            watcher,
        }
    }
}

impl Drop for SlowStage {
    fn drop(&mut self) {
        self.ends = None;
        // The progress must have disappeared before further output. The thread does not panic.
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Shows a stage until it ends.
fn watch(name: &str, ended: &Receiver<()>) {
    let begin = Instant::now();
    if has_ended(ended, DELAY) || is_silent() {
        return;
    }
    if io::stderr().is_terminal() {
        let bar = ProgressBar::new_spinner().with_elapsed(begin.elapsed());
        if let Ok(style) = ProgressStyle::with_template("{msg}  {elapsed}  {spinner}") {
            bar.set_style(style);
        }
        bar.set_message(name.to_owned());
        while !has_ended(ended, Duration::from_millis(100)) {
            bar.tick();
        }
        return bar.finish_and_clear();
    }
    loop {
        // Nobody reads standard error.
        if notice(format_args!("{name}: {:.0} s", begin.elapsed().as_secs_f64())).is_err() || has_ended(ended, PAUSE) {
            return;
        }
    }
}

/// Returns true if the stage ends within the time.
fn has_ended(ended: &Receiver<()>, time: Duration) -> bool {
    ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}
