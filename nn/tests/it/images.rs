//! From a folder of images to a model in a folder and back.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::config;
use image::{Rgb, RgbImage};
use meganeura_nn::data::{SplitOptions, Standardiser, image_files, image_folder};
use meganeura_nn::model::{Architecture, Model, ModelError, PredictionReport, PredictorOptions, Preprocessing, Task};
use meganeura_nn::trainer::{Silent, TrainConfig, Trainer};

/// Images of horizontal and vertical stripes, of several sizes and colours.
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
    let report = trainer.fit_parts(&parts, &mut Silent).expect("trains");
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
    assert!(matches!(
        model.read_table(&csv, Default::default()),
        Err(ModelError::Invalid { .. })
    ));
}
