//! Tests of saving and loading weights: files, names, shapes, types.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::graph::Graph;
use meganeura::nn::models::cnn_classifier;
use meganeura::{DType, LoadOptions, Session, Sgd, Weight, Weights};

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn session(graph: &Graph) -> Session {
    Builder::on(device()).build(graph).expect("builds").0
}

/// Builds `x w + b`, with its mean as the loss.
fn linear(prefix: &str, inputs: usize, outputs: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[2, inputs]);
    let w = g.parameter(&format!("{prefix}w"), &[inputs, outputs]);
    let b = g.parameter(&format!("{prefix}b"), &[outputs]);
    let y = g.matmul(x, w);
    let y = g.bias_add(y, b);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss, y]);
    g
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("model.safetensors")
}

#[test]
fn a_trained_model_comes_back_bit_for_bit_with_its_running_statistics() {
    let graph = cnn_classifier(4, [1, 8, 8], 3);
    let mut trained = session(&graph);
    trained.initialize_parameters(1);
    trained.set_optimizer(Sgd::new(0.1));
    trained.set_seed(1);
    let x: Vec<f32> = (0..256).map(|i| (i as f32 * 0.7).sin()).collect();
    for _ in 0..3 {
        trained.set_input("x", &x);
        trained.set_input_u32("labels", &[0, 1, 2, 0]);
        trained.step();
    }
    let folder = folder();
    trained.save(file(&folder));
    let weights = trained.try_weights().expect("reads");
    assert!(
        weights.names().any(|n| n.contains("mean")),
        "running statistics are saved"
    );

    let mut other = session(&graph);
    let report = other.try_load(file(&folder)).expect("loads");
    assert_eq!(report.loaded.len(), weights.len());
    assert_eq!(other.try_weights().expect("reads"), weights);
    // An inference session of the same model takes them too, and gives the same logits as one filled by copying.
    let inference = || Builder::on(device()).inference().build(&graph).expect("builds").0;
    let (mut copied, mut loaded) = (inference(), inference());
    copied.try_copy_weights_from(&mut trained).expect("copies");
    loaded
        .try_load_weights(&weights, &LoadOptions::default())
        .expect("loads");
    let logits = |s: &mut Session| {
        s.set_input("x", &x);
        s.set_input_u32("labels", &[0; 4]);
        s.step();
        let mut logits = vec![0.0; 12];
        s.read_output_by_index(1, &mut logits);
        logits
    };
    assert_eq!(logits(&mut copied), logits(&mut loaded));
}

#[test]
fn names_that_do_not_match_are_listed_and_nothing_is_changed() {
    let mut weights = Weights::default();
    weights.insert("w", Weight::f32(&[3, 2], &[1.0; 6]).expect("fits"));
    weights.insert("c", Weight::f32(&[2], &[1.0; 2]).expect("fits"));
    let mut s = session(&linear("", 3, 2));
    s.set_parameter("w", &[0.5; 6]);
    let error = s
        .try_load_weights(&weights, &LoadOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("lack 'b'") && error.contains("lacks 'c'"), "{error}");
    assert_eq!(s.read_parameter("w"), [0.5; 6]);

    let lenient = LoadOptions {
        strict: false,
        ..LoadOptions::default()
    };
    let report = s.try_load_weights(&weights, &lenient).expect("loads");
    assert_eq!(
        report.to_string(),
        "1 tensors loaded; the file lacks 'b'; the model lacks 'c'"
    );
    assert_eq!(s.read_parameter("w"), [1.0; 6]);

    // No common names are always an error.
    weights.retain(|name| name == "c");
    assert!(s.try_load_weights(&weights, &lenient).is_err());
}

