//! Tests of the command line.

mod bench;
mod bench_suites;
mod budget;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod config;
mod data;
mod debug;
mod doctor;
mod embed;
mod explain;
mod generate;
mod help;
#[cfg(target_os = "linux")]
mod injection;
#[cfg(unix)]
mod interrupt;
mod kept;
mod kernels;
mod kinds_of_files;
#[cfg(target_os = "linux")]
mod limits;
mod log_dir;
mod models;
mod onnx;
mod options;
#[cfg(unix)]
mod pictures;
#[path = "../../../tests/common/plain_language.rs"]
mod plain_language_markers;
mod plugins;
mod precision;
mod predict;
#[cfg(feature = "hub")]
mod pull;
mod quantize;
mod remainder;
mod report;
mod saved;
#[cfg(all(unix, feature = "serve"))]
mod serve;
mod text;
mod trace;
#[path = "../../../tests/common/tracks.rs"]
mod tracks;
#[cfg(feature = "blade")]
mod tune;
#[cfg(feature = "blade")]
mod vulkan;

use std::process::{Command, Output};

fn meganeura(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
    command
        .args(args)
        .env_remove("COLUMNS")
        .env_remove("MEGANEURA_DEVICE_ID")
        .env_remove("MEGANEURA_CONFIG")
        .env_remove("MEGANEURA_PLUGINS");
    command
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the program runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, out, err)
}

/// Returns true if a command with `--device blade` succeeded. Without a Vulkan device, prints what was not tested and returns false,
/// or fails if one is required.
#[cfg(feature = "blade")]
#[track_caller]
fn ran_on_vulkan(output: &Output, subject: &str) -> bool {
    let err = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1") {
        assert!(err.contains("cannot select the device 'blade'"), "{err}");
        eprintln!("NOT TESTED: {subject} need a Vulkan device");
        return false;
    }
    assert!(output.status.success(), "{err}");
    true
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
        (vec!["train", "digits", "--lr", "0"], "a rate of 0 trains nothing"),
        (vec!["train", "digits", "--optimizer", "magic"], "adamw"),
        (vec!["train", "cats"], "digits"),
        (vec!["train"], "--csv"),
        (vec!["train", "digits", "--csv", "x.csv"], "cannot be used with"),
        (vec!["train", "digits", "--label", "kind"], "cannot be used with"),
        (vec!["train", "digits", "--test-fraction", "0.5"], "cannot be used with"),
        (vec!["train", "--csv", "x.csv", "--x", "images"], "cannot be used with"),
        (
            vec!["train", "--npz", "x.npz", "--label", "kind"],
            "cannot be used with",
        ),
        (vec!["train", "--npz", "x.npz", "--test-x", "images"], "--test-y"),
        (vec!["train", "--csv", "no-such.csv"], "no-such.csv"),
        (
            vec!["train", "--csv", "x.csv", "--delimiter", "ab"],
            "one ASCII character",
        ),
        (vec!["train", "digits", "--patience", "0"], "early_stopping"),
        (vec!["train", "digits", "--min-delta", "1"], "--patience"),
        (vec!["train", "digits", "--schedule", "magic"], "onecycle"),
        (vec!["train", "digits", "--warmup", "200%"], "0 to 1"),
        (vec!["train", "digits", "--augment", "spin"], "cutout"),
        (vec!["train", "digits", "--augment", "shift=8"], "fewer pixels"),
        (vec!["train", "digits", "--prefetch", "9999999"], "prefetch"),
        (
            vec!["train", "digits", "--log", "no/such/folder/log"],
            "no/such/folder/log",
        ),
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
    for part in [
        "backends:",
        "meganeura-cpu",
        "core.matmul",
        "rule sets:",
        "meganeura-rules",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (_, out, _) = run(&mut meganeura(&["plugins", "--json"]));
    let listed = json_lines(&out);
    let named = |kind: &str, name: &str| listed.iter().find(|p| p["kind"] == kind && p["name"] == name).cloned();
    assert!(named("op", "core.conv2d").is_some(), "{out}");
    for set in [
        "algebra",
        "attention",
        "matmul",
        "norm",
        "packing",
        "parts",
        "pooling",
        "swiglu",
    ] {
        let set = named("rule_set", set).unwrap_or_else(|| panic!("{set} in {out}"));
        assert!(set["rules"].as_array().is_some_and(|r| !r.is_empty()), "{set}");
        let origin = set["origin"].as_str().unwrap_or_default();
        assert!(origin.contains("meganeura-rules"), "{set}");
    }
}

