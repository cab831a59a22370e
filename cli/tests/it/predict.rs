//! Tests of saved models: `train --out`, then `predict` and `evaluate`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use meganeura::nn::model::Model;

use super::{meganeura, run};

/// Returns a table of two kinds of flowers that a number distinguishes, with a column without information.
pub(super) fn flowers(rows: usize) -> String {
    let mut text = String::from("id,length,width,species\n");
    for i in 0..rows {
        let wave = (i as f32 * 0.61).sin() / 4.0;
        let (length, kind) = if i % 2 == 0 {
            (1.0 + wave, "setosa")
        } else {
            (3.0 + wave, "virginica")
        };
        writeln!(text, "{i},{length:.3},{:.3},{kind}", 2.0 + wave).expect("a string");
    }
    text
}

/// Runs the command in a folder, and returns true for success and the text of both streams.
pub(super) fn run_in(folder: &Path, args: &[&str]) -> (bool, String, String) {
    let (output, out, err) = run(meganeura(args).current_dir(folder));
    (output.status.success(), out, err)
}

/// Returns a folder with the table `flowers.csv` and the model `m` that was trained on it.
fn trained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("flowers.csv"), flowers(80)).expect("writable");
    let train =
        "train --csv flowers.csv --label species --ignore id --hidden 16 --lr 0.02 --epochs 100 --out m --device cpu";
    let (ok, out, err) = run_in(folder.path(), &train.split(' ').collect::<Vec<_>>());
    assert!(ok, "{err}");
    assert!(out.contains("saved to m"), "{out}");
    folder
}

