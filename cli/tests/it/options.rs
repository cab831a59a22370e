//! Options of training.

use super::{json_lines, meganeura, run};

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
        (["--no-decay", "*.bais"], "names none of the trained parameters"),
        (["--clip-norm", "0"], "limit 0"),
        (["--accumulate", "0"], "0 steps"),
    ] {
        let (output, _, err) = run(&mut meganeura(&[&base[..], &wrong].concat()));
        assert!(!output.status.success() && err.contains(part), "{err}");
    }
}
