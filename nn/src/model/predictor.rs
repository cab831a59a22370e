//! Predictions of a model.

use std::fmt;

use meganeura_compiler::{SessionConfig, build};
use meganeura_core::distributed::{Communicator, agree};
use meganeura_core::files::sha256;
use meganeura_core::precision::Precision;
use meganeura_core::{Graph, Mode, Session};
use serde::{Deserialize, Serialize};

use super::{Features, Model, ModelError, Task};
use crate::data::{Dataset, Standardiser};
use crate::models::FEATURES;
use crate::trainer::evaluate::cross_entropy;
use crate::trainer::{ClassificationReport, RegressionMetrics};

/// Settings of a [`Predictor`].
#[derive(Clone, Debug)]
pub struct PredictorOptions {
    /// Device selector; without one, the environment and the configuration file decide.
    pub device: Option<String>,
    /// Number of examples per batch, at least 1. Any number of examples can be predicted; the batch size only changes
    /// results by rounding.
    pub batch: usize,
    /// Precision of matmuls and convolutions. Without one, the configuration file decides.
    pub precision: Option<Precision>,
}

impl Default for PredictorOptions {
    /// Returns options with batches of 64.
    fn default() -> Self {
        PredictorOptions {
            device: None,
            batch: 64,
            precision: None,
        }
    }
}

impl PredictorOptions {
    /// Builds a session of a model's graph for a batch, which `graph` makes, and sets the weights.
    pub(super) fn session(
        &self,
        model: &Model,
        graph: impl FnOnce(usize) -> Result<Graph, ModelError>,
    ) -> Result<Session, ModelError> {
        let batch = self.batch;
        let (width, outputs) = (model.architecture.feature_len(), model.architecture.outputs());
        let fits = |len: usize| batch.checked_mul(len).is_some_and(|n| n <= isize::MAX as usize / 4);
        if batch == 0 || !fits(width) || !fits(outputs) {
            return Err(ModelError::Invalid {
                field: "batch",
                message: format!("it is {batch}; use a number such as 64"),
            });
        }
        let config = SessionConfig {
            device: self.device.clone(),
            mode: Mode::Inference,
            precision: self.precision,
            ..SessionConfig::default()
        };
        let (mut session, _) = build(&graph(batch)?, config)?;
        model.load_into(&mut session)?;
        Ok(session)
    }
}

/// The prediction of a model for one example.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prediction {
    /// Result of classification.
    Class {
        /// Id of the most probable class; among equals, the smallest id.
        class: usize,
        /// Probabilities of all classes, by id; their sum is 1 up to rounding.
        probabilities: Vec<f64>,
    },
    /// Result of regression: the targets, in their original units.
    Values(Vec<f64>),
}

impl Prediction {
    /// Returns the id of the most probable class; `None` for regression.
    pub fn class(&self) -> Option<usize> {
        match self {
            Prediction::Class { class, .. } => Some(*class),
            Prediction::Values(_) => None,
        }
    }

    /// Returns the targets, in their original units; none for classification.
    pub fn values(&self) -> &[f64] {
        match self {
            Prediction::Class { .. } => &[],
            Prediction::Values(values) => values,
        }
    }
}

/// A model that is ready to predict, in a session for inference.
#[derive(Debug)]
pub struct Predictor {
    session: Session,
    task: Task,
    shape: Vec<usize>,
    scale: Option<Standardiser>,
    batch: usize,
    /// Buffer for the input of the session, `[batch, shape...]`.
    inputs: Vec<f32>,
    /// Buffer for the output of the session, `[batch, outputs]`.
    outputs: Vec<f32>,
}

impl Predictor {
    pub(super) fn new(model: &Model, options: &PredictorOptions) -> Result<Self, ModelError> {
        let batch = options.batch;
        let session = options.session(model, |batch| model.architecture.inference_graph(batch))?;
        Ok(Predictor {
            session,
            task: model.task.clone(),
            shape: model.architecture.feature_shape(),
            scale: model.preprocessing.scale().cloned(),
            batch,
            inputs: Vec::new(),
            outputs: vec![0.0; batch * model.architecture.outputs()],
        })
    }

