//! Tests of Ctrl-C while a model is trained.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{meganeura, run};

/// Returns true if this process ignores Ctrl-C, as in the background of a script; its children inherit this.
fn is_ignored() -> bool {
    ignores(2)
}

fn ignores(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn interrupt(child: &Child) {
    signal(child, "-INT");
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Starts the command in a folder, and waits until it prints a line with this prefix.
fn start(folder: &Path, args: &str, line: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let args: Vec<&str> = args.split(' ').collect();
    let mut child = meganeura(&args)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    while !text.lines().last().unwrap_or_default().starts_with(line) {
        let read = out.read_line(&mut text).expect("text");
        assert_ne!(read, 0, "{line} is not in {text}");
    }
    (child, out)
}

/// Returns the exit code, and the text on standard error.
fn end(mut child: Child) -> (Option<i32>, String) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().expect("a child");
            panic!("the signal was not heeded");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut err = String::new();
    let pipe = child.stderr.as_mut().expect("a pipe");
    pipe.read_to_string(&mut err).expect("text");
    (status.code(), err)
}

/// With `train ... | head -1`, training continues after the pipe is closed, because its output is not its purpose.
#[test]
fn training_goes_on_where_nobody_reads_what_it_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    let (child, out) = start(folder.path(), "train digits --epochs 3 --out model --device cpu", "mlp");
    drop(out);
    let (code, err) = end(child);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("continues without it"), "{err}");
    assert!(folder.path().join("model/model.safetensors").is_file());
    // Here the output is the only result.
    let (child, out) = start(folder.path(), "train digits --epochs 300 --device cpu", "mlp");
    drop(out);
    assert_eq!(end(child), (Some(0), String::new()));
}

#[test]
fn training_is_saved_and_goes_on() {
    if is_ignored() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let train = "train digits --epochs 100000 --lr 0.001 --checkpoint run --every 100000000 --out m --device cpu";
    let (child, mut out) = start(path, train, "epoch      1/");
    interrupt(&child);
    let (mut rest, (code, err)) = (String::new(), end(child));
    out.read_to_string(&mut rest).expect("text");
    assert_eq!(code, Some(130), "{err}");
    assert!(rest.contains("test accuracy") && rest.contains("saved to m"), "{rest}");
    let command = format!("  meganeura {train} --resume\n");
    assert!(err.contains("Ctrl-C again") && err.contains(&command), "{err}");
    // No progress bars without a terminal.
    assert!(!err.contains("ETA"), "{err}");
    let step = err
        .split("interrupted after step ")
        .nth(1)
        .and_then(|t| t.split(';').next());
    let step = step.expect("a step");

    let (child, _out) = start(
        path,
        &format!("{train} --resume"),
        &format!("resumed after step {step}"),
    );
    interrupt(&child);
    let (code, err) = end(child);
    // The command that resumes is the same.
    assert!(code == Some(130) && err.contains(&command), "{err}");
    let args = "evaluate --model m --npz none.npz";
    let (_, _, err) = run(meganeura(&args.split(' ').collect::<Vec<_>>()).current_dir(path));
    assert!(err.contains("none.npz"), "the model is there: {err}");
}

#[test]
fn sigterm_saves_as_well() {
    saves_after("-TERM", 143);
}

/// A run saves its state when its terminal is closed (SIGHUP).
#[test]
fn sighup_saves_as_well() {
    if !ignores(1) {
        saves_after("-HUP", 129);
    }
}

fn saves_after(name: &str, expected: i32) {
    let folder = tempfile::tempdir().expect("a folder");
    let train = "train digits --epochs 100000 --lr 0.001 --checkpoint run --every 100000000 --device cpu";
    let (child, mut out) = start(folder.path(), train, "epoch      1/");
    signal(&child, name);
    let (mut rest, (code, err)) = (String::new(), end(child));
    out.read_to_string(&mut rest).expect("text");
    assert_eq!(code, Some(expected), "{err}");
    let command = format!("  meganeura {train} --resume\n");
    assert!(rest.contains("test accuracy") && err.contains(&command), "{rest}{err}");
    let step = err
        .split("interrupted after step ")
        .nth(1)
        .and_then(|t| t.split(';').next());
    let step = step.expect("a step");
    let (child, _out) = start(
        folder.path(),
        &format!("{train} --resume"),
        &format!("resumed after step {step}"),
    );
    signal(&child, name);
    assert_eq!(end(child).0, Some(expected));
}

#[test]
fn generation_that_is_interrupted_prints_what_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
    let mut command = meganeura(&[
        "generate",
        "--device",
        "cpu",
        "--json",
        "--verbose",
        "--prompt-ids",
        "1,2,3",
    ]);
    let mut child = command
        .args(["--max-tokens", "20", "--model"])
        .arg(model)
        .env("XDG_CACHE_HOME", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    // The first line of the log appears while the device is opened; a token takes longer.
    let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut err = String::new();
    log.read_line(&mut err).expect("a line");
    signal(&child, "-TERM");
    let mut out = String::new();
    child
        .stdout
        .take()
        .expect("a pipe")
        .read_to_string(&mut out)
        .expect("text");
    log.read_to_string(&mut err).expect("text");
    let code = child.wait().expect("a child").code();
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap_or_default()).expect(&err);
    assert_eq!((code, &last["interrupted"]), (Some(143), &true.into()), "{out}{err}");
    assert!(
        last["token_ids"]
            .as_array()
            .is_some_and(|ids| (1..20).contains(&ids.len())),
        "{last}"
    );
}

#[test]
fn without_a_checkpoint_it_is_said_how_to_have_one() {
    if is_ignored() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let train = "train digits --epochs 100000 --json --device cpu";
    let (child, mut out) = start(folder.path(), train, "{\"epoch\":1");
    interrupt(&child);
    let (mut rest, (code, err)) = (String::new(), end(child));
    out.read_to_string(&mut rest).expect("text");
    assert!(code == Some(130) && err.contains("--checkpoint DIR --resume"), "{err}");
    let last: serde_json::Value = serde_json::from_str(rest.lines().last().expect("a summary")).expect("JSON");
    assert_eq!(last["interrupted"], true);
}

#[test]
fn the_second_time_the_program_ends_at_once() {
    if is_ignored() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // A step takes seconds.
    let train = "train digits --hidden 6000,6000 --batch 1437 --epochs 1000 --out m --device cpu";
    let (child, _out) = start(folder.path(), train, "mlp on cpu");
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(100));
    interrupt(&child);
    let (code, err) = end(child);
    assert_eq!(code, Some(130), "{err}");
    assert!(!folder.path().join("m").exists(), "nothing is saved: {err}");
}

#[test]
fn language_models_are_saved_too() {
    if is_ignored() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = "One fish, two fish, red fish, blue fish. ".repeat(40);
    std::fs::write(folder.path().join("fish.txt"), text).expect("writable");
    let train = "train text --data fish.txt --model tiny --vocab 300 --seq 16 --epochs 100000 --out m --device cpu";
    let (child, _out) = start(folder.path(), train, "epoch      1/");
    interrupt(&child);
    let (code, err) = end(child);
    assert_eq!(code, Some(130), "{err}");
    assert!(folder.path().join("m/model.safetensors").is_file(), "{err}");
}
