//! Traces of host and device activity, in the format of [Perfetto](https://perfetto.dev).
//!
//! ```no_run
//! meganeura_core::profiler::init()?;
//! // build, step, read
//! meganeura_core::profiler::save("trace.pftrace")?;
//! # Ok::<(), meganeura_core::Error>(())
//! ```
//!
//! <https://ui.perfetto.dev> shows the file. Each thread of the host has a track with nested spans:
//! building and its passes, steps, submitting, waiting. Spans are those of the crate [`tracing`],
//! so the program's own spans (at level `INFO` or above) are included. Every session has another
//! track with the passes of its device; their arguments name the dispatches, the original calls and
//! the lines of source.
//!
//! If a device measures only durations, its passes are placed one after the other, beginning at the
//! time of submission. The passes of a step appear after a wait for it, or for a later one.
//!
//! Until [`init`] is called, nothing is recorded, and a span costs one load. Afterwards devices
//! measure every step, which makes steps slower.

mod perfetto;
mod recorder;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(crate) use recorder::DeviceTrack;

use crate::error::{Error, Result};
use crate::files;
use recorder::{Recorder, Store};

/// Environment variable with the path of the trace file.
pub const TRACE_VARIABLE: &str = "MEGANEURA_TRACE";
/// Maximum number of spans and passes that are kept; later ones are counted and dropped.
pub const MAX_RECORDS: usize = 1 << 20;

static STORE: OnceLock<Arc<Store>> = OnceLock::new();

/// Starts recording, with a process-wide subscriber of [`tracing`]. Further calls have no effect.
///
/// # Errors
/// A program that has another subscriber.
pub fn init() -> Result<()> {
    if STORE.get().is_some() {
        return Ok(());
    }
    let store = Arc::new(Store::new(MAX_RECORDS));
    if tracing::subscriber::set_global_default(Recorder(store.clone())).is_err() {
        // Of two concurrent calls, only one can set the subscriber.
        return match STORE.get() {
            Some(_) => Ok(()),
            None => Err(Error::misuse(
                "there is another `tracing` subscriber in this program, so spans cannot be recorded",
                "call `profiler::init` before the other one is installed, or leave the other one out",
            )),
        };
    }
    // Only the thread that has set the subscriber gets here.
    let _ = STORE.set(store);
    Ok(())
}

/// Returns `true` while recording.
pub fn is_on() -> bool {
    STORE.get().is_some()
}

pub(crate) fn store() -> Option<&'static Arc<Store>> {
    STORE.get()
}

/// Writes everything recorded since [`init`]. Recording continues; open spans are omitted.
///
/// # Errors
/// Recording was not started; a file that cannot be written.
pub fn save(path: impl AsRef<Path>) -> Result<()> {
    let store = store().ok_or_else(|| {
        Error::misuse(
            "nothing was recorded to save",
            "call `profiler::init` at the start of the program",
        )
    })?;
    files::write_atomically(path.as_ref(), |writer| {
        store.with_log(|log| perfetto::write(log, writer))
    })
}

/// Starts recording if [`TRACE_VARIABLE`] names a file. The file is written when the result is
/// finished or dropped. An empty variable counts as not set.
///
/// # Errors
/// As [`init`] and, at once, as [`save`].
pub fn from_environment() -> Result<Option<TraceFile>> {
    let Some(path) = std::env::var_os(TRACE_VARIABLE).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    init()?;
    let path = PathBuf::from(path);
    // Report early that a file cannot be written, rather than after hours.
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
        // No unit test of this crate starts a trace of the process.
        assert!(!is_on());
        let error = save("/nowhere/trace").expect_err("nothing to save").to_string();
        assert!(error.contains("profiler::init"), "{error}");
    }
}
