//! Tests of faults while files are written: a call fails, the disk becomes full, or the process dies, at each of the calls that
//! change files. Afterwards either the old or the new file is intact, and the same command then works and leaves no other files.

#[cfg(target_env = "gnu")]
mod memory;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{meganeura, run};

/// Failure modes of a call, as named in `faults.c`.
const MODES: [&str; 3] = ["fail", "full", "kill"];
/// Number of calls of each command and mode that fail in an ordinary run of the tests.
const SAMPLED: usize = 2;

/// A command that writes files below its folder.
struct Writer {
    name: &'static str,
    /// Function that creates the initial files.
    prepare: fn(&Path),
    /// Returns the command's arguments for the folder.
    args: fn(&Path) -> Vec<String>,
    /// Path that users rely on, relative to the folder: either the old or the new version, intact.
    place: &'static str,
    /// True if the command may succeed although a call failed, because its output only makes later runs faster.
    is_cache: bool,
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("text").to_owned()
}

fn digits(folder: &Path, seed: &str, rest: &[&str]) -> Vec<String> {
    let out = path(folder, "model");
    let common = [
        "train", "digits", "--device", "cpu", "--epochs", "1", "--batch", "256", "--seed", seed, "--out", &out,
    ];
    strings(&[&common[..], rest].concat())
}

fn text(folder: &Path, seed: &str, rest: &[&str]) -> Vec<String> {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/alice/alice.txt");
    let out = path(folder, "model");
    let common = [
        "train", "text", "--device", "cpu", "--data", data, "--steps", "1", "--batch", "64", "--seq", "32", "--seed",
        seed, "--out", &out,
    ];
    strings(&[&common[..], rest].concat())
}

fn must(args: &[String]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (output, _, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{args:?}: {err}");
}

const TINY: [&str; 4] = ["--model", "tiny", "--vocab", "300"];

fn adapters(folder: &Path, seed: &str) -> Vec<String> {
    let model = path(folder, "base");
    text(folder, seed, &["--model", &model, "--lora", "2"])
}

const WRITERS: [Writer; 5] = [
    Writer {
        name: "train digits --out",
        prepare: |folder| must(&digits(folder, "1", &[])),
        args: |folder| digits(folder, "2", &[]),
        place: "model",
        is_cache: false,
    },
    Writer {
        name: "train text --out",
        prepare: |folder| must(&text(folder, "1", &TINY)),
        args: |folder| text(folder, "2", &TINY),
        place: "model",
        is_cache: false,
    },
    Writer {
        name: "train text --lora --out",
        prepare: |folder| {
            must(&text(folder, "1", &TINY));
            fs::rename(folder.join("model"), folder.join("base")).expect("moved");
            must(&adapters(folder, "3"));
        },
        args: |folder| adapters(folder, "4"),
        place: "model",
        is_cache: false,
    },
    Writer {
        name: "export",
        prepare: |folder| {
            must(&digits(folder, "1", &[]));
            let (model, out) = (path(folder, "model"), path(folder, "exported.onnx"));
            must(&strings(&["export", &model, "--out", &out]));
            must(&digits(folder, "2", &[]));
        },
        args: |folder| {
            strings(&[
                "export",
                &path(folder, "model"),
                "--out",
                &path(folder, "exported.onnx"),
            ])
        },
        place: "exported.onnx",
        is_cache: false,
    },
    Writer {
        name: "explain --cache",
        prepare: |_| (),
        args: |folder| {
            strings(&[
                "explain",
                "mlp",
                "--device",
                "cpu",
                "--cache",
                &path(folder, "plan.ron"),
            ])
        },
        place: "plan.ron",
        is_cache: true,
    },
];

/// The library that makes calls fail.
struct Faults {
    folder: TempDir,
}

impl Faults {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = [
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/injection/faults.c"),
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/injection/allocations.c"),
        ];
        // The allocator names of C libraries other than glibc are unknown.
        let sources = if cfg!(target_env = "gnu") {
            &sources[..]
        } else {
            &sources[..1]
        };
        // Rust links with the same compiler.
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]);
        compiler.args(sources).arg("-o");
        let compiled = compiler.arg(folder.path().join("faults.so")).arg("-ldl").status();
        assert!(compiled.expect("a C compiler").success());
        Faults { folder }
    }

    /// Runs the command with a fault at a call.
    fn run(&self, folder: &Path, args: &[String], mode: &str, at: usize) -> Output {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = meganeura(&args);
        self.preload(&mut command, folder);
        command.env("FAULTS_MODE", mode).env("FAULTS_AT", at.to_string());
        command.env("FAULTS_LOG", self.log());
        let _ = fs::remove_file(self.log());
        command.output().expect("the program runs")
    }

    /// Preloads the library, which monitors calls below a folder.
    fn preload(&self, command: &mut Command, folder: &Path) {
        let library = self.folder.path().join("faults.so");
        command.env("LD_PRELOAD", library).env("FAULTS_BELOW", folder);
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("calls")
    }

    /// Returns the numbered calls of the last run.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Returns all files at a path or below it, with their contents.