#[test]
fn rules_are_verified_on_request() {
    let (output, out, err) = run(&mut meganeura(&["plugins", "verify", "swiglu", "--cases", "2"]));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("swiglu/Silu*u→SwiGLU: sound on 2 graphs"), "{out}");
    assert!(out.trim_end().ends_with("0 failures"), "{out}");
    let (output, out, _) = run(&mut meganeura(&[
        "plugins", "verify", "swiglu", "--cases", "1", "--json",
    ]));
    assert!(output.status.success());
    let lines = json_lines(&out);
    assert!(
        lines.iter().any(|l| l["set"] == "swiglu" && l["verdict"] == "sound"),
        "{out}"
    );
    assert_eq!(lines.last().expect("a summary")["failures"], 0);
    let (output, _, err) = run(&mut meganeura(&["plugins", "verify", "swigloo"]));
    assert!(!output.status.success());
    assert!(
        err.contains("there is no rule set 'swigloo'") && err.contains("swiglu"),
        "{err}"
    );
}

#[test]
fn help_explains_every_command() {
    let (output, out, _) = run(&mut meganeura(&["--help"]));
    assert!(output.status.success());
    for part in [
        "train",
        "devices",
        "doctor",
        "plugins",
        "explain",
        "MEGANEURA_TRACE",
        "MEGANEURA_DEBUG",
        "conformance",
        "MEGANEURA_DEVICE_ID",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
}

#[test]
fn the_operator_reference_is_current() {
    let (output, out, err) = run(&mut meganeura(&["ops", "--markdown"]));
    assert!(output.status.success(), "{err}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operators.md");
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
        "`g.scatter_add(updates, indices, rows)`",
        "Shapes",
        "Element types",
        "Gradient",
        "error of the step",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (output, _, err) = run(&mut meganeura(&["ops", "core.matmull"]));
    assert!(!output.status.success());
    assert!(
        err.contains("the closest are core.matmul") && err.contains("help"),
        "{err}"
    );
    let (_, _, err) = run(&mut meganeura(&["ops", "holography"]));
    assert!(
        err.contains("`meganeura ops` lists them") && !err.contains("closest"),
        "{err}"
    );
    let (_, out, _) = run(&mut meganeura(&["ops"]));
    let mse = out
        .lines()
        .find(|line| line.starts_with("core.mse "))
        .unwrap_or_default();
    assert!(mse.contains("g.mse_loss(prediction, target)"), "{mse}");
}

// ---- training on files ---------------------------------------------------------------------------------

/// Returns a table of three kinds of flowers, distinguished by two of three columns; the first column numbers the lines.
fn flowers(lines: usize) -> String {
    let mut text = "id,length,width,kind\n".to_owned();
    for i in 0..lines {
        let (kind, length, width) = [("rose", 500, 3), ("iris", 500, 9), ("lily", 900, 3)][i % 3];
        // Some scatter, the same in every run.
        let (dx, dy) = ((i * 37 % 20) as f32 - 10.0, (i * 53 % 20) as f32 / 20.0);
        text.push_str(&format!("{i},{},{},{kind}\n", length as f32 + dx, width as f32 + dy));
    }
    text
}

/// Trains in this folder, and returns the summary.
fn summary(folder: &std::path::Path, args: &[&str]) -> serde_json::Value {
    let args = [&["train", "--device", "cpu", "--json"], args].concat();
    let (output, out, err) = run(meganeura(&args).current_dir(folder));
    assert!(output.status.success(), "{args:?}: {err}");
    json_lines(&out).pop().expect("a summary")
}

#[test]
fn tables_are_trained_on_and_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::write(path.join("f.csv"), flowers(150)).expect("written");
    let args = [
        "--csv",
        "f.csv",
        "--label",
        "kind",
        "--ignore",
        "id",
        "--patience",
        "10",
        "--log",
        "run.jsonl",
    ];
    let first = summary(path, &args);
    assert!(first["test_accuracy"].as_f64() > Some(0.95), "{first}");
    assert_eq!(
        (&first["data"], &first["classes"]),
        (&"f.csv".into(), &serde_json::json!(["iris", "lily", "rose"]))
    );
    let log = json_lines(&std::fs::read_to_string(path.join("run.jsonl")).expect("a log"));
    assert_eq!(
        (&log[0]["event"], &log[0]["validation_examples"]),
        // A tenth is for early stopping; only the summary uses the test examples.
        (&"train_begin".into(), &15.into())
    );
    let end = &log[log.len() - 1];
    assert_eq!(
        (&end["event"], &end["accuracy"]),
        (&"train_end".into(), &first["validation_accuracy"])
    );
    assert_eq!(end["best_epoch"], first["best_epoch"]);

    // Prefetching does not change results, but other test examples do.
    let prefetched = summary(path, &[&args[..], &["--prefetch", "2"]].concat());
    assert_eq!(first["test_loss"], prefetched["test_loss"]);
    let split = summary(
        path,
        &[&args[..], &["--split-seed", "1", "--test-fraction", "0.3"]].concat(),
    );
    assert_ne!(first["test_loss"], split["test_loss"]);

    std::fs::write(path.join("test.csv"), flowers(7)).expect("written");
    let tested = summary(
        path,
        &[
            "--csv",
            "f.csv",
            "--ignore",
            "id",
            "--test-csv",
            "test.csv",
            "--epochs",
            "30",
        ],
    );
    assert!(tested["test_accuracy"].as_f64() > Some(0.95), "{tested}");
    std::fs::write(path.join("test.csv"), flowers(7).replace("length", "height")).expect("written");
    let (output, _, err) = run(meganeura(&["train", "--csv", "f.csv", "--test-csv", "test.csv"]).current_dir(path));
    assert!(!output.status.success() && err.contains("height"), "{err}");
    for (text, part) in [
        (flowers(9).replace(",rose", "big,rose"), "big' is not a number"),
        (flowers(0), "no examples"),
        (flowers(1), "at least two classes"),
        (String::new(), "no examples"),
    ] {
        std::fs::write(path.join("f.csv"), text).expect("written");
        let (output, _, err) = run(meganeura(&["train", "--csv", "f.csv"]).current_dir(path));
        assert!(!output.status.success() && err.contains(part), "{part}: {err}");
    }
}

