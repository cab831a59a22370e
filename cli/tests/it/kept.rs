//! What a run has made is not lost by what goes wrong around it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{meganeura, run};

#[test]
fn a_run_whose_reader_goes_away_ends_well_and_keeps_its_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("run.jsonl");
    let mut command = meganeura(&[
        "train", "digits", "--device", "cpu", "--epochs", "500", "--json", "--log",
    ]);
    let mut child = command
        .arg(&log)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line");
    assert!(first.contains("\"epoch\":1"), "{first}");
    // As `head -1` does.
    drop(lines);
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.is_empty(), "{err}");
    let log = fs::read_to_string(&log).expect("the log");
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.contains("\"event\":\"train_end\""),
        "the run was ended, not cut off: {last}"
    );
    assert!(log.lines().count() < 400, "it went on for nobody");
}

#[test]
fn benchmarks_end_with_their_reader() {
    let mut command = meganeura(&["bench", "--suite", "pointwise", "--sizes", "small", "--device", "cpu"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.is_empty(), "{err}");
}

#[test]
fn a_log_of_before_outlives_a_run_that_cannot_begin() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("run.jsonl");
    fs::write(&log, "of before\n").expect("written");
    let table = folder.path().join("absent.csv");
    let mut command = meganeura(&["train", "--device", "cpu", "--csv"]);
    let (output, _, err) = run(command.arg(&table).arg("--log").arg(&log));
    assert!(!output.status.success() && err.contains("absent.csv"), "{err}");
    assert_eq!(fs::read_to_string(&log).expect("the log"), "of before\n");
}

#[test]
fn a_page_that_cannot_be_written_does_not_lose_the_report() {
    let mut command = meganeura(&[
        "conformance",
        "--device",
        "cpu",
        "--filter",
        "core.relu",
        "--seeds",
        "1",
    ]);
    let (output, out, err) = run(command.args(["--html", "/nowhere/at/all.html"]));
    assert!(
        !output.status.success() && err.contains("/nowhere/at/all.html"),
        "{err}"
    );
    assert!(out.contains(" passed, 0 failed"), "{out}");
}

#[test]
fn a_check_of_nothing_is_refused() {
    let (output, _, err) = run(&mut meganeura(&["conformance", "--device", "cpu", "--seeds", "0"]));
    assert!(!output.status.success() && err.contains("--seeds"), "{err}");
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let (output, _, err) = run(meganeura(&["devices"]).env("MEGANEURA_CONFIG", ""));
    assert!(output.status.success(), "{err}");
}
