//! Tests of training on a folder of images, saving and loading.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::config;
use crate::distributed::{LIMIT, close, on_ranks};
use crate::ranks::{self, Losses};
use image::{Rgb, RgbImage};
use meganeura_compiler::{SessionConfig, build};
use meganeura_core::{Graph, Mode};
use meganeura_nn::data::{
    ChannelOrder, DataError, ImageFit, ImageLayout, ImageLoader, ImageTransform, SplitOptions, Standardiser,
    image_files, image_folder,
};
use meganeura_nn::layers::Activation;
use meganeura_nn::model::{
    Architecture, Loss, Model, ModelError, Prediction, PredictionReport, PredictorOptions, Preprocessing, Task,
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
    // The plan converts bytes of the same images.
    let mut of_files = model.image_predictor(&options).expect("builds");
    let mut seen = 0;
    let compare = |file: usize, found: Prediction| {
        assert_eq!(file, seen);
        let (Prediction::Class { probabilities: a, .. }, Prediction::Class { probabilities: b, .. }) =
            (&predictions[file], &found)
        else {
            panic!("classification");
        };
        assert!(
            a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4),
            "{file}: {a:?} {b:?}"
        );
        seen += 1;
    };
    of_files.predict(&files, compare).expect("predicts");
    assert_eq!(seen, files.len());

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

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/images")
        .join(name)
}

/// Bytes that Pillow computed; `scripts/verify-external/make_image_fixtures.py` wrote the files.
#[test]
fn images_are_resized_and_cropped_as_by_pillow() {
    let cases = [
        ("crop.png", [28, 27], ImageFit::Crop { shorter_side: 32 }),
        ("stretch.png", [31, 20], ImageFit::Stretch),
        ("pad.png", [40, 40], ImageFit::Pad),
        ("enlarged.png", [56, 60], ImageFit::Crop { shorter_side: 64 }),
    ];
    for (name, [height, width], fit) in cases {
        let transform = ImageTransform {
            fit,
            ..ImageTransform::new([3, height, width])
        };
        let found = transform.read(&fixture("source.png")).expect(name);
        let expected = image::open(fixture(name)).expect("a fixture").into_rgb8().into_raw();
        assert_eq!(found.len(), expected.len(), "{name}");
        let difference = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(difference <= Some(1), "{name}: {difference:?}");
    }
}

/// The plan computes the documented formula.
#[test]
fn normalization_and_layout_are_part_of_the_plan() {
    let transforms = [
        ImageTransform::imagenet([9, 7]),
        ImageTransform {
            order: ChannelOrder::Bgr,
            layout: ImageLayout::ChannelsLast,
            mean: vec![0.1, 0.2, 0.3],
            std: vec![0.5, 0.25, 2.0],
            ..ImageTransform::new([3, 5, 9])
        },
        // 15 bytes, which leave a part of the last word unused.
        ImageTransform::new([1, 3, 5]),
    ];
    for transform in transforms {
        let [channels, height, width] = transform.size;
        let files: Vec<PathBuf> = ["source.png", "crop.png", "pad.png"].map(fixture).to_vec();
        let mut g = Graph::new();
        let words = g.input_u32("words", &[2, transform.words()]);
        let values = transform.apply(&mut g, words);
        assert_eq!(g.shape(values)[1..], transform.shape());
        g.set_outputs(vec![values]);
        let config = SessionConfig {
            device: Some("cpu".into()),
            mode: Mode::Inference,
            ..SessionConfig::default()
        };
        let (mut session, _) = build(&g, config).expect("builds");
        let mut seen = 0;
        for batch in ImageLoader::with_threads(files.clone(), transform.clone(), 2, 3).expect("starts") {
            let batch = batch.expect("images");
            assert_eq!((batch.first, batch.count), (seen, 2.min(files.len() - seen)));
            session.try_set_input_u32("words", &batch.words).expect("fits");
            session.try_step().expect("runs");
            let mut found = vec![0.0; 2 * transform.bytes()];
            session.try_read_output_by_index(0, &mut found).expect("reads");
            for (file, found) in files[seen..]
                .iter()
                .zip(found.chunks(transform.bytes()))
                .take(batch.count)
            {
                let bytes = transform.read(file).expect("an image");
                for (i, byte) in bytes.iter().enumerate() {
                    let (y, x, c) = (i / channels / width, i / channels % width, i % channels);
                    let at = match transform.layout {
                        ImageLayout::ChannelsFirst => (c * height + y) * width + x,
                        ImageLayout::ChannelsLast => i,
                    };
                    let expected = (f32::from(*byte) / 255.0 - transform.mean[c]) / transform.std[c];
                    assert!(
                        (found[at] - expected).abs() < 1e-5,
                        "{file:?} {i}: {} {expected}",
                        found[at]
                    );
                }
            }
            seen += batch.count;
        }
        assert_eq!(seen, 3);
    }
}

#[test]
fn a_loader_ends_at_the_first_file_that_is_no_image() {
    let home = tempfile::tempdir().expect("a folder");
    fs::write(home.path().join("text.png"), "text").expect("writes");
    let good = fixture("crop.png");
    let mut files = vec![good; 9];
    files.insert(5, home.path().join("text.png"));
    let mut loader = ImageLoader::new(files.clone(), ImageTransform::new([3, 4, 4]), 4).expect("starts");
    assert_eq!(loader.next().map(|batch| batch.map(|b| b.count).ok()), Some(Some(4)));
    let error = loader.next().and_then(Result::err).expect("the sixth file is text");
    assert!(error.to_string().contains("text.png"), "{error}");
    assert!(loader.next().is_none());
    // A loader that is dropped early ends its threads.
    drop(ImageLoader::new(files, ImageTransform::new([1, 4, 4]), 1).expect("starts"));
    let none = ImageLoader::new(Vec::new(), ImageTransform::new([1, 4, 4]), 1).expect("starts");
    assert_eq!(none.count(), 0);
}

#[test]
fn transforms_that_cannot_be_are_refused() {
    let good = ImageTransform::imagenet([224, 200]);
    assert_eq!(good.fit, ImageFit::Crop { shorter_side: 256 });
    good.check().expect("usual");
    let cases = [
        (ImageTransform::new([2, 4, 4]), "channels are 1 or 3"),
        (
            ImageTransform {
                fit: ImageFit::Crop { shorter_side: 3 },
                ..ImageTransform::new([1, 4, 4])
            },
            "between 4",
        ),
        (
            ImageTransform {
                mean: vec![0.0],
                ..good.clone()
            },
            "1 means and 3",
        ),
        (
            ImageTransform {
                std: vec![1.0, 0.0, 1.0],
                ..good.clone()
            },
            "above 0",
        ),
    ];
    for (transform, said) in cases {
        let error = transform.check().expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
        assert!(transform.read(&fixture("crop.png")).is_err());
    }
    assert!(ImageLoader::new(Vec::new(), good, 0).is_err());
}
