//! Tuning on the command line. What it measures is tested in the backend.

use super::{json_lines, meganeura, run};

/// A configuration whose stored kernels are in a folder of their own.
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
    if !output.status.success() && std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1") {
        // There is no device.
        assert!(err.contains("blade"), "{err}");
        return;
    }
    assert!(output.status.success(), "{err}");
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
    assert!(output.status.success() && out.contains("nothing was measured"), "{out}");

    let (output, out, err) = tune(&["70x60x50", "--seconds", "20", "--dry-run"]);
    assert!(output.status.success() && out.contains("of 1 classes"), "{out}{err}");
    assert!(!file.exists(), "nothing is kept");

    std::fs::write(&config, "[backend.blade]\ntune = 'off'\n").expect("it is written");
    let (output, _, err) = tune(&["70x60x50"]);
    assert!(
        !output.status.success() && err.contains("would not be stored or used"),
        "{err}"
    );
}
