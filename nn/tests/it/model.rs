//! Tests of trained models: saving, loading, prediction, and errors of damaged folders.

use std::fs;
use std::path::Path;

use crate::common::{config, head};
use meganeura_compiler::Builder;
use meganeura_core::Tensor;
use meganeura_core::files::sha256;
use meganeura_nn::data::{Dataset, Standardiser, digits_split};
use meganeura_nn::layers::Activation;
use meganeura_nn::model::{
    Architecture, Features, Loss, Model, ModelError, Prediction, PredictorOptions, Preprocessing, Task,
};
use meganeura_nn::trainer::{SilentObserver, TrainConfig, Trainer};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

pub(crate) fn options(batch: usize) -> PredictorOptions {
    PredictorOptions {
        device: Some("cpu".into()),
        batch,
        ..PredictorOptions::default()
    }
}

fn classes(n: usize) -> Task {
    Task::Classification {
        target: "digit".into(),
        classes: (0..n).map(|i| format!("class {i}")).collect(),
    }
}

/// Trains this architecture on some of the digits: returns the model, the trainer, and raw and standardised test data.
pub(crate) fn trained(architecture: Architecture, examples: usize, epochs: usize) -> (Model, Trainer, [Dataset; 2]) {
    let (train, test) = digits_split().expect("embedded");
    let scale = Standardiser::fit_global(&train);
    let train = head(&train, examples).standardised(&scale).expect("scales");
    let config = TrainConfig { epochs, ..config() };
    let graph = architecture
        .training_graph(config.batch_size, Loss::Classes)
        .expect("valid");
    let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
    trainer.fit(&train, None, &mut SilentObserver).expect("trains");
    let preprocessing = Preprocessing::Array {
        scale: Some(scale.clone()),
    };
    let model = Model::from_trainer(&mut trainer, architecture, classes(10), preprocessing).expect("fits");
    let scaled = test.clone().standardised(&scale).expect("scales");
    (model, trainer, [test, scaled])
}

pub(crate) fn small() -> Architecture {
    Architecture::Mlp {
        features: vec![1, 8, 8],
        hidden: vec![16],
        activation: Activation::Gelu,
        dropout: 0.1,
        outputs: 10,
    }
}

fn correct(predictions: &[Prediction], data: &Dataset) -> usize {
    let pairs = predictions.iter().zip(data.labels());
    pairs.filter(|(p, l)| p.class() == Some(**l as usize)).count()
}

// ---- there and back --------------------------------------------------------------------------------------

#[test]
fn a_loaded_model_predicts_what_the_trainer_measured() {
    let home = tempfile::tempdir().expect("a folder");
    for (name, architecture, examples) in [
        ("mlp", Architecture::mlp([1, 8, 8], 10), 1437),
        ("cnn", Architecture::cnn([1, 8, 8], 10), 320),
    ] {
        let (mut model, mut trainer, [raw, scaled]) = trained(architecture, examples, 2);
        model.metrics = json!({"accuracy": 0.5});
        model.training = json!({"epochs": 2, "note": "first try"});
        let folder = home.path().join(name);
        model.save(&folder).expect("saves");
        let loaded = Model::load(&folder).expect("loads");
        assert_eq!(loaded, model);
        assert!(loaded.program().starts_with("meganeura "));

        let expected = trainer.evaluate(&scaled).expect("evaluates");
        let mut predictor = loaded.predictor(&options(32)).expect("builds");
        let predictions = predictor.predict(&Features::from(&raw)).expect("predicts");
        assert_eq!(predictions.len(), raw.len());
        assert_eq!(correct(&predictions, &raw), expected.correct, "{name}");
        for prediction in &predictions {
            let Prediction::Class { class, probabilities } = prediction else {
                panic!("a class");
            };
            assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(probabilities.iter().all(|p| *p <= probabilities[*class]));
        }
        // The mean of -ln p is the loss.
        let loss = predictions.iter().zip(raw.labels()).map(|(p, label)| match p {
            Prediction::Class { probabilities, .. } => -probabilities[*label as usize].ln(),
            _ => f64::NAN,
        });
        let loss = loss.sum::<f64>() / raw.len() as f64;
        assert!((loss - expected.loss).abs() < 1e-5, "{loss} {}", expected.loss);
    }
}

