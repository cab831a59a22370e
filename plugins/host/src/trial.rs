//! Tries a plugin without native code in a process of its own, before this one does.
//!
//! What is checked of such a plugin is bounded, and this process checks it again. But if a bound is wrong, or a parser takes
//! more stack than there is, it is another process that ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::file::{Refusal, refuse};

/// What a trial may take.
#[derive(Clone, Copy, Debug)]
pub struct TrialLimits {
    /// Seconds, of the clock and of a processor.
    pub seconds: u64,
    /// Bytes of its address space; only on Unix.
    pub bytes: u64,
}

impl Default for TrialLimits {
    fn default() -> Self {
        TrialLimits {
            seconds: 120,
            bytes: 4 << 30,
        }
    }
}

/// The program that tries plugins.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Has plugins without native code tried by `program plugins check PATH`, from now on, before they are loaded. The command
/// `meganeura` names itself here; other programs do so if they have it beside them. Later calls change nothing.
pub fn try_plugins_with(program: PathBuf) {
    // The first one stays.
    let _ = PROGRAM.set(program);
}

/// Tries a plugin if there is a program for it.
pub(crate) fn run(plugin: &Path) -> Result<(), Refusal> {
    match PROGRAM.get() {
        Some(program) => run_with(program, plugin, TrialLimits::default()),
        None => Ok(()),
    }
}

/// Tries a plugin. That it is refused is for this process to find out as well, with the reason; here it counts that the
/// other one comes to an end by itself.
pub(crate) fn run_with(program: &Path, plugin: &Path, limits: TrialLimits) -> Result<(), Refusal> {
    const REMEDY: &str = "do not use it; if it does nothing wrong, please report this";
    let mut command = Command::new(program);
    command.args(["plugins", "check"]).arg(plugin);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Settings of this program are not for that one: it would load other plugins, or write traces over this one's.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEGANEURA_") {
            command.env_remove(name);
        }
    }
    limit(&mut command, limits);
    let child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return refuse(format!("the process that tries it could not be started: {e}"), REMEDY),
    };
    match wait(child, Duration::from_secs(limits.seconds)) {
        Ok(Some(status)) if matches!(status.code(), Some(0 | 1)) => Ok(()),
        Ok(Some(status)) => refuse(format!("the process that tried it ended with {status}"), REMEDY),
        Ok(None) => {
            let seconds = limits.seconds;
            refuse(
                format!("the process that tried it had not ended after {seconds} s"),
                REMEDY,
            )
        }
        Err(e) => refuse(
            format!("the process that tries it could not be waited for: {e}"),
            REMEDY,
        ),
    }
}

/// How a process ended; `None` if it had to be ended.
fn wait(mut child: Child, time: Duration) -> std::io::Result<Option<ExitStatus>> {
    const PAUSE: Duration = Duration::from_millis(5);
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > time {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(unix)]
fn limit(command: &mut Command, limits: TrialLimits) {
    use std::os::unix::process::CommandExt;
    let set = move || {
        let all = [
            (libc::RLIMIT_AS, limits.bytes),
            (libc::RLIMIT_CPU, limits.seconds),
            (libc::RLIMIT_CORE, 0),
        ];
        for (what, most) in all {
            let bound = libc::rlimit {
                rlim_cur: most as libc::rlim_t,
                rlim_max: most as libc::rlim_t,
            };
            // SAFETY: it reads the structure, which is there, and nothing else.
            if unsafe { libc::setrlimit(what, &raw const bound) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it only makes the system call above, and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(unix))]
fn limit(_: &mut Command, _: TrialLimits) {}
