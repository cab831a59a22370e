//! Runs and plans that are kept in files.

use super::explain::explained;
use super::{meganeura, run};

/// What a run of the digits ends with, but for its times.
fn trained(args: &[&str]) -> Vec<serde_json::Value> {
    let args = [
        &[
            "train", "digits", "--epochs", "3", "--batch", "64", "--device", "cpu", "--json",
        ],
        args,
    ]
    .concat();
    let (output, out, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{args:?}: {err}");
    let last = out.lines().last().expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(last).expect("an object");
    ["epochs", "test_accuracy", "test_loss", "train_loss"]
        .map(|key| summary[key].clone())
        .to_vec()
}

#[test]
fn a_killed_training_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let path = path.to_str().expect("text");
    let saving = ["--checkpoint", path, "--every", "5"];
    let manifest = folder.path().join("run/checkpoint.json");
    let mut child = meganeura(&[
        "train", "digits", "--epochs", "3", "--batch", "64", "--device", "cpu", "--json",
    ])
    .args(saving)
    .stdout(std::process::Stdio::null())
    .spawn()
    .expect("starts");
    // Until the checkpoint after the first one.
    let mut first = None;
    while child.try_wait().expect("a child").is_none() {
        let now = std::fs::read(&manifest).ok();
        if first.is_some() && now.is_some() && now != first {
            break;
        }
        first = first.or(now);
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    let again = [&["train", "digits", "--device", "cpu"][..], &saving].concat();
    let (output, _, err) = run(&mut meganeura(&again));
    assert!(!output.status.success() && err.contains("--resume"), "{err}");
    assert_eq!(trained(&[&saving[..], &["--resume"]].concat()), trained(&[]));
}

#[test]
fn checkpoints_are_asked_for_together() {
    for args in [
        &["train", "digits", "--resume"][..],
        &["train", "digits", "--every", "3"],
    ] {
        let (output, _, err) = run(&mut meganeura(args));
        assert!(!output.status.success() && err.contains("--checkpoint"), "{err}");
    }
}

#[test]
fn plans_are_explained_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, other) = (folder.path().join("plan.ron"), folder.path().join("other"));
    let path = file.to_str().expect("text");
    assert!(explained(&["mlp", "--device", "cpu"])["cached_load_ms"].is_null());
    for _ in 0..2 {
        let report = explained(&["mlp", "--train", "--device", "cpu", "--cache", path]);
        assert!(report["cached_load_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
        assert!(file.is_file());
    }
    let (_, out, _) = run(&mut meganeura(&["explain", "mlp", "--device", "cpu", "--cache", path]));
    for part in [
        "Plan: ",
        "Loaded from its file in",
        "Memory: ",
        "without sharing",
        "minimum: ",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    std::fs::write(&other, "notes").expect("writes");
    let other = other.to_str().expect("text");
    let (output, _, err) = run(&mut meganeura(&["explain", "mlp", "--device", "cpu", "--cache", other]));
    assert!(
        !output.status.success() && err.contains("is not a file of a plan"),
        "{err}"
    );
    assert_eq!(std::fs::read_to_string(other).expect("it is there"), "notes");
}
