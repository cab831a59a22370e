//! Tests that external failures do not lose the results of a run.

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

/// Returns other spellings of a file: the path, one through a folder, a symbolic link and a hard link.
#[cfg(unix)]
fn spellings(file: &std::path::Path) -> Vec<std::path::PathBuf> {
    let folder = file.parent().expect("a folder");
    let name = file.file_name().expect("a name");
    fs::create_dir_all(folder.join("inner")).expect("made");
    let (soft, hard) = (folder.join("soft"), folder.join("hard"));
    std::os::unix::fs::symlink(file, &soft).expect("linked");
    fs::hard_link(file, &hard).expect("linked");
    vec![file.to_owned(), folder.join("inner/..").join(name), soft, hard]
}

#[cfg(unix)]
#[test]
fn no_output_replaces_what_the_command_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("data.csv");
    let rows: String = (0..40).map(|i| format!("{i},{}\n", ["a", "b"][i % 2])).collect();
    let content = format!("x,y\n{rows}");
    fs::write(&input, &content).expect("written");
    let data = input.to_str().expect("UTF-8");
    let commands: [&[&str]; 9] = [
        &["train", "--csv", data, "--epochs", "1", "--log"],
        &["train", "--csv", data, "--epochs", "1", "--out"],
        &["train", "text", "--model", "tiny", "--data", data, "--log"],
        &["predict", "--model", "m", "--csv", data, "--output"],
        &["evaluate", "--model", "m", "--csv", data, "--html"],
        &["export", data, "--out"],
        &["run", "m.onnx", "--input", &format!("x={data}"), "--cache"],
        &["conformance", "--expected", data, "--html"],
        &["bench", "--suite", "norm", "--compare", data, "--html"],
    ];
    for path in spellings(&input) {
        for args in commands {
            let (output, _, err) = run(meganeura(args).arg(&path).current_dir(folder.path()));
            assert!(
                !output.status.success() && err.contains("would overwrite an input of the command"),
                "{args:?} {path:?}: {err}"
            );
        }
        let mut traced = meganeura(&["train", "--csv", data, "--epochs", "1", "--device", "cpu"]);
        let (output, _, err) = run(traced.env("MEGANEURA_TRACE", &path));
        assert!(
            !output.status.success() && err.contains("MEGANEURA_TRACE"),
            "{path:?}: {err}"
        );
        assert_eq!(fs::read_to_string(&input).expect("there"), content, "{path:?}");
    }
}

#[test]
fn folders_of_outputs_keep_what_the_command_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).expect("made");
    let table = logs.join("metrics.csv");
    fs::write(&table, "x,y\n1,a\n2,b\n").expect("written");
    for option in ["--log-dir", "--out"] {
        let mut command = meganeura(&["train", "--csv"]);
        let (output, _, err) = run(command.arg(&table).arg(option).arg(&logs));
        assert!(
            !output.status.success() && err.contains("would overwrite an input of the command"),
            "{option}: {err}"
        );
    }
    let same = folder.path().join("same.jsonl");
    let mut command = meganeura(&["train", "digits", "--epochs", "1", "--device", "cpu", "--log"]);
    let (output, _, err) = run(command.arg(&same).env("MEGANEURA_TRACE", &same));
    assert!(!output.status.success() && err.contains("both write"), "{err}");
}

#[test]
fn outputs_that_cannot_be_written_are_errors_before_any_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    // A folder that even root cannot write.
    let out = std::path::Path::new("/proc/self/m.onnx");
    let mut command = meganeura(&["train", "digits", "--device", "cpu", "--onnx", "absent.onnx", "--out"]);
    let (output, out, err) = run(command.arg(out));
    assert!(!output.status.success() && out.is_empty(), "{out}");
    assert!(
        err.contains("--out /proc/self/m.onnx: the folder is not writable"),
        "{err}"
    );
}
