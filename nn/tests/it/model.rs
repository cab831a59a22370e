//! Models in folders: what is saved comes back, whatever happens meanwhile, and what is damaged is refused.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use meganeura_core::{Weight, Weights};
use meganeura_nn::data::{Dataset, Standardiser, digits_split};
use meganeura_nn::model::{Architecture, ClassificationReport, Description, Input, Model, PredictorOptions, Scaling};
use meganeura_nn::trainer::{Silent, TrainConfig, Trainer};

/// Folder in which a child process saves models until it is killed.
const SAVE_INTO: &str = "MEGANEURA_TEST_SAVE_INTO";

fn cpu() -> Option<String> {
    Some("cpu".to_owned())
}

fn options() -> PredictorOptions {
    PredictorOptions {
        device: cpu(),
        ..PredictorOptions::default()
    }
}

/// A perceptron without hidden layers for 2 features and 2 classes, whose first class is probable where `x > y`.
fn small(scale: f32) -> Model {
    let architecture = Architecture::Mlp {
        hidden: vec![],
        dropout: 0.0,
    };
    let input = Input {
        shape: vec![2],
        columns: None,
        scaling: None,
    };
    let description = Description::new(architecture, input, vec!["right".into(), "above".into()]);
    let mut weights = Weights::default();
    weights.insert(
        "fc1.weight",
        Weight::f32(&[2, 2], &[scale, -scale, -scale, scale]).expect("fits"),
    );
    weights.insert("fc1.bias", Weight::f32(&[2], &[0.0; 2]).expect("fits"));
    Model::new(description, weights).expect("a model")
}

fn trained(architecture: Architecture, train: &Dataset, input: Input) -> (Model, Trainer) {
    let classes = (0..train.classes()).map(|c| format!("digit {c}")).collect();
    let description = Description::new(architecture, input, classes);
    let config = TrainConfig {
        epochs: 2,
        device: cpu(),
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(|batch| description.graph(batch), config).expect("builds");
    trainer.fit(train, None, &mut Silent).expect("trains");
    (Model::trained(description, &mut trainer).expect("a model"), trainer)
}

#[test]
fn a_saved_network_predicts_what_the_trainer_evaluates() {
    let (raw_train, raw_test) = digits_split().expect("ships");
    let scale = Standardiser::fit_global(&raw_train);
    let train = raw_train.clone().standardised(&scale).expect("scales");
    let test = raw_test.clone().standardised(&scale).expect("scales");
    for architecture in [Architecture::mlp(), Architecture::cnn()] {
        let input = Input {
            scaling: Some(Scaling::from(&scale)),
            ..Input::of(&train)
        };
        let (model, mut trainer) = trained(architecture, &train, input);
        let folder = tempfile::tempdir().expect("a folder");
        model.save(folder.path().join("digits")).expect("saves");
        let loaded = Model::load(folder.path().join("digits")).expect("loads");
        assert_eq!(loaded, model);
        // Raw features, in batches that the number of examples is no multiple of.
        let mut predictor = loaded.predictor(&options()).expect("builds");
        let predictions = predictor.predict(raw_test.features()).expect("predicts");
        assert_eq!(predictions.len(), test.len());
        let mut report = ClassificationReport::new(&loaded.description().classes);
        for (prediction, &label) in predictions.iter().zip(test.labels()) {
            report.add(label as usize, prediction);
        }
        let evaluation = trainer.evaluate(&test).expect("evaluates");
        assert_eq!(report.correct(), evaluation.correct);
        assert!(
            (report.loss() - evaluation.loss).abs() < 1e-4,
            "{} {}",
            report.loss(),
            evaluation.loss
        );
        assert!(report.accuracy() > 0.8, "{}", report.accuracy());
        // The batch size changes nothing.
        let one = PredictorOptions { batch: 7, ..options() };
        let mut predictor = loaded.predictor(&one).expect("builds");
        let again = predictor.predict(raw_test.features()).expect("predicts");
        for (a, b) in predictions.iter().zip(&again) {
            assert_eq!(a.best().0, b.best().0);
        }
        assert!(predictor.predict(&[]).expect("nothing").is_empty());
    }
}

#[test]
fn examples_that_are_not_whole_or_not_finite_are_refused() {
    let mut predictor = small(1.0).predictor(&options()).expect("builds");
    let error = predictor.predict(&[1.0, 2.0, 3.0]).unwrap_err().to_string();
    assert!(error.contains("3 features"), "{error}");
    let error = predictor.predict(&[0.0, 1.0, f32::NAN, 2.0]).unwrap_err().to_string();
    assert!(error.contains("feature 0 of example 1 is NaN"), "{error}");
    let batch = PredictorOptions { batch: 0, ..options() };
    assert!(small(1.0).predictor(&batch).is_err());
}

#[test]
fn the_folder_of_something_else_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("thesis.txt"), "years of work").expect("writable");
    let error = small(1.0).save(folder.path()).unwrap_err().to_string();
    assert!(error.contains("model.json"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let error = Model::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no model"), "{error}");
}

/// The text of `model.json`, after a change.
fn changed(folder: &Path, from: &str, to: &str) {
    let path = folder.join("model.json");
    let text = fs::read_to_string(&path).expect("readable");
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).expect("writable");
}

