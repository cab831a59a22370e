//! EfficientNet-B0, an image classifier.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::mobilenet::conv;
use crate::layers::{Conv2d, Conv2dConfig, ConvNorm, Dropout, Linear, LinearConfig, scoped};

/// Blocks of a stage: expansion factor, kernel size, stride of the first block, output channels,
/// number of blocks.
const STAGES: [(usize, usize, u32, usize, usize); 7] = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
];
/// Number of channels of the stem.
const STEM: usize = 32;
/// Number of channels before the classifier.
const LAST: usize = 1280;
/// Number of input channels of a block, divided by the number of channels between the two convolutions of its
/// squeeze-and-excitation part.
const SQUEEZE: usize = 4;

/// Options of an [`EfficientNet`].
#[derive(Clone, Debug, PartialEq)]
pub struct EfficientNetConfig {
    channels: usize,
    classes: usize,
    dropout: f32,
}

impl EfficientNetConfig {
    /// Returns EfficientNet-B0 for images of 3 channels, with dropout of 0.2: 5.3 million
    /// parameters with 1000 classes.
    pub fn b0(classes: usize) -> Self {
        EfficientNetConfig {
            channels: 3,
            classes,
            dropout: 0.2,
        }
    }

    /// Sets the channels of the images.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Sets the probability of dropout before the classifier; 0 for none.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = p;
        self
    }

    /// Registers the layers under torchvision's names: `{name}.features.0.0` (a convolution) and `.1` (its batch norm),
    /// `features.1.0.block.0.0` ..., `classifier.1`.
    #[track_caller]
    pub fn build(&self, g: &mut Graph, name: &str) -> EfficientNet {
        g.at_caller(|g| {
            let features = |path: &str| scoped(name, &format!("features.{path}"));
            let pair = |path: &str| [0, 1].map(|part| features(&format!("{path}.{part}")));
            let stem = conv_norm(g, &pair("0"), conv(self.channels, STEM, 3, 2), STEM);
            let (mut blocks, mut inputs) = (Vec::new(), STEM);
            for (stage, &(factor, kernel, stride, outputs, count)) in STAGES.iter().enumerate() {
                for i in 0..count {
                    let name = features(&format!("{}.{i}.block", stage + 1));
                    let stride = if i == 0 { stride } else { 1 };
                    blocks.push(Block::new(g, &name, [inputs, outputs], factor, (kernel, stride)));
                    inputs = outputs;
                }
            }
            let last = conv_norm(
                g,
                &pair(&(STAGES.len() + 1).to_string()),
                conv(inputs, LAST, 1, 1),
                LAST,
            );
            let classifier = LinearConfig::new(LAST, self.classes).init(Init::xavier_uniform(LAST, self.classes));
            EfficientNet {
                stem,
                blocks,
                last,
                dropout: Dropout::new(self.dropout),
                classifier: classifier.build(g, &scoped(name, "classifier.1")),
            }
        })
    }
}

#[track_caller]
fn conv_norm(g: &mut Graph, [conv_name, norm_name]: &[String; 2], conv: Conv2dConfig, outputs: usize) -> ConvNorm {
    ConvNorm::new(g, [conv_name, norm_name], conv, outputs, false)
}

/// Factors for the channels of an image, from the means of all channels (Hu, Shen and Sun, "Squeeze-and-excitation
/// networks", 2018).
#[derive(Clone, Debug)]
struct SqueezeExcite {
    squeeze: Conv2d,
    excite: Conv2d,
}

impl SqueezeExcite {
    #[track_caller]
    fn new(g: &mut Graph, name: &str, channels: usize, squeezed: usize) -> Self {
        SqueezeExcite {
            squeeze: conv(channels, squeezed, 1, 1).build(g, &scoped(name, "fc1")),
            excite: conv(squeezed, channels, 1, 1).build(g, &scoped(name, "fc2")),
        }
    }

    #[track_caller]
    fn forward(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let means = g.mean(x, &[2, 3], true);
        let y = self.squeeze.forward(g, means);
        let y = g.silu(y);
        let y = self.excite.forward(g, y);
        let factors = g.sigmoid(y);
        g.mul(x, factors)
    }
}

/// A 1x1 convolution to more channels, a depthwise one, factors for the channels, and a 1x1
/// convolution to fewer channels without an activation; with a residual connection if the shape
/// does not change.
#[derive(Clone, Debug)]
struct Block {
    /// All convolutions but the last, each followed by an activation.
    layers: Vec<ConvNorm>,
    factors: SqueezeExcite,
    projection: ConvNorm,
    is_residual: bool,
}

impl Block {
    #[track_caller]
    fn new(
        g: &mut Graph,
        name: &str,
        [inputs, outputs]: [usize; 2],
        factor: usize,
        (kernel, stride): (usize, u32),
    ) -> Self {
        let wide = inputs * factor;
        let pair = |at: usize| [0, 1].map(|part| scoped(name, &format!("{at}.{part}")));
        let mut layers = Vec::new();
        if factor != 1 {
            layers.push(conv_norm(g, &pair(0), conv(inputs, wide, 1, 1), wide));
        }
        let depthwise = conv(wide, wide, kernel, stride).groups(wide as u32);
        layers.push(conv_norm(g, &pair(layers.len()), depthwise, wide));
        let at = layers.len();
        Block {
            layers,
            factors: SqueezeExcite::new(g, &scoped(name, &at.to_string()), wide, (inputs / SQUEEZE).max(1)),
            projection: conv_norm(g, &pair(at + 1), conv(wide, outputs, 1, 1), outputs),
            is_residual: stride == 1 && inputs == outputs,
        }
    }

    #[track_caller]
    fn forward(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let mut y = x;
        for layer in &self.layers {
            let wide = layer.forward(g, y);
            y = g.silu(wide);
        }
        let y = self.factors.forward(g, y);
        let y = self.projection.forward(g, y);
        if self.is_residual { g.add(x, y) } else { y }
    }
}

/// EfficientNet (Tan and Le, "EfficientNet: Rethinking model scaling for convolutional neural
/// networks", 2019), without stochastic depth (random skipping of blocks in training).
#[derive(Clone, Debug)]
pub struct EfficientNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    last: ConvNorm,
    dropout: Dropout,
    classifier: Linear,
}

impl EfficientNet {
    /// Computes logits: `x [batch, channels, height, width] -> [batch, classes]`. Height and width
    /// are halved five times; the published network takes 224x224.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let y = self.stem.forward(g, x);
        let mut y = g.silu(y);
        for block in &self.blocks {
            y = block.forward(g, y);
        }
        let y = self.last.forward(g, y);
        let y = g.silu(y);
        let y = g.global_avg_pool(y);
        let y = self.dropout.forward(g, y);
        self.classifier.forward(g, y)
    }
}
