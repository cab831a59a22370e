//! Tests of ranks whose models are random or depend on their own examples: dropout masks and batch norms.

use meganeura_core::Graph;
use meganeura_nn::data::Dataset;
use meganeura_nn::models::{CnnConfig, MlpConfig, classifier};
use meganeura_nn::trainer::{Evaluation, Trainer};

use crate::common::{flat_digits, head};
use crate::distributed::{LIMIT, on_ranks};
use crate::ranks::{Losses, config};

/// The results of a run on a rank.
#[derive(Clone, PartialEq)]
struct Outcome {
    losses: Vec<f32>,
    evaluation: Evaluation,
    /// Result of a second evaluation, which must not depend on dropout masks.
    again: Evaluation,
    parameters: Vec<Vec<f32>>,
    /// Running statistics of batch norms. States of the optimizer differ with `zero1`.
    statistics: Vec<Vec<f32>>,
}

fn outcomes(size: usize, zero1: bool, model: fn(usize) -> Graph, data: &[Dataset; 2]) -> Vec<Outcome> {
    let [train, test] = data;
    on_ranks(size, LIMIT, |ranks| {
        let mut config = config(ranks);
        (config.zero1, config.learning_rate) = (zero1, 5e-3);
        let mut trainer = Trainer::new(model, config).expect("builds");
        let mut observer = Losses::of_steps(60);
        let report = trainer.fit(train, Some(test), &mut observer).expect("trains");
        let again = trainer.evaluate(test).expect("evaluates");
        let session = trainer.session_mut();
        let plan = session.plan();
        let [parameters, states] = [plan.parameters(), plan.states()];
        Outcome {
            losses: observer.losses,
            evaluation: report.evaluation.expect("evaluated"),
            again,
            parameters: parameters
                .iter()
                .map(|view| session.read_parameter(&view.name))
                .collect(),
            statistics: states
                .iter()
                .filter(|view| view.name.contains("running"))
                .map(|view| session.read_state(&view.name))
                .collect(),
        }
    })
}

/// Compares runs of two and three ranks, whose models have this number of running statistics.
fn assert_ranks_agree(what: &str, model: fn(usize) -> Graph, data: &[Dataset; 2], statistics: usize) {
    let single = outcomes(1, false, model, data).remove(0);
    assert_eq!(single.statistics.len(), statistics, "{what}");
    for (size, zero1) in [(2, false), (3, false), (2, true), (3, true)] {
        let ranks = outcomes(size, zero1, model, data);
        let first = &ranks[0];
        for (rank, other) in ranks.iter().enumerate() {
            let what = format!("{what}, rank {rank} of {size}, zero1 {zero1}");
            assert!(
                other.losses.iter().all(|loss| loss.is_finite()),
                "{what}: {:?}",
                other.losses
            );
            assert_eq!(other.losses, first.losses, "{what}");
            assert_eq!(other.evaluation, first.evaluation, "{what}");
            assert_eq!(other.evaluation, other.again, "{what}");
            assert!(other.parameters == first.parameters, "{what}: parameters differ");
            assert!(other.statistics == first.statistics, "{what}: statistics differ");
        }
        // Each rank has its own masks or statistics.
        assert_ne!(first.losses, single.losses, "{what}, {size} ranks");
        let sum = |losses: &[f32]| losses.iter().sum::<f32>();
        for losses in [&first.losses, &single.losses] {
            assert!(
                sum(&losses[50..]) < 0.8 * sum(&losses[..10]),
                "{what}, {size} ranks: {losses:?}"
            );
        }
        let difference = sum(&first.losses[50..]) / sum(&single.losses[50..]) - 1.0;
        assert!(
            difference.abs() < 0.3,
            "{what}, {size} ranks: losses differ by {difference}"
        );
    }
}

#[test]
fn ranks_with_dropout_end_with_equal_parameters() {
    let (train, test) = flat_digits();
    let model = |batch| {
        let network = MlpConfig::new(64, 10).hidden([32]).dropout(0.3);
        classifier(batch, &[64], |g, x| network.build(g, "").forward(g, x))
    };
    assert_ranks_agree("dropout", model, &[head(&train, 301), head(&test, 50)], 0);
}

/// With batch norms, the running statistics of all ranks are equal, too.
#[test]
fn ranks_with_batch_norms_end_with_equal_parameters_and_statistics() {
    let (train, test) = flat_digits();
    let square = |data: &Dataset, count| {
        let data = head(data, count).with_feature_shape(vec![1, 8, 8]);
        data.expect("64 pixels")
    };
    let model = |batch| {
        let network = CnnConfig::new([1, 8, 8], 10)
            .channels([8, 8, 8])
            .hidden(16)
            .dropout(0.1);
        classifier(batch, &[1, 8, 8], |g, x| network.build(g, "").forward(g, x))
    };
    assert_ranks_agree("batch norms", model, &[square(&train, 121), square(&test, 30)], 6);
}