#[test]
fn predictions_do_not_depend_on_the_batch() {
    let (model, _, [raw, _]) = trained(small(), 320, 1);
    let raw = head(&raw, 37);
    let mut all = Vec::new();
    for batch in [1, 5, 37, 64] {
        let mut predictor = model.predictor(&options(batch)).expect("builds");
        all.push(predictor.outputs(&Features::from(&raw)).expect("predicts"));
    }
    for outputs in &all {
        assert_eq!(outputs.len(), 370);
        assert!(outputs.iter().zip(&all[0]).all(|(a, b)| (a - b).abs() < 1e-5));
    }
    let mut predictor = model.predictor(&options(8)).expect("builds");
    let none = Features::new("none", vec![], [64]).expect("valid");
    assert_eq!(predictor.predict(&none).expect("nothing to do"), []);
    // Another shape with the same number of values is the same example.
    let flat = Features::new("flat", raw.features().to_vec(), [64]).expect("valid");
    assert_eq!(predictor.predict(&flat).expect("predicts").len(), 37);
}

#[test]
fn every_architecture_survives_the_folder() {
    let home = tempfile::tempdir().expect("a folder");
    let images = [3, 16, 16];
    let resnet = Architecture::ResNet {
        image: images,
        bottleneck: true,
        depths: [1, 1, 0, 1],
        width: 4,
        small_images: true,
        outputs: 3,
    };
    for architecture in [
        Architecture::mlp([7], 3),
        Architecture::cnn(images, 3),
        resnet,
        Architecture::mobilenet(images, true, 3),
        Architecture::vit(images, 4, 3),
    ] {
        let shape = architecture.feature_shape();
        let graph = architecture.training_graph(4, Loss::Classes).expect("valid");
        let config = TrainConfig {
            batch_size: 4,
            ..config()
        };
        let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
        let preprocessing = Preprocessing::Array { scale: None };
        let model = Model::from_trainer(&mut trainer, architecture, classes(3), preprocessing).expect("fits");
        model.save(home.path().join("model")).expect("saves");
        let loaded = Model::load(home.path().join("model")).expect("loads");
        assert_eq!(loaded, model);
        let len: usize = shape.iter().product();
        let values = (0..2 * len).map(|i| (i % 7) as f32 * 0.1).collect();
        let features = Features::new("two", values, shape).expect("valid");
        let mut predictor = loaded.predictor(&options(3)).expect("builds");
        assert_eq!(predictor.predict(&features).expect("predicts").len(), 2);
        // Training continues from the loaded weights.
        loaded.load_into(trainer.session_mut()).expect("the same tensors");
    }
}

// ---- what does not fit -----------------------------------------------------------------------------------

