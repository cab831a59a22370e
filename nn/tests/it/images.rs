//! Tests of training on a folder of images, saving and loading.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::config;
use crate::distributed::{LIMIT, close, on_ranks};
use crate::ranks::{self, Losses};
use image::{Rgb, RgbImage};
use meganeura_nn::data::{DataError, SplitOptions, Standardiser, image_files, image_folder};
use meganeura_nn::layers::Activation;
use meganeura_nn::model::{
    Architecture, Loss, Model, ModelError, PredictionReport, PredictorOptions, Preprocessing, Task,
};
use meganeura_nn::trainer::{SilentObserver, TrainConfig, Trainer};

/// Writes images of horizontal and vertical stripes, of several sizes and colours.
fn stripes(home: &Path, each: u32) {
    for class in ["across", "down"] {
        let folder = home.join(class);
        fs::create_dir_all(&folder).expect("makes");
        for i in 0..each {
            let side = 16 + i % 3 * 8;
            let color = Rgb([255, (i * 40 % 200) as u8, (i * 90 % 200) as u8]);
            let image = RgbImage::from_fn(side, side, |x, y| {
                let at = if class == "across" { y } else { x };
                let dark = (at * 4 / side + i) % 2 == 0;
                if dark { Rgb([0, 0, 20]) } else { color }
            });
            image.save(folder.join(format!("{i:03}.png"))).expect("saves");
        }
    }
}

#[test]
fn a_model_of_images_is_trained_saved_and_used() {
    let home = tempfile::tempdir().expect("a folder");
    stripes(home.path(), 48);
    let size = [3, 16, 16];
    let images = image_folder(home.path(), size, None).expect("reads");
    let raw = images.data.split_parts(SplitOptions::default()).expect("splits");
    let scale = Standardiser::fit_global(&raw.train);
    let parts = raw.clone().standardised(&scale).expect("scales");
    let architecture = Architecture::Cnn {
        image: size,
        channels: [8, 8, 8],
        hidden: 16,
        dropout: 0.0,
        outputs: 2,
    };
    let task = Task::Classification {
        target: "stripes".into(),
        classes: images.class_names.clone(),
    };
    let config = TrainConfig {
        epochs: 12,
        batch_size: 8,
        ..config()
    };
    let graph = architecture
        .training_graph(config.batch_size, task.loss())
        .expect("valid");
    let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
    let report = trainer.fit_parts(&parts, &mut SilentObserver).expect("trains");
    let test = report.test.expect("measured");
    assert!(test.accuracy() > 0.9, "{test}");

    let preprocessing = Preprocessing::Images {
        size,
        scale: Some(scale),
    };
    let folder = home.path().join(".model");
    let model = Model::from_trainer(&mut trainer, architecture, task, preprocessing).expect("fits");
    model.save(&folder).expect("saves");
    let model = Model::load(&folder).expect("loads");
    let options = PredictorOptions {
        device: Some("cpu".into()),
        batch: 7,
        ..PredictorOptions::default()
    };
    let mut predictor = model.predictor(&options).expect("builds");
    let again = predictor
        .evaluate(raw.test.as_ref().expect("there"))
        .expect("evaluates");
    let PredictionReport::Classification { report, .. } = again else {
        panic!("classification");
    };
    assert_eq!(report.correct, test.correct);
    let files = image_files(home.path().join("down")).expect("reads");
    let features = model.read_images(&files).expect("reads");
    let predictions = predictor.predict(&features).expect("predicts");
    let down = predictions.iter().filter(|p| p.class() == Some(1)).count();
    assert!(down > 40, "{down} of {}", predictions.len());

    let missing: Vec<PathBuf> = vec![home.path().join("missing.png")];
    assert!(matches!(model.read_images(&missing), Err(ModelError::Data(_))));
    let csv = home.path().join("t.csv");
    let error = model.read_table(&csv, Default::default()).expect_err("not a table");
    assert!(
        matches!(&error, ModelError::Features { name, .. } if name.ends_with("t.csv")),
        "{error}"
    );
}

