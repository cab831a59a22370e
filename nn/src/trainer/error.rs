//! Errors of training.

use crate::data::DataError;

/// An error that prevents or ends training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The graph, the device or a step failed.
    #[error(transparent)]
    Core(#[from] meganeura_core::Error),

    /// A data set cannot be iterated in batches of the configured size.
    #[error(transparent)]
    Data(#[from] DataError),

    /// The thread that assembles batches could not be started, or ended too early.
    #[error("cannot prefetch batches: {0}\n  help: train with `prefetch: 0`")]
    Prefetch(#[source] std::io::Error),

    /// An invalid setting.
    #[error("training configuration, {field}: {message}")]
    Config {
        /// The field of [`TrainConfig`](super::TrainConfig).
        field: &'static str,
        /// Reason why it is invalid.
        message: String,
    },

    /// The graph is not a model that the trainer can train.
    #[error("the model does not fit the trainer: {message}\n  help: {remedy}")]
    Model {
        /// Reason why it is not.
        message: String,
        /// Remedy.
        remedy: &'static str,
    },

    /// The model was built for another batch size than the configured one.
    #[error(
        "input '{input}' has shape {shape:?}, a batch of {}, but the configured batch size is {batch_size}\
         \n  help: build the model with the batch size of the configuration",
        shape.first().copied().unwrap_or(1)
    )]
    BatchSize {
        /// Name of the input.
        input: String,
        /// Shape of the input.
        shape: Vec<usize>,
        /// The configured batch size.
        batch_size: usize,
    },

    /// The shape of the examples differs from the model's input.
    #[error(
        "{data}: the examples have shape {found:?}, but input '{input}' expects {expected:?} per example\n  help: \
         change the data with `Dataset::with_feature_shape`, or build the model for this shape"
    )]
    FeatureShape {
        /// The data set.
        data: String,
        /// Name of the input.
        input: String,
        /// Shape of one example in the input, without the batch axis.
        expected: Vec<usize>,
        /// Shape of one example in the data set.
        found: Vec<usize>,
    },

    /// A data set with more classes than the model has.
    #[error(
        "{data}: the data set has {found} classes, but the model has logits for {expected}\
         \n  help: build the model with {found} classes"
    )]
    Classes {
        /// The data set.
        data: String,
        /// Number of classes of the model.
        expected: usize,
        /// Number of classes of the data set.
        found: usize,
    },

    /// Data for another task than the model's, or targets that do not fit.
    #[error("{data}: the targets do not fit: {message}")]
    Targets {
        /// The data set.
        data: String,
        /// Reason why they do not fit.
        message: String,
    },

    /// The loss became NaN or infinite; the weights are unusable.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}, with a learning rate of {learning_rate}\
         \n  help: lower the learning rate (a tenth is a good first try), and check that features are scaled to \
         about -1 to 1; `loss_every: 1` finds the first such step"
    )]
    NonFiniteLoss {
        /// The epoch, from 1.
        epoch: usize,
        /// Step within the epoch, from 1, at which it was detected: the first one if the loss is
        /// read at every step.
        step: usize,
        /// Loss of that step, the mean of the epoch, or the loss of the final weights on the
        /// evaluated examples.
        loss: f32,
        /// Learning rate of that step.
        learning_rate: f32,
    },
}
