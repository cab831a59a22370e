//! Layers, models, data sets and the trainer of Meganeura.
//!
//! | Module | What it has |
//! |---|---|
//! | [`data`] | data sets that ship with the crate or are read from files, and mini-batches |
//! | [`layers`] | linear, convolution, embedding, norms, dropout, activations |
//! | [`models`] | multi-layer perceptron and small convolutional network, as graph builders |
//! | [`trainer`] | the training loop with evaluation, learning-rate schedules and observers |
//!
//! Everything here builds on the public interface of `meganeura-core` alone: a layer is a few calls of
//! graph builders, the trainer drives an ordinary session.

pub mod data;
pub mod layers;
pub mod models;
pub mod trainer;

pub use trainer::{TrainConfig, TrainError, Trainer};