    /// Returns the task of the model.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the session, with one input, `x` (`f32 [batch, shape...]`, standardised), and one
    /// output, the logits or standardised targets (`f32 [batch, outputs]`).
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Computes the outputs of the model for all examples, `[features.len(), outputs]`: logits, or
    /// standardised targets.
    ///
    /// # Errors
    /// [`ModelError::Features`] for examples with another number of values (other shapes with the
    /// same number are accepted), or values that overflow when standardised;
    /// [`ModelError::NonFinite`]; [`ModelError::Core`] if a step fails.
    pub fn outputs(&mut self, features: &Features) -> Result<Vec<f32>, ModelError> {
        let width: usize = self.shape.iter().product();
        let refuse = |message: String| ModelError::Features {
            name: features.name().to_owned(),
            message,
        };
        if features.width() != width {
            let message = format!(
                "the examples have shape {:?}, but the model expects {:?}",
                features.shape(),
                self.shape
            );
            return Err(refuse(message));
        }
        let outputs = self.task.outputs();
        let mut all = Vec::with_capacity(features.len() * outputs);
        let mut done = 0;
        for batch in features.values().chunks(self.batch * width) {
            self.inputs.clear();
            self.inputs.extend_from_slice(batch);
            if let Some(scale) = &self.scale {
                self.inputs.chunks_exact_mut(width).for_each(|row| scale.apply(row));
                if let Some(at) = self.inputs.iter().position(|v| !v.is_finite()) {
                    let (row, feature) = (done + at / width, at % width);
                    return Err(refuse(format!(
                        "feature {feature} of row {row} is {} after standardisation; it is too far from the training \
                         data",
                        self.inputs[at]
                    )));
                }
            }
            let rows = batch.len() / width;
            // Fill the batch with rows of zeros, whose results are ignored.
            self.inputs.resize(self.batch * width, 0.0);
            self.session.try_set_input(FEATURES, &self.inputs)?;
            self.session.try_step()?;
            self.session.try_read_output_by_index(0, &mut self.outputs)?;
            let found = &self.outputs[..rows * outputs];
            if let Some(at) = found.iter().position(|v| !v.is_finite()) {
                return Err(ModelError::NonFinite {
                    name: features.name().to_owned(),
                    row: done + at / outputs,
                });
            }
            all.extend_from_slice(found);
            done += rows;
        }
        Ok(all)
    }

    /// Measures the predictions for a data set whose features and targets are not standardised.
    ///
    /// # Errors
    /// As for [`outputs`](Self::outputs); [`ModelError::Features`] for data of another task, with more classes, another
    /// number of targets, or standardised ones.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<PredictionReport, ModelError> {
        Ok(self.evaluate_with_predictions(data)?.0)
    }

    /// Runs [`Predictor::evaluate`], and also returns the predictions for the examples, in their order.
    ///
    /// # Errors
    /// As for [`Predictor::evaluate`].
    pub fn evaluate_with_predictions(
        &mut self,
        data: &Dataset,
    ) -> Result<(PredictionReport, Vec<Prediction>), ModelError> {
        self.check_data(data)?;
        let outputs = self.outputs(&Features::from(data))?;
        Ok(self.report(data, &outputs))
    }

    /// Runs [`Predictor::evaluate`] on several ranks: each computes the outputs for its part of the
    /// examples, and all get the report of all. Every rank calls it, with the same model and data.
    ///
    /// # Errors
    /// The errors of [`Predictor::evaluate`]; [`ModelError::Core`] on every rank if a rank has
    /// another model or other data, or does not answer.
    pub fn evaluate_on_ranks(
        &mut self,
        data: &Dataset,
        ranks: &dyn Communicator,
    ) -> Result<PredictionReport, ModelError> {
        self.check_data(data)?;
        let (weights, width) = (self.session.try_weights()?, self.task.outputs());
        let features = data.features().iter().flat_map(|value| value.to_le_bytes());
        let labels = data.labels().iter().flat_map(|label| label.to_le_bytes());
        let targets = data.targets().iter().flat_map(|target| target.to_le_bytes());
        let data_bytes: Vec<u8> = features.chain(labels).chain(targets).collect();
        let facts = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("number of examples", data.len().to_string()),
            ("model", sha256([&weights.to_bytes()?[..]])),
            ("data", sha256([&data_bytes[..]])),
        ];
        agree(ranks, "the evaluation", &facts)?;
        // Parts of equal size, except for the last ones, which may be shorter or empty.
        let part = data.len().div_ceil(ranks.size());
        let first = (part * ranks.rank()).min(data.len());
        let rows: Vec<usize> = (first..(first + part).min(data.len())).collect();
        let mut own = if rows.is_empty() {
            Vec::new()
        } else {
            self.outputs(&Features::from(&data.subset(&rows)?))
                .map_err(|e| counted_from(first, e))?
        };
        own.resize(part * width, 0.0);
        let own: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut all = vec![0; own.len() * ranks.size()];
        ranks.all_gather("the outputs", &own, &mut all)?;
        let values = all
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let outputs: Vec<f32> = values.take(data.len() * width).collect();
        Ok(self.report(data, &outputs).0)
    }

    /// Checks that data have the labels or targets of the model's task.
    fn check_data(&self, data: &Dataset) -> Result<(), ModelError> {
        let fits = match &self.task {
            Task::Classification { classes, .. } => !data.is_regression() && data.classes() <= classes.len(),
            Task::Regression { targets, .. } => data.outputs() == targets.len() && data.target_scale().is_none(),
        };
        if fits {
            Ok(())
        } else {
            Err(ModelError::Features {
                name: data.name().to_owned(),
                message: "the labels or targets do not match the predictions of the model, in their original units"
                    .into(),
            })
        }
    }

    /// Computes the quality of the outputs for a data set, `[data.len(), outputs]`, and the predictions.
    pub(super) fn report(&self, data: &Dataset, outputs: &[f32]) -> (PredictionReport, Vec<Prediction>) {
        let predictions = self.predictions(outputs);
        let Task::Classification { classes, .. } = &self.task else {
            let predicted: Vec<f64> = predictions.iter().flat_map(Prediction::values).copied().collect();
            let targets: Vec<f64> = data.targets().iter().copied().map(f64::from).collect();
            let report = PredictionReport::Regression {
                metrics: RegressionMetrics::of(&predicted, &targets, data.outputs()),
                examples: data.len(),
            };
            return (report, predictions);
        };
        let rows = outputs.chunks_exact(classes.len()).zip(data.labels());
        let loss = rows
            .map(|(row, &label)| cross_entropy(row, label as usize))
            .sum::<f64>()
            / data.len() as f64;
        let predicted: Vec<usize> = predictions.iter().filter_map(Prediction::class).collect();
        let report = ClassificationReport::of(classes, data.labels(), &predicted);
        (PredictionReport::Classification { loss, report }, predictions)
    }

    /// Predicts all examples, in their order.
    ///
    /// # Errors
    /// As for [`outputs`](Self::outputs).
    pub fn predict(&mut self, features: &Features) -> Result<Vec<Prediction>, ModelError> {
        let outputs = self.outputs(features)?;
        Ok(self.predictions(&outputs))
    }

    /// Converts outputs, `[n, outputs]`, to predictions.
    fn predictions(&self, outputs: &[f32]) -> Vec<Prediction> {
        predictions(&self.task, outputs)
    }
}

