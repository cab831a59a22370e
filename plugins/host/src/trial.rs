//! Trial of a plugin in a separate process before this one loads it.
//!
//! Checks of a plugin without native code are bounded, and this process repeats them. But if a
//! bound is wrong, or a parser overflows the stack, only the other process dies.
//!
//! The code of a shared object begins to run when it is loaded. If it ends its process, blocks
//! forever, or faults because its file was damaged, that happens in the other process. It is not a
//! sandbox: both processes have the rights of the user.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::file::{Refusal, refuse};

/// Limits of the separate process that loads a plugin on trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialLimits {
    /// Maximum wall-clock time, and maximum processor time, in seconds.
    pub seconds: u64,
    /// Maximum size of the address space, in bytes; only on Unix.
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

/// Path of the program that tries plugins.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Makes this process try plugins with `program plugins check [--after EARLIER]... PATH` before it
/// loads them. The command `meganeura` sets itself here. Other programs set a program of their own
/// that does the same: it must link the operators that their plugins use. Later calls have no
/// effect.
pub fn try_plugins_with(program: PathBuf) {
    // The first program stays.
    let _ = PROGRAM.set(program);
}

/// Maximum time in seconds to load a shared object and list its devices.
const NATIVE_SECONDS: u64 = 30;

/// Tries a plugin after the loaded ones, if there is a program for trials.
pub(crate) fn run(plugin: &Path, earlier: &[PathBuf]) -> Result<(), Refusal> {
    match PROGRAM.get() {
        Some(program) => run_with(program, plugin, earlier, TrialLimits::default()),
        None => Ok(()),
    }
}

/// Tries to load a shared object with this sum, if there is a program for trials.
pub(crate) fn run_native(plugin: &Path, sha256: &str) -> Result<(), Refusal> {
    match PROGRAM.get() {
        Some(program) => run_native_with(program, plugin, sha256, NATIVE_SECONDS),
        None => Ok(()),
    }
}

/// Tries to load a shared object in a process that prints its sum at the end: a process that the
/// plugin ended does not get that far. Drivers allocate unbounded address space, so only time is
/// limited.
pub(crate) fn run_native_with(program: &Path, plugin: &Path, sha256: &str, seconds: u64) -> Result<(), Refusal> {
    let limits = TrialLimits {
        seconds,
        bytes: u64::MAX,
    };
    let said = outcome(program, plugin, &[], limits)?;
    if said.contains(sha256) {
        Ok(())
    } else {
        refuse(
            "it ended the process that tried it, as if all were well, while it was loaded or listed its devices",
            "do not use it: it would also exit this program",
        )
    }
}

/// Tries a plugin in a process that loads the `earlier` ones first, on which it may depend. It is
/// accepted if that process accepts it; every other outcome is a rejection.
pub(crate) fn run_with(program: &Path, plugin: &Path, earlier: &[PathBuf], limits: TrialLimits) -> Result<(), Refusal> {
    outcome(program, plugin, earlier, limits).map(drop)
}

