//! The command line as a user meets it.

use std::process::{Command, Output};

fn meganeura(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
    command
        .args(args)
        .env_remove("MEGANEURA_DEVICE_ID")
        .env_remove("MEGANEURA_CONFIG");
    command
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the program runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, out, err)
}

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|l| serde_json::from_str(l).expect(l)).collect()
}

#[test]
fn training_prints_json_lines_and_is_reproducible() {
    let args = [
        "train", "digits", "--epochs", "2", "--device", "cpu", "--json", "--seed", "5",
    ];
    let (output, first, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{err}");
    let lines = json_lines(&first);
    assert_eq!(lines.len(), 3, "two epochs and a summary");
    let last = lines.last().expect("a summary");
    for key in ["test_accuracy", "train_loss", "steps_per_second", "compile_seconds"] {
        assert!(last[key].is_f64(), "{key} in {last}");
    }
    assert_eq!(last["device"], "cpu");
    assert_eq!(last["epochs"], 2);
    assert!(last["test_accuracy"].as_f64().is_some_and(|a| a > 0.8), "{last}");

    let (_, second, _) = run(&mut meganeura(&args));
    let learned = |text: &str| {
        json_lines(text)
            .into_iter()
            .map(|l| {
                (
                    l["train_loss"].to_string(),
                    l["test_accuracy"].to_string(),
                    l["test_loss"].to_string(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(learned(&first), learned(&second), "equal seeds give equal results");
}

#[test]
fn nonsense_in_the_environment_gives_the_listing() {
    let (output, out, err) = run(meganeura(&["train", "digits"]).env("MEGANEURA_DEVICE_ID", "nonsense"));
    assert!(!output.status.success());
    assert!(out.is_empty(), "{out}");
    for part in ["nonsense", "MEGANEURA_DEVICE_ID", "devices:", "  cpu ", "blade"] {
        assert!(err.contains(part), "{part} in {err}");
    }
}

#[test]
fn the_api_beats_the_environment_and_the_environment_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("meganeura.toml"), "device = 'from-file'\n").expect("written");
    let mut command = meganeura(&["devices"]);
    let (output, _, err) = run(command.current_dir(folder.path()));
    assert!(
        !output.status.success() && err.contains("from-file") && err.contains("meganeura.toml"),
        "{err}"
    );

    let mut command = meganeura(&["devices"]);
    let (output, out, err) = run(command.current_dir(folder.path()).env("MEGANEURA_DEVICE_ID", "cpu"));
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("chosen by the environment variable MEGANEURA_DEVICE_ID"),
        "{out}"
    );

    let args = ["train", "digits", "--epochs", "0", "--device", "cpu"];
    let (output, _, err) = run(meganeura(&args).env("MEGANEURA_DEVICE_ID", "nonsense"));
    assert!(output.status.success(), "{err}");
}

#[test]
fn a_broken_configuration_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "devize = 'cpu'\n").expect("written");
    let (output, _, err) = run(meganeura(&["devices"]).env("MEGANEURA_CONFIG", &file));
    assert!(!output.status.success());
    assert!(err.contains("mine.toml") && err.contains("devize"), "{err}");
    let (output, _, err) = run(meganeura(&["devices"]).env("MEGANEURA_CONFIG", folder.path().join("absent.toml")));
    assert!(!output.status.success() && err.contains("absent.toml"), "{err}");
}

#[test]
fn thread_counts_are_checked() {
    let (output, _, err) = run(meganeura(&["train", "digits"]).env("MEGANEURA_THREADS", "many"));
    assert!(!output.status.success() && err.contains("MEGANEURA_THREADS"), "{err}");
}

#[test]
fn missing_mnist_says_what_to_download_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_string_lossy().into_owned();
    let (output, _, err) = run(&mut meganeura(&["train", "mnist", "--data", &path]));
    assert!(!output.status.success());
    assert!(err.contains("train-images-idx3-ubyte") && err.contains(&path), "{err}");
}

#[test]
fn impossible_settings_are_errors() {
    for (args, expected) in [
        (vec!["train", "digits", "--batch", "0"], "batch"),
        (vec!["train", "digits", "--batch", "100000"], "1437"),
        (vec!["train", "digits", "--lr", "NaN"], "learning_rate"),
        (vec!["train", "digits", "--lr=-1"], "learning_rate"),
        (vec!["train", "digits", "--optimizer", "magic"], "adamw"),
        (vec!["train", "cats"], "digits"),
        (vec!["train", "digits", "--device", "cpu:7"], "index 7"),
        (vec!["conformance", "--filter", "no-such-case"], "no case"),
    ] {
        let (output, _, err) = run(&mut meganeura(&args));
        assert!(!output.status.success(), "{args:?}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn devices_and_plugins_are_listed() {
    let (output, out, _) = run(&mut meganeura(&["devices", "--json"]));
    assert!(output.status.success());
    assert!(json_lines(&out).iter().any(|d| d["selector"] == "cpu"), "{out}");
    let (output, out, _) = run(&mut meganeura(&["plugins"]));
    assert!(output.status.success());
    for part in ["backends:", "meganeura-cpu", "core.matmul", "rule sets:"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (_, out, _) = run(&mut meganeura(&["plugins", "--json"]));
    assert!(
        json_lines(&out)
            .iter()
            .any(|p| p["kind"] == "op" && p["name"] == "core.conv2d"),
        "{out}"
    );
}

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
fn help_explains_every_command() {
    let (output, out, _) = run(&mut meganeura(&["--help"]));
    assert!(output.status.success());
    for part in ["train", "devices", "plugins", "conformance", "MEGANEURA_DEVICE_ID"] {
        assert!(out.contains(part), "{part} in {out}");
    }
}

#[test]
fn the_operator_reference_is_current() {
    let (output, out, err) = run(&mut meganeura(&["ops", "--markdown"]));
    assert!(output.status.success(), "{err}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operators.md");
    let committed = std::fs::read_to_string(path).expect("docs/operators.md");
    assert!(
        committed == out,
        "docs/operators.md is not current; run `cargo run -- ops --markdown > docs/operators.md`"
    );
}

#[test]
fn operators_are_looked_up_by_a_part_of_their_names() {
    let (output, out, _) = run(&mut meganeura(&["ops", "scatter_add"]));
    assert!(output.status.success());
    for part in [
        "## core.scatter_add",
        "Shapes",
        "Element types",
        "Gradient",
        "error of the step",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (output, _, err) = run(&mut meganeura(&["ops", "core.matmull"]));
    assert!(!output.status.success());
    assert!(err.contains("core.matmul") && err.contains("help"), "{err}");
}