#[test]
fn parts_that_do_not_fit_are_refused() {
    let graph = small().training_graph(32, Loss::Classes).expect("valid");
    let mut trainer = Trainer::from_graph(&graph, config()).expect("builds");
    let array = |scale| Preprocessing::Array { scale };
    let scale = |n| Some(Standardiser::new(vec![0.0; n], vec![1.0; n]).expect("valid"));
    let twice = Task::Classification {
        target: "t".into(),
        classes: vec!["a".into(); 10],
    };
    let images = Preprocessing::Images {
        size: [3, 8, 8],
        scale: None,
    };
    for (architecture, task, preprocessing, field) in [
        (small(), classes(9), array(None), "task"),
        (small(), twice, array(None), "task"),
        (small(), classes(10), array(scale(63)), "preprocessing"),
        (small(), classes(10), images, "preprocessing"),
        (Architecture::mlp([0], 10), classes(10), array(None), "architecture"),
    ] {
        let error = Model::from_trainer(&mut trainer, architecture, task, preprocessing).expect_err("refused");
        assert!(
            matches!(&error, ModelError::Invalid { field: f, .. } if *f == field),
            "{error}"
        );
    }
    let other = Model::from_trainer(&mut trainer, Architecture::mlp([64], 10), classes(10), array(None));
    assert!(matches!(
        other,
        Err(ModelError::Core(_) | ModelError::Invalid { field: "weights", .. })
    ));
    let len = trainer.session_mut().read_parameter("fc1.bias").len();
    trainer.session_mut().set_parameter("fc1.bias", &vec![f32::NAN; len]);
    let diverged = Model::from_trainer(&mut trainer, small(), classes(10), array(None)).expect_err("NaN");
    assert!(diverged.to_string().contains("'fc1.bias'"), "{diverged}");
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let (model, _, _) = trained(small(), 32, 0);
    assert!(matches!(
        model.predictor(&options(0)),
        Err(ModelError::Invalid { field: "batch", .. })
    ));
    assert!(model.predictor(&options(usize::MAX / 2)).is_err());
    let mut predictor = model.predictor(&options(4)).expect("builds");
    let wide = Features::new("wide.npy", vec![0.0; 65], [65]).expect("valid");
    let error = predictor.predict(&wide).expect_err("65 values").to_string();
    assert!(
        error.contains("wide.npy") && error.contains("[65]") && error.contains("[1, 8, 8]"),
        "{error}"
    );
    let far = Features::new("far", vec![f32::MAX; 64], [64]).expect("finite");
    assert!(predictor.predict(&far).is_err());
    for (values, shape) in [
        (vec![f32::NAN], vec![1]),
        (vec![1.0; 3], vec![2]),
        (vec![], vec![0]),
        (vec![], vec![]),
    ] {
        assert!(Features::new("f", values, shape).is_err());
    }
}

// ---- damaged folders -------------------------------------------------------------------------------------

/// Saves a model, so that it can be damaged.
fn saved(home: &Path) -> std::path::PathBuf {
    let (model, _, _) = trained(small(), 32, 0);
    let folder = home.join("model");
    model.save(&folder).expect("saves");
    folder
}

/// Writes `model.json` after a change, and loads the model.
fn with_json(folder: &Path, change: impl FnOnce(&mut Value)) -> Result<Model, ModelError> {
    let path = folder.join("model.json");
    let old = fs::read(&path).expect("it is there");
    let mut value: Value = serde_json::from_slice(&old).expect("JSON");
    change(&mut value);
    fs::write(&path, value.to_string()).expect("writes");
    let result = Model::load(folder);
    fs::write(&path, old).expect("writes");
    result
}