/// Writes a `.npz` file of byte images `[n, 4, 4]`, bright at the top or at the bottom, and their labels.
fn write_images(path: &std::path::Path, x: &str, y: &str, n: usize) {
    use std::io::Write;
    let npy = |descr: &str, shape: &str, elements: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    };
    let pixel = |i: usize| {
        if (i / 8) % 2 == i / 16 % 2 {
            200 + (i * 7 % 50) as u8
        } else {
            (i * 11 % 60) as u8
        }
    };
    let pixels: Vec<u8> = (0..16 * n).map(pixel).collect();
    let labels: Vec<u8> = (0..n)
        .flat_map(|i| (if i % 2 == 0 { -1_i64 } else { 5 }).to_le_bytes())
        .collect();
    let mut writer = zip::ZipWriter::new(std::fs::File::create(path).expect("created"));
    for (name, bytes) in [
        (x, npy("|u1", &format!("({n}, 4, 4)"), &pixels)),
        (y, npy("<i8", &format!("({n},)"), &labels)),
    ] {
        let options = zip::write::SimpleFileOptions::default();
        writer.start_file(format!("{name}.npy"), options).expect("started");
        writer.write_all(&bytes).expect("written");
    }
    writer.finish().expect("finished");
}

#[test]
fn numpy_arrays_are_trained_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write_images(&path.join("a.npz"), "images", "labels", 80);
    let named = ["--npz", "a.npz", "--x", "images", "--y", "labels", "--epochs", "15"];
    for model in ["mlp", "cnn"] {
        let args = [&named[..], &["--model", model, "--augment", "noise=0.1,shift=0"]].concat();
        let result = summary(path, &args);
        assert!(result["test_accuracy"].as_f64() > Some(0.9), "{result}");
        assert_eq!(result["classes"], serde_json::json!(["-1", "5"]));
    }
    let both = [
        "--test-x",
        "images",
        "--test-y",
        "labels",
        "--schedule",
        "onecycle",
        "--warmup",
        "5%",
    ];
    assert!(summary(path, &[&named[..], &both].concat())["test_loss"].is_f64());
    let (output, _, err) = run(meganeura(&["train", "--npz", "a.npz"]).current_dir(path));
    assert!(!output.status.success() && err.contains("'images', 'labels'"), "{err}");
}

// ---- explaining ----------------------------------------------------------------------------------------
