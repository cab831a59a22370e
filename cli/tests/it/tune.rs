//! Tests of tuning on the command line. The backend tests the measurements.

use super::{json_lines, meganeura, run};

/// Creates a configuration with a separate folder for tuning results.
fn configured(folder: &std::path::Path) -> std::path::PathBuf {
    let config = folder.join("meganeura.toml");
    std::fs::write(&config, "[backend.blade]\ntune_folder = 'tuned'\n").expect("it is written");
    config
}

#[test]
fn help_and_wrong_uses() {
    let (output, out, _) = run(&mut meganeura(&["tune", "--help"]));
    assert!(output.status.success());
    for part in [
        "--suite",
        "--seconds",
        "--forget",
        "--dry-run",
        "--json",
        "4096x4096x4096",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    for (args, expected) in [
        (&["tune"][..], "there is nothing to tune: name models or matmuls"),
        (&["tune", "mlp", "--device", "cpu"], "nothing to tune on cpu"),
        (&["tune", "mlp", "--seconds", "0"], "0 is not in 1.."),
        (&["tune", "mlp", "--suite", "matmul"], "cannot be used with"),
        (&["tune", "--suite", "matmuls"], "there is no suite 'matmuls'"),
        (&["tune", "--forget", "mlp"], "cannot be used with"),
    ] {
        let (output, _, err) = run(&mut meganeura(args));
        assert!(!output.status.success(), "{args:?}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn a_matmul_is_tuned_stored_told_and_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = configured(folder.path());
    let tune = |args: &[&str]| {
        let all = [&["tune", "--device", "blade"], args].concat();
        run(meganeura(&all).env("MEGANEURA_CONFIG", &config))
    };
    let (output, out, err) = tune(&["70x60x50", "--seconds", "20", "--json"]);
    if !super::ran_on_vulkan(&output, "matmuls to tune") {
        return;
    }
    let report = &json_lines(&out)[0];
    let [class] = &report["classes"].as_array().expect("a list")[..] else {
        panic!("{report}")
    };
    assert!(class["class"].as_str().is_some_and(|c| c.contains("60x50")), "{class}");
    assert!(class["default_seconds"].as_f64().is_some_and(|s| s > 0.0), "{class}");
    assert_eq!(class["refused"], serde_json::json!([]), "{class}");
    assert!(err.contains("[1/1] matmul"), "{err}");
    let file = std::path::PathBuf::from(report["file"].as_str().expect("a path"));
    assert!(file.starts_with(folder.path()) && file.exists(), "{}", file.display());

    let doctor = |expected: &str| {
        let (_, out, err) = run(meganeura(&["doctor", "--list"]).env("MEGANEURA_CONFIG", &config));
        let told = out.lines().find(|l| l.contains("tuned kernels")).expect("it is told");
        assert!(told.contains(expected), "{told}{err}");
    };
    doctor(" of 1 classes have another schedule than the default one");
    let (output, out, err) = tune(&["--forget"]);
    assert!(output.status.success() && out.contains("is deleted"), "{out}{err}");
    assert!(!file.exists());
    doctor("none; `meganeura tune` measures");
    let (output, out, _) = tune(&["--forget"]);
    assert!(
        output.status.success() && out.contains("no results for this device"),
        "{out}"
    );

    let (output, out, err) = tune(&["70x60x50", "--seconds", "20", "--dry-run"]);
    assert!(output.status.success() && out.contains("of 1 classes"), "{out}{err}");
    assert!(!file.exists(), "nothing is kept");

    std::fs::write(&config, "[backend.blade]\ntune = 'off'\n").expect("it is written");
    let (output, _, err) = tune(&["70x60x50"]);
    assert!(
        !output.status.success() && err.contains("would be neither stored nor used"),
        "{err}"
    );
}

/// With the tuned schedules, results still equal the results of ONNX Runtime.
#[test]
fn an_onnx_file_is_tuned_and_computes_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = configured(folder.path());
    let data = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../formats/onnx/tests/data/convnet");
    let (data, model) = (
        data.display().to_string(),
        data.join("model.onnx").display().to_string(),
    );
    let on_blade = |args: &[&str]| {
        let all = [args, &["--device", "blade"]].concat();
        run(meganeura(&all).env("MEGANEURA_CONFIG", &config))
    };
    let (output, out, _) = on_blade(&["tune", &model, "--dim", "batch=2", "--seconds", "5", "--json"]);
    if !super::ran_on_vulkan(&output, "ONNX files to tune") {
        return;
    }
    let report = &json_lines(&out)[0];
    let classes = report["classes"].as_array().expect("a list");
    let has_matmul = |class: &serde_json::Value| class["class"].as_str().is_some_and(|c| c.starts_with("matmul"));
    assert!(classes.iter().any(has_matmul), "{report}");
    let mut measured = 0;
    for class in classes {
        assert_eq!(class["refused"], serde_json::json!([]), "{class}");
        // On a slow machine, the time ends before the last classes.
        if class["skipped"].is_null() {
            assert!(class["default_seconds"].as_f64().is_some_and(|s| s > 0.0), "{class}");
            measured += 1;
        }
    }
    assert!(measured > 0, "{report}");
    let (output, out, err) = on_blade(&["check", &model, "--against", &data]);
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("output 0 logits: agrees"), "{out}{err}");
    let (output, _, err) = on_blade(&["tune", &model, "--dim", "rows=2"]);
    assert!(!output.status.success() && err.contains("rows"), "{err}");
}
