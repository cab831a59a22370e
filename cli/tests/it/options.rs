//! Tests of training options.

use super::{flowers, json_lines, meganeura, run, summary};

#[test]
fn clipping_accumulation_and_groups_are_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log.jsonl");
    let log = log.to_str().expect("a path");
    let base = ["train", "digits", "--epochs", "1", "--device", "cpu", "--json"];
    let options = [
        "--clip-norm",
        "0.5",
        "--accumulate",
        "2",
        "--no-decay",
        "*.bias",
        "--log",
        log,
    ];
    let (output, out, err) = run(&mut meganeura(&[&base[..], &options].concat()));
    assert!(output.status.success(), "{err}");
    let accuracy = json_lines(&out).last().and_then(|l| l["test_accuracy"].as_f64());
    assert!(accuracy > Some(0.5), "{out}");
    let lines = json_lines(&std::fs::read_to_string(log).expect("the log"));
    let norms: Vec<f64> = lines.iter().filter_map(|l| l["gradient_norm"].as_f64()).collect();
    assert!(!norms.is_empty() && norms.iter().all(|n| *n > 0.0), "{lines:?}");
    for (wrong, part) in [
        (["--no-decay", "*.bais"], "matches none of the trained parameters"),
        (["--clip-norm", "0"], "limit 0"),
        (["--accumulate", "0"], "0 steps"),
    ] {
        let (output, _, err) = run(&mut meganeura(&[&base[..], &wrong].concat()));
        assert!(!output.status.success() && err.contains(part), "{err}");
    }
}

#[test]
fn a_model_is_measured_on_some_examples() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::write(path.join("f.csv"), flowers(60)).expect("written");
    let without = ["--csv", "f.csv", "--test-fraction", "0", "--epochs", "2"];
    let args = [&["train"], &without[..]].concat();
    let (output, _, err) = run(meganeura(&args).current_dir(path));
    assert!(!output.status.success() && err.contains("--validation"), "{err}");
    let summary = summary(path, &[&without[..], &["--validation", "0.1"]].concat());
    assert!(summary["test_loss"].is_f64(), "{summary}");
}

#[test]
fn a_mobilenet_is_trained_saved_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let args = [
        "digits",
        "--model",
        "mobilenet",
        "--epochs",
        "1",
        "--batch",
        "64",
        "--out",
        "m",
    ];
    let summary = summary(path, &args);
    assert!(
        summary["model"] == "mobilenet" && summary["test_loss"].is_f64(),
        "{summary}"
    );
    let text = std::fs::read_to_string(path.join("m/model.json")).expect("a model");
    assert!(
        text.contains("\"mobile_net\"") && text.contains("\"small_images\": true"),
        "{text}"
    );
    std::fs::write(path.join("f.csv"), flowers(60)).expect("written");
    let args = ["train", "--csv", "f.csv", "--model", "mobilenet"];
    let (output, _, err) = run(meganeura(&args).current_dir(path));
    assert!(
        !output.status.success() && err.contains("mobilenet needs images"),
        "{err}"
    );
}
