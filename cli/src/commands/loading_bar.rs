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
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    let begun: Mutex<Option<Instant>> = Mutex::new(None);
    Some(LoadObserver::new(move |bytes| {
        let begun = *begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(Instant::now);
        show(
            &mut bar.lock().unwrap_or_else(PoisonError::into_inner),
            bytes,
            begun.elapsed() >= DELAY,
        );
    }))
}

fn show(bar: &mut Option<ProgressBar>, bytes: LoadedBytes, is_late: bool) {
    if bytes.loaded >= bytes.total {
        if let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
        return;
    }
    if bar.is_none() && is_late {
        let new = ProgressBar::new(bytes.total);
        let template = "loading the weights  {bar:30}  {bytes}/{total_bytes}  {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            new.set_style(style);
        }
        *bar = Some(new);
    }
    if let Some(bar) = bar {
        bar.set_position(bytes.loaded);
    }
}
