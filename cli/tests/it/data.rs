//! Tables as people have them, with `data` and `train --csv`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::{meganeura, run};

/// Returns a table with semicolons, decimal commas, a customer number, a date and a missing word.
fn customers(rows: usize) -> String {
    let mut text = "customer id;since;age;income;plan;left\n".to_owned();
    for i in 0..rows {
        let income = 1500 + i * 37 % 2000;
        let plan = ["basic", "plus", "pro"][i % 3];
        let age = if i % 20 == 7 {
            "NULL".to_owned()
        } else {
            (20 + i * 7 % 50).to_string()
        };
        let left = if income > 2500 { "yes" } else { "no" };
        text += &format!(
            "C-{i:04};{:02}.{:02}.2023;{age};{income},50;{plan};{left}\n",
            i % 28 + 1,
            i % 12 + 1
        );
    }
    text
}

/// Returns a folder with this table as `c.csv`.
fn folder_of_customers(rows: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("c.csv"), customers(rows)).expect("written");
    folder
}

#[test]
fn the_columns_of_a_table_are_reported() {
    let folder = folder_of_customers(120);
    let (output, out, err) = run(meganeura(&["data", "c.csv"])
        .env("COLUMNS", "200")
        .current_dir(folder.path()));
    assert!(output.status.success(), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[0],
        "c.csv: 120 rows, 6 columns between semicolons, with a header, decimal commas"
    );
    for (line, parts) in [
        (2, ["customer id", "identifier", "left out: almost every row"]),
        (3, ["since", "date", "features: days, month, weekday"]),
        (4, ["age", "integer", "feature"]),
        (5, ["income", "number", "feature"]),
        (6, ["plan", "category", "3 features"]),
        (7, ["left", "category", "target"]),
    ] {
        assert!(parts.iter().all(|part| lines[line].contains(part)), "{}", lines[line]);
    }
    // Narrow terminals.
    let (_, out, _) = run(meganeura(&["data", "c.csv"])
        .env("COLUMNS", "60")
        .current_dir(folder.path()));
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let (_, out, _) = run(meganeura(&["data", "c.csv", "--json", "--target", "plan"]).current_dir(folder.path()));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["delimiter"], ";");
    assert_eq!(report["columns"][4]["usage"], "target");
    assert_eq!(report["columns"][2]["missing"], 6);
    let (output, _, err) = run(meganeura(&["data", "c.csv", "--target", "plan2"]).current_dir(folder.path()));
    assert!(!output.status.success() && err.contains("'plan2'"), "{err}");
    let (output, _, err) = run(meganeura(&["data", "c.csv", "--type", "age=word"]).current_dir(folder.path()));
    assert!(
        !output.status.success() && err.contains("expected number, category, date"),
        "{err}"
    );
}

#[test]
fn a_messy_table_is_learned_and_used() {
    let folder = folder_of_customers(200);
    let path = folder.path();
    let (output, _, err) = run(meganeura(&["train", "--csv", "c.csv", "--device", "cpu"]).current_dir(path));
    assert!(!output.status.success() && err.contains("--missing mean"), "{err}");
    let args = [
        "train",
        "--csv",
        "c.csv",
        "--missing",
        "mean",
        "--hidden",
        "16",
        "--device",
        "cpu",
    ];
    let (output, out, err) = run(meganeura(&args).args(["--cv", "3", "--out", "m"]).current_dir(path));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("customer id") && out.contains("left out"), "{out}");
    let folds = out
        .lines()
        .filter(|line| line.starts_with("cross-validation with 3 folds: "))
        .count();
    assert!(folds >= 2, "{out}");
    let quality = out
        .lines()
        .find(|line| line.starts_with("test accuracy"))
        .expect("a result");
    let accuracy: f64 = quality.split(' ').nth(2).expect("a number").parse().expect("a number");
    assert!(accuracy >= 85.0, "{quality}");
    // The model reads new tables in the same format, with other columns left out.
    fs::write(
        path.join("new.csv"),
        "since;age;income;plan\n05.02.2024;-;3.400,25;pro\n",
    )
    .expect("written");
    let (output, out, err) =
        run(meganeura(&["predict", "--model", "m", "--csv", "new.csv", "--device", "cpu"]).current_dir(path));
    assert!(output.status.success() && out.contains("yes"), "{out}{err}");
    // A category that is new, and the option for it.
    fs::write(path.join("new.csv"), "since;age;income;plan\n05.02.2024;30;3400;gold\n").expect("written");
    let predict = ["predict", "--model", "m", "--csv", "new.csv", "--device", "cpu"];
    let (output, _, err) = run(meganeura(&predict).current_dir(path));
    assert!(!output.status.success() && err.contains("--unknown-words"), "{err}");
    let (output, _, err) = run(meganeura(&predict).arg("--unknown-words").current_dir(path));
    assert!(output.status.success(), "{err}");
    // JSON, and no cross-validation.
    let (_, out, _) = run(meganeura(&args).args(["--cv", "3", "--json"]).current_dir(path));
    let summary: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    assert_eq!(summary["cross_validation"]["folds"], 3);
    let (_, out, _) = run(meganeura(&args).args(["--epochs", "2", "--json"]).current_dir(path));
    let summary: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    assert!(summary.get("cross_validation").is_none());
    for wrong in [&["--cv", "1"][..], &["--cv", "5", "--epochs", "3"]] {
        let (output, _, _) = run(meganeura(&args).args(wrong).current_dir(path));
        assert!(!output.status.success(), "{wrong:?}");
    }
}

