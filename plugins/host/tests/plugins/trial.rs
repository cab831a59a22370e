//! Tests of the process that tries a plugin first: its limits, and the meaning of its exit status.

use std::path::{Path, PathBuf};

use super::common::set_mode;
use meganeura_core::{Error, Result};
use meganeura_plugin_host::{TrialLimits, try_plugin};

/// Writes a shell script as an executable program, and returns its path.
fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    set_mode(&path, 0o755);
    path
}

fn tried(name: &str, script: &str, seconds: u64) -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = TrialLimits {
        seconds,
        bytes: 1 << 30,
    };
    let program = program(folder.path(), name, script);
    loop {
        let outcome = try_plugin(&program, Path::new("/some/folder"), limits);
        // A process that another test starts meanwhile may have the script open for a moment.
        if !matches!(&outcome, Err(e) if e.to_string().contains("Text file busy")) {
            return outcome;
        }
    }
}

#[test]
fn it_is_told_what_to_try_and_has_limits() {
    let script = "test \"$*\" = 'plugins check /some/folder' || exit 7\n\
                  test \"$(ulimit -v)\" = 1048576 || exit 8\ntest \"$(ulimit -t)\" = 9 || exit 9\n\
                  env | grep -q MEGANEURA_ && exit 10\nexit 0";
    tried("limits", script, 9).expect("all as it should be");
}

#[test]
fn its_refusal_is_a_refusal_with_its_reason() {
    let script = "echo \"error: plugin 'x': it is odd (/some/folder)\" >&2; echo '  help: none' >&2; exit 1";
    let error = tried("refuses", script, 9).expect_err("refused").to_string();
    assert!(error.contains("refuses it: it is odd (/some/folder)"), "{error}");
    assert!(
        error.contains("`meganeura plugins check /some/folder`") && !error.contains("report this"),
        "{error}"
    );
    let error = tried("silent", "exit 1", 9).expect_err("refused").to_string();
    assert!(error.contains("does not say why"), "{error}");
    // More output than fits into a pipe.
    let error = tried("talks", "yes error: none | head -c 1000000 >&2; exit 1", 9).expect_err("refused");
    assert!(error.to_string().contains("refuses it"), "{error}");
}

#[test]
fn one_that_does_not_end_by_itself_is_a_refusal() {
    for (name, script, words) in [
        ("crashes", "kill -SEGV $$", "signal: 11"),
        ("panics", "exit 101", "101"),
        ("hangs", "exec sleep 600", "had not ended after 1 s"),
        ("spins", "while :; do :; done", "the process that tried it"),
    ] {
        let error = tried(name, script, 1).expect_err(name);
        assert!(matches!(error, Error::Plugin { .. }), "{error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
    }
    let absent = try_plugin(
        Path::new("/nowhere/meganeura"),
        Path::new("/some/folder"),
        TrialLimits::default(),
    );
    let error = absent.expect_err("there is no program").to_string();
    assert!(error.contains("could not be started"), "{error}");
}
