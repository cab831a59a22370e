//! Handling of Ctrl-C, SIGTERM and SIGHUP: the current work ends after its current step and saves its results.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::output::notice;

/// Exit code after Ctrl-C, as set by shells.
const INTERRUPTED: i32 = 130;
/// Offset of exit codes for other signals; the number of the signal is added.
#[cfg(unix)]
const SIGNALLED: i32 = 128;

/// Exit code of the program; 0 if there was no signal.
static CODE: AtomicI32 = AtomicI32::new(0);

/// Makes the first Ctrl-C end the current work after the current step, and the second one end the program at once. `what`
/// describes the work in messages.
pub(crate) fn watch(what: &'static str) {
    let handler = move || {
        if CODE.swap(INTERRUPTED, Ordering::Relaxed) != 0 {
            std::process::exit(INTERRUPTED);
        }
        // Output errors are ignored, because standard error is the only place to report them.
        let _ = notice(format_args!(
            "\ninterrupted: {what} stops after this step; press Ctrl-C again to exit at once"
        ));
    };
    // Setting the handler fails if the signal is ignored, as in background jobs of scripts; it then stays ignored.
    if let Err(error) = ctrlc::try_set_handler(handler) {
        log::debug!("Ctrl-C is left as it is: {error}");
    }
}

/// Makes SIGTERM (from `kill` and job schedulers) and SIGHUP (from a closed terminal) have the same effect as Ctrl-C.
pub(crate) fn watch_termination() {
    static WATCHES: AtomicBool = AtomicBool::new(false);
    if !WATCHES.swap(true, Ordering::Relaxed) {
        terminate::watch();
    }
}

/// Makes writes beyond the file size limit of the shell (`ulimit -f`) return an error instead of ending the process.
pub(crate) fn report_large_files() {
    // SAFETY: ignoring a signal runs no handler.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Records a Ctrl-C that another process of the same run received.
pub(crate) fn note() {
    // Only the first signal is recorded.
    let _ = CODE.compare_exchange(0, INTERRUPTED, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns true if there was a signal.
pub(crate) fn happened() -> bool {
    CODE.load(Ordering::Relaxed) != 0
}

/// Returns the exit code after a signal.
pub(crate) fn exit_code() -> u8 {
    u8::try_from(CODE.load(Ordering::Relaxed)).unwrap_or(1)
}

#[cfg(unix)]
mod terminate {
    use super::{CODE, Ordering, SIGNALLED};

    extern "C" fn note(signal: libc::c_int) {
        let code = SIGNALLED + signal;
        if CODE.swap(code, Ordering::Relaxed) != 0 {
            // SAFETY: it ends the process, and is async-signal-safe.
            unsafe { libc::_exit(code) }
        }
    }

    pub(super) fn watch() {
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            handle(signal);
        }
    }

    fn handle(signal: libc::c_int) {
        // SAFETY: the structures are valid and initialised; the handler only accesses an atomic number, or ends the process.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut old) != 0 || old.sa_sigaction != libc::SIG_DFL {
                // An ignored or handled signal is left unchanged.
                return;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            new.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const new, std::ptr::null_mut());
        }
    }
}

#[cfg(not(unix))]
mod terminate {
    pub(super) fn watch() {}
}
