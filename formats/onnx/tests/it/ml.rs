//! Tests of the models of `tests/data/ml` against the results of ONNX Runtime.
//!
//! `scripts/verify-external/make_onnx_ml_fixtures.py` makes these models with scikit-learn, XGBoost, LightGBM and the package
//! `onnx`. `MEGANEURA_ONNX_FILTER` selects models whose names contain its value.

use std::path::{Path, PathBuf};

use meganeura_compiler::Builder;
use meganeura_onnx::{Error, ImportOptions, LabelKind, Model, Runner, Tensor};

use super::fixtures::{arrays, read};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ml")
}

/// Returns a description of the first element that differs.
fn difference(found: &Tensor, wanted: &Tensor) -> Option<String> {
    if (found.dims(), found.element()) != (wanted.dims(), wanted.element()) {
        let of = |t: &Tensor| format!("{}{:?}", t.element(), t.dims());
        return Some(format!("expected {}, found {}", of(wanted), of(found)));
    }
    let tolerance = if found.element().is_float() { 1e-5 } else { 0.0 };
    let pairs = found.to_f64().into_iter().zip(wanted.to_f64()).enumerate();
    let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
    pairs
        .filter(|(_, (a, b))| !same(*a, *b))
        .map(|(i, (a, b))| format!("element {i}: expected {b}, found {a}"))
        .next()
}

/// Runs the model of a folder, and returns the differences from the results in it.
fn check(folder: &Path) -> Vec<String> {
    let model = Model::open(folder.join("model.onnx")).expect("a model");
    let inputs = arrays(folder, "input");
    let builder = Builder::on(super::cases::device());
    let mut runner = match Runner::for_inputs(&model, &inputs, &builder) {
        Ok(runner) => runner,
        Err(error) => return vec![error.to_string()],
    };
    let results = match runner.run(&inputs) {
        Ok(results) => results,
        Err(error) => return vec![error.to_string()],
    };
    let mut differences = Vec::new();
    for (i, (port, found)) in model.outputs().iter().zip(&results).enumerate() {
        let array = folder.join(format!("output_{i}.npy"));
        let different = if array.exists() {
            difference(found, &read(&array))
        } else {
            let text = std::fs::read_to_string(folder.join(format!("output_{i}.txt"))).expect("strings");
            let wanted: Vec<&str> = text.lines().collect();
            let labels = runner.labels().iter();
            let mut labels = labels.filter(|l| l.output == port.name && l.kind == LabelKind::Elements);
            let labels = &labels.next().expect("labels").labels;
            let found: Vec<&str> = found.to_i64().iter().map(|&at| labels[at as usize].as_str()).collect();
            (found != wanted).then(|| format!("expected {wanted:?}, found {found:?}"))
        };
        differences.extend(different.map(|text| format!("output `{}`: {text}", port.name)));
    }
    differences
}

#[test]
fn models_of_scikit_learn_xgboost_and_lightgbm_agree_with_onnx_runtime() {
    let filter = std::env::var("MEGANEURA_ONNX_FILTER").unwrap_or_default();
    let entries = std::fs::read_dir(folder()).expect("the fixtures");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.sort();
    let mut failures = Vec::new();
    let mut count = 0;
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        if name.contains(&filter) {
            count += 1;
            failures.extend(check(&folder).into_iter().map(|text| format!("{name}: {text}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 50 || !filter.is_empty(), "found only {count} models");
}

#[test]
fn strings_and_maps_are_indices_and_columns_with_labels() {
    let model = Model::open(folder().join("logistic_strings_zip_map/model.onnx")).expect("a model");
    let dims = model.dims_of([("X", &[3usize, 4][..])]).expect("the shape fits");
    let import = model.import(&ImportOptions::new(dims.clone())).expect("supported");
    let labels: Vec<(LabelKind, &[String])> = import.labels.iter().map(|l| (l.kind, l.labels.as_slice())).collect();
    let names = ["no".to_owned(), "yes".to_owned()];
    assert_eq!(
        labels,
        [(LabelKind::Elements, &names[..]), (LabelKind::Columns, &names[..])]
    );
    let report = model.preflight(&dims);
    assert_eq!(report.labels, import.labels);
    let text = report.to_string();
    assert!(text.contains("\"no\", \"yes\""), "{text}");
}

#[test]
fn unknown_categories_of_a_strict_encoder_are_an_error() {
    let model = Model::open(folder().join("one_hot_strict/model.onnx")).expect("a model");
    let builder = Builder::on(super::cases::device());
    let input = |category: i64| Tensor::i64(&[2, 2], vec![0, 1, category, 3]);
    let mut runner = Runner::for_inputs(&model, &[input(2)], &builder).expect("supported");
    runner.run(&[input(2)]).expect("known categories");
    let error = runner.run(&[input(4)]).expect_err("an unknown category");
    assert!(matches!(error, Error::UnknownCategory { .. }), "{error}");
    assert!(error.to_string().contains("OneHotEncoder"), "{error}");
    runner.run(&[input(3)]).expect("the next run");
}
