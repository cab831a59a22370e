//! Ctrl-C, SIGTERM and SIGHUP: what is at work ends after its present step, and keeps what it has.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::output::notice;

/// What the program ends with after Ctrl-C, as shells have it for the signal.
const INTERRUPTED: i32 = 130;
/// To the number of another signal.
#[cfg(unix)]
const SIGNALLED: i32 = 128;

/// What the program is to end with; 0 as long as there was no signal.
static CODE: AtomicI32 = AtomicI32::new(0);

/// From now on the first Ctrl-C ends what is at work after the present step, and the second one the program at once; `what`
/// it is, the user is told.
pub(crate) fn watch(what: &'static str) {
    let handler = move || {
        if CODE.swap(INTERRUPTED, Ordering::Relaxed) != 0 {
            std::process::exit(INTERRUPTED);
        }
        // Nobody is left to tell if this fails.
        let _ = notice(format_args!(
            "\ninterrupted: {what} ends after this step; Ctrl-C again ends the program at once"
        ));
    };
    // It fails where the signal is ignored, as in the background of a script; it stays ignored then.
    if let Err(error) = ctrlc::try_set_handler(handler) {
        log::debug!("Ctrl-C is left as it is: {error}");
    }
}

/// From now on SIGTERM, as `kill` and schedulers of jobs send it, does the same, and SIGHUP, as a terminal does that is closed.
pub(crate) fn watch_termination() {
    static WATCHES: AtomicBool = AtomicBool::new(false);
    if !WATCHES.swap(true, Ordering::Relaxed) {
        terminate::watch();
    }
}

/// From now on a file that exceeds the limit of the shell (`ulimit -f`) is an error of its write, and does not end the process.
pub(crate) fn report_large_files() {
    // SAFETY: ignoring a signal runs no handler.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Notes a Ctrl-C that another process of the same run had.
pub(crate) fn note() {
    // The first signal counts.
    let _ = CODE.compare_exchange(0, INTERRUPTED, Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether there was a signal.
pub(crate) fn happened() -> bool {
    CODE.load(Ordering::Relaxed) != 0
}

/// What the program ends with after one.
pub(crate) fn exit_code() -> u8 {
    u8::try_from(CODE.load(Ordering::Relaxed)).unwrap_or(1)
}

#[cfg(unix)]
mod terminate {
    use super::{CODE, Ordering, SIGNALLED};

    extern "C" fn note(signal: libc::c_int) {
        let code = SIGNALLED + signal;
        if CODE.swap(code, Ordering::Relaxed) != 0 {
            // SAFETY: it ends the process, and may be called in a handler of a signal.
            unsafe { libc::_exit(code) }
        }
    }

    pub(super) fn watch() {
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            handle(signal);
        }
    }

    fn handle(signal: libc::c_int) {
        // SAFETY: the structures are there and whole; the handler only touches an atomic number, or ends the process.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut old) != 0 || old.sa_sigaction != libc::SIG_DFL {
                // Whoever ignores it, or handles it, has a reason.
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
