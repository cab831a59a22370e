//! Tests of a last batch with fewer examples: loss and update equal those of a batch of this size.

use std::sync::Arc;

use meganeura_core::distributed::Communicator;
use meganeura_core::{Graph, NodeId};
use meganeura_nn::data::{Dataset, Remainder};
use meganeura_nn::models::{MlpConfig, classifier, regressor, soft_classifier, weighted_regressor};
use meganeura_nn::trainer::{OptimizerChoice, Schedule, SilentObserver, TrainConfig, TrainError, Trainer};

use crate::common::{flat_digits, head};
use crate::distributed::{LIMIT, on_ranks};
use crate::ranks::Losses;

/// Batch size that is divisible by 1, 2 and 3.
const BATCH: usize = 12;
const ROWS: usize = 2 * BATCH - 5;

fn config(batch_size: usize, remainder: Remainder, ranks: Option<Arc<dyn Communicator>>) -> TrainConfig {
    TrainConfig {
        epochs: 1,
        batch_size,
        remainder,
        optimizer: OptimizerChoice::Sgd,
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        shuffle: false,
        loss_every: 1,
        device: Some("cpu".into()),
        distributed: ranks,
        ..TrainConfig::default()
    }
}

fn mlp(outputs: usize) -> impl Fn(&mut Graph, NodeId) -> NodeId {
    move |g, x| {
        let model = MlpConfig::new(64, outputs).hidden([16]).dropout(0.0);
        model.build(g, "").forward(g, x)
    }
}

fn parameters(trainer: &mut Trainer) -> Vec<(String, Vec<f32>)> {
    let views = trainer.session().plan().parameters();
    let session = trainer.session_mut();
    let read = |name: String| {
        let values = session.read_parameter(&name);
        (name, values)
    };
    views.into_iter().map(|view| view.name).map(read).collect()
}

/// Trains on `data` with the last batch kept, on one to three ranks, and with batches of the exact sizes.
fn assert_mean_over_rows(data: &Dataset, kept: impl Fn(usize) -> Graph + Sync, plain: impl Fn(usize) -> Graph) {
    let rows = |range: std::ops::Range<usize>| data.subset(&range.collect::<Vec<_>>()).expect("in range");
    let mut expected: Option<Vec<(String, Vec<f32>)>> = None;
    let mut losses = Vec::new();
    for part in [rows(0..BATCH), rows(BATCH..ROWS)] {
        let mut trainer = Trainer::new(&plain, config(part.len(), Remainder::Drop, None)).expect("builds");
        for (name, values) in expected.into_iter().flatten() {
            trainer.session_mut().set_parameter(&name, &values);
        }
        let mut observer = Losses::of_steps(9);
        trainer.fit(&part, None, &mut observer).expect("trains");
        losses.extend(observer.losses);
        expected = Some(parameters(&mut trainer));
    }
    let expected = expected.expect("trained");
    for ranks in [1, 2, 3] {
        let runs = on_ranks(ranks, LIMIT, |communicator| {
            let mut trainer = Trainer::new(&kept, config(BATCH, Remainder::Keep, communicator)).expect("builds");
            let mut observer = Losses::of_steps(9);
            let report = trainer.fit(data, None, &mut observer).expect("trains");
            assert_eq!((report.epochs[0].steps, report.epochs[0].examples), (2, ROWS));
            (observer.losses, parameters(&mut trainer))
        });
        for (found_losses, found) in runs {
            let close = |a: &f32, b: &f32| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
            assert!(
                found_losses.len() == 2 && found_losses.iter().zip(&losses).all(|(a, b)| close(a, b)),
                "{ranks} ranks: {found_losses:?}, {losses:?}"
            );
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                assert!(
                    found.iter().zip(expected).all(|(a, b)| close(a, b)),
                    "{ranks} ranks: {name}"
                );
            }
        }
    }
}

#[test]
fn a_classifier_trains_on_the_mean_of_the_rows_that_are_left() {
    let data = head(&flat_digits().0, ROWS);
    assert_mean_over_rows(
        &data,
        |batch| soft_classifier(batch, &[64], mlp(10)),
        |batch| classifier(batch, &[64], mlp(10)),
    );
}

#[test]
fn a_regression_trains_on_the_mean_of_the_rows_that_are_left() {
    let digits = head(&flat_digits().0, ROWS);
    let targets = (0..2 * ROWS).map(|i| (i % 7) as f32 * 0.25 - 0.5).collect();
    let data = Dataset::regression("targets", digits.features().to_vec(), vec![64], targets, 2).expect("valid");
    assert_mean_over_rows(
        &data,
        |batch| weighted_regressor(batch, &[64], mlp(2)),
        |batch| regressor(batch, &[64], mlp(2)),
    );
}

#[test]
fn models_without_weights_of_rows_are_refused() {
    let config = config(BATCH, Remainder::Keep, None);
    let error = Trainer::new(|batch| classifier(batch, &[64], mlp(10)), config).expect_err("class ids");
    assert!(
        matches!(&error, TrainError::Model { message, .. } if message.contains("no row weights")),
        "{error}"
    );
}

#[test]
fn epochs_report_only_the_examples_that_they_used() {
    let data = head(&flat_digits().0, ROWS);
    for (remainder, examples) in [
        (Remainder::Drop, BATCH),
        (Remainder::Wrap, 2 * BATCH),
        (Remainder::Keep, ROWS),
    ] {
        let model = |batch| soft_classifier(batch, &[64], mlp(10));
        let mut trainer = Trainer::new(model, config(BATCH, remainder, None)).expect("builds");
        let report = trainer.fit(&data, None, &mut SilentObserver).expect("trains");
        assert_eq!(report.epochs[0].examples, examples, "{remainder:?}");
    }
}
