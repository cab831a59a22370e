//! Traces: what host and devices did when, in the format of [Perfetto](https://perfetto.dev).
//!
//! ```no_run
//! meganeura_core::profiler::init()?;
//! // build, step, read
//! meganeura_core::profiler::save("trace.pftrace")?;
//! # Ok::<(), meganeura_core::Error>(())
//! ```
//!
//! <https://ui.perfetto.dev> shows the file. The host's threads have a track each, with nested spans: building and its
//! passes, steps, submitting, waiting. Spans are those of the crate [`tracing`], so the program's own (at level `INFO`
//! or above) are there too. Every session has another track, of the passes of its device; their arguments name the
//! dispatches, the calls that they came from and the lines of source.
//!
//! Devices that measure durations alone have their passes put one after the other, from the time of submission on. The
//! passes of a step appear when somebody waits for it, or for a later one.
//!
//! Until [`init`] is called, nothing is recorded and a span costs the load of a number. Afterwards devices measure every
//! step, which makes them slower.

mod perfetto;
mod recorder;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(crate) use recorder::DeviceTrack;

use crate::error::{Error, Result};
use crate::files;
use recorder::{Recorder, Store};

/// Variable that names a file for a trace.
pub const TRACE_VARIABLE: &str = "MEGANEURA_TRACE";
/// Spans and passes that are kept; those after them are counted and dropped.
pub const MAX_RECORDS: usize = 1 << 20;

static STORE: OnceLock<Arc<Store>> = OnceLock::new();

/// Begins to record, by a subscriber of [`tracing`] for the whole process. Calling it again changes nothing.
///
/// # Errors
/// A program that has another subscriber.
pub fn init() -> Result<()> {
    if STORE.get().is_some() {
        return Ok(());
    }
    let store = Arc::new(Store::new(MAX_RECORDS));
    if tracing::subscriber::set_global_default(Recorder(store.clone())).is_err() {
        // Of two calls at the same time, one is too late.
        return match STORE.get() {
            Some(_) => Ok(()),
            None => Err(Error::misuse(
                "there is another `tracing` subscriber in this program, so spans cannot be recorded",
                "call `profiler::init` before the other one is installed, or leave the other one out",
            )),
        };
    }
    // Nobody else can have come so far.
    let _ = STORE.set(store);
    Ok(())
}

/// Whether something is recorded.
pub fn is_on() -> bool {
    STORE.get().is_some()
}

pub(crate) fn store() -> Option<&'static Arc<Store>> {
    STORE.get()
}

/// Writes all that was recorded since [`init`]. Recording goes on; spans that are not over are left out.
///
/// # Errors
/// A trace that was not begun; a file that cannot be written.
pub fn save(path: impl AsRef<Path>) -> Result<()> {
    let store = store().ok_or_else(|| {
        Error::misuse(
            "nothing was recorded that could be saved",
            "call `profiler::init` at the start of the program",
        )
    })?;
    files::write_atomically(path.as_ref(), |writer| {
        store.with_log(|log| perfetto::write(log, writer))
    })
}

/// Begins to record if [`TRACE_VARIABLE`] names a file, which is written when the result is finished or dropped. A
/// variable that is empty counts as not set.
///
/// # Errors
/// As [`init`] and, at once, as [`save`].
pub fn from_environment() -> Result<Option<TraceFile>> {
    let Some(path) = std::env::var_os(TRACE_VARIABLE).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    init()?;
    let path = PathBuf::from(path);
    // A file that cannot be written is better known now than after hours.
    save(&path)?;
    Ok(Some(TraceFile { path: Some(path) }))
}

/// A trace that is written at the end of the program; see [`from_environment`].
#[derive(Debug)]
#[must_use = "the trace is saved when this is dropped"]
pub struct TraceFile {
    path: Option<PathBuf>,
}

impl TraceFile {
    /// Writes the file.
    ///
    /// # Errors
    /// As [`save`].
    pub fn finish(mut self) -> Result<()> {
        self.path.take().map_or(Ok(()), save)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = save(path)
        {
            log::error!("the trace is lost: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_begun_cannot_be_saved() {
        // No unit test of this crate begins a trace of the process.
        assert!(!is_on());
        let error = save("/nowhere/trace").expect_err("nothing to save").to_string();
        assert!(error.contains("profiler::init"), "{error}");
    }
}