/// Training on a folder of images gives equal results on any number of ranks, each of which reads the folder itself.
#[test]
fn images_in_folders_are_learned_the_same_on_any_number_of_ranks() {
    const STEPS: usize = 30;
    let home = tempfile::tempdir().expect("a folder");
    stripes(home.path(), 40);
    let image = [3, 16, 16];
    for architecture in [
        Architecture::Vit {
            image,
            patch: 4,
            dim: 16,
            layers: 1,
            heads: 2,
            hidden: 32,
            outputs: 2,
        },
        Architecture::Mlp {
            features: image.to_vec(),
            hidden: vec![16],
            activation: Activation::Relu,
            dropout: 0.0,
            outputs: 2,
        },
    ] {
        let run = |ranks| {
            let images = image_folder(home.path(), image, None).expect("reads");
            let raw = images.data.split_parts(SplitOptions::default()).expect("splits");
            let scale = Standardiser::fit_global(&raw.train);
            let parts = raw.standardised(&scale).expect("scales");
            let config = ranks::config(ranks);
            let graph = architecture.training_graph(config.local_batch_size(), Loss::Classes);
            let mut trainer = Trainer::from_graph(&graph.expect("valid"), config).expect("builds");
            let mut observer = Losses::of_steps(STEPS);
            let report = trainer.fit_parts(&parts, &mut observer).expect("trains");
            let names = trainer.session().plan().parameters().into_iter().map(|view| view.name);
            let names: Vec<String> = names.collect();
            let session = trainer.session_mut();
            let parameters: Vec<Vec<f32>> = names.iter().map(|name| session.read_parameter(name)).collect();
            (observer.losses, report.test.expect("measured"), parameters)
        };
        let (single, test, _) = on_ranks(1, LIMIT, run).remove(0);
        let sum = |losses: &[f32]| losses.iter().sum::<f32>();
        assert!(sum(&single[20..]) < 0.9 * sum(&single[..10]), "{single:?}");
        let largest = single.iter().copied().fold(0.0, f32::max);
        for size in [2, 3] {
            let ranks = on_ranks(size, LIMIT, run);
            for (rank, (losses, found, parameters)) in ranks.iter().enumerate() {
                assert_eq!(losses.len(), STEPS);
                for (found, wanted) in losses.iter().zip(&single) {
                    let error = (found - wanted).abs() / largest;
                    assert!(
                        error <= 1e-5,
                        "rank {rank} of {size}: expected {single:?}, found {losses:?}"
                    );
                }
                assert!(
                    close(found, &test),
                    "rank {rank} of {size}: expected {test}, found {found}"
                );
                assert!(*parameters == ranks[0].2, "parameters of rank {rank} of {size} differ");
            }
        }
    }
}

#[test]
fn a_folder_without_images_names_one_with_images() {
    let home = tempfile::tempdir().expect("a folder");
    // Sorted before the classes; neither has images.
    fs::create_dir(home.path().join("a-notes")).expect("makes");
    fs::write(home.path().join("README.txt"), "photos").expect("writes");
    let error = image_files(home.path()).expect_err("no images");
    assert!(matches!(&error, DataError::NoImages { subfolder: None, .. }), "{error}");
    assert!(!error.to_string().contains("help:"), "{error}");
    stripes(home.path(), 2);
    let error = image_files(home.path()).expect_err("no images");
    assert!(
        matches!(&error, DataError::NoImages { folder, subfolder: Some(name) }
            if folder == home.path() && name == "across"),
        "{error}"
    );
    let help = format!(
        "help: use one of them, such as '{}'",
        home.path().join("across").display()
    );
    assert!(error.to_string().contains(&help), "{error}");
    assert_eq!(image_files(home.path().join("across")).expect("images").len(), 2);
}