fn contents(at: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![at.to_owned()];
    while let Some(next) = open.pop() {
        if next.is_dir() {
            open.extend(
                fs::read_dir(&next)
                    .expect("a folder")
                    .map(|e| e.expect("an entry").path()),
            );
        } else if let Ok(bytes) = fs::read(&next) {
            let name = next.strip_prefix(at).expect("below").to_owned();
            found.insert(name, meganeura::files::sha256([&bytes[..]]));
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("a folder");
    for name in contents(from).keys() {
        let target = to.join(name);
        fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        fs::copy(from.join(name), target).expect("copied");
    }
}

/// Returns the calls that fail.
fn chosen(count: usize, all: bool) -> Vec<usize> {
    if all || count <= SAMPLED {
        (1..=count).collect()
    } else {
        (0..SAMPLED)
            .map(|i| 1 + (2 * i + 1) * (count - 1) / (2 * SAMPLED))
            .collect()
    }
}

/// Makes calls of a writer fail; returns the number of failed calls.
fn attack(writer: &Writer, all: bool) -> usize {
    let faults = Faults::new();
    let root = tempfile::tempdir().expect("a folder");
    // Output may contain names of folders.
    let (before, work) = (root.path().join("before"), root.path().join("work"));
    fs::create_dir(&work).expect("a folder");
    (writer.prepare)(&work);
    copy(&work, &before);
    let place = work.join(writer.place);
    let old = contents(&place);
    let args = (writer.args)(&work);
    let output = faults.run(&work, &args, "count", 0);
    assert!(output.status.success(), "{}: {output:?}", writer.name);
    let (new, after, calls) = (contents(&place), contents(&work), faults.calls());
    assert!(old != new && !new.is_empty(), "{}", writer.name);
    let mut done = 0;
    for mode in MODES {
        for at in chosen(calls.len(), all) {
            copy(&before, &work);
            let output = faults.run(&work, &args, mode, at);
            let what = format!("{}, {mode} at {}", writer.name, calls[at - 1]);
            let err = String::from_utf8_lossy(&output.stderr);
            let found = contents(&place);
            assert!(
                found == old || found == new,
                "{what}: neither the old nor the new files: {found:?}; {err}"
            );
            match mode {
                "kill" => assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{what}: {err}"),
                _ if output.status.success() => assert!(writer.is_cache || found == new, "{what}: success is claimed"),
                _ => assert!(
                    err.contains("error") && output.status.signal().is_none(),
                    "{what}: {output:?}"
                ),
            }
            // The same command works afterwards, and removes leftovers.
            must(&args);
            assert_eq!(contents(&work), after, "{what}, after it was run again");
            done += 1;
        }
    }
    println!("{}: {} calls, {done} faults", writer.name, calls.len());
    done
}

#[test]
fn some_calls_that_write_files_fail() {
    for writer in &WRITERS {
        attack(writer, false);
    }
}

/// Takes minutes in a release build: `cargo test --release -p meganeura-cli --test it injection:: -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn every_call_that_writes_files_fails_once() {
    let faults: usize = WRITERS.iter().map(|writer| attack(writer, true)).sum();
    println!("{faults} faults");
}

/// Returns the arguments of a training that saves every other step.
fn checkpointed(work: &Path, rest: &[&str]) -> Vec<String> {
    let run = path(work, "run");
    let saved = ["--checkpoint", &run, "--every", "2"];
    let common = [
        "train", "digits", "--device", "cpu", "--epochs", "1", "--batch", "256", "--json",
    ];
    strings(&[&common[..], &saved, rest].concat())
}

/// Returns the part of a training's output that does not depend on interruptions.
fn end(out: &str) -> [serde_json::Value; 3] {
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap_or_default()).expect("a summary");
    ["test_accuracy", "test_loss", "train_loss"].map(|key| last[key].clone())
}

/// Makes calls of repeated checkpoints fail. After any fault, the run resumes from the last checkpoint with the same result.
fn attack_checkpoints(all: bool) -> usize {
    let faults = Faults::new();
    let root = tempfile::tempdir().expect("a folder");
    let work = root.path().join("work");
    fs::create_dir(&work).expect("a folder");
    let args = |rest: &[&str]| checkpointed(&work, rest);
    let end = |output: &Output| end(&String::from_utf8_lossy(&output.stdout));
    let output = faults.run(&work, &args(&[]), "count", 0);
    assert!(output.status.success(), "{output:?}");
    let (undisturbed, calls) = (end(&output), faults.calls());
    let mut done = 0;
    for mode in MODES {
        for at in chosen(calls.len(), all) {
            fs::remove_dir_all(&work).expect("removed");
            fs::create_dir(&work).expect("a folder");
            let output = faults.run(&work, &args(&[]), mode, at);
            let what = format!("checkpoints, {mode} at {}", calls[at - 1]);
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            if mode != "kill" && !output.status.success() {
                assert!(
                    err.contains("error") && output.status.signal().is_none(),
                    "{what}: {output:?}"
                );
            }
            let resumed = work.join("run/checkpoint.json").exists();
            let again: &[&str] = if resumed { &["--resume"] } else { &[] };
            let again = faults.run(&work, &args(again), "count", 0);
            assert!(again.status.success(), "{what}: {again:?}");
            assert_eq!(end(&again), undisturbed, "{what}, resumed: {resumed}");
            done += 1;
        }
    }
    println!("checkpoints: {} calls, {done} faults", calls.len());
    done
}

#[test]
fn runs_go_on_after_some_calls_that_write_checkpoints_fail() {
    attack_checkpoints(false);
}

#[test]
#[ignore = "takes minutes"]
fn runs_go_on_after_every_call_that_writes_checkpoints() {
    attack_checkpoints(true);
}
