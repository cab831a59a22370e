//! MobileNetV2, an image classifier.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use crate::layers::{Conv2dConfig, ConvNorm, Dropout, Linear, LinearConfig, scoped};

/// Inverted residual blocks of a stage: expansion factor, output channels, number of blocks, stride
/// of the first block.
const STAGES: [(usize, usize, usize, u32); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];
/// Number of channels of the stem.
const STEM: usize = 32;
/// Number of channels before the classifier.
const LAST: usize = 1280;

/// Options of a [`MobileNet`].
#[derive(Clone, Debug, PartialEq)]
pub struct MobileNetConfig {
    width: f32,
    channels: usize,
    classes: usize,
    dropout: f32,
    small_images: bool,
}

impl MobileNetConfig {
    /// Returns MobileNetV2 of width 1 for images of 3 channels, with dropout of 0.2: 3.5 million
    /// parameters with 1000 classes.
    pub fn new(classes: usize) -> Self {
        MobileNetConfig {
            width: 1.0,
            channels: 3,
            classes,
            dropout: 0.2,
            small_images: false,
        }
    }

    /// Sets the factor by which all numbers of channels are multiplied. The results are rounded to multiples of 8, and
    /// the last one is at least 1280.
    #[must_use]
    pub fn width(mut self, width: f32) -> Self {
        self.width = width;
        self
    }

    /// Sets the number of channels of the images.
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

    /// Sets a stride of 1 instead of 2 in the stem and the second stage, so that height and width are halved three
    /// times instead of five times. This is for images of about 32x32. The layers and their names stay the same.
    #[must_use]
    pub fn small_images(mut self, small: bool) -> Self {
        self.small_images = small;
        self
    }

    /// Scales a number of channels by the width: to a multiple of 8, at least 8, and at least nine
    /// tenths of the exact number.
    fn scaled(&self, channels: usize) -> usize {
        const MULTIPLE: usize = 8;
        let exact = channels as f32 * self.width;
        // Invalid widths saturate, and are refused as shapes.
        let rounded = ((exact + MULTIPLE as f32 / 2.0) as usize / MULTIPLE)
            .saturating_mul(MULTIPLE)
            .max(MULTIPLE);
        if (rounded as f32) < 0.9 * exact {
            rounded.saturating_add(MULTIPLE)
        } else {
            rounded
        }
    }

    /// Registers the layers under torchvision's names: `{name}.features.0.0` (a convolution) and `.1` (its batch norm),
    /// `features.1.conv.0.0` ..., `classifier.1`.
    #[track_caller]
    pub fn build(&self, g: &mut Graph, name: &str) -> MobileNet {
        let small = self.small_images;
        let features = |path: &str| scoped(name, &format!("features.{path}"));
        let mut inputs = self.scaled(STEM);
        let stem = conv(self.channels, inputs, 3, if small { 1 } else { 2 });
        let stem = ConvNorm::new(g, [&features("0.0"), &features("0.1")], stem, inputs, false);
        let mut blocks = Vec::new();
        for (stage, &(factor, channels, count, stride)) in STAGES.iter().enumerate() {
            let outputs = self.scaled(channels);
            for i in 0..count {
                let stride = if i > 0 || (small && stage == 1) { 1 } else { stride };
                let name = features(&format!("{}.conv", blocks.len() + 1));
                blocks.push(Block::new(g, &name, [inputs, outputs], factor, stride));
                inputs = outputs;
            }
        }
        let outputs = self.scaled(LAST).max(LAST);
        let at = blocks.len() + 1;
        let names = [features(&format!("{at}.0")), features(&format!("{at}.1"))];
        let last = ConvNorm::new(g, [&names[0], &names[1]], conv(inputs, outputs, 1, 1), outputs, false);
        let classifier = LinearConfig::new(outputs, self.classes).init(Init::xavier_uniform(outputs, self.classes));
        MobileNet {
            stem,
            blocks,
            last,
            dropout: Dropout::new(self.dropout),
            classifier: classifier.build(g, &scoped(name, "classifier.1")),
        }
    }
}

/// Returns a convolution that only changes height and width by its stride.
pub(super) fn conv(inputs: usize, outputs: usize, kernel: usize, stride: u32) -> Conv2dConfig {
    Conv2dConfig::new(inputs, outputs, [kernel; 2])
        .stride([stride; 2])
        .padding([(kernel / 2) as u32; 2])
}

/// Computes `min(max(x, 0), 6)`.
#[track_caller]
fn relu6(g: &mut Graph, x: NodeId) -> NodeId {
    g.clamp(x, 0.0, 6.0)
}

/// An inverted residual block: a 1x1 convolution to more channels, a depthwise 3x3 one, and a 1x1
/// one to fewer channels without an activation; with a residual connection if the shape does not
/// change.
#[derive(Clone, Debug)]
struct Block {
    /// All convolutions but the last, each followed by an activation.
    layers: Vec<ConvNorm>,
    projection: ConvNorm,
    is_residual: bool,
}

impl Block {
    #[track_caller]
    fn new(g: &mut Graph, name: &str, [inputs, outputs]: [usize; 2], factor: usize, stride: u32) -> Self {
        // A size that overflows is refused as a shape.
        let wide = inputs.saturating_mul(factor);
        let groups = u32::try_from(wide).unwrap_or(u32::MAX);
        let mut path = vec![conv(wide, wide, 3, stride).groups(groups)];
        if factor != 1 {
            path.insert(0, conv(inputs, wide, 1, 1));
        }
        let count = path.len();
        let mut layers = Vec::with_capacity(count);
        for (i, conv) in path.into_iter().enumerate() {
            let names = [0, 1].map(|part| scoped(name, &format!("{i}.{part}")));
            layers.push(ConvNorm::new(g, [&names[0], &names[1]], conv, wide, false));
        }
        let names = [count, count + 1].map(|at| scoped(name, &at.to_string()));
        Block {
            layers,
            projection: ConvNorm::new(g, [&names[0], &names[1]], conv(wide, outputs, 1, 1), outputs, false),
            is_residual: stride == 1 && inputs == outputs,
        }
    }

    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value) -> NodeId {
        let mut y = x;
        for layer in &self.layers {
            let wide = layer.forward(g, y);
            y = relu6(g, wide).into();
        }
        let y = self.projection.forward(g, y);
        if self.is_residual { g.add(x, y) } else { y }
    }
}

/// MobileNetV2 (Sandler et al., "MobileNetV2: Inverted residuals and linear bottlenecks", 2018).
#[derive(Clone, Debug)]
pub struct MobileNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    last: ConvNorm,
    dropout: Dropout,
    classifier: Linear,
}

impl MobileNet {
    /// Computes logits: `x [batch, channels, height, width] -> [batch, classes]`. Height and width
    /// are halved five times, or three times for small images; the published network takes 224x224.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let y = self.stem.forward(g, x);
        let mut y = relu6(g, y);
        for block in &self.blocks {
            y = block.forward(g, y.into());
        }
        let y = self.last.forward(g, y);
        let y = relu6(g, y);
        let y = g.global_avg_pool(y);
        let y = self.dropout.forward(g, y);
        self.classifier.forward(g, y)
    }
}
