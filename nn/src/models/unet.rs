//! U-Net, a network from images to images.

use meganeura_core::graph::Value;
use meganeura_core::ops::Pool2dOptions;
use meganeura_core::{Graph, Init, NodeId};

use super::FEATURES;
use super::LABELS;
use crate::layers::{Conv2d, Conv2dConfig, ConvNorm, scoped};

/// Options of a [`Unet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnetConfig {
    inputs: usize,
    outputs: usize,
    width: usize,
    depth: usize,
}

impl UnetConfig {
    /// Creates options for images of `inputs` channels to images of `outputs` channels, with 16
    /// channels at full size and two halvings, each of which doubles them.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        UnetConfig {
            inputs,
            outputs,
            width: 16,
            depth: 2,
        }
    }

    /// Sets the number of channels at full size; 64 in the paper.
    #[must_use]
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets the number of halvings; 4 in the paper.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Registers `{name}.down0.conv1`, `.bn1`, `.conv2`, `.bn2`, `down1` ..., `bottom`, `up0` ... and `out`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Unet {
        g.at_caller(|g| {
            // A size that overflows is refused as a shape.
            let width = |level: usize| {
                let factor = u32::try_from(level).ok().and_then(|l| 1usize.checked_shl(l));
                self.width.saturating_mul(factor.unwrap_or(usize::MAX))
            };
            let mut double =
                |inputs, outputs, child: String| DoubleConv::new(g, &scoped(name, &child), [inputs, outputs]);
            let mut inputs = self.inputs;
            let mut down = Vec::new();
            for level in 0..self.depth {
                down.push(double(inputs, width(level), format!("down{level}")));
                inputs = width(level);
            }
            let bottom = double(inputs, width(self.depth), "bottom".into());
            let up = (0..self.depth).map(|level| {
                let joined = width(level + 1).saturating_add(width(level));
                double(joined, width(level), format!("up{level}"))
            });
            let up = up.collect();
            let out =
                Conv2dConfig::new(width(0), self.outputs, [1, 1]).init(Init::xavier_uniform(width(0), self.outputs));
            Unet {
                down,
                bottom,
                up,
                out: out.build(g, &scoped(name, "out")),
            }
        })
    }
}

/// Two 3x3 convolutions, each with batch norm and ReLU.
#[derive(Clone, Debug)]
struct DoubleConv([ConvNorm; 2]);

impl DoubleConv {
    #[track_caller]
    fn new(g: &mut Graph, name: &str, [inputs, outputs]: [usize; 2]) -> Self {
        let mut number = 0;
        DoubleConv([inputs, outputs].map(|inputs| {
            number += 1;
            let names = ["conv", "bn"].map(|layer| scoped(name, &format!("{layer}{number}")));
            let conv = Conv2dConfig::new(inputs, outputs, [3, 3]).padding([1, 1]);
            ConvNorm::new(g, [&names[0], &names[1]], conv, outputs, false)
        }))
    }

    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value) -> NodeId {
        let [first, second] = &self.0;
        let y = first.forward(g, x);
        let y = g.relu(y);
        let y = second.forward(g, y);
        g.relu(y)
    }
}

/// A U-Net (Ronneberger, Fischer and Brox, 2015) with padded convolutions and batch norms: max
/// pooling on the way down, nearest-neighbour upsampling on the way up, and at each size a skip
/// connection that concatenates the features of both.
#[derive(Clone, Debug)]
pub struct Unet {
    down: Vec<DoubleConv>,
    bottom: DoubleConv,
    up: Vec<DoubleConv>,
    out: Conv2d,
}

impl Unet {
    /// Computes `x [batch, inputs, height, width] -> [batch, outputs, height, width]` for any size
    /// that can be halved the configured number of times (odd sizes round down and are later
    /// enlarged to the original size).
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let mut y = x.into();
        let mut skips = Vec::new();
        for block in &self.down {
            let features = block.forward(g, y);
            skips.push(features);
            y = g.max_pool2d(features, Pool2dOptions::square(2)).into();
        }
        let mut y = self.bottom.forward(g, y);
        for (block, &skip) in self.up.iter().zip(&skips).rev() {
            let size = match *g.shape(skip) {
                [_, _, height, width] => [height, width],
                // Already rejected where the features were computed.
                _ => [1, 1],
            };
            let enlarged = g.upsample_nearest2d(y, size);
            let joined = g.concat(&[skip, enlarged], 1);
            y = block.forward(g, joined.into());
        }
        self.out.forward(g, y)
    }
}

/// Builds a graph for training a segmentation model; `logits` builds the model.
///
/// Inputs: `x`, `f32 [batch, image...]` with `image` as `[channels, height, width]`, and `labels`,
/// `u32 [batch, height, width]`, the class of each pixel. Outputs: the mean cross-entropy in nats over all pixels,
/// `f32 []`, and the logits, `f32 [batch, classes, height, width]`.
#[track_caller]
pub fn segmentation(batch: usize, image: [usize; 3], logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    let [channels, height, width] = image;
    let mut g = Graph::new();
    let x = g.input(FEATURES, &[batch, channels, height, width]);
    let labels = g.input_u32(LABELS, &[batch, height, width]);
    let logits = logits(&mut g, x);
    // Classes are the last axis, as for the cross-entropy.
    let rows = g.permute(logits, &[0, 2, 3, 1]);
    let loss = g.cross_entropy_loss(rows, labels);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, logits]);
    g
}
