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