#[track_caller]
fn refused(result: Result<Model, ModelError>, parts: &[&str]) {
    let message = result.expect_err("refused").to_string();
    for part in parts {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

#[test]
fn fields_that_are_wrong_are_named() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = &saved(home.path());
    assert!(with_json(folder, |_| {}).is_ok());
    assert!(with_json(folder, |j| j["metrics"] = Value::Null).is_ok());
    let newer = with_json(folder, |j| j["format"] = json!(2));
    assert!(matches!(newer, Err(ModelError::Version { found: 2, .. })));
    type Change = fn(&mut Value);
    let cases: &[(&str, &str, Change)] = &[
        ("'format'", "whole number", |j| j["format"] = json!("1")),
        ("'format'", "missing", |j| *j = json!({"a": 1})),
        ("'architecture'", "missing", |j| {
            drop(j.as_object_mut().map(|o| o.remove("architecture")))
        }),
        ("'architecture'", "unknown variant", |j| {
            j["architecture"]["kind"] = json!("gan")
        }),
        ("'architecture'", "hidden", |j| j["architecture"]["hidden"] = json!([0])),
        ("'architecture'", "hidden", |j| {
            j["architecture"]["hidden"] = json!([u64::MAX])
        }),
        ("'architecture'", "hidden layers", |j| {
            j["architecture"]["hidden"] = json!(vec![1; 5000])
        }),
        ("'architecture'", "invalid", |j| {
            j["architecture"]["hidden"] = json!([-1])
        }),
        ("'architecture'", "too large", |j| {
            j["architecture"]["features"] = json!([1 << 20, 1 << 20])
        }),
        ("'architecture'", "dimensions", |j| {
            j["architecture"]["features"] = json!([])
        }),
        ("'architecture'", "dropout", |j| {
            j["architecture"]["dropout"] = json!(1.0)
        }),
        ("'architecture'", "unknown field", |j| {
            j["architecture"]["depth"] = json!(1)
        }),
        ("'task'", "10", |j| j["task"]["classes"] = json!(["a", "b"])),
        ("'task'", "classes", |j| j["task"]["classes"] = json!([])),
        ("'preprocessing'", "deviation 0 is 0", |j| {
            j["preprocessing"]["scale"]["std"] = json!([0.0])
        }),
        ("'preprocessing'", "deviation 0 is inf", |j| {
            j["preprocessing"]["scale"]["std"] = json!([1e300])
        }),
        ("'preprocessing'", "null", |j| {
            j["preprocessing"]["scale"]["mean"] = json!([null])
        }),
        ("'preprocessing'", "2 means", |j| {
            j["preprocessing"]["scale"]["mean"] = json!([1, 2])
        }),
        ("'preprocessing'", "2 features", |j| {
            j["preprocessing"]["scale"] = json!({"mean": [1, 2], "std": [1, 2]});
        }),
        ("'weights'", "missing", |j| {
            drop(j.as_object_mut().map(|o| o.remove("weights")))
        }),
        ("'weights'", "../", |j| j["weights"]["file"] = json!("../secret")),
        ("model.safetensors", "bytes", |j| j["weights"]["bytes"] = json!(7)),
        ("model.safetensors", "bytes", |j| {
            j["weights"]["bytes"] = json!(u64::MAX)
        }),
        ("model.safetensors", "SHA-256", |j| j["weights"]["sha256"] = json!("00")),
        ("tensor 'fc1.weight'", "[64, 17]", |j| {
            j["architecture"]["hidden"] = json!([17])
        }),
        ("tensor 'fc3.weight'", "missing", |j| {
            j["architecture"]["hidden"] = json!([16, 10])
        }),
        ("tensor 'fc1.weight'", "[8, 16]", |j| {
            j["architecture"]["features"] = json!([8]);
        }),
    ];
    for (field, part, change) in cases {
        refused(with_json(folder, change), &[field, part]);
    }
}

#[test]
fn tensors_that_are_wrong_are_named() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = &saved(home.path());
    let original = fs::read(folder.join("model.safetensors")).expect("it is there");
    /// Name, dtype, shape and bytes of each tensor of a file.
    type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;
    let with_tensors = |change: &dyn Fn(&mut Tensors)| {
        let file = safetensors::SafeTensors::deserialize(&original).expect("whole");
        let mut tensors: Tensors = file
            .iter()
            .map(|(name, t)| (name.to_owned(), t.dtype(), t.shape().to_vec(), t.data().to_vec()))
            .collect();
        tensors.sort();
        change(&mut tensors);
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).expect("valid")));
        let bytes = safetensors::serialize(views, None).expect("valid");
        load_with_weights(folder, &bytes)
    };
    assert!(with_tensors(&|_| {}).is_ok());
    refused(with_tensors(&|t| drop(t.remove(0))), &["tensor 'fc1.bias'", "missing"]);
    refused(
        with_tensors(&|t| t[0].0 = "extra".into()),
        &["tensor 'fc1.bias'", "missing"],
    );
    let extra = |t: &mut Tensors| t.push(("extra".into(), Dtype::F32, vec![0], vec![]));
    refused(with_tensors(&extra), &["tensor 'extra'", "no such tensor"]);
    refused(
        with_tensors(&|t| t[0].2 = vec![4, 4]),
        &["'fc1.bias'", "[4, 4]", "[16]"],
    );
    refused(with_tensors(&|t| t[0].1 = Dtype::I32), &["'fc1.bias'", "I32"]);
    let nan = |t: &mut Tensors| t[0].3[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(with_tensors(&nan), &["'fc1.bias'", "value 1 is NaN"]);
    refused(load_with_weights(folder, b""), &["safetensors"]);
    // A header that declares more bytes than the file contains.
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend_from_slice(b"{}");
    refused(load_with_weights(folder, &huge), &["not a safetensors file"]);
}