#[test]
fn a_shape_that_fits_transposed_is_named_and_can_be_transposed() {
    let mut weights = Weights::default();
    let stored = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    weights.insert("layer.weight", Weight::f32(&[2, 3], &stored).expect("fits"));
    weights.insert("layer.bias", Weight::f32(&[2], &[7.0, 8.0]).expect("fits"));
    let mut s = session(&linear("", 3, 2));
    let rename = |name: &str| match name {
        "layer.weight" => Some("w".to_owned()),
        "layer.bias" => Some("b".to_owned()),
        _ => None,
    };
    let renamed = LoadOptions {
        rename: Some(&rename),
        ..LoadOptions::default()
    };
    let error = s.try_load_weights(&weights, &renamed).unwrap_err().to_string();
    assert!(
        error.contains("'layer.weight' for 'w'") && error.contains("it would fit transposed"),
        "{error}"
    );
    let options = LoadOptions {
        transpose: Some(&|name| name == "w"),
        ..renamed
    };
    s.try_load_weights(&weights, &options).expect("loads");
    assert_eq!(s.read_parameter("w"), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(s.read_parameter("b"), [7.0, 8.0]);

    let both = |_: &str| Some("w".to_owned());
    let options = LoadOptions {
        rename: Some(&both),
        ..LoadOptions::default()
    };
    let error = s.try_load_weights(&weights, &options).unwrap_err().to_string();
    assert!(error.contains("both renamed to 'w'"), "{error}");
}

#[test]
fn floating_point_types_are_converted_and_integers_are_not() {
    let mut g = Graph::new();
    let w = g.parameter_typed("w", &[2], DType::F16);
    let y = g.cast(w, DType::F32);
    g.set_outputs(vec![y]);
    let mut half = Builder::on(device()).inference().build(&g).expect("builds").0;
    let mut weights = Weights::default();
    weights.insert("w", Weight::f32(&[2], &[1.5, -0.25]).expect("fits"));
    half.try_load_weights(&weights, &LoadOptions::default()).expect("loads");
    let saved = half.try_weights().expect("reads");
    assert_eq!(saved.get("w").expect("there").ty().dtype, DType::F16);
    assert_eq!(saved.get("w").expect("there").to_f32(), [1.5, -0.25]);
    // The weights go through a file, as f16.
    let folder = folder();
    saved.write(file(&folder)).expect("writes");
    assert_eq!(Weights::read(file(&folder)).expect("reads"), saved);

    let mut g = Graph::new();
    let ids = g.parameter_typed("w", &[2], DType::U32);
    let y = g.cast(ids, DType::F32);
    g.set_outputs(vec![y]);
    let mut integers = Builder::on(device()).inference().build(&g).expect("builds").0;
    let error = integers
        .try_load_weights(&weights, &LoadOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("f32 instead of u32"), "{error}");
}

#[test]
fn damaged_files_are_errors_that_name_the_file() {
    let folder = folder();
    let path = file(&folder);
    let mut s = session(&linear("", 3, 2));
    s.initialize_parameters(0);
    s.save(&path);
    let whole = fs::read(&path).expect("readable");
    for cut in [0, 4, 8, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).expect("writable");
        let error = s.try_load(&path).unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{cut}: {error}");
    }
    // A header that claims more bytes than the file contains.
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&path, huge).expect("writable");
    assert!(s.try_load(&path).is_err());
    let missing = s.try_load(folder.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("none"), "{missing}");
    // A message about names contains the file's names.
    fs::write(&path, &whole).expect("writable");
    let error = session(&linear("other.", 3, 2))
        .try_load(&path)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model.safetensors") && error.contains("'other.w'"),
        "{error}"
    );
}

#[test]
fn copying_between_models_without_a_common_name_is_an_error_with_both_lists() {
    let mut a = session(&linear("a.", 3, 2));
    let mut b = session(&linear("b.", 3, 2));
    let error = a.try_copy_weights_from(&mut b).unwrap_err().to_string();
    for name in ["'a.w'", "'a.b'", "'b.w'", "'b.b'"] {
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn training_from_parameters_that_nobody_set_is_an_error_that_names_them() {
    let mut s = session(&linear("", 3, 2));
    s.set_input("x", &[1.0; 6]);
    // Without an optimizer a step only computes gradients.
    s.step();
    s.set_learning_rate(0.1);
    let error = s.try_step().unwrap_err().to_string();
    assert!(error.contains("'w'") && error.contains("'b'"), "{error}");
    // Zeros that were set explicitly are allowed.
    s.set_parameter("w", &[0.0; 6]);
    s.step();
}

#[test]
fn a_rate_without_an_optimizer_is_an_error() {
    let mut s = session(&linear("", 3, 2));
    let error = s.try_adjust_learning_rate(0.1).unwrap_err().to_string();
    assert!(error.contains("no optimizer"), "{error}");
}