#[test]
fn descriptions_that_lie_are_refused_with_the_field() {
    let mut model = small(1.0);
    model.description_mut().metrics = BTreeMap::from([("accuracy".to_owned(), 0.5)]);
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("\"format\": 1", "\"format\": 2", "format 2"),
        ("\"format\": 1", "\"format\": \"x\"", "no format"),
        ("\"kind\": \"mlp\"", "\"kind\": \"transformer9\"", "transformer9"),
        ("\"hidden\": []", "\"hidden\": [0]", "architecture.hidden"),
        ("\"hidden\": []", "\"hidden\": [99999999999]", "architecture.hidden"),
        ("\"dropout\": 0.0", "\"dropout\": 1.5", "architecture.dropout"),
        ("\"dropout\": 0.0", "\"dropout\": 0.0, \"extra\": 1", "extra"),
        ("\"right\",", "", "shape"),
        ("\"file\": \"weights-", "\"file\": \"../weights-", "../weights-"),
    ];
    for (from, to, expected) in cases {
        model.save(folder.path()).expect("saves");
        changed(folder.path(), from, to);
        let error = match Model::load(folder.path()) {
            Err(error) => error.to_string(),
            // Weights are compared with the description when they are used.
            Ok(model) => model.predictor(&options()).map(drop).expect_err(to).to_string(),
        };
        assert!(error.contains(expected), "{to}: {error}");
    }
    for (shape, expected) in [
        ("[]", "input.shape"),
        ("[0]", "input.shape"),
        ("[4294967296, 4294967296]", "input.shape"),
    ] {
        model.save(folder.path()).expect("saves");
        let text = fs::read_to_string(folder.path().join("model.json")).expect("readable");
        let start = text.find("\"shape\": [").expect("there") + "\"shape\": ".len();
        let end = start + text[start..].find(']').expect("there") + 1;
        let text = format!("{}{shape}{}", &text[..start], &text[end..]);
        fs::write(folder.path().join("model.json"), text).expect("writable");
        let error = Model::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut model = small(1.0);
    for (mean, std) in [
        (vec![0.0; 3], vec![1.0; 3]),
        (vec![0.0], vec![0.0]),
        (vec![f32::NAN], vec![1.0]),
    ] {
        model.description_mut().input.scaling = Some(Scaling { mean, std });
        assert!(Model::new(model.description().clone(), model.weights().clone()).is_err());
    }
}

#[test]
fn files_that_are_cut_off_or_changed_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = small(1.0);
    model.save(folder.path()).expect("saves");
    let files: Vec<_> = fs::read_dir(folder.path())
        .expect("readable")
        .map(|e| e.expect("entry").path())
        .collect();
    assert_eq!(files.len(), 2);
    for file in &files {
        let whole = fs::read(file).expect("readable");
        for cut in [0, 1, whole.len() / 2, whole.len() - 2] {
            fs::write(file, &whole[..cut]).expect("writable");
            let error = Model::load(folder.path()).unwrap_err().to_string();
            assert!(
                error.contains(&*file.file_name().expect("a name").to_string_lossy()),
                "{error}"
            );
        }
        fs::remove_file(file).expect("removable");
        assert!(Model::load(folder.path()).is_err());
        fs::write(file, &whole).expect("writable");
    }
    // One bit of the weights.
    let weights = files
        .iter()
        .find(|f| f.extension().is_some_and(|e| e == "safetensors"))
        .expect("there");
    let mut bytes = fs::read(weights).expect("readable");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(weights, bytes).expect("writable");
    let error = Model::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("hash"), "{error}");
    // A new save repairs it, and leaves nothing else behind.
    small(2.0).save(folder.path()).expect("saves");
    assert_eq!(Model::load(folder.path()).expect("loads"), small(2.0));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 2);
}

/// The child process of the next test; without the variable, it has nothing to do.
#[test]
fn a_child_saves_models_until_it_is_killed() {
    let Some(folder) = env::var_os(SAVE_INTO) else { return };
    for i in 0.. {
        small((i % 50) as f32).save(&folder).expect("saves");
    }
}

#[test]
fn a_process_that_is_killed_leaves_a_whole_model() {
    const KILLS: u64 = 200;
    let folder = tempfile::tempdir().expect("a folder");
    small(0.0).save(folder.path()).expect("saves");
    let mut different = 0;
    let mut last = small(0.0);
    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().expect("known"))
            .args([
                "--exact",
                "model::a_child_saves_models_until_it_is_killed",
                "--nocapture",
            ])
            .env(SAVE_INTO, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        // Long enough for some saves, at another moment each time.
        thread::sleep(Duration::from_micros(12_000 + 137 * (kill % 83)));
        child.kill().expect("kills");
        child.wait().expect("ends");
        let model = Model::load(folder.path()).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
        different += usize::from(model != last);
        last = model;
    }
    assert!(
        different > KILLS as usize / 4,
        "only {different} kills came after a save"
    );
    // Files of killed saves are removed by the next one, but for those that were never given their name.
    small(1.0).save(folder.path()).expect("saves");
    let named = fs::read_dir(folder.path()).expect("readable").flatten();
    let named = named.filter(|e| !e.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(named.count(), 2);
}
