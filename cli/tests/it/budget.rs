//! Tests of memory budgets on the command line.

use super::explain::explained;
use super::{meganeura, run};

#[test]
fn budgets_of_memory_are_kept_and_explained() {
    let base = ["cnn", "--train", "--device", "cpu"];
    let plain = explained(&base);
    assert!(plain["recomputation"].is_null(), "{plain}");
    for device in [&["--device", "cpu"][..], &["--simulated-gpu"]] {
        let budget = ["cnn", "--train", "--memory-budget", "90%"];
        let report = explained(&[&budget[..], device].concat());
        let what = &report["recomputation"];
        assert!(
            report["peak_bytes_planned"].as_u64() <= what["budget_bytes"].as_u64(),
            "{what}"
        );
        assert!(
            what["budget_bytes"].as_u64() < what["peak_bytes_without"].as_u64(),
            "{what}"
        );
        let labels = what["dispatches"].as_array().expect("a list");
        assert!(!labels.is_empty() && labels.iter().all(|l| l.as_str().is_some_and(|l| l.ends_with(" again"))));
        assert!(
            what["extra_ps"].as_u64() > Some(0) && what["slow_down"].as_f64() > Some(1.0),
            "{what}"
        );
    }
    let args = ["explain", "cnn", "--train", "--device", "cpu", "--memory-budget", "90%"];
    let (output, out, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("Recomputation: ") && out.contains("dispatches are recomputed, an estimated"),
        "{out}"
    );
    for (budget, expected) in [
        ("1kB", "the minimum possible is"),
        ("lots", "is not a memory budget"),
        ("150%", "at most 100 %"),
        ("50%:device", "size is not known"),
    ] {
        let args = [
            "explain",
            "cnn",
            "--train",
            "--simulated-gpu",
            "--memory-budget",
            budget,
        ];
        let (output, _, err) = run(&mut meganeura(&args));
        assert!(!output.status.success() && err.contains(expected), "{budget}: {err}");
    }
}

#[test]
fn a_budget_of_memory_changes_no_result_of_training() {
    let trained = |budget: &[&str]| {
        let base = [
            "train", "digits", "--model", "cnn", "--epochs", "1", "--device", "cpu", "--json",
        ];
        let (output, out, err) = run(&mut meganeura(&[&base[..], budget].concat()));
        assert!(output.status.success(), "{err}");
        let last = out.lines().last().expect("a summary");
        let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
        ["train_loss", "test_loss", "test_accuracy"].map(|key| last[key].clone())
    };
    assert_eq!(trained(&[]), trained(&["--memory-budget", "95%"]));
    let base = ["train", "digits", "--model", "cnn", "--epochs", "1", "--device", "cpu"];
    let (output, out, err) = run(&mut meganeura(&[&base[..], &["--memory-budget", "95%"]].concat()));
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("memory budget: ") && !out.contains("budget: 0 dispatches"),
        "{out}"
    );
    let (output, _, err) = run(&mut meganeura(&[&base[..], &["--memory-budget", "1kB"]].concat()));
    assert!(!output.status.success() && err.contains("cannot be reached"), "{err}");
}