/// Replaces the weights, with length and hash in `model.json`, and loads the model.
fn load_with_weights(folder: &Path, bytes: &[u8]) -> Result<Model, ModelError> {
    fs::write(folder.join("model.safetensors"), bytes).expect("writes");
    with_json(folder, |j| {
        j["weights"]["bytes"] = json!(bytes.len());
        j["weights"]["sha256"] = json!(sha256([bytes]));
    })
}

#[test]
fn no_damage_panics() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = &saved(home.path());
    for (file, step) in [("model.json", 3), ("model.safetensors", 97)] {
        let path = folder.join(file);
        let original = fs::read(&path).expect("it is there");
        for end in (0..original.len()).step_by(step) {
            fs::write(&path, &original[..end]).expect("writes");
            // Without its last newline, it is still complete.
            assert!(
                Model::load(folder).is_err() || end + 1 == original.len(),
                "{file} cut at {end}"
            );
        }
        for at in (0..original.len()).step_by(step) {
            let mut damaged = original.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).expect("writes");
            let result = Model::load(folder);
            assert!(file == "model.json" || result.is_err(), "{file} flipped at {at}");
        }
        fs::write(&path, original).expect("writes");
    }
    assert!(Model::load(folder).is_ok());
}

#[test]
fn folders_without_a_model_are_told_from_damaged_ones() {
    let home = tempfile::tempdir().expect("a folder");
    let missing = Model::load(home.path().join("nothing"));
    assert!(matches!(missing, Err(ModelError::NotFound { .. })));
    assert!(matches!(Model::load(home.path()), Err(ModelError::NotFound { .. })));
    let file = home.path().join("file");
    fs::write(&file, "x").expect("writes");
    assert!(matches!(Model::load(&file), Err(ModelError::NotFound { .. })));
    for text in ["", "[]", "null", "{", "\u{feff}{}", &"[".repeat(100_000)] {
        fs::write(home.path().join("model.json"), text).expect("writes");
        let error = Model::load(home.path()).expect_err("no model").to_string();
        assert!(error.contains("model.json"), "{error}");
    }
    let folder = saved(home.path());
    fs::remove_file(folder.join("model.safetensors")).expect("removes");
    assert!(matches!(Model::load(&folder), Err(ModelError::Io { .. })));
    // A model that was being replaced is found under its other name.
    let (model, _, _) = trained(small(), 32, 0);
    model.save(&folder).expect("replaces what is damaged");
    fs::rename(&folder, home.path().join(".model.old")).expect("renames");
    assert_eq!(Model::load(&folder).expect("it is there"), model);
}

/// Loading while another thread saves returns one of the complete models.
#[test]
fn loads_during_saves_find_a_whole_model() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("model");
    let (mut model, _, _) = trained(small(), 32, 0);
    model.save(&folder).expect("saves");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| {
            let mut loads = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let loaded = Model::load(&folder).expect("whole");
                assert!(loaded.metrics.is_null() || loaded.metrics["round"].is_u64());
                loads += 1;
            }
            loads
        });
        for round in 0..50 {
            model.metrics = json!({"round": round});
            model.save(&folder).expect("saves");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(loader.join().expect("no panic") > 0);
    });
    assert_eq!(Model::load(&folder).expect("loads"), model);
}

