//! The progress bar of a model that is loaded.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use meganeura::llm::{LoadObserver, LoadedBytes};

/// Loading that ends earlier shows no bar.
const DELAY: Duration = Duration::from_millis(300);

/// Returns an observer that shows a progress bar, if standard error is a terminal. The bar disappears at the end.
pub(super) fn observer() -> Option<LoadObserver> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let bar = Mutex::new(LoadingBar::default());
    Some(LoadObserver::new(move |bytes| {
        bar.lock().unwrap_or_else(PoisonError::into_inner).show(bytes);
    }))
}

#[derive(Default)]
struct LoadingBar {
    /// Time of the first report.
    begun: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl LoadingBar {
    fn show(&mut self, bytes: LoadedBytes) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if bytes.loaded >= bytes.total {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
        } else if self.bar.is_some() || begun.elapsed() >= DELAY {
            let bar = self.bar.get_or_insert_with(|| new_bar(bytes.total));
            bar.set_position(bytes.loaded);
        }
    }
}

fn new_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "loading the weights  {bar:30}  {bytes}/{total_bytes}  {bytes_per_sec}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
