//! Tests of runs and plans that are saved in files.

use super::explain::explained;
use super::pictures::photos;
use super::predict::{flowers, houses};
use super::{meganeura, run};

/// Returns the final output of a run of the digits, without its times.
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
    // Waits for the checkpoint after the first one.
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

/// A run of each kind resumes from a checkpoint with the same result.
#[test]
fn runs_of_every_kind_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::write(path.join("flowers.csv"), flowers(81)).expect("writable");
    std::fs::write(path.join("houses.csv"), houses(240)).expect("writable");
    photos(path, 20);
    let ended = |args: &str| {
        let (output, out, err) = run(meganeura(&args.split(' ').collect::<Vec<_>>()).current_dir(path));
        assert!(output.status.success(), "{args}: {err}");
        out.lines().last().unwrap_or_default().to_owned()
    };
    ended("train --csv flowers.csv --label species --ignore id --epochs 1 --hidden 8 --out m --device cpu");
    ended("export m --out m.onnx --batch 16");
    let stopping = "--precision mixed --patience 2 --min-delta 1000";
    let photos = "--images photos --image-size 8 --model cnn";
    let classes = "--csv flowers.csv --label species --ignore id";
    let regression = "--csv houses.csv --target price --missing mean --hidden 8";
    for (number, kind) in [
        "digits --model cnn --dropout 0.2 --precision mixed",
        "digits --precision mixed",
        &format!("{classes} --dropout 0.3 --balance --label-smoothing 0.1 --precision mixed"),
        &format!("{regression} --dropout 0.3"),
        &format!("{regression} --precision mixed"),
        &format!("{regression} {stopping}"),
        &format!("{photos} --dropout 0.2 --augment flip,shift=1 {stopping}"),
        &format!("{classes} --onnx m.onnx --batch 16 --freeze *.bias {stopping}"),
    ]
    .into_iter()
    .enumerate()
    {
        let train = |epochs: usize, more: &str| {
            let usual = "--lr 0.01 --schedule constant --device cpu --json";
            let summary = ended(&format!("train {kind} --epochs {epochs} {usual}{more}"));
            let summary: serde_json::Value = serde_json::from_str(&summary).expect("an object");
            [
                "epochs",
                "early_stopped",
                "best_epoch",
                "test_loss",
                "train_loss",
                "test_accuracy",
                "test_rmse",
            ]
            .map(|key| summary[key].clone())
        };
        let saving = format!(" --checkpoint run-{number} --every 3");
        let whole = train(4, "");
        // No later epoch improves by this much.
        let stops = kind.contains("--min-delta");
        assert_eq!(
            (&whole[0], &whole[1]),
            (&(4 - usize::from(stops)).into(), &stops.into()),
            "{kind}"
        );
        train(2, &saving);
        assert_eq!(train(4, &format!("{saving} --resume")), whole, "{kind}");
    }
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
