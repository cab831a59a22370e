//! Signals with which `mpirun` asks processes to end, and a rank's reaction.
//!
//! - SIGTERM comes from `mpirun` after Ctrl-C, and when another rank died; SIGKILL follows after
//!   `odls_base_sigkill_timeout` seconds, 1 by default. For the first part of this time collectives
//!   continue: if all ranks are alive, they agree to stop, and save a checkpoint. A rank that still
//!   waits afterwards reports its collective: with an error, or, if the library does not return, as
//!   may happen if it reads from a dead process, with a prepared message.
//! - SIGUSR1, which `mpirun` forwards, only asks the run to stop after an update. There is no time
//!   limit.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use meganeura_core::distributed::CollectiveFailure;

static TERMINATED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Default time for which collectives continue after SIGTERM, and default time until the prepared message is written,
/// in microseconds.
const GRACE: i64 = 400_000;
const LAST_MOMENT: i64 = 650_000;
/// Time before SIGKILL that is reserved for reporting an error and for the prepared message, in microseconds, if
/// SIGKILL comes later than by default.
const TO_REPORT: i64 = 1_000_000;
const TO_WRITE: i64 = 500_000;

/// Environment variable in which Open MPI passes the seconds between SIGTERM and SIGKILL to processes.
const SECONDS: &str = "OMPI_MCA_odls_base_sigkill_timeout";

static GRACE_NOW: AtomicI64 = AtomicI64::new(GRACE);
static LAST_NOW: AtomicI64 = AtomicI64::new(LAST_MOMENT);

const MAX_BYTES: usize = 512;
/// Prepared message, and its length. The length is 0 while the message is being changed.
static MESSAGE: [AtomicU8; MAX_BYTES] = [const { AtomicU8::new(0) }; MAX_BYTES];
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Sets the timer that triggers the prepared message, in microseconds; 0 disables it.
fn set_timer(microseconds: i64) {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let once = libc::itimerval {
        it_interval: never,
        it_value: libc::timeval {
            tv_sec: (microseconds / 1_000_000) as libc::time_t,
            tv_usec: (microseconds % 1_000_000) as libc::suseconds_t,
        },
    };
    // SAFETY: a system call with a pointer to a local, which changes nothing of the program's memory.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &once, std::ptr::null_mut()) };
}

extern "C" fn note(signal: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
    if TERMINATED.swap(true, Ordering::Relaxed) {
        // A second signal ends the process, as if there were no handler.
        // SAFETY: both functions may be called in a handler of a signal.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    set_timer(LAST_NOW.load(Ordering::Relaxed));
}

/// Handles SIGUSR1: requests the run to stop.
extern "C" fn request(_: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Handles SIGALRM of the timer: writes the prepared message and ends the process.
extern "C" fn end(_: libc::c_int) {
    let mut text = [0; MAX_BYTES];
    let length = LENGTH.load(Ordering::Acquire).min(MAX_BYTES);
    for (byte, prepared) in text.iter_mut().zip(&MESSAGE) {
        *byte = prepared.load(Ordering::Relaxed);
    }
    // SAFETY: both functions may be called in a handler of a signal; the text has that many bytes.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(1);
    }
}

/// Prepares the message that is written if the current collective does not complete.
pub(crate) fn prepare(text: &str) {
    LENGTH.store(0, Ordering::Release);
    for (byte, prepared) in text.bytes().zip(&MESSAGE) {
        prepared.store(byte, Ordering::Relaxed);
    }
    LENGTH.store(text.len().min(MAX_BYTES), Ordering::Release);
}

/// Disables a pending timer, because no communication follows.
pub(crate) fn finish() {
    prepare("");
    if terminated() {
        set_timer(0);
    }
}

/// Installs the signal handlers.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse::<i64>().ok());
        if let Some((grace, last)) = times(seconds) {
            GRACE_NOW.store(grace, Ordering::Relaxed);
            LAST_NOW.store(last, Ordering::Relaxed);
        }
        for (signal, handler) in [
            (libc::SIGTERM, note as extern "C" fn(libc::c_int)),
            (libc::SIGUSR1, request as extern "C" fn(libc::c_int)),
            (libc::SIGALRM, end as extern "C" fn(libc::c_int)),
        ] {
            // SAFETY: the handlers use atomics and only async-signal-safe functions.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    });
}

/// Returns the time after SIGTERM for which collectives continue, and the time until the prepared message is written,
/// in microseconds, if SIGKILL comes after `seconds` seconds. Returns `None` if the defaults are right.
fn times(seconds: Option<i64>) -> Option<(i64, i64)> {
    let kill = seconds.filter(|seconds| (2..1_000_000).contains(seconds))? * 1_000_000;
    Some((kill - TO_REPORT, kill - TO_WRITE))
}

/// Returns how long a collective continues after SIGTERM.
pub(crate) fn grace() -> Duration {
    Duration::from_micros(GRACE_NOW.load(Ordering::Relaxed).unsigned_abs())
}

/// Returns the failure of a collective that did not complete within the time after SIGTERM.
pub(crate) fn failure() -> CollectiveFailure {
    CollectiveFailure::Transport(TOLD_TO_END.into())
}

const TOLD_TO_END: &str = "this process received SIGTERM, which mpirun sends when another rank died";

/// Returns the error line of a rank that received SIGTERM in a collective.
pub(crate) fn told_to_end(rank: usize, size: usize, title: &str) -> String {
    format!("error: rank {rank} of {size}: {title} failed: {TOLD_TO_END}\n")
}

/// Returns `true` after a SIGTERM.
pub(crate) fn terminated() -> bool {
    TERMINATED.load(Ordering::Relaxed)
}

/// Returns `true` if the run was asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpirun_leaves_is_used_and_something_kept_to_say_what_failed() {
        assert_eq!(times(None), None);
        assert_eq!(times(Some(1)), None, "the default");
        assert_eq!(times(Some(-3)), None);
        assert_eq!(times(Some(60)), Some((59_000_000, 59_500_000)));
        const { assert!(GRACE < LAST_MOMENT && LAST_MOMENT < 1_000_000) };
    }
}
