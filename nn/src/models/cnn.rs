//! Small convolutional network for images.

use meganeura_core::graph::Value;
use meganeura_core::ops::Pool2dOptions;
use meganeura_core::{Graph, NodeId};

use crate::layers::{Activation, BatchNorm, Conv2d, Conv2dConfig, Dropout, Linear, LinearConfig, scoped};

/// Options of a [`Cnn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CnnConfig {
    image: [usize; 3],
    classes: usize,
    channels: [usize; 3],
    hidden: usize,
    dropout: f32,
}

impl CnnConfig {
    /// Creates options for images `[channels, height, width]` of at least 4x4 pixels and `classes`
    /// logits, with 16, 32 and 64 channels, a hidden layer of 64 and dropout of 0.25: sizes for
    /// small images.
    pub fn new(image: [usize; 3], classes: usize) -> Self {
        CnnConfig {
            image,
            classes,
            channels: [16, 32, 64],
            hidden: 64,
            dropout: 0.25,
        }
    }

    /// Sets the channels after each of the three convolutions.
    #[must_use]
    pub fn channels(mut self, channels: [usize; 3]) -> Self {
        self.channels = channels;
        self
    }

    /// Sets the size of the hidden fully connected layer.
    #[must_use]
    pub fn hidden(mut self, hidden: usize) -> Self {
        self.hidden = hidden;
        self
    }

    /// Sets the probability of dropout before each fully connected layer; 0 for none.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = p;
        self
    }

    /// Registers the layers `{name}.conv1` to `conv3`, `bn1` to `bn3`, `fc1` and `fc2`. The
    /// convolutions have no bias, because the following batch norms would subtract it again.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Cnn {
        g.at_caller(|g| {
            let [inputs, height, width] = self.image;
            let [c1, c2, c3] = self.channels;
            let blocks = [(inputs, c1), (c1, c2), (c2, c3)];
            let mut number = 0;
            let blocks = blocks.map(|(inputs, outputs)| {
                number += 1;
                let conv = Conv2dConfig::new(inputs, outputs, [3, 3]).padding([1, 1]).bias(false);
                Block {
                    conv: conv.build(g, &scoped(name, &format!("conv{number}"))),
                    norm: BatchNorm::new(g, &scoped(name, &format!("bn{number}")), outputs),
                }
            });
            // Two poolings halve height and width. A size that overflows is refused as a shape.
            let features = c3.saturating_mul(height / 4).saturating_mul(width / 4);
            let last = LinearConfig::new(self.hidden, self.classes)
                .init(Activation::Identity.weight_init(self.hidden, self.classes));
            Cnn {
                blocks,
                fc1: Linear::new(g, &scoped(name, "fc1"), features, self.hidden),
                fc2: last.build(g, &scoped(name, "fc2")),
                dropout: Dropout::new(self.dropout),
            }
        })
    }
}

/// Convolution, batch norm and ReLU.
#[derive(Clone, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Block {
    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value) -> NodeId {
        let y = self.conv.forward(g, x);
        let y = self.norm.forward(g, y);
        g.relu(y)
    }
}

/// A convolutional network after LeNet, with 3x3 kernels, batch norms and ReLU: two convolutions, max
/// pooling by 2, a convolution, max pooling by 2, two fully connected layers.
#[derive(Clone, Debug)]
pub struct Cnn {
    blocks: [Block; 3],
    fc1: Linear,
    fc2: Linear,
    dropout: Dropout,
}

impl Cnn {
    /// Computes logits: `x [batch, channels, height, width] -> [batch, classes]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let [first, second, third] = &self.blocks;
        let y = first.forward(g, x.into());
        let y = second.forward(g, y.into());
        let y = g.max_pool2d(y, Pool2dOptions::square(2));
        let y = third.forward(g, y.into());
        let y = g.max_pool2d(y, Pool2dOptions::square(2));
        let y = g.flatten(y);
        let y = self.dropout.forward(g, y);
        let y = self.fc1.forward(g, y);
        let y = g.relu(y);
        let y = self.dropout.forward(g, y);
        self.fc2.forward(g, y)
    }
}
