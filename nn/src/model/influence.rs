//! The influence of features on predictions: permutation importance and partial dependence.

use std::ops::Range;

use meganeura_core::random::SplitMix64;
use serde::{Deserialize, Serialize};

use super::{Features, ModelError, Prediction, PredictionReport, Predictor, Task};
use crate::data::Dataset;

/// Group of features, such as the features of one column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGroup {
    /// Name of the group.
    pub name: String,
    /// Indices of the features.
    pub features: Range<usize>,
}

/// Permutation importance of a group of features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    /// Name of the group.
    pub name: String,
    /// Mean decrease of the score if the features of the group are exchanged between examples. The score is the accuracy
    /// for classification, and R² for regression (the mean over all targets).
    pub mean: f64,
    /// Standard deviation of the decrease over the repetitions.
    pub deviation: f64,
}

/// Partial dependence of the predictions on a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartialDependence {
    /// Values of the feature, ascending.
    pub values: Vec<f32>,
    /// Mean prediction for each value: probabilities of the classes, or predicted numbers.
    pub predictions: Vec<Vec<f64>>,
}

impl Predictor {
    /// Computes how much the score decreases if a group of features no longer belongs to its example: each group is
    /// permuted `repeats` times over the examples. The result is sorted by decreasing importance. (Breiman, "Random
    /// Forests", 2001, section 10.)
    ///
    /// Features that depend on each other replace each other, so that all of them may have a low importance.
    ///
    /// # Errors
    /// As for [`Predictor::evaluate`]; [`ModelError::Features`] for a group beyond the features of an example.
    pub fn importances(
        &mut self,
        data: &Dataset,
        groups: &[FeatureGroup],
        repeats: usize,
        seed: u64,
    ) -> Result<Vec<Importance>, ModelError> {
        let width = data.feature_len();
        if let Some(group) = groups.iter().find(|group| group.features.end > width) {
            return Err(ModelError::Features {
                name: data.name().to_owned(),
                message: format!(
                    "group '{}': expected features below {width}, found {:?}",
                    group.name, group.features
                ),
            });
        }
        let score = score(&self.evaluate(data)?);
        let mut rng = SplitMix64::new(seed);
        let mut all = Vec::with_capacity(groups.len());
        for group in groups {
            let mut losses = Vec::with_capacity(repeats);
            for _ in 0..repeats {
                let permuted = permuted(data, &group.features, &mut rng);
                let features = Features::new(data.name(), permuted, data.feature_shape())?;
                let outputs = self.outputs(&features)?;
                losses.push(score - self::score(&self.report(data, &outputs).0));
            }
            let (mean, deviation) = mean_and_deviation(&losses);
            all.push(Importance {
                name: group.name.clone(),
                mean,
                deviation,
            });
        }
        all.sort_by(|a, b| b.mean.total_cmp(&a.mean));
        Ok(all)
    }

    /// Computes the mean prediction over all examples if a feature has the same value in all of them. The values are at
    /// most `count` quantiles of the feature. (Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", 2001,
    /// section 8.2.)
    ///
    /// # Errors
    /// As for [`Predictor::outputs`]; [`ModelError::Features`] for a feature that the examples do not have.
    pub fn partial_dependence(
        &mut self,
        data: &Dataset,
        feature: usize,
        count: usize,
    ) -> Result<PartialDependence, ModelError> {
        let width = data.feature_len();
        if feature >= width {
            return Err(ModelError::Features {
                name: data.name().to_owned(),
                message: format!("expected a feature below {width}, found {feature}"),
            });
        }
        let mut sorted: Vec<f32> = data.features().iter().skip(feature).step_by(width).copied().collect();
        sorted.sort_by(f32::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let steps = count.saturating_sub(1).max(1);
        let quantiles = (0..count).filter_map(|step| sorted.get(last * step / steps).copied());
        let mut values: Vec<f32> = quantiles.collect();
        values.dedup();
        let mut features = data.features().to_vec();
        let mut predictions = Vec::with_capacity(values.len());
        for &value in &values {
            features
                .iter_mut()
                .skip(feature)
                .step_by(width)
                .for_each(|x| *x = value);
            let changed = Features::new(data.name(), features.clone(), data.feature_shape())?;
            predictions.push(mean_prediction(&self.predict(&changed)?, self.task()));
        }
        Ok(PartialDependence { values, predictions })
    }
}

/// Returns a copy of the features in which the features of a group are permuted over the examples.
fn permuted(data: &Dataset, group: &Range<usize>, rng: &mut SplitMix64) -> Vec<f32> {
    let width = data.feature_len();
    let mut rows: Vec<usize> = (0..data.len()).collect();
    for end in (1..rows.len()).rev() {
        rows.swap(end, rng.below(end + 1));
    }
    let mut features = data.features().to_vec();
    for (row, from) in features.chunks_exact_mut(width).zip(rows) {
        let from = from * width;
        row[group.clone()].copy_from_slice(&data.features()[from + group.start..from + group.end]);
    }
    features
}

/// Returns the accuracy or R² of a report.
fn score(report: &PredictionReport) -> f64 {
    match report {
        PredictionReport::Classification { report, .. } => report.accuracy(),
        PredictionReport::Regression { metrics, .. } => metrics.r2,
    }
}

/// Returns the mean and the population standard deviation; 0 without values.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Returns the mean of predictions: probabilities, or numbers.
fn mean_prediction(predictions: &[Prediction], task: &Task) -> Vec<f64> {
    let mut sum = vec![0.0; task.outputs()];
    for prediction in predictions {
        let values = match prediction {
            Prediction::Class { probabilities, .. } => probabilities,
            Prediction::Values(values) => values,
        };
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    let count = predictions.len().max(1) as f64;
    sum.into_iter().map(|sum| sum / count).collect()
}
