//! Tests of observers of the trainer, and of all errors.

use std::ops::ControlFlow;

use crate::common::{config, flat_digits, head, linear_model};
use meganeura_core::{Error, Graph};
use meganeura_nn::data::{DataError, Dataset, Remainder, digits_split};
use meganeura_nn::layers::Linear;
use meganeura_nn::models::{MobileNetConfig, classifier};
use meganeura_nn::trainer::{
    EpochBegin, EpochReport, Observer, OptimizerChoice, Schedule, SilentObserver, StepInfo, TrainConfig, TrainError,
    TrainReport, Trainer,
};

// ---- observers -----------------------------------------------------------------------------------------

/// Records every call, and stops at the one whose note is `stop`.
#[derive(Default)]
struct Recorder {
    notes: Vec<String>,
    rates: Vec<f32>,
    losses: Vec<Option<f32>>,
    stop: &'static str,
}

impl Recorder {
    fn note(&mut self, note: String) -> ControlFlow<()> {
        let stop = note == self.stop;
        self.notes.push(note);
        if stop {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Observer for Recorder {
    fn on_epoch_begin(&mut self, e: &EpochBegin) -> ControlFlow<()> {
        self.note(format!("begin {}/{} of {}", e.epoch, e.epochs, e.steps))
    }

    fn on_step(&mut self, s: &StepInfo) -> ControlFlow<()> {
        self.rates.push(s.learning_rate);
        self.losses.push(s.loss);
        self.note(format!("step {}.{}/{}", s.epoch, s.step, s.steps))
    }

    fn on_epoch_end(&mut self, r: &EpochReport) -> ControlFlow<()> {
        self.note(format!("end {}", r.epoch))
    }
}

fn observe(stop: &'static str, config: TrainConfig) -> (Recorder, TrainReport) {
    let (train, test) = flat_digits();
    let train = head(&train, 70);
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    let mut recorder = Recorder {
        stop,
        ..Recorder::default()
    };
    let report = trainer
        .fit(&train, Some(&head(&test, 5)), &mut recorder)
        .expect("trains");
    (recorder, report)
}

#[test]
fn observers_see_every_step_and_rate() {
    let config = TrainConfig {
        epochs: 2,
        learning_rate: 0.5,
        loss_every: 2,
        schedule: Schedule::Step {
            every_epochs: 1,
            factor: 0.5,
        },
        ..config()
    };
    let (seen, report) = observe("", config.clone());
    let expected = [
        "begin 1/2 of 2",
        "step 1.1/2",
        "step 1.2/2",
        "end 1",
        "begin 2/2 of 2",
        "step 2.1/2",
        "step 2.2/2",
        "end 2",
    ];
    assert_eq!(seen.notes, expected);
    assert_eq!(seen.rates, [0.5, 0.5, 0.25, 0.25]);
    let read: Vec<bool> = seen.losses.iter().map(Option::is_some).collect();
    assert_eq!(read, [false, true, false, true]);
    assert_eq!(report.epochs[1].learning_rate, 0.25);
    // Missing examples of a batch are taken from the start instead.
    let wrap = TrainConfig {
        remainder: Remainder::Wrap,
        ..config
    };
    assert_eq!(observe("", wrap).0.notes[0], "begin 1/2 of 3");
}

#[test]
fn observers_stop_training_anywhere() {
    let config = TrainConfig { epochs: 3, ..config() };
    for (stop, epochs) in [
        ("begin 1/3 of 2", 0),
        ("begin 2/3 of 2", 1),
        ("step 2.1/2", 1),
        ("end 2", 2),
    ] {
        let (seen, report) = observe(stop, config.clone());
        assert_eq!(seen.notes.last().map(String::as_str), Some(stop));
        assert_eq!((report.epochs.len(), report.stopped), (epochs, true), "{stop}");
        assert_eq!(report.evaluation.expect("evaluated all the same").examples, 5);
    }
}

// ---- unhappy paths -------------------------------------------------------------------------------------

#[test]
fn data_that_do_not_fit_the_model_are_refused_with_both_shapes() {
    let (images, _) = digits_split().expect("embedded");
    let (flat, _) = flat_digits();
    let mut trainer = Trainer::new(linear_model, config()).expect("builds");
    let error = trainer.fit(&images, None, &mut SilentObserver).expect_err("images");
    assert!(matches!(&error, TrainError::FeatureShape { expected, found, .. }
        if *expected == [64] && *found == [1, 8, 8]));
    let text = error.to_string();
    assert!(
        text.contains("[64]") && text.contains("[1, 8, 8]") && text.contains("with_feature_shape"),
        "{text}"
    );
    assert!(
        trainer.fit(&flat, Some(&images), &mut SilentObserver).is_err(),
        "the test data are checked first"
    );
    assert!(trainer.evaluate(&images).is_err());

    let labels = flat.labels().iter().map(|l| l + 1).collect();
    let eleven = Dataset::new("eleven", flat.features().to_vec(), vec![64], labels, 11).expect("valid");
    let error = trainer.fit(&eleven, None, &mut SilentObserver).expect_err("classes");
    assert!(
        matches!(
            error,
            TrainError::Classes {
                expected: 10,
                found: 11,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_batch_larger_than_the_training_data_is_refused() {
    let (train, _) = flat_digits();
    let mut trainer = Trainer::new(linear_model, config()).expect("builds");
    let error = trainer
        .fit(&head(&train, 31), None, &mut SilentObserver)
        .expect_err("31 examples");
    assert!(
        matches!(
            error,
            TrainError::Data(DataError::BatchTooLarge { batch: 32, len: 31, .. })
        ),
        "{error}"
    );
}

#[test]
fn a_loss_that_is_not_finite_stops_training() {
    let (train, _) = flat_digits();
    for (loss_every, expected_step) in [(1, 2), (0, 44)] {
        let config = TrainConfig {
            learning_rate: f32::MAX,
            optimizer: OptimizerChoice::Sgd,
            schedule: Schedule::Constant,
            loss_every,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let error = trainer.fit(&train, None, &mut SilentObserver).expect_err("diverges");
        let TrainError::NonFiniteLoss { epoch, step, loss, .. } = error else {
            panic!("{error}");
        };
        assert!(!loss.is_finite());
        assert_eq!((epoch, step), (1, expected_step));
        let text = error.to_string();
        assert!(
            text.contains("epoch 1") && text.contains("lower the learning rate"),
            "{text}"
        );
    }
}

/// It is an error if the last update makes the weights unusable, although no training loss is read after it.
#[test]
fn a_last_update_that_spoils_the_weights_is_an_error() {
    let (train, test) = flat_digits();
    let train = head(&train, 32);
    let config = TrainConfig {
        epochs: 1,
        learning_rate: f32::MAX,
        optimizer: OptimizerChoice::Sgd,
        schedule: Schedule::Constant,
        ..config()
    };
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    let error = trainer
        .fit(&train, Some(&test), &mut SilentObserver)
        .expect_err("diverges");
    let TrainError::NonFiniteLoss { epoch, step, loss, .. } = error else {
        panic!("{error}");
    };
    assert!(!loss.is_finite());
    assert_eq!((epoch, step), (1, 1));
}

fn refused(model: impl FnOnce(usize) -> Graph, config: TrainConfig) -> TrainError {
    Trainer::new(model, config).expect_err("refused")
}

#[test]
fn settings_are_checked_before_the_model_is_built() {
    let never = |_: usize| -> Graph { panic!("the settings are wrong") };
    for bad in [f32::NAN, -1.0, f32::INFINITY] {
        let error = refused(
            never,
            TrainConfig {
                learning_rate: bad,
                ..config()
            },
        );
        assert!(
            matches!(
                error,
                TrainError::Config {
                    field: "learning_rate",
                    ..
                }
            ),
            "{error}"
        );
    }
    let error = refused(
        never,
        TrainConfig {
            batch_size: 0,
            ..config()
        },
    );
    assert!(
        matches!(
            error,
            TrainError::Config {
                field: "batch_size",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn models_that_do_not_fit_the_trainer_are_refused() {
    let error = refused(|_| linear_model(16), config());
    assert!(matches!(error, TrainError::BatchSize { batch_size: 32, .. }), "{error}");

    let no_logits = |batch| {
        let mut g = linear_model(batch);
        let loss = g.outputs()[0];
        g.set_outputs(vec![loss]);
        g
    };
    assert!(matches!(refused(no_logits, config()), TrainError::Model { .. }));
    let swapped = |batch| {
        let mut g = linear_model(batch);
        let outputs = g.outputs().iter().rev().copied().collect();
        g.set_outputs::<meganeura_core::Value>(outputs);
        g
    };
    assert!(matches!(refused(swapped, config()), TrainError::Model { .. }));
    let vector_loss = |batch| {
        let mut g = linear_model(batch);
        let logits = g.outputs()[1];
        g.set_outputs(vec![logits, logits]);
        g
    };
    assert!(matches!(
        refused(vector_loss, config()),
        TrainError::Core(Error::NonScalarLoss { .. })
    ));

    let unknown = TrainConfig {
        features: "pixels".into(),
        ..config()
    };
    let error = refused(linear_model, unknown);
    assert!(
        matches!(&error, TrainError::Core(Error::UnknownTensor { name, .. }) if name == "pixels"),
        "{error}"
    );
    let labels_are_features = TrainConfig {
        labels: "x".into(),
        ..config()
    };
    let error = refused(linear_model, labels_are_features);
    assert!(error.to_string().contains("f32[32, 10]"), "{error}");
    let broken = |batch| classifier(batch, &[64], |g, x| Linear::new(g, "fc", 63, 10).forward(g, x));
    assert!(matches!(
        refused(broken, config()),
        TrainError::Core(Error::InvalidOp { .. })
    ));
}

#[test]
fn a_device_that_does_not_exist_is_refused() {
    let nowhere = TrainConfig {
        device: Some("cpu:99".into()),
        ..config()
    };
    let error = refused(linear_model, nowhere);
    assert!(
        matches!(error, TrainError::Core(Error::DeviceSelection { .. })),
        "{error}"
    );
}

#[test]
fn a_mobilenet_learns_in_a_few_steps() {
    // Bright at the top or at the bottom.
    let pixel = |at: usize| {
        let (example, row) = (at / 256, at / 16 % 16);
        let bright = (row < 8) == (example % 2 == 0);
        f32::from(u8::from(bright)) + (at as f32 * 0.7).sin() * 0.3
    };
    let features = (0..64 * 256).map(pixel).collect();
    let labels = (0..64).map(|example| example % 2).collect();
    let data = Dataset::new("halves", features, vec![1, 16, 16], labels, 2).expect("valid");
    let model = MobileNetConfig::new(2).width(0.1).channels(1).small_images(true);
    let config = TrainConfig {
        epochs: 10,
        batch_size: 16,
        device: Some("cpu".into()),
        ..TrainConfig::default()
    };
    let graph = |batch| classifier(batch, &[1, 16, 16], |g, x| model.build(g, "").forward(g, x));
    let mut trainer = Trainer::new(graph, config).expect("builds");
    let report = trainer.fit(&data, Some(&data), &mut SilentObserver).expect("trains");
    let losses: Vec<f64> = report.epochs.iter().map(|e| e.train_loss).collect();
    assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
    assert!(report.evaluation.is_some_and(|e| e.accuracy() > 0.9), "{report:?}");
}