/// For any sizes in a damaged file, building the graph returns a graph or an error immediately.
#[test]
fn no_sizes_of_an_architecture_panic() {
    let sizes = [
        0,
        1,
        2,
        3,
        4,
        7,
        16,
        1000,
        1 << 12,
        1 << 20,
        1 << 24,
        1 << 40,
        usize::MAX,
    ];
    let mut state = 1_u64;
    let mut any = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut built = 0;
    for round in 0..4000 {
        // Mostly small sizes, because few others would be valid.
        let mut size = |most: usize| match any() % 8 {
            0 => sizes[any() % sizes.len()],
            _ => 1 + any() % most,
        };
        let image = [size(3), size(16), size(16)];
        let outputs = size(5);
        let architecture = match round % 6 {
            0 => Architecture::Mlp {
                features: (0..round % 5).map(|_| size(9)).collect(),
                hidden: (0..round % 3).map(|_| size(9)).collect(),
                activation: Activation::Relu,
                dropout: [0.0, 0.5, 1.0, f32::NAN][size(4) % 4],
                outputs,
            },
            1 => Architecture::Cnn {
                image,
                channels: [size(4), size(4), size(4)],
                hidden: size(4),
                dropout: 0.5,
                outputs,
            },
            2 => Architecture::ResNet {
                image,
                bottleneck: round % 8 < 4,
                depths: [size(3) % 3, 1, 1, size(2)],
                width: size(4),
                small_images: round % 3 == 0,
                outputs,
            },
            5 => Architecture::TabM {
                features: size(9),
                edges: [vec![], vec![vec![0.0, 1.0]], vec![vec![0.0, 1.0], vec![]]][round % 3].clone(),
                members: size(4),
                hidden: (0..round % 3).map(|_| size(9)).collect(),
                dropout: [0.0, 0.5, 1.0, f32::NAN][size(4) % 4],
                classifies: round % 4 == 0,
                outputs,
            },
            3 if round % 12 == 3 => Architecture::MobileNet {
                image,
                width: [0.0, 0.1, 9.0, f32::NAN, f32::INFINITY][size(5) % 5],
                dropout: 0.0,
                small_images: round % 3 == 0,
                outputs,
            },
            _ => Architecture::Vit {
                image,
                patch: size(4),
                dim: size(8),
                layers: size(2),
                heads: size(4),
                hidden: size(8),
                outputs,
            },
        };
        let batch = size(3);
        built += usize::from(architecture.inference_graph(batch).is_ok());
        let _ = architecture.training_graph(batch, Loss::Regression);
    }
    assert!(built > 300, "{built}");
}

// ---- any batch size --------------------------------------------------------------------------------------

#[test]
fn a_model_serves_batches_of_any_size() {
    let (model, _, [raw, _]) = trained(Architecture::cnn([1, 8, 8], 10), 320, 1);
    let served = model.inference_model(Builder::new().device("cpu")).expect("builds");
    let mut predictor = model.predictor(&options(4)).expect("builds");
    let expected = predictor.predict(&Features::from(&head(&raw, 7))).expect("predicts");
    for batch in [1, 3, 7] {
        let x = Tensor::f32(&[batch, 1, 8, 8], &raw.features()[..batch * 64]).expect("small");
        let found = served.run(&[("x", &x)]).expect("it runs").remove(0).to_f32();
        for (row, prediction) in found.chunks_exact(10).zip(&expected) {
            let Prediction::Class { probabilities, .. } = prediction else {
                panic!("a classifier");
            };
            for (a, b) in row.iter().zip(probabilities) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{a} and {b}");
            }
        }
    }
    let flat = Tensor::f32(&[1, 64], &[0.0; 64]).expect("small");
    let error = served.run(&[("x", &flat)]).expect_err("another shape").to_string();
    assert!(error.contains("[1, 1, 8, 8]") && error.contains("[1, 64]"), "{error}");
}
