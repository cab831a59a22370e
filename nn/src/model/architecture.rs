//! Networks by a small description that builds the same graph each time.

use meganeura_core::Graph;
use serde::{Deserialize, Serialize};

use crate::models::{CnnConfig, MlpConfig, ResNetConfig, classifier};

/// Most units of a layer, and most layers, that a description may ask for: a file may say anything.
const MAX_SIZE: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 10;

/// A network of a kind that is known by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Architecture {
    /// Multi-layer perceptron, [`MlpConfig`]; examples of any shape are flattened.
    Mlp {
        /// Units of each hidden layer.
        hidden: Vec<usize>,
        /// Probability of dropout behind each hidden layer.
        dropout: f32,
    },
    /// Small convolutional network, [`CnnConfig`], for images `[channels, height, width]` of at least 4x4.
    Cnn {
        /// Channels of the three blocks.
        channels: [usize; 3],
        /// Units of the hidden layer.
        hidden: usize,
        /// Probability of dropout.
        dropout: f32,
    },
    /// Residual network with 18 layers, [`ResNetConfig::resnet18`], for images `[channels, height, width]`; those of less than
    /// 64x64 begin with a 3x3 convolution instead of the 7x7 one of stride 2 and the pooling.
    Resnet18 {
        /// Channels of the first stage, 64 in the published network.
        width: usize,
    },
}

impl Architecture {
    /// The default perceptron: hidden layers of 256 and 128 units.
    pub fn mlp() -> Self {
        Architecture::Mlp {
            hidden: vec![256, 128],
            dropout: 0.2,
        }
    }

    /// The default convolutional network.
    pub fn cnn() -> Self {
        Architecture::Cnn {
            channels: [16, 32, 64],
            hidden: 64,
            dropout: 0.25,
        }
    }

    /// The published residual network.
    pub fn resnet18() -> Self {
        Architecture::Resnet18 { width: 64 }
    }

    /// Its name, as `model.json` and the command have it.
    pub fn name(&self) -> &'static str {
        match self {
            Architecture::Mlp { .. } => "mlp",
            Architecture::Cnn { .. } => "cnn",
            Architecture::Resnet18 { .. } => "resnet18",
        }
    }

    /// A classifier around the network, as [`classifier`] makes it, for examples of that shape.
    #[track_caller]
    pub fn graph(&self, batch: usize, shape: &[usize], classes: usize) -> Graph {
        classifier(batch, shape, |g, x| match (self, shape) {
            (Architecture::Mlp { hidden, dropout }, shape) => {
                let x = if shape.len() > 1 { g.flatten(x) } else { x };
                let config = MlpConfig::new(shape.iter().product(), classes);
                let config = config.hidden(hidden.clone()).dropout(*dropout);
                config.build(g, "").forward(g, x)
            }
            (
                Architecture::Cnn {
                    channels,
                    hidden,
                    dropout,
                },
                &[c, h, w],
            ) => {
                let config = CnnConfig::new([c, h, w], classes);
                let config = config.channels(*channels).hidden(*hidden).dropout(*dropout);
                config.build(g, "").forward(g, x)
            }
            (Architecture::Resnet18 { width }, &[c, h, w]) => {
                let config = ResNetConfig::resnet18(classes).channels(c).width(*width);
                config.small_images(h.min(w) < 64).build(g, "").forward(g, x)
            }
            (_, shape) => g.report(
                self.name(),
                format!("its examples are images, and these have the shape {shape:?}"),
                "give it [channels, height, width], or use a perceptron",
            ),
        })
    }

    /// Checks the sizes, and that the network takes examples of that shape.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, shape: &[usize]) -> Result<(), String> {
        let size = |what: &str, value: usize| match value {
            1..=MAX_SIZE => Ok(()),
            _ => Err(format!("architecture.{what} is {value}; it is from 1 to {MAX_SIZE}")),
        };
        let probability = |p: f32| match (0.0..1.0).contains(&p) {
            true => Ok(()),
            false => Err(format!("architecture.dropout is {p}; it is from 0 to below 1")),
        };
        let image = |least: usize| match shape {
            &[_, h, w] if h >= least && w >= least => Ok(()),
            _ => Err(format!(
                "the network {} needs images [channels, height, width] of at least {least}x{least}, and input.shape is \
                 {shape:?}",
                self.name()
            )),
        };
        match self {
            Architecture::Mlp { hidden, dropout } => {
                if hidden.len() > MAX_LAYERS {
                    return Err(format!(
                        "architecture.hidden has {} layers; at most {MAX_LAYERS}",
                        hidden.len()
                    ));
                }
                hidden.iter().try_for_each(|&units| size("hidden", units))?;
                probability(*dropout)
            }
            Architecture::Cnn {
                channels,
                hidden,
                dropout,
            } => {
                channels.iter().try_for_each(|&c| size("channels", c))?;
                size("hidden", *hidden)?;
                probability(*dropout)?;
                image(4)
            }
            Architecture::Resnet18 { width } => {
                size("width", *width)?;
                image(8)
            }
        }
    }
}
