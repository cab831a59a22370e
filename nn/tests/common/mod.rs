//! Shared code of the trainer's tests.

use meganeura_core::Graph;
// Links the backend, which registers itself.
use meganeura_cpu as _;
use meganeura_nn::data::{Dataset, digits_split};
use meganeura_nn::models::{MlpConfig, classifier};
use meganeura_nn::trainer::TrainConfig;

/// Returns the default settings on the CPU backend.
pub(crate) fn config() -> TrainConfig {
    TrainConfig {
        device: Some("cpu".into()),
        ..TrainConfig::default()
    }
}

/// Returns training and test digits as vectors of 64.
pub(crate) fn flat_digits() -> (Dataset, Dataset) {
    let (train, test) = digits_split().expect("embedded");
    let flat = |data: Dataset| data.with_feature_shape(vec![64]).expect("64 pixels");
    (flat(train), flat(test))
}

/// Returns the first `n` examples.
pub(crate) fn head(data: &Dataset, n: usize) -> Dataset {
    data.subset(&(0..n).collect::<Vec<_>>()).expect("in range")
}

/// Builds a model without hidden layers or dropout: small, and easy to check by hand.
pub(crate) fn linear_model(batch: usize) -> Graph {
    let model = MlpConfig::new(64, 10).hidden([]).dropout(0.0);
    classifier(batch, &[64], |g, x| model.build(g, "").forward(g, x))
}
