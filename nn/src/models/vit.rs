//! Vision transformer.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use crate::layers::{
    Activation, Conv2d, Conv2dConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, SelfAttention,
    SelfAttentionConfig, scoped,
};

/// Options of a [`Vit`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VitConfig {
    image: [usize; 3],
    patch: usize,
    classes: usize,
    dim: usize,
    layers: usize,
    heads: usize,
    hidden: usize,
}

impl VitConfig {
    /// Creates options for images `[channels, height, width]`, cut into square patches of `patch`
    /// pixels that divide them, and `classes` logits: 4 blocks of 64 features with 4 heads, a size
    /// for small images.
    pub fn new(image: [usize; 3], patch: usize, classes: usize) -> Self {
        VitConfig {
            image,
            patch,
            classes,
            dim: 64,
            layers: 4,
            heads: 4,
            hidden: 128,
        }
    }

    /// Returns ViT-B/16 for images of 3x224x224: 12 blocks of 768 features with 12 heads.
    pub fn base16(classes: usize) -> Self {
        VitConfig::new([3, 224, 224], 16, classes).size(768, 12, 12, 3072)
    }

    /// Sets the features of a patch, the number of blocks and of heads, and the features inside the feed-forward
    /// layers.
    #[must_use]
    pub fn size(mut self, dim: usize, layers: usize, heads: usize, hidden: usize) -> Self {
        (self.dim, self.layers, self.heads, self.hidden) = (dim, layers, heads, hidden);
        self
    }

    /// Returns the number of patches, or a message if the patches do not divide the image.
    fn patches(&self) -> Result<usize, String> {
        let [_, height, width] = self.image;
        let divides = |size: usize| self.patch > 0 && size > 0 && size.is_multiple_of(self.patch);
        if divides(height) && divides(width) {
            // A size that overflows is refused as a shape.
            Ok((height / self.patch).saturating_mul(width / self.patch))
        } else {
            Err(format!(
                "patches of {} do not divide an image of {height}x{width}",
                self.patch
            ))
        }
    }

    /// Registers `{name}.patch_embed` (a convolution), `class_token [1, 1, dim]`, `positions [patches + 1, dim]`,
    /// `blocks.0.norm1`, `.attention`, `.norm2`, `.fc1`, `.fc2` ..., `norm` and `head`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Vit {
        g.at_caller(|g| {
            let patches = self.patches().unwrap_or_else(|message| {
                g.report("vit", message, "choose a patch size that divides height and width");
                0
            });
            let small = Init::Normal { std: 0.02 };
            let fan_in = self.image[0].saturating_mul(self.patch).saturating_mul(self.patch);
            let patch = Conv2dConfig::new(self.image[0], self.dim, [self.patch; 2])
                .stride([u32::try_from(self.patch).unwrap_or(u32::MAX); 2])
                .init(Init::xavier_uniform(fan_in, self.dim));
            let head = LinearConfig::new(self.dim, self.classes).init(Init::xavier_uniform(self.dim, self.classes));
            Vit {
                patches,
                dim: self.dim,
                patch: patch.build(g, &scoped(name, "patch_embed")),
                class_token: g.parameter_with(&scoped(name, "class_token"), &[1, 1, self.dim], small),
                positions: g.parameter_with(
                    &scoped(name, "positions"),
                    &[patches.saturating_add(1), self.dim],
                    small,
                ),
                blocks: (0..self.layers)
                    .map(|i| self.block(g, &scoped(name, &format!("blocks.{i}"))))
                    .collect(),
                norm: LayerNormConfig::new(self.dim).eps(EPS).build(g, &scoped(name, "norm")),
                head: head.build(g, &scoped(name, "head")),
            }
        })
    }

    #[track_caller]
    fn block(&self, g: &mut Graph, name: &str) -> Block {
        let norm = |g: &mut Graph, child| LayerNormConfig::new(self.dim).eps(EPS).build(g, &scoped(name, child));
        let linear = |g: &mut Graph, child, [inputs, outputs]: [usize; 2]| {
            LinearConfig::new(inputs, outputs)
                .init(Init::xavier_uniform(inputs, outputs))
                .build(g, &scoped(name, child))
        };
        Block {
            norm1: norm(g, "norm1"),
            attention: SelfAttentionConfig::new(self.dim, self.heads)
                .bias(true)
                .build(g, &scoped(name, "attention")),
            norm2: norm(g, "norm2"),
            fc1: linear(g, "fc1", [self.dim, self.hidden]),
            fc2: linear(g, "fc2", [self.hidden, self.dim]),
        }
    }
}

/// Number added to the variance, as in the published models.
const EPS: f32 = 1e-6;

#[derive(Clone, Debug)]
struct Block {
    norm1: LayerNorm,
    attention: SelfAttention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Block {
    #[track_caller]
    fn forward(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let y = self.norm1.forward(g, x);
        let y = self.attention.forward(g, y);
        let x = g.add(x, y);
        let y = self.norm2.forward(g, x);
        let y = self.fc1.forward(g, y);
        let y = Activation::GeluTanh.forward(g, y);
        let y = self.fc2.forward(g, y);
        g.add(x, y)
    }
}

/// A vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", 2021): patches as
/// tokens, learned positions, norms before attention and feed-forward layers, and a class token
/// that is classified.
#[derive(Clone, Debug)]
pub struct Vit {
    patches: usize,
    dim: usize,
    patch: Conv2d,
    class_token: NodeId,
    positions: NodeId,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Vit {
    /// Computes logits: `x [batch, channels, height, width] -> [batch, classes]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        let batch = g.shape(x).first().copied().unwrap_or(0);
        let y = self.patch.forward(g, x);
        let y = g.reshape(y, &[batch, self.dim, self.patches]);
        let y = g.permute(y, &[0, 2, 1]);
        let class = g.expand(self.class_token, &[batch, 1, self.dim]);
        let y = g.concat(&[class, y], 1);
        let mut y = g.add(y, self.positions);
        for block in &self.blocks {
            y = block.forward(g, y);
        }
        let class = g.narrow(y, 1, 0, 1);
        let class = g.reshape(class, &[batch, self.dim]);
        let class = self.norm.forward(g, class);
        self.head.forward(g, class)
    }
}