/// Returns the output of a process that accepted a plugin.
fn outcome(program: &Path, plugin: &Path, earlier: &[PathBuf], limits: TrialLimits) -> Result<String, Refusal> {
    const REMEDY: &str = "do not use it; if the plugin is correct, please report this";
    let mut command = Command::new(program);
    command.args(["plugins", "check"]);
    for path in earlier {
        command.arg("--after").arg(path);
    }
    command.arg(plugin);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Do not pass this program's settings: the other would load other plugins, or overwrite this
    // one's traces.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEGANEURA_") {
            command.env_remove(name);
        }
    }
    // The earlier plugins are tried again, each within the same limits.
    let limits = TrialLimits {
        seconds: limits.seconds.saturating_mul(1 + earlier.len() as u64),
        ..limits
    };
    limit(&mut command, limits);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return refuse(format!("the process that tries it could not be started: {e}"), REMEDY),
    };
    let (answer, said) = (child.stdout.take().map(listen), child.stderr.take().map(listen));
    // The process ended, and so did its output, unless a child process still runs.
    let heard = |said: Option<Receiver<String>>| {
        let said = said.and_then(|said| said.recv_timeout(Duration::from_secs(1)).ok());
        said.unwrap_or_default()
    };
    match wait(child, Duration::from_secs(limits.seconds)) {
        Ok(Some(status)) if status.success() => Ok(heard(answer)),
        Ok(Some(status)) if status.code() == Some(1) => {
            let why = reason(&heard(said), plugin);
            // The plugin's author must fix it: no other remedy is needed.
            let remedy = format!(
                "correct the plugin; `meganeura plugins check {}` reports the same error",
                plugin.display()
            );
            refuse(format!("the process that tried it refuses it: {why}"), &remedy)
        }
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

/// Starts a thread that reads the output of a process, and keeps only its beginning.
fn listen(mut from: impl Read + Send + 'static) -> Receiver<String> {
    const KEPT: u64 = 16 << 10;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        // If the output cannot be read, it counts as ended.
        let _ = from.by_ref().take(KEPT).read_to_end(&mut kept);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receiver
}

/// Extracts the reason from the command's output about a plugin:
/// `error: plugin 'name': reason (path)`, optionally with a remedy.
fn reason(said: &str, plugin: &Path) -> String {
    const MAX_LENGTH: usize = 1000;
    let error = said.rsplit_once("error: ").map_or(said, |(_, error)| error);
    let error = error.split("\n  help: ").next().unwrap_or_default().trim();
    let place = format!(" ({})", plugin.display());
    let error = error.strip_suffix(place.as_str()).unwrap_or(error);
    let named = error.starts_with("plugin '").then(|| error.split_once("': ")).flatten();
    let line = named.map_or(error, |(_, reason)| reason).chars();
    let line: String = line.filter(|c| !c.is_control()).take(MAX_LENGTH).collect();
    if line.is_empty() {
        "it does not say why".into()
    } else {
        line
    }
}

/// Returns the exit status of a process; `None` if it had to be killed.
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
            let mut bound = libc::rlimit {
                rlim_cur: libc::RLIM_INFINITY,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: the call only writes the structure, which is valid.
            if unsafe { libc::getrlimit(what, &raw mut bound) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Limits of this process may be lower, and cannot be raised.
            bound.rlim_cur = bound.rlim_cur.min(most as libc::rlim_t);
            bound.rlim_max = bound.rlim_max.min(most as libc::rlim_t);
            // SAFETY: the call only reads the structure, which is valid.
            if unsafe { libc::setrlimit(what, &raw const bound) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it only makes the system calls above, and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(unix))]
fn limit(_: &mut Command, _: TrialLimits) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn shared_objects_have_to_come_to_their_end() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let tried = |script: &str| {
            let program = folder.path().join("program");
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its own");
            loop {
                let outcome = run_native_with(&program, Path::new("/some/lib.so"), "abcd", 1);
                // A process that another test starts at the same time may hold the script open for
                // a moment.
                if !matches!(&outcome, Err(e) if e.message.contains("Text file busy")) {
                    return outcome.map_err(|refusal| refusal.message);
                }
            }
        };
        assert_eq!(tried("echo '  sha256       abcd'"), Ok(()));
        for (script, words) in [
            ("exit 0", "as if all were well"),
            ("echo early; exit 0", "as if all were well"),
            ("kill -SEGV $$", "signal: 11"),
            ("exec sleep 600", "had not ended after 1 s"),
        ] {
            let error = tried(script).expect_err(script);
            assert!(error.contains(words), "{script}: {error}");
        }
    }

    #[test]
    fn the_reason_is_found_in_what_was_said() {
        let of = |said: &str| reason(said, Path::new("/a/b"));
        let said = "a warning\nerror: plugin 'x': its rule does not hold: a: b (/a/b)\n  help: see there\n";
        assert_eq!(of(said), "its rule does not hold: a: b");
        assert_eq!(of("error: no file\n"), "no file");
        assert_eq!(of("\u{1b}[31mrubbish"), "[31mrubbish");
        assert_eq!(of(""), "it does not say why");
        assert_eq!(of(&"x".repeat(5000)).len(), 1000);
    }
}