/// Converts outputs of a model with this task, `[n, outputs]`, to predictions.
pub(super) fn predictions(task: &Task, outputs: &[f32]) -> Vec<Prediction> {
    let rows = outputs.chunks_exact(task.outputs());
    match task {
        Task::Classification { .. } => rows.map(class_of).collect(),
        Task::Regression { scale, .. } => {
            let restore = |(at, &value): (usize, &f32)| scale.restore(at, f64::from(value));
            let values = |row: &[f32]| row.iter().enumerate().map(restore).collect();
            rows.map(|row| Prediction::Values(values(row))).collect()
        }
    }
}

/// Converts the row in an error from an index in a part of the examples to an index in all examples.
fn counted_from(first: usize, error: ModelError) -> ModelError {
    match error {
        ModelError::NonFinite { name, row } => ModelError::NonFinite { name, row: first + row },
        other => other,
    }
}

/// Quality of a model on a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PredictionReport {
    /// Quality of classification.
    Classification {
        /// Mean cross-entropy in nats.
        loss: f64,
        /// Quality by class.
        report: ClassificationReport,
    },
    /// Quality of regression.
    Regression {
        /// Errors in original units.
        metrics: RegressionMetrics,
        /// Number of examples.
        examples: usize,
    },
}

/// Formats the report as plain text of at most 80 columns.
impl fmt::Display for PredictionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PredictionReport::Classification { loss, report } => write!(f, "{report}\nloss {loss:.4}"),
            PredictionReport::Regression { metrics, examples } => write!(f, "{metrics} ({examples} examples)"),
        }
    }
}

/// Returns the predicted class for finite logits.
fn class_of(logits: &[f32]) -> Prediction {
    let mut class = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[class] {
            class = id;
        }
    }
    let probabilities = softmax(logits);
    Prediction::Class { class, probabilities }
}

/// Returns the probabilities of classes with these logits.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    // Subtracting the largest logit keeps `exp` from overflowing.
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut probabilities: Vec<f64> = logits.iter().map(|&v| (f64::from(v) - largest).exp()).collect();
    let sum: f64 = probabilities.iter().sum();
    probabilities.iter_mut().for_each(|p| *p /= sum);
    probabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_the_softmax() {
        let Prediction::Class { class, probabilities } = class_of(&[0.0, 3f32.ln(), f32::MIN]) else {
            panic!("a class");
        };
        assert_eq!(class, 1);
        assert!((probabilities[0] - 0.25).abs() < 1e-7 && (probabilities[1] - 0.75).abs() < 1e-7);
        assert_eq!(probabilities[2], 0.0);
        assert_eq!(class_of(&[2.0, 2.0]).class(), Some(0), "the first of equals");
    }
}
