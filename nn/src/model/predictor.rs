//! A model that is ready to predict.

use meganeura_compiler::Builder;
use meganeura_core::precision::Precision;
use meganeura_core::{Error, LoadOptions, Result, Session};

use super::{Description, Model, Scaling};
use crate::models::FEATURES;

/// How to run a [`Predictor`].
#[derive(Clone, Debug, PartialEq)]
pub struct PredictorOptions {
    /// Device selector; without one, the environment and the configuration file decide.
    pub device: Option<String>,
    /// Examples in a step, at least 1. Any number of examples can be predicted.
    pub batch: usize,
    /// Precision of matmuls and convolutions; the device's default without.
    pub precision: Option<Precision>,
}

impl Default for PredictorOptions {
    fn default() -> Self {
        PredictorOptions {
            device: None,
            batch: 32,
            precision: None,
        }
    }
}

/// Predicts classes of examples; made by [`Model::predictor`].
#[derive(Debug)]
pub struct Predictor {
    description: Description,
    session: Session,
    batch: usize,
    /// Features and logits of one batch.
    features: Vec<f32>,
    logits: Vec<f32>,
}

/// The probability of each class for one example.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    probabilities: Vec<f32>,
}

impl Prediction {
    /// Softmax of the logits, in `f64`. Logits that are not finite give NaN.
    pub(super) fn of(logits: &[f32]) -> Self {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let powers: Vec<f64> = logits.iter().map(|&v| (f64::from(v) - max).exp()).collect();
        let sum: f64 = powers.iter().sum();
        Prediction {
            probabilities: powers.iter().map(|p| (p / sum) as f32).collect(),
        }
    }

    /// Probability of each class, in the order of the classes; they add up to 1.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Index and probability of the most probable class, the first of equals.
    pub fn best(&self) -> (usize, f32) {
        self.top(1).first().copied().unwrap_or((0, f32::NAN))
    }

    /// Indices and probabilities of the most probable classes, in order.
    pub fn top(&self, count: usize) -> Vec<(usize, f32)> {
        let mut all: Vec<(usize, f32)> = self.probabilities.iter().copied().enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(count);
        all
    }
}

impl Predictor {
    pub(super) fn new(model: &Model, options: &PredictorOptions) -> Result<Self> {
        let description = model.description.clone();
        if options.batch == 0 {
            return Err(Error::misuse("the batch size is 0", "use at least 1"));
        }
        let mut graph = description.graph(options.batch);
        let logits = graph.outputs().get(1).copied();
        graph.set_outputs(logits.into_iter().collect::<Vec<_>>());
        let mut builder = Builder::new().inference();
        if let Some(device) = &options.device {
            builder = builder.device(device);
        }
        if let Some(precision) = options.precision {
            builder = builder.precision(precision);
        }
        let (mut session, _) = builder.build(&graph)?;
        session.try_load_weights(&model.weights, &LoadOptions::default())?;
        Ok(Predictor {
            features: vec![0.0; options.batch * description.input.len()],
            logits: vec![0.0; options.batch * description.classes.len()],
            batch: options.batch,
            session,
            description,
        })
    }

    /// What the model is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The session that computes the logits.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Predicts examples `[n, shape...]` with features as they are in the data: they are scaled here. Any number of examples,
    /// also none.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for a length that is no multiple of an example's, or features that are not finite; errors of the
    /// device.
    pub fn predict(&mut self, features: &[f32]) -> Result<Vec<Prediction>> {
        let Description { input, classes, .. } = &self.description;
        let (len, classes) = (input.len(), classes.len());
        if !features.len().is_multiple_of(len) {
            return Err(Error::misuse(
                format!(
                    "there are {} features, and an example of the shape {:?} has {len}",
                    features.len(),
                    input.shape
                ),
                "pass whole examples",
            ));
        }
        if let Some(at) = features.iter().position(|v| !v.is_finite()) {
            return Err(Error::misuse(
                format!("feature {} of example {} is {}", at % len, at / len, features[at]),
                "pass finite features",
            ));
        }
        let mut predictions = Vec::with_capacity(features.len() / len);
        for chunk in features.chunks(self.batch * len) {
            // The rest of an incomplete batch is of no interest; zeros are valid features.
            self.features.fill(0.0);
            self.features[..chunk.len()].copy_from_slice(chunk);
            if let Some(scaling) = &input.scaling {
                scaling.apply(&mut self.features[..chunk.len()]);
            }
            self.session.try_set_input(FEATURES, &self.features)?;
            self.session.try_step()?;
            self.session.try_read_output_by_index(0, &mut self.logits)?;
            let rows = self.logits.chunks_exact(classes).take(chunk.len() / len);
            predictions.extend(rows.map(Prediction::of));
        }
        Ok(predictions)
    }
}

impl Scaling {
    /// Scales examples in place, as the data set was for training.
    fn apply(&self, examples: &mut [f32]) {
        let pairs = self.mean.iter().zip(&self.std).cycle();
        for (value, (&mean, &std)) in examples.iter_mut().zip(pairs) {
            *value = ((f64::from(*value) - f64::from(mean)) / f64::from(std)) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let prediction = Prediction::of(&[0.0, 3f32.ln(), f32::NEG_INFINITY]);
        assert_eq!(prediction.probabilities(), [0.25, 0.75, 0.0]);
        assert_eq!(prediction.best(), (1, 0.75));
        assert_eq!(prediction.top(2), [(1, 0.75), (0, 0.25)]);
        assert_eq!(prediction.top(9).len(), 3);
        // The first of equals, and large logits.
        assert_eq!(Prediction::of(&[1e38, 1e38]).best(), (0, 0.5));
    }
}
