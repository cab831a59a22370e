//! Layers, models, data sets and the trainer of Meganeura.
//!
//! | Module | Contents |
//! |---|---|
//! | [`data`] | data sets that ship with the crate or are read from CSV, NumPy and IDX files, augmentation, mini-batches |
//! | [`layers`] | linear, convolution, embedding, self-attention, norms, dropout, activations |
//! | [`models`] | multi-layer perceptron, convolutional and residual networks, vision transformer, U-Net, Llama family, as graph builders |
//! | [`model`] | trained models in folders, and predictions |
//! | [`trainer`] | the training loop with evaluation, learning-rate schedules, early stopping, observers and a log |
//!
//! Everything here only uses the public interface of `meganeura-core`: a layer is a few calls of
//! graph builders, and the trainer runs an ordinary session.

pub mod data;
pub mod layers;
pub mod model;
pub mod models;
pub mod trainer;

pub use model::{Model, ModelError};
pub use trainer::{TrainConfig, TrainError, Trainer};
