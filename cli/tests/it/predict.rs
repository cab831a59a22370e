//! A model goes from `train --out` to `predict` and `evaluate`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use meganeura::nn::model::Model;

use super::{meganeura, run};

/// Flowers of two kinds that a number tells apart, with a column that says nothing.
fn flowers(rows: usize) -> String {
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

/// Runs the command in a folder, and gives what it printed to both streams.
fn run_in(folder: &Path, args: &[&str]) -> (bool, String, String) {
    let (output, out, err) = run(meganeura(args).current_dir(folder));
    (output.status.success(), out, err)
}

/// A folder with the table `flowers.csv` and the model `m` that was trained on it.
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
    // Other order, no label, no id.
    fs::write(path.join("new.csv"), "width,length\n2.0,1.1\n2.1,2.9\n").expect("writable");
    let (ok, out, err) = run_in(
        path,
        &["predict", "--model", "m", "--csv", "new.csv", "--device", "cpu"],
    );
    assert!(ok, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("1: setosa ") && lines[1].starts_with("2: virginica "),
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
        table.starts_with("label,probability,label_2,probability_2\nsetosa,"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 3);

    // The training file itself: its id column is known, its labels count.
    let (ok, out, err) = run_in(
        path,
        &["evaluate", "--model", "m", "--csv", "flowers.csv", "--device", "cpu"],
    );
    assert!(ok && out.contains("accuracy 100.00 % (80 of 80)"), "{out}{err}");
    assert!(out.contains("virginica") && out.contains("Rows are labels"), "{out}");
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

    // What the folder says of itself.
    let model = Model::load(path.join("m")).expect("loads");
    let description = model.description();
    assert_eq!(description.classes, ["setosa", "virginica"]);
    assert_eq!(
        description.input.columns.as_ref().expect("a table").features,
        ["length", "width"]
    );
    assert_eq!(description.metrics["test_accuracy"], 1.0);
    assert_eq!(description.training["data"], "flowers.csv");
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
            &["line 3", "'rose'", "setosa, virginica"],
        ),
    ];
    for (table, command, expected) in cases {
        fs::write(path.join("new.csv"), table).expect("writable");
        let (ok, _, err) = run_in(path, &[command, "--model", "m", "--csv", "new.csv", "--device", "cpu"]);
        assert!(!ok && expected.iter().all(|e| err.contains(e)), "{table}: {err}");
    }
    let (ok, _, err) = run_in(path, &["predict", "--model", "none", "--csv", "flowers.csv"]);
    assert!(!ok && err.contains("'none'") && err.contains("train --out"), "{err}");
    let (ok, _, err) = run_in(path, &["predict", "--model", "m"]);
    assert!(!ok && err.contains("--csv"), "{err}");
    // A folder of something else is refused before anything is trained.
    fs::create_dir(path.join("documents")).expect("makes");
    fs::write(path.join("documents/letter.txt"), "dear").expect("writable");
    let args = "train --csv flowers.csv --label species --ignore id --epochs 1000000 --out documents --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("documents"), "{err}");
    let args = "train digits --model cnn --hidden 3,4 --device cpu";
    let (ok, _, err) = run_in(path, &args.split(' ').collect::<Vec<_>>());
    assert!(!ok && err.contains("one hidden layer"), "{err}");
}

#[test]
fn images_go_through_arrays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let train = "train digits --model cnn --epochs 3 --out d --device cpu";
    let (ok, _, err) = run_in(path, &train.split(' ').collect::<Vec<_>>());
    assert!(ok, "{err}");
    let (_, test) = meganeura::nn::data::digits_split().expect("ships");
    let archive = path.join("test.npz");
    let labels: Vec<f32> = test.labels().iter().map(|&l| l as f32).collect();
    let mut zip = zip::ZipWriter::new(fs::File::create(&archive).expect("writable"));
    let images: [(&str, Vec<usize>, &[f32]); 2] = [
        ("x.npy", vec![test.len(), 8, 8], test.features()),
        ("y.npy", vec![test.len()], &labels),
    ];
    for (name, shape, data) in images {
        let file = path.join(name);
        meganeura::nn::data::write_npy(&file, &shape, data).expect("writes");
        zip.start_file(name, zip::write::SimpleFileOptions::default())
            .expect("starts");
        zip.write_all(&fs::read(file).expect("readable")).expect("writes");
    }
    zip.finish().expect("ends");
    let (ok, out, err) = run_in(
        path,
        &[
            "evaluate", "--model", "d", "--npz", "test.npz", "--device", "cpu", "--json",
        ],
    );
    assert!(ok, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["examples"], 360);
    assert!(report["accuracy"].as_f64().expect("a number") > 0.9, "{out}");
    let (ok, _, err) = run_in(
        path,
        &[
            "predict", "--model", "d", "--npz", "test.npz", "--x", "y", "--device", "cpu",
        ],
    );
    assert!(!ok && err.contains("[360]") && err.contains("1, 8, 8"), "{err}");
    let (ok, _, err) = run_in(path, &["predict", "--model", "d", "--csv", "no.csv", "--device", "cpu"]);
    assert!(!ok && err.contains("--npz"), "{err}");
}
