//! Serializable model architectures, which always build the same graph.

use meganeura_core::graph::NodeKind;
use meganeura_core::{DType, Graph, NodeId};
use serde::{Deserialize, Serialize};

use super::{ModelError, Task};
use crate::data::Standardiser;
use crate::layers::Activation;
use crate::models::{
    CnnConfig, FEATURES, LABELS, MlpConfig, MobileNetConfig, ROW_WEIGHTS, ResNetConfig, TARGET, TabM, TabMConfig,
    VitConfig, classifier, regressor, soft_classifier, weighted_regressor,
};

/// Maximum of every size; larger ones occur only in damaged files.
const MAX_SIZE: usize = 1 << 24;
/// Maximum number of layers of one kind.
const MAX_LAYERS: usize = 1024;
/// Maximum factor of the numbers of channels.
const MAX_WIDTH: f32 = 8.0;
/// Maximum number of values of one example.
const MAX_FEATURES: usize = 1 << 26;

/// The architecture of a model, as its kind and sizes. A model computes outputs from features: logits of classes, or
/// predicted numbers.
///
/// It builds the same layers for training ([`training_graph`](Self::training_graph)) and for inference at any batch
/// size ([`inference_graph`](Self::inference_graph)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Architecture {
    /// Multi-layer perceptron ([`MlpConfig`]).
    Mlp {
        /// Shape of one example, which is flattened.
        features: Vec<usize>,
        /// Sizes of the hidden layers; none makes a linear model.
        hidden: Vec<usize>,
        /// Activation after each hidden layer.
        activation: Activation,
        /// Probability of dropout after each hidden layer.
        dropout: f32,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
    /// Ensemble of perceptrons for tables ([`TabMConfig`]).
    TabM {
        /// Number of features of one example.
        features: usize,
        /// Ascending edges of the bins of each feature; empty for a feature without bins, or for all of them.
        edges: Vec<Vec<f32>>,
        /// Number of perceptrons.
        members: usize,
        /// Sizes of the hidden layers.
        hidden: Vec<usize>,
        /// Probability of dropout after each hidden layer.
        dropout: f32,
        /// `true` for a classifier, which averages probabilities; `false` for regression, which averages numbers.
        classifies: bool,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
    /// Small convolutional network ([`CnnConfig`]).
    Cnn {
        /// Channels, height and width of an image.
        image: [usize; 3],
        /// Number of channels after each convolution.
        channels: [usize; 3],
        /// Size of the hidden fully connected layer.
        hidden: usize,
        /// Probability of dropout before each fully connected layer.
        dropout: f32,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
    /// Residual network ([`ResNetConfig`]).
    ResNet {
        /// Channels, height and width of an image.
        image: [usize; 3],
        /// `true` for the blocks of ResNet-50, `false` for the blocks of ResNet-18.
        bottleneck: bool,
        /// Number of blocks in each stage.
        depths: [usize; 4],
        /// Number of channels of the first stage.
        width: usize,
        /// `true` if its first layers keep height and width, for images of about 32x32.
        small_images: bool,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
    /// MobileNetV2 ([`MobileNetConfig`]).
    MobileNet {
        /// Channels, height and width of an image.
        image: [usize; 3],
        /// Factor by which numbers of channels are multiplied, up to 8.
        width: f32,
        /// Probability of dropout before the classifier.
        dropout: f32,
        /// `true` if the first strides are 1, for images of about 32x32.
        small_images: bool,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
    /// Vision transformer ([`VitConfig`]).
    Vit {
        /// Channels, height and width of an image.
        image: [usize; 3],
        /// Height and width of a patch, which divides the image.
        patch: usize,
        /// Number of features of a patch.
        dim: usize,
        /// Number of blocks.
        layers: usize,
        /// Number of attention heads.
        heads: usize,
        /// Number of features inside the feed-forward layers.
        hidden: usize,
        /// Number of logits or predicted numbers.
        outputs: usize,
    },
}

/// The loss that a model is trained with, as far as its graph depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Cross-entropy with class ids, `u32 [batch]`.
    Classes,
    /// Cross-entropy with rows of class weights, `f32 [batch, outputs]`: for label smoothing and class weights.
    SoftClasses,
    /// Mean squared error with targets, `f32 [batch, outputs]`.
    Regression,
    /// Mean squared error with targets and weights of the rows, `f32 [batch, 1]`: for a last batch with fewer examples.
    WeightedRegression,
}

/// A tensor of a model: its name, whether it is a state (such as running statistics), and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) name: String,
    pub(super) is_state: bool,
    pub(super) shape: Vec<usize>,
}

impl Architecture {
    /// Creates an [`Architecture::Mlp`] with the defaults of [`MlpConfig`]: hidden layers of 256
    /// and 128, ReLU, dropout of 0.2.
    pub fn mlp(features: impl Into<Vec<usize>>, outputs: usize) -> Self {
        Architecture::Mlp {
            features: features.into(),
            hidden: vec![256, 128],
            activation: Activation::Relu,
            dropout: 0.2,
            outputs,
        }
    }

    /// Creates an [`Architecture::TabM`] with the defaults of [`TabMConfig`], for logits (`classifies`) or numbers.
    /// `edges` contains the edges of the bins of each feature.
    pub fn tabm(features: usize, edges: Vec<Vec<f32>>, classifies: bool, outputs: usize) -> Self {
        Architecture::TabM {
            features,
            edges,
            members: 16,
            hidden: vec![128, 128],
            dropout: 0.1,
            classifies,
            outputs,
        }
    }

    /// Creates an [`Architecture::Cnn`] with the defaults of [`CnnConfig`].
    pub fn cnn(image: [usize; 3], outputs: usize) -> Self {
        Architecture::Cnn {
            image,
            channels: [16, 32, 64],
            hidden: 64,
            dropout: 0.25,
            outputs,
        }
    }

    /// Creates a ResNet-18; `small_images` is for images of about 32x32.
    pub fn resnet18(image: [usize; 3], small_images: bool, outputs: usize) -> Self {
        Architecture::ResNet {
            image,
            bottleneck: false,
            depths: [2, 2, 2, 2],
            width: 64,
            small_images,
            outputs,
        }
    }

    /// Creates a MobileNetV2 with the defaults of [`MobileNetConfig`]; `small_images` is for images of about 32x32, and
    /// halves the numbers of channels.
    pub fn mobilenet(image: [usize; 3], small_images: bool, outputs: usize) -> Self {
        Architecture::MobileNet {
            image,
            width: if small_images { 0.5 } else { 1.0 },
            dropout: 0.2,
            small_images,
            outputs,
        }
    }

    /// Creates an [`Architecture::Vit`] with the defaults of [`VitConfig`].
    pub fn vit(image: [usize; 3], patch: usize, outputs: usize) -> Self {
        Architecture::Vit {
            image,
            patch,
            dim: 64,
            layers: 4,
            heads: 4,
            hidden: 128,
            outputs,
        }
    }

    /// Returns the shape of one example, without the batch axis.
    pub fn feature_shape(&self) -> Vec<usize> {
        match self {
            Architecture::Mlp { features, .. } => features.clone(),
            Architecture::TabM { features, .. } => vec![*features],
            Architecture::Cnn { image, .. }
            | Architecture::ResNet { image, .. }
            | Architecture::MobileNet { image, .. }
            | Architecture::Vit { image, .. } => image.to_vec(),
        }
    }

    /// Returns the number of values of one example.
    pub fn feature_len(&self) -> usize {
        self.feature_shape().into_iter().fold(1, usize::saturating_mul)
    }

    /// Returns the number of outputs of an example.
    pub fn outputs(&self) -> usize {
        match self {
            Architecture::Mlp { outputs, .. }
            | Architecture::TabM { outputs, .. }
            | Architecture::Cnn { outputs, .. }
            | Architecture::ResNet { outputs, .. }
            | Architecture::MobileNet { outputs, .. }
            | Architecture::Vit { outputs, .. } => *outputs,
        }
    }

    /// Builds the graph for the trainer: [`classifier`], [`soft_classifier`], [`regressor`] or
    /// [`weighted_regressor`] around the model.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] for invalid sizes, [`ModelError::Core`] for a graph that is not
    /// valid.
    pub fn training_graph(&self, batch: usize, loss: Loss) -> Result<Graph, ModelError> {
        self.check().map_err(invalid)?;
        let shape = self.feature_shape();
        let model = |g: &mut Graph, x: NodeId| self.outputs_of(g, x);
        let graph = match loss {
            _ if matches!(self, Architecture::TabM { .. }) => self.training_graph_of_members(batch, loss),
            Loss::Classes => classifier(batch, &shape, model),
            Loss::SoftClasses => soft_classifier(batch, &shape, model),
            Loss::Regression => regressor(batch, &shape, model),
            Loss::WeightedRegression => weighted_regressor(batch, &shape, model),
        };
        graph.verify()?;
        Ok(graph)
    }

    /// Builds the graph for the trainer of an [`Architecture::TabM`]: the loss is the mean of the members' losses.
    fn training_graph_of_members(&self, batch: usize, loss: Loss) -> Graph {
        let mut graph = Graph::new();
        let g = &mut graph;
        let x = g.input(FEATURES, &[batch, self.feature_len()]);
        let members = self.members_of(g, x);
        let all = g.shape(members).to_vec();
        let [rows, outputs] = [[batch, 1], [batch, self.outputs()]];
        let loss = match loss {
            Loss::Classes => {
                let labels = g.input_u32(LABELS, &rows[..1]);
                let labels = g.expand(labels, &all[..all.len().saturating_sub(1)]);
                g.cross_entropy_loss(members, labels)
            }
            Loss::SoftClasses => {
                let labels = g.input(LABELS, &outputs);
                let labels = g.expand(labels, &all);
                g.cross_entropy_loss(members, labels)
            }
            Loss::Regression | Loss::WeightedRegression => {
                let target = g.input(TARGET, &outputs);
                let error = g.sub(members, target);
                let mut square = g.square(error);
                if loss == Loss::WeightedRegression {
                    let weights = g.input(ROW_WEIGHTS, &rows);
                    square = g.mul(square, weights);
                }
                g.mean_all(square)
            }
        };
        g.named(loss, "loss");
        let outputs = self.mean_of(g, members);
        g.set_outputs(vec![loss, outputs]);
        graph
    }

    /// Builds the graph of inference: one input, `x` (`f32 [batch, feature_shape...]`), and one
    /// output, `f32 [batch, outputs]`.
    ///
    /// # Errors
    /// As for [`training_graph`](Self::training_graph).
    pub fn inference_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        let mut shape = vec![batch];
        shape.extend(self.feature_shape());
        self.graph_of(|graph| graph.input(FEATURES, &shape))
    }

    /// Builds the graph of inference for features that `features` adds to the graph, `f32 [batch, feature_shape...]`.
    pub(super) fn graph_of(&self, features: impl FnOnce(&mut Graph) -> NodeId) -> Result<Graph, ModelError> {
        self.check().map_err(invalid)?;
        let mut graph = Graph::new();
        let x = features(&mut graph);
        let y = self.outputs_of(&mut graph, x);
        graph.set_outputs(vec![y]);
        graph.verify()?;
        Ok(graph)
    }

    /// Builds a graph from features before standardisation to predictions: `x`
    /// (`f32 [batch, feature_shape...]`) to probabilities of classes, or to numbers on the scale of
    /// the targets.
    pub(super) fn prediction_graph(
        &self,
        batch: usize,
        scale: Option<&Standardiser>,
        task: &Task,
    ) -> Result<Graph, ModelError> {
        self.check().map_err(invalid)?;
        let mut graph = Graph::new();
        let mut shape = vec![batch];
        shape.extend(self.feature_shape());
        let mut x = graph.input(FEATURES, &shape);
        if let Some(scale) = scale {
            x = scale.standardise_in(&mut graph, x);
        }
        let outputs = self.outputs_of(&mut graph, x);
        let y = match task {
            Task::Classification { .. } => graph.softmax(outputs, -1),
            Task::Regression { scale, .. } => scale.restore_in(&mut graph, outputs),
        };
        graph.set_outputs(vec![y]);
        graph.verify()?;
        Ok(graph)
    }

    /// Returns the parameters and states, in the order of the graph.
    pub(super) fn leaves(&self) -> Result<Vec<Leaf>, ModelError> {
        let graph = self.inference_graph(1)?;
        let mut leaves = Vec::new();
        for (node, id) in graph.nodes().iter().zip(graph.node_ids()) {
            let is_state = match node.kind {
                NodeKind::Parameter { .. } => false,
                NodeKind::State { .. } => true,
                _ => continue,
            };
            if let (Some(name), DType::F32) = (&node.name, graph.dtype(id)) {
                leaves.push(Leaf {
                    name: name.to_string(),
                    is_state,
                    shape: graph.shape(id).to_vec(),
                });
            }
        }
        Ok(leaves)
    }

    /// Registers the layers of an [`Architecture::TabM`], and adds the outputs of its members,
    /// `[members, batch, outputs]`.
    fn members_of(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let Architecture::TabM {
            features,
            edges,
            members,
            hidden,
            dropout,
            outputs,
            ..
        } = self
        else {
            return x;
        };
        let config = TabMConfig::new(*features, *outputs)
            .members(*members)
            .hidden(hidden.clone())
            .dropout(*dropout)
            .edges(edges.clone());
        config.build(g, "").forward(g, x)
    }

    /// Adds the mean of the outputs of members.
    fn mean_of(&self, g: &mut Graph, members: NodeId) -> NodeId {
        match self {
            Architecture::TabM { classifies: true, .. } => TabM::mean_logits(g, members),
            _ => TabM::mean_values(g, members),
        }
    }

    /// Registers the layers and adds their computation.
    fn outputs_of(&self, g: &mut Graph, x: NodeId) -> NodeId {
        match self {
            Architecture::TabM { .. } => {
                let members = self.members_of(g, x);
                self.mean_of(g, members)
            }
            Architecture::Mlp {
                hidden,
                activation,
                dropout,
                outputs,
                ..
            } => {
                let config = MlpConfig::new(self.feature_len(), *outputs)
                    .hidden(hidden.clone())
                    .activation(*activation)
                    .dropout(*dropout);
                let x = match g.shape(x).len() {
                    2 => x,
                    _ => g.flatten(x),
                };
                config.build(g, "").forward(g, x)
            }
            &Architecture::Cnn {
                image,
                channels,
                hidden,
                dropout,
                outputs,
            } => {
                let config = CnnConfig::new(image, outputs).channels(channels).hidden(hidden);
                config.dropout(dropout).build(g, "").forward(g, x)
            }
            &Architecture::ResNet {
                image,
                bottleneck,
                depths,
                width,
                small_images,
                outputs,
            } => {
                let config = if bottleneck {
                    ResNetConfig::resnet50(outputs)
                } else {
                    ResNetConfig::resnet18(outputs)
                };
                let config = config.channels(image[0]).width(width).depths(depths);
                config.small_images(small_images).build(g, "").forward(g, x)
            }
            &Architecture::MobileNet {
                image,
                width,
                dropout,
                small_images,
                outputs,
            } => {
                let config = MobileNetConfig::new(outputs).channels(image[0]).width(width);
                let config = config.dropout(dropout).small_images(small_images);
                config.build(g, "").forward(g, x)
            }
            &Architecture::Vit {
                image,
                patch,
                dim,
                layers,
                heads,
                hidden,
                outputs,
            } => {
                let config = VitConfig::new(image, patch, outputs).size(dim, layers, heads, hidden);
                config.build(g, "").forward(g, x)
            }
        }
    }

    /// Checks sizes that may come from a damaged file, so that building the graph takes neither long nor much memory.
    pub(super) fn check(&self) -> Result<(), String> {
        let size = |what: &str, size: usize| match size {
            1..=MAX_SIZE => Ok(()),
            _ => Err(format!("{what}: expected 1 to {MAX_SIZE}, found {size}")),
        };
        let sizes = |what: &str, all: &[usize]| all.iter().try_for_each(|&s| size(what, s));
        let count = |what: &str, number: usize| match number {
            0..=MAX_LAYERS => Ok(()),
            _ => Err(format!("{what}: expected at most {MAX_LAYERS}, found {number}")),
        };
        let probability = |p: f32| {
            if (0.0..1.0).contains(&p) {
                Ok(())
            } else {
                Err(format!("dropout: expected at least 0 and below 1, found {p}"))
            }
        };
        let shape = self.feature_shape();
        if shape.is_empty() || shape.len() > 8 {
            return Err(format!("the shape of an example has {} dimensions", shape.len()));
        }
        sizes("a size of an example", &shape)?;
        if self.feature_len() > MAX_FEATURES {
            return Err(format!("an example of {shape:?} is too large"));
        }
        size("outputs", self.outputs())?;
        match self {
            Architecture::Mlp { hidden, dropout, .. } => {
                count("the number of hidden layers", hidden.len())?;
                sizes("a hidden layer", hidden)?;
                probability(*dropout)
            }
            Architecture::TabM {
                features,
                edges,
                members,
                hidden,
                dropout,
                ..
            } => {
                count("members", *members)?;
                size("members", *members)?;
                count("the number of hidden layers", hidden.len())?;
                sizes("a hidden layer", hidden)?;
                TabMConfig::check_edges(*features, edges)?;
                if edges.iter().map(Vec::len).sum::<usize>() > MAX_SIZE {
                    return Err(format!("edges: expected at most {MAX_SIZE}"));
                }
                probability(*dropout)
            }
            Architecture::Cnn {
                channels,
                hidden,
                dropout,
                ..
            } => {
                sizes("a number of channels", channels)?;
                size("hidden", *hidden)?;
                probability(*dropout)
            }
            Architecture::ResNet { depths, width, .. } => {
                depths.iter().try_for_each(|&d| count("a depth", d))?;
                size("width", *width)
            }
            Architecture::MobileNet { width, dropout, .. } => {
                if !(*width > 0.0 && *width <= MAX_WIDTH) {
                    return Err(format!(
                        "width: expected above 0 and at most {MAX_WIDTH}, found {width}"
                    ));
                }
                probability(*dropout)
            }
            Architecture::Vit {
                patch,
                dim,
                layers,
                heads,
                hidden,
                ..
            } => {
                sizes("patch, dim, heads or hidden", &[*patch, *dim, *heads, *hidden])?;
                count("layers", *layers)
            }
        }
    }
}

fn invalid(message: String) -> ModelError {
    ModelError::Invalid {
        field: "architecture",
        message,
    }
}