#[test]
fn large_tables_stop_early() {
    let folder = folder_of_customers(3000);
    let args = [
        "train",
        "--csv",
        "c.csv",
        "--missing",
        "mean",
        "--hidden",
        "8",
        "--device",
        "cpu",
    ];
    let (output, out, err) = run(meganeura(&args).current_dir(folder.path()));
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("to validate") && out.contains("best weights are those of epoch"),
        "{out}"
    );
}

#[test]
fn several_seeds_give_mean_and_deviation() {
    let folder = folder_of_customers(120);
    let args = [
        "train",
        "--csv",
        "c.csv",
        "--missing",
        "mean",
        "--hidden",
        "8",
        "--epochs",
        "3",
        "--seed",
        "4",
        "--seeds",
        "3",
        "--device",
        "cpu",
    ];
    let (output, out, err) = run(meganeura(&args).current_dir(folder.path()));
    assert!(output.status.success(), "{err}");
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("seed ")).collect();
    assert_eq!(lines.len(), 3, "{out}");
    for (line, seed) in lines.iter().zip(4..) {
        assert!(
            line.starts_with(&format!("seed {seed}: 3 epochs, test accuracy ")),
            "{line}"
        );
    }
    let last = out.lines().last().expect("a line");
    assert!(
        last.starts_with("test accuracy ") && last.ends_with(" % over 3 seeds"),
        "{last}"
    );
    let (_, out, _) = run(meganeura(&args).arg("--json").current_dir(folder.path()));
    let objects: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(objects.len(), 4, "a summary of each run, and one of all");
    let scores: Vec<f64> = objects[..3]
        .iter()
        .filter_map(|o| o["test_accuracy"].as_f64())
        .collect();
    let mean = scores.iter().sum::<f64>() / 3.0;
    let all = &objects[3];
    assert!(
        (all["test_accuracy"].as_f64().expect("a number") - mean).abs() < 1e-9,
        "{all}"
    );
    assert!(
        all["test_accuracy_deviation"].as_f64().is_some_and(|d| d >= 0.0),
        "{all}"
    );
    assert_eq!(
        (objects[0]["seed"].as_u64(), objects[2]["seed"].as_u64()),
        (Some(4), Some(6))
    );
    // No model is saved.
    for wrong in [&["--out", "m"][..], &["--checkpoint", "k"], &["--log", "l"]] {
        let (output, _, err) = run(meganeura(&args).args(wrong).current_dir(folder.path()));
        assert!(!output.status.success() && err.contains("--seeds"), "{err}");
    }
}

#[test]
fn rare_classes_suggest_balance() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = "x,z,fraud\n".to_owned();
    for i in 0..200 {
        text += &format!(
            "{}.5,{},{}\n",
            i * 7 % 50,
            i % 9,
            if i % 20 == 3 { "yes" } else { "no" }
        );
    }
    fs::write(folder.path().join("t.csv"), text).expect("written");
    let args = [
        "train", "--csv", "t.csv", "--hidden", "4", "--epochs", "1", "--device", "cpu",
    ];
    let (_, out, err) = run(meganeura(&args).current_dir(folder.path()));
    let note = "'yes' has 8 of 160 training examples; --balance makes all classes count the same";
    assert!(out.contains(note), "{out}{err}");
    let (output, out, err) = run(meganeura(&args).arg("--balance").current_dir(folder.path()));
    assert!(
        output.status.success() && !out.contains("makes all classes"),
        "{out}{err}"
    );
}

#[test]
fn encodings_are_shown_and_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let text: Vec<u8> = (0..30)
        .flat_map(|i| format!("{};M\u{1};{}\n", i * 7 % 11, ["ja", "nein"][i % 2]).into_bytes())
        .map(|byte| if byte == 1 { 0xfc } else { byte })
        .collect();
    fs::write(folder.path().join("t.csv"), [b"n;ort;y\n", &text[..]].concat()).expect("written");
    let (output, out, err) = run(meganeura(&["data", "t.csv"])
        .env("COLUMNS", "200")
        .current_dir(folder.path()));
    assert!(output.status.success(), "{err}");
    assert!(
        out.lines().next().is_some_and(|line| line.ends_with(", windows-1252")),
        "{out}"
    );
    assert!(out.contains("M\u{fc}"), "{out}");
    let (_, out, _) =
        run(meganeura(&["data", "t.csv", "--encoding", "iso-8859-5", "--json"]).current_dir(folder.path()));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["encoding"], "ISO-8859-5");
    let (output, _, err) = run(meganeura(&["data", "t.csv", "--encoding", "klingon"]).current_dir(folder.path()));
    assert!(
        !output.status.success() && err.contains("such as utf-8, windows-1252"),
        "{err}"
    );
}

#[test]
fn options_of_csv_are_refused_for_json_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: String = (0..40)
        .map(|i| format!("{{\"size\": {}, \"kind\": \"{}\"}}\n", i * 7 % 11, ["a", "b"][i % 2]))
        .collect();
    fs::write(folder.path().join("rows.jsonl"), rows).expect("written");
    for (option, value) in [("--delimiter", ";"), ("--decimal", "comma"), ("--header", "yes")] {
        for command in [
            &["data", "rows.jsonl"][..],
            &["train", "--csv", "rows.jsonl", "--epochs", "1"],
        ] {
            let mut meganeura = meganeura(command);
            let (output, _, err) = run(meganeura.current_dir(folder.path()).args([option, value]));
            assert!(!output.status.success(), "{command:?} {option}");
            let said = format!("{option} does not work with JSON lines");
            assert!(err.contains(&said), "{command:?} {option}: {err}");
        }
    }
    let (output, _, err) = run(meganeura(&["data", "rows.jsonl"]).current_dir(folder.path()));
    assert!(output.status.success(), "{err}");
}
