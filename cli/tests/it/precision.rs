//! Tests of conformance and precision on the command line.

use super::{json_lines, meganeura, run};

#[test]
fn conformance_reports_and_filters() {
    let (output, out, err) = run(&mut meganeura(&[
        "conformance",
        "--filter",
        "core.relu/",
        "--seeds",
        "1",
        "--json",
    ]));
    assert!(output.status.success(), "{err}");
    let lines = json_lines(&out);
    let summary = lines.last().expect("a summary");
    assert!(summary["passed"].as_u64().is_some_and(|n| n > 3), "{summary}");
    assert_eq!(summary["failed"], 0);
}

#[test]
fn conformance_in_mixed_precision_needs_matrix_units() {
    let args = [
        "conformance",
        "--device",
        "cpu",
        "--filter",
        "training/mlp/",
        "--precision",
    ];
    let (output, out, err) = run(&mut meganeura(&[&args[..], &["f32"]].concat()));
    assert!(
        output.status.success() && out.contains("in f32 precision"),
        "{out}{err}"
    );
    let (output, out, _) = run(&mut meganeura(&[&args[..], &["mixed"]].concat()));
    assert!(!output.status.success(), "{out}");
    assert!(
        out.contains("no dispatch used tensor cores") && out.contains(" 0 failed"),
        "{out}"
    );
}

/// Losses are equal because the CPU rounds nothing, and because a loss scale that is a power of two changes no digit.
#[test]
fn training_in_mixed_precision_gives_the_same_losses_where_nothing_is_rounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log.jsonl");
    let trained = |more: &[&str]| {
        let base = [
            "train",
            "digits",
            "--epochs",
            "2",
            "--device",
            "cpu",
            "--optimizer",
            "sgd",
            "--json",
        ];
        let (output, out, err) =
            run(meganeura(&[&base[..], more].concat()).env("MEGANEURA_CONFIG", folder.path().join("none.toml")));
        assert!(output.status.success(), "{err}");
        json_lines(&out).pop().expect("a summary")
    };
    std::fs::write(folder.path().join("none.toml"), "").expect("a file");
    let plain = trained(&[]);
    let log = log.to_str().expect("a path");
    let mixed = trained(&["--precision", "mixed", "--loss-scale", "dynamic:1024:20", "--log", log]);
    for key in ["train_loss", "test_loss", "test_accuracy"] {
        assert_eq!(plain[key], mixed[key], "{key}");
    }
    assert_eq!(
        (&plain["precision"], &mixed["precision"]),
        (&"f32".into(), &"mixed".into())
    );
    assert_eq!(mixed["skipped_updates"], 0);
    let lines = json_lines(&std::fs::read_to_string(log).expect("the log"));
    let scales: Vec<f64> = lines.iter().filter_map(|l| l["loss_scale"].as_f64()).collect();
    assert!(scales.len() > 3 && scales[0] == 1024.0, "{scales:?}");
    assert!(
        scales.windows(2).all(|w| w[0] <= w[1]) && scales.last() > Some(&1024.0),
        "{scales:?}"
    );
}

#[test]
fn files_set_the_precision_and_wrong_scales_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("meganeura.toml");
    std::fs::write(&file, "[rewrite]\nprecision = \"mixed\"\nloss_scale = \"64\"\n").expect("a file");
    let args = ["train", "digits", "--epochs", "1", "--device", "cpu"];
    let (output, out, err) = run(meganeura(&args).env("MEGANEURA_CONFIG", &file));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("precision mixed, loss scale 64"), "{out}");
    let (output, _, err) = run(&mut meganeura(&[&args[..], &["--loss-scale", "1000"]].concat()));
    assert!(!output.status.success() && err.contains("power of two"), "{err}");
}
