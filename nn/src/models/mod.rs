//! Models as graph builders.
//!
//! A model's configuration registers its layers on a graph, and `forward` adds their computation. For the
//! trainer, [`classifier`] wraps a model into a graph with the inputs and outputs that it expects;
//! [`mlp_classifier`] and [`cnn_classifier`] do so with the defaults. [`language_model`] and [`segmentation`] make
//! graphs for a training loop of one's own.
//!
//! | Configuration | Model |
//! |---|---|
//! | [`MlpConfig`] | multi-layer perceptron |
//! | [`TabMConfig`] | ensemble of perceptrons for tables |
//! | [`CnnConfig`] | small convolutional network |
//! | [`ResNetConfig`] | residual networks |
//! | [`MobileNetConfig`] | MobileNetV2 |
//! | [`EfficientNetConfig`] | EfficientNet-B0 |
//! | [`VitConfig`] | vision transformer |
//! | [`UnetConfig`] | U-Net, images in and images out |
//! | [`BertConfig`] | encoders of the BERT family, for embeddings of texts |
//! | [`LlamaConfig`] | decoder-only language models: Llama, Mistral, Qwen, Gemma, Phi-3, SmolLM3, OLMo 2 and 3, Granite, Ministral 3, GLM-4.5, gpt-oss, LFM2 |
//!
//! ```
//! use meganeura_nn::models::{CnnConfig, classifier, mlp_classifier};
//!
//! let mlp = mlp_classifier(32, 64, 10);
//! assert!(mlp.verify().is_ok());
//!
//! let cnn = CnnConfig::new([1, 8, 8], 10).dropout(0.1);
//! let graph = classifier(32, &[1, 8, 8], |g, x| cnn.build(g, "").forward(g, x));
//! assert!(graph.verify().is_ok());
//! ```

mod bert;
mod cnn;
mod decode;
mod efficientnet;
mod llama;
mod mlp;
mod mobilenet;
mod preset;
mod resnet;
mod tabm;
mod unet;
mod vit;

pub use bert::{ATTENTION_MASK, Bert, BertConfig, POOLING_WEIGHTS};
pub use cnn::{Cnn, CnnConfig};
pub use decode::{
    ADAPTER_SCALES, BLOCK_TABLE, EARLIER_ROWS, KV_POS, LOGITS_ROW, LogitsOf, MIN_PS, POSITIONS, PagedCache, SEEDS,
    SLOTS, TEMPERATURES, TOP_KS, TOP_PS, conv_cache_name, kv_cache_names, kv_scale_names,
};
pub use efficientnet::{EfficientNet, EfficientNetConfig};
pub use llama::{
    CacheType, LayerSet, Llama, LlamaBlock, LlamaConfig, MoeConfig, NormPlacement, Routing, ShortConvLayers,
    StorageMap, TARGET_WEIGHTS, TARGETS, TOKENS, language_model, weighted_language_model,
};
pub use mlp::{Mlp, MlpConfig};
pub use mobilenet::{MobileNet, MobileNetConfig};
pub use preset::{PRESETS, Preset, preset};
pub use resnet::{ResNet, ResNetConfig};
pub use tabm::{TabM, TabMConfig};
pub use unet::{Unet, UnetConfig, segmentation};
pub use vit::{Vit, VitConfig};

use meganeura_core::{Graph, NodeId};

/// Name of the input that holds the features.
pub const FEATURES: &str = "x";
/// Name of the input that holds the labels.
pub const LABELS: &str = "labels";
/// Name of the input that holds the targets of regression.
pub const TARGET: &str = "target";
/// Name of the input that holds the weights of the rows in the loss of a regression.
pub const ROW_WEIGHTS: &str = "row_weights";

