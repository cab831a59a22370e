//! Tests of `meganeura train --log-dir`.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::files;

fn train(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
    command
        .args(["train", "digits", "--epochs", "2", "--device", "cpu"])
        .args(args)
        .env_remove("MEGANEURA_DEVICE_ID");
    command.output().expect("the program runs")
}

#[test]
fn a_folder_gets_all_three_logs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("runs").join("first");
    let events = |path: &Path| {
        let files = files(path);
        files.iter().filter(|n| n.starts_with("events.out.tfevents.")).count()
    };
    let output = train(&["--log-dir", path.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("logs are in"));
    let first = std::fs::read(path.join("metrics.jsonl")).expect("lines");
    // Further runs have separate folders.
    for run in ["run-2", "run-3"] {
        let output = train(&["--log-dir", path.to_str().expect("a path")]);
        let out = String::from_utf8_lossy(&output.stdout);
        let said = format!("logs are in {}, because", path.join(run).display());
        assert!(output.status.success() && out.contains(&said), "{said}: {out}");
        assert_eq!(events(&path.join(run)), 1);
    }
    assert_eq!(events(&path), 1, "{:?}", files(&path));
    assert_eq!(std::fs::read(path.join("metrics.jsonl")).expect("lines"), first);
    let output = train(&["--json", "--log-dir", path.to_str().expect("a path")]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("run-4\""));
    let table = std::fs::read_to_string(path.join("metrics.csv")).expect("a table");
    let header = "event,epoch,step,loss,test_loss,test_accuracy,test_rmse,test_mae,test_r2,gradient_norm,loss_scale,\
                  skipped_updates,lr,seconds,examples_per_second";
    assert_eq!(table.lines().next(), Some(header));
    let rows = |event: &str| table.lines().filter(|l| l.starts_with(event)).count();
    assert_eq!((rows("epoch,"), rows("evaluation,")), (2, 2), "{table}");
    let lines = std::fs::read_to_string(path.join("metrics.jsonl")).expect("lines");
    let steps = lines.lines().filter(|l| l.contains(r#""event":"step""#)).count();
    assert_eq!(rows("step,"), steps);
    assert!(steps > 4, "the loss of every tenth step is read: {steps}");
}

#[test]
fn evaluations_on_validation_examples_are_called_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let mut text = String::from("a,b,sum\n");
    for i in 0..80 {
        let (a, b) = (f64::from(i).sin(), f64::from(i * 7 % 11) / 4.0);
        text += &format!("{a:.4},{b},{:.4}\n", a + 2.0 * b);
    }
    std::fs::write(path.join("sums.csv"), text).expect("writable");
    let args = "train --csv sums.csv --validation 0.2 --epochs 3 --log-dir logs --device cpu";
    let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
    let output = command
        .args(args.split(' '))
        .current_dir(path)
        .env_remove("MEGANEURA_DEVICE_ID")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = std::fs::read_to_string(path.join("logs/metrics.csv")).expect("a table");
    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = rows.next().expect("names");
    let at = |name: &str| names.iter().position(|n| *n == name).expect(name);
    assert!(!table.contains("test_"), "{table}");
    let evaluations: Vec<_> = rows.filter(|row| row[0] == "evaluation").collect();
    assert_eq!(evaluations.len(), 3, "{table}");
    for row in evaluations {
        for name in ["loss", "rmse", "mae", "r2"] {
            let value = row[at(&format!("validation_{name}"))];
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{name}: {table}");
        }
        assert_eq!((row[at("validation_accuracy")], row[at("loss")]), ("", ""), "{table}");
    }
    let lines = std::fs::read_to_string(path.join("logs/metrics.jsonl")).expect("lines");
    let begin = lines.lines().next().unwrap_or_default();
    assert!(
        begin.contains("\"test_examples\":null,\"validation_examples\":16"),
        "{begin}"
    );
    assert_eq!(lines.matches("\"on\":\"validation\"").count(), 4, "{lines}");
    let events = files(&path.join("logs"));
    let events = events.iter().find(|n| n.starts_with("events.")).expect("events");
    let bytes = std::fs::read(path.join("logs").join(events)).expect("events");
    let has = |tag: &str| bytes.windows(tag.len()).any(|part| part == tag.as_bytes());
    assert!(has("validation/rmse") && !has("test/"));
}

#[test]
fn a_resumed_run_goes_on_with_its_logs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let (logs, log, saved) = (path("logs"), path("log.jsonl"), path("saved"));
    // Logs of another run, next to which the first one is resumed.
    assert!(train(&["--log-dir", &logs]).status.success());
    for said in [", because ", "\n"] {
        let args = ["--log-dir", &logs, "--log", &log, "--checkpoint", &saved, "--resume"];
        let output = train(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(out.contains(&format!("{logs}/run-2{said}")), "{out}");
    }
    let table = std::fs::read_to_string(Path::new(&logs).join("run-2/metrics.csv")).expect("a table");
    assert_eq!(table.matches("event,epoch").count(), 1, "one header: {table}");
    assert_eq!(table.lines().filter(|l| l.starts_with("epoch,")).count(), 2, "{table}");
    let lines = std::fs::read_to_string(&log).expect("lines");
    assert_eq!(lines.matches("\"train_begin\"").count(), 2, "{lines}");
}

#[test]
fn statistics_go_to_a_table_and_to_the_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let output = train(&["--log-dir", path, "--statistics", "40"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = std::fs::read_to_string(folder.path().join("statistics.csv")).expect("a table");
    let mut rows = table.lines();
    let header = "epoch,step,kind,name,len,nan,positive_infinities,negative_infinities,zeros,min,max,mean,deviation";
    assert_eq!(rows.next(), Some(header));
    let rows: Vec<&str> = rows.collect();
    // 44 steps per epoch: after steps 40 and 80, parameters and their gradients.
    let of = |start: &str| rows.iter().filter(|r| r.starts_with(start)).count();
    let (parameters, gradients) = (of("1,40,parameter,"), of("1,40,gradient,"));
    assert!(parameters >= 4 && parameters == gradients, "{table}");
    assert_eq!(rows.len(), 4 * parameters, "{table}");
    let lines = std::fs::read_to_string(folder.path().join("metrics.jsonl")).expect("lines");
    assert_eq!(lines.matches(r#""event":"statistics""#).count(), rows.len());
    let output = train(&["--statistics", "40"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("--log"), "{err}");
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let output = train(&["--log-dir", file.to_str().expect("a path")]);
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("cannot write the log"), "{err}");
}