#[test]
fn a_table_of_flowers_is_learned_and_new_flowers_are_named() {
    let folder = trained();
    let path = folder.path();
    // Another column order, without label and id.
    fs::write(path.join("new.csv"), "width,length\n2.0,1.1\n2.1,2.9\n").expect("writable");
    let (ok, out, err) = run_in(
        path,
        &["predict", "--model", "m", "--csv", "new.csv", "--device", "cpu"],
    );
    assert!(ok, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    // By line of the file.
    assert!(
        lines[0].starts_with("2: setosa ") && lines[1].starts_with("3: virginica "),
        "{out}"
    );

    let (ok, out, _) = run_in(
        path,
        &[
            "predict", "--model", "m", "--csv", "new.csv", "--device", "cpu", "--json",
        ],
    );
    assert!(ok);
    let first: serde_json::Value = serde_json::from_str(out.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["label"], "setosa");
    let all = first["probabilities"].as_object().expect("an object");
    let sum: f64 = all.values().filter_map(serde_json::Value::as_f64).sum();
    assert!(all.len() == 2 && (sum - 1.0).abs() < 1e-6, "{out}");

    let args = "predict --model m --csv new.csv --device cpu --top 2 --output classes.csv --batch 1";
    let (ok, out, _) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(ok && out.is_empty());
    let table = fs::read_to_string(path.join("classes.csv")).expect("written");
    assert!(
        table.starts_with("row,label,probability,label_2,probability_2\n2,setosa,"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 3);

    // The training file itself: its id column is known, and its labels are used.
    let (ok, out, err) = run_in(
        path,
        &["evaluate", "--model", "m", "--csv", "flowers.csv", "--device", "cpu"],
    );
    assert!(ok && out.contains("accuracy 100.00 % (80 of 80)"), "{out}{err}");
    assert!(out.contains("virginica") && out.contains("confusion matrix"), "{out}");
    let (_, out, _) = run_in(
        path,
        &[
            "evaluate",
            "--model",
            "m",
            "--csv",
            "flowers.csv",
            "--device",
            "cpu",
            "--json",
        ],
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["confusion"], serde_json::json!([[40, 0], [0, 40]]));
    assert_eq!(report["classes"]["setosa"]["f1"], 1.0);
    assert_eq!(
        (&report["auc"], &report["average_precision"]),
        (&1.0.into(), &1.0.into())
    );
    assert!(
        report["calibration_error"].as_f64().is_some_and(|error| error < 0.5),
        "{out}"
    );

    // The column that distinguishes the flowers is the important one.
    let args = "evaluate --model m --csv flowers.csv --device cpu --importance=2";
    let (ok, out, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    let importances: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("column")).collect();
    assert!(ok && importances[1].starts_with("length"), "{out}{err}");
    assert!(importances[0].contains("decrease of the accuracy"), "{out}");
    let (ok, out, _) = run_in(path, &format!("{args} --json").split(' ').collect::<Vec<_>>());
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(ok && report["importances"][0]["column"] == "length", "{out}");
    assert!(
        report["importances"][0]["mean"].as_f64().is_some_and(|mean| mean > 0.2),
        "{out}"
    );

    // Predictions with the identifiers of their rows.
    let args = "predict --model m --csv flowers.csv --device cpu --keep id,species --output kept.csv";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    let kept = fs::read_to_string(path.join("kept.csv")).expect("written");
    assert!(
        ok && kept.starts_with("row,id,species,label,probability\n2,"),
        "{kept}{err}"
    );
    let right = kept.lines().skip(1).filter(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        fields[2] == fields[3]
    });
    assert_eq!(right.count(), 80, "{kept}");
    let (ok, out, _) = run_in(
        path,
        &args
            .replace("--output kept.csv", "--json")
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let first: serde_json::Value = serde_json::from_str(out.lines().next().expect("a line")).expect("JSON");
    assert!(ok && first["kept"]["species"] == first["label"], "{out}");
    let (ok, _, err) = run_in(
        path,
        &args.replace("id,species", "colour").split(' ').collect::<Vec<_>>(),
    );
    assert!(!ok && err.contains("'colour'"), "{err}");

    let args = "evaluate --model m --csv flowers.csv --device cpu --html m.html";
    let (ok, out, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(
        ok && out.contains("accuracy 100.00 %") && err.contains("m.html"),
        "{out}{err}"
    );
    let page = fs::read_to_string(path.join("m.html")).expect("written");
    for part in [
        "name=\"viewport\"",
        "@media (max-width: 640px)",
        "<b>100.00\u{a0}%</b>",
        "accuracy: 80 of 80",
        "<td>setosa</td>",
        "title=\"40 of 40 examples of virginica: virginica\">40</td>",
        "title=\"0 of 40 examples of virginica: setosa\">0</td>",
        "ROC curve (area)",
        "virginica (1.000)",
        "Precision and recall (average precision)",
        "Calibration",
        "Importance of the columns",
        "Partial dependence",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    for part in ["http:", "https:", "src=", "<script", "NaN"] {
        assert!(!page.contains(part), "{part}");
    }

    // Description of the model in the folder.
    let model = Model::load(path.join("m")).expect("loads");
    assert_eq!(model.task().classes(), ["setosa", "virginica"]);
    assert_eq!(model.schema().expect("a table").feature_names(), ["length", "width"]);
    assert_eq!(model.metrics["test"]["accuracy"], 1.0);
    assert_eq!(model.training["epochs"], 100);
}

#[test]
fn what_does_not_fit_the_model_is_said() {
    let folder = trained();
    let path = folder.path();
    let cases: [(&str, &str, &[&str]); 5] = [
        ("width\n2\n", "predict", &["'length'", "missing"]),
        ("width,length,colour\n2,1,3\n", "predict", &["'colour'"]),
        ("width,length\n2,tall\n", "predict", &["line 2", "'tall'"]),
        ("width,length\n2,1\n", "evaluate", &["'species'"]),
        (
            "width,length,species\n2,1,setosa\n2,1,rose\n",
            "evaluate",
            &["line 3", "'rose'", "setosa", "virginica"],
        ),
    ];
    for (table, command, expected) in cases {
        fs::write(path.join("new.csv"), table).expect("writable");
        let (ok, _, err) = run_in(path, &[command, "--model", "m", "--csv", "new.csv", "--device", "cpu"]);
        assert!(!ok && expected.iter().all(|e| err.contains(e)), "{table}: {err}");
    }
    let (ok, _, err) = run_in(path, &["predict", "--model", "none", "--csv", "flowers.csv"]);
    assert!(!ok && err.contains("none") && err.contains("model.json"), "{err}");
    let (ok, _, err) = run_in(path, &["predict", "--model", "m"]);
    assert!(!ok && err.contains("--csv"), "{err}");
    // A folder with other contents is refused before the training.
    fs::create_dir(path.join("documents")).expect("makes");
    fs::write(path.join("documents/letter.txt"), "dear").expect("writable");
    let args = "train --csv flowers.csv --label species --ignore id --epochs 1000000 --out documents --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("documents"), "{err}");
    let args = "train digits --model cnn --hidden 3,4 --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("expected one size for cnn"), "{err}");
}

#[test]
fn what_is_read_is_not_replaced() {
    let folder = trained();
    let path = folder.path();
    let before = [fs::read(path.join("flowers.csv")), fs::read(path.join("m/model.json"))];
    let before = before.map(|bytes| bytes.expect("readable"));
    for args in [
        "predict --model m --csv flowers.csv --output flowers.csv",
        "predict --model m --csv flowers.csv --output m/model.json",
        "evaluate --model m --csv flowers.csv --html m/model.json",
        "train --csv flowers.csv --label species --log flowers.csv",
        "export m --out m/model.json",
    ] {
        let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
        assert!(
            !ok && err.contains("would overwrite an input of the command"),
            "{args}: {err}"
        );
    }
    let after = [fs::read(path.join("flowers.csv")), fs::read(path.join("m/model.json"))];
    assert!(after.map(|bytes| bytes.expect("readable")) == before);
}

/// Writes a `.npz` file with numbers that distinguish two names, and the names as `<U5`.
fn write_named(path: &Path, names: [&str; 2], rows: usize) {
    let npy = |descr: &str, shape: &str, elements: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    };
    let values = (0..rows).flat_map(|i| [(i % 2) as f32 * 4.0 + (i as f32).sin(), 1.0]);
    let values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let codes = |i: usize| names[i % 2].chars().map(u32::from).chain(std::iter::repeat(0)).take(5);
    let text: Vec<u8> = (0..rows).flat_map(codes).flat_map(u32::to_le_bytes).collect();
    let mut zip = zip::ZipWriter::new(fs::File::create(path).expect("writable"));
    for (name, bytes) in [
        ("x.npy", npy("<f4", &format!("({rows}, 2)"), &values)),
        ("y.npy", npy("<U5", &format!("({rows},)"), &text)),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default())
            .expect("starts");
        zip.write_all(&bytes).expect("writes");
    }
    zip.finish().expect("ends");
}

#[test]
fn labels_that_are_text_keep_their_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write_named(&path.join("a.npz"), ["zebra", "große"], 80);
    let train = "train --npz a.npz --epochs 40 --lr 0.01 --hidden 8 --out m --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok && out.contains("2 classes: große, zebra"), "{out}{err}");
    let args = "evaluate --model m --npz a.npz --json --device cpu";
    let (ok, out, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    let report: serde_json::Value = serde_json::from_str(&out).expect(&err);
    assert!(ok && report["accuracy"].as_f64() > Some(0.95), "{out}");
    assert_eq!(report["classes"]["zebra"]["examples"], 40);
    let args = "predict --model m --npz a.npz --device cpu";
    let (ok, out, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(
        ok && out.starts_with("1: zebra ") && out.contains("\n2: große "),
        "{out}{err}"
    );

    write_named(&path.join("b.npz"), ["zebra", "lion"], 4);
    let args = "evaluate --model m --npz b.npz --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("row 1: 'lion' is none of the 2"), "{err}");
    for args in [
        "train --npz a.npz --task regression --device cpu",
        "train --npz a.npz --x y --device cpu",
        "predict --model m --npz a.npz --x y --device cpu",
    ] {
        let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
        assert!(
            !ok && err.contains("'y'") && err.contains("only labels may be text"),
            "{args}: {err}"
        );
    }
}

/// Returns prices that are a sum of room, district and noise, with some rooms missing.
pub(super) fn houses(rows: usize) -> String {
    let mut text = String::from("rooms,district,price\n");
    for i in 0..rows {
        let (rooms, district) = (1 + i * 7 % 5, ["north", "south", "east"][i % 3]);
        let price = 100.5 * rooms as f64 + [40.0, 0.0, -30.0][i % 3] + (i as f64 * 0.77).sin();
        let rooms = if i % 40 == 9 { String::new() } else { rooms.to_string() };
        writeln!(text, "{rooms},{district},{price:.3}").expect("a string");
    }
    text
}

#[test]
fn prices_are_predicted_from_numbers_and_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("houses.csv"), houses(240)).expect("writable");
    // Missing cells are an error with their location, unless an option handles them.
    let (ok, _, err) = run_in(
        path,
        &["train", "--csv", "houses.csv", "--target", "price", "--device", "cpu"],
    );
    assert!(
        !ok && err.contains("line 11") && err.contains("'rooms' is missing"),
        "{err}"
    );
    let train = "train --csv houses.csv --target price --missing drop --patience 40 --epochs 300 --lr 0.01 --out h --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok, "{err}");
    for part in [
        "regression, as",
        "left out",
        "to validate",
        "validation RMSE",
        "test RMSE",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (ok, out, err) = run_in(
        path,
        &[
            "evaluate",
            "--model",
            "h",
            "--csv",
            "houses.csv",
            "--drop-missing",
            "--json",
            "--device",
            "cpu",
        ],
    );
    assert!(ok && err.contains("were skipped"), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(report["r2"].as_f64().expect("a number") > 0.95, "{out}");
    let args = "evaluate --model h --csv houses.csv --drop-missing --device cpu --html h.html";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    let page = fs::read_to_string(path.join("h.html")).expect("written");
    assert!(ok && err.contains("h.html"), "{err}");
    for part in [
        "<span>R²</span>",
        "price: predicted and true",
        "price: residuals",
        "price: distribution of the residuals",
        "Decrease of the R²",
        "<td>rooms",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }

    fs::write(path.join("new.csv"), "district,rooms\nnorth,3\nwest,3\n").expect("writable");
    let (ok, _, err) = run_in(
        path,
        &["predict", "--model", "h", "--csv", "new.csv", "--device", "cpu"],
    );
    assert!(
        !ok && err.contains("'west'") && err.contains("'north'") && err.contains("line 3"),
        "{err}"
    );
    let args = [
        "predict",
        "--model",
        "h",
        "--csv",
        "new.csv",
        "--unknown-words",
        "--output",
        "p.csv",
        "--device",
        "cpu",
    ];
    let (ok, _, err) = run_in(path, &args);
    assert!(ok && err.contains("unknown to the model"), "{err}");
    let table = fs::read_to_string(path.join("p.csv")).expect("written");
    let first: f64 = table
        .lines()
        .nth(1)
        .and_then(|l| l.split(',').nth(1))
        .expect("a field")
        .parse()
        .expect("a number");
    assert!(
        table.starts_with("row,price\n2,") && (first - 341.5).abs() < 60.0,
        "{table}"
    );
    // Numbers have no classes to balance.
    let args = "train --csv houses.csv --target price --missing mean --balance --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("--balance"), "{err}");
}

#[test]
fn categories_and_fill_values_are_those_of_training_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    // Every row has a unique code, so the codes of test rows occur in no training row.
    let mut text = String::from("code,length,kind\n");
    for i in 0..40 {
        writeln!(text, "c{i},{},{}", (i % 2) * 10, ["a", "b"][i % 2]).expect("a string");
    }
    fs::write(path.join("own.csv"), &text).expect("writable");
    let train = "train --csv own.csv --type code=category --epochs 3 --validation 0.1 --out m --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok, "{err}");
    assert!(
        out.contains("12 cells of validation or test rows with a category that no training row has"),
        "{out}"
    );
    let model = Model::load(path.join("m")).expect("loads");
    // 28 codes and the length.
    assert_eq!(model.schema().expect("a table").width(), 29);

    // A separate test file is read in the same way; a target without a class is still an error.
    fs::write(path.join("test.csv"), "code,length,kind\nc1,10,b\nnew,0,a\n").expect("writable");
    let train = "train --csv own.csv --type code=category --test-csv test.csv --epochs 1 --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(
        ok && out.contains("1 cell of validation or test rows") && out.contains("40 examples to train, 2 to test"),
        "{out}{err}"
    );
    fs::write(path.join("test.csv"), "code,length,kind\nc1,10,z\n").expect("writable");
    let (ok, _, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("test.csv") && err.contains("'z'"), "{err}");

    let mut text = String::from("length,kind\n");
    for i in 0..50 {
        writeln!(text, "{},{}", if i < 10 { "1000" } else { "" }, ["a", "b"][i % 2]).expect("a string");
    }
    fs::write(path.join("gaps.csv"), &text).expect("writable");
    let train = "train --csv gaps.csv --missing mean --epochs 1 --device cpu";
    let (ok, out, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok && out.contains("40 missing cells were filled"), "{out}{err}");
}

#[test]
fn one_class_is_nothing_to_learn() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("one.csv"), "x,kind\n1,a\n2,a\n3,a\n").expect("writable");
    let (ok, _, err) = run_in(folder.path(), &["train", "--csv", "one.csv", "--device", "cpu"]);
    assert!(!ok && err.contains("at least two classes"), "{err}");
}

#[test]
fn early_stopping_looks_at_examples_of_its_own() {
    let args = "train digits --epochs 3 --patience 2 --json --device cpu";
    let (output, out, err) = run(&mut meganeura(&args.split(' ').collect::<Vec<_>>()));
    assert!(output.status.success(), "{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(
        lines[0]["validation_accuracy"].is_f64() && lines[0]["test_accuracy"].is_null(),
        "{out}"
    );
    let last = lines.last().expect("a summary");
    assert!(
        last["test_accuracy"].is_f64() && last["validation_loss"].is_f64(),
        "{out}"
    );
}