/// Builds a classifier for the trainer around the model that `logits` builds.
///
/// Inputs: `x`, `f32 [batch, feature_shape...]`, and `labels`, `u32 [batch]`, the class ids. Outputs: the
/// mean cross-entropy in nats, `f32 []`, and the logits, `f32 [batch, classes]`. Wrong sizes are errors of the graph.
#[track_caller]
pub fn classifier(batch: usize, feature_shape: &[usize], logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    let mut g = Graph::new();
    let mut shape = vec![batch];
    shape.extend_from_slice(feature_shape);
    let x = g.input(FEATURES, &shape);
    let labels = g.input_u32(LABELS, &[batch]);
    let logits = logits(&mut g, x);
    let loss = g.cross_entropy_loss(logits, labels);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, logits]);
    g
}

/// Builds a [`classifier`] whose labels are rows of class probabilities or weights,
/// `f32 [batch, classes]`, for label smoothing and class weights of the trainer.
#[track_caller]
pub fn soft_classifier(
    batch: usize,
    feature_shape: &[usize],
    logits: impl FnOnce(&mut Graph, NodeId) -> NodeId,
) -> Graph {
    supervised(batch, feature_shape, logits, |g, logits| {
        let shape = g.shape(logits).to_vec();
        let labels = g.input(LABELS, &shape);
        g.cross_entropy_loss(logits, labels)
    })
}

/// Builds a model for regression around the one that `prediction` builds.
///
/// Inputs: `x`, `f32 [batch, feature_shape...]`, and `target`, `f32 [batch, outputs]`. Outputs: the mean squared
/// error, `f32 []`, and the prediction, `f32 [batch, outputs]`. Wrong sizes are errors of the graph.
#[track_caller]
pub fn regressor(
    batch: usize,
    feature_shape: &[usize],
    prediction: impl FnOnce(&mut Graph, NodeId) -> NodeId,
) -> Graph {
    supervised(batch, feature_shape, prediction, |g, prediction| {
        let shape = g.shape(prediction).to_vec();
        let target = g.input(TARGET, &shape);
        g.mse_loss(prediction, target)
    })
}

/// Builds a [`regressor`] with weights of the rows in the loss, `row_weights`, `f32 [batch, 1]`:
/// the loss is the mean over all elements of the weighted squared errors. The trainer needs it for
/// [`crate::data::Remainder::Keep`].
#[track_caller]
pub fn weighted_regressor(
    batch: usize,
    feature_shape: &[usize],
    prediction: impl FnOnce(&mut Graph, NodeId) -> NodeId,
) -> Graph {
    supervised(batch, feature_shape, prediction, |g, prediction| {
        let shape = g.shape(prediction).to_vec();
        let target = g.input(TARGET, &shape);
        let weights = g.input(ROW_WEIGHTS, &[batch, 1]);
        let error = g.sub(prediction, target);
        let square = g.square(error);
        let weighted = g.mul(square, weights);
        g.mean_all(weighted)
    })
}

/// Builds a graph whose outputs are a loss and the model's output.
#[track_caller]
fn supervised(
    batch: usize,
    feature_shape: &[usize],
    model: impl FnOnce(&mut Graph, NodeId) -> NodeId,
    loss: impl FnOnce(&mut Graph, NodeId) -> NodeId,
) -> Graph {
    let mut g = Graph::new();
    let mut shape = vec![batch];
    shape.extend_from_slice(feature_shape);
    let x = g.input(FEATURES, &shape);
    let output = model(&mut g, x);
    let loss = loss(&mut g, output);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, output]);
    g
}

/// Builds a [`classifier`] around the default [`Mlp`], for inputs `[batch, features]`.
#[track_caller]
pub fn mlp_classifier(batch: usize, features: usize, classes: usize) -> Graph {
    let model = MlpConfig::new(features, classes);
    classifier(batch, &[features], |g, x| model.build(g, "").forward(g, x))
}

/// Builds a [`classifier`] around the default [`Cnn`], for inputs
/// `[batch, channels, height, width]`.
#[track_caller]
pub fn cnn_classifier(batch: usize, image: [usize; 3], classes: usize) -> Graph {
    let model = CnnConfig::new(image, classes);
    classifier(batch, &image, |g, x| model.build(g, "").forward(g, x))
}
