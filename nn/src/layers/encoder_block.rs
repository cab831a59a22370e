//! A transformer encoder block.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{
    Activation, Dropout, Fault, LayerNorm, LayerNormConfig, Linear, LinearConfig, SelfAttention, SelfAttentionConfig,
    check_eps, check_heads, check_sizes, reject, scoped,
};

/// Options of an [`EncoderBlock`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderBlockConfig {
    dim: usize,
    heads: usize,
    hidden: usize,
    norm_first: bool,
    activation: Activation,
    dropout: f32,
    eps: f32,
}

impl EncoderBlockConfig {
    /// Creates options for a block of BERT (Devlin et al., 2018): `dim` features, `heads` heads of
    /// `dim / heads` each, `hidden` features inside the feed-forward layers, norms after the
    /// additions (post-norm), exact GELU, no dropout, `eps` 1e-5.
    pub fn new(dim: usize, heads: usize, hidden: usize) -> Self {
        EncoderBlockConfig {
            dim,
            heads,
            hidden,
            norm_first: false,
            activation: Activation::Gelu,
            dropout: 0.0,
            eps: 1e-5,
        }
    }

    /// Sets whether norms are before the attention and the feed-forward layers (pre-norm), as in
    /// GPT-2 and vision transformers (Xiong et al., 2020), instead of after the additions. Add a
    /// norm after the last pre-norm block.
    #[must_use]
    pub fn norm_first(mut self, norm_first: bool) -> Self {
        self.norm_first = norm_first;
        self
    }

    /// Sets the non-linearity between the feed-forward layers.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Sets the probability with which elements of both branches are dropped in training sessions,
    /// before the additions.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = p;
        self
    }

    /// Sets the number added to the variances in the norms; BERT has 1e-12.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    fn check(&self) -> Result<(), Fault> {
        check_heads([self.dim, self.heads, self.heads], None, false)?;
        check_sizes(&[("hidden", self.hidden)])?;
        check_eps(self.eps)?;
        if (0.0..1.0).contains(&self.dropout) {
            Ok(())
        } else {
            Err((
                format!("dropout is {}", self.dropout),
                "a probability of dropout is at least 0 and below 1, usually 0.1",
            ))
        }
    }

    /// Registers `{name}.attention` (a [`SelfAttention`] with biases: `.q_proj` ...), `{name}.norm1`, `{name}.fc1
    /// [dim, hidden]`, `{name}.fc2 [hidden, dim]` and `{name}.norm2`, with Xavier weights.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> EncoderBlock {
        reject(g, &format!("encoder_block '{name}'"), self.check());
        g.at_caller(|g| {
            let norm = |g: &mut Graph, child| {
                LayerNormConfig::new(self.dim)
                    .eps(self.eps)
                    .build(g, &scoped(name, child))
            };
            let linear = |g: &mut Graph, child, [inputs, outputs]: [usize; 2]| {
                LinearConfig::new(inputs, outputs)
                    .init(Init::xavier_uniform(inputs, outputs))
                    .build(g, &scoped(name, child))
            };
            EncoderBlock {
                config: self,
                attention: SelfAttentionConfig::new(self.dim, self.heads)
                    .bias(true)
                    .build(g, &scoped(name, "attention")),
                norm1: norm(g, "norm1"),
                fc1: linear(g, "fc1", [self.dim, self.hidden]),
                fc2: linear(g, "fc2", [self.hidden, self.dim]),
                norm2: norm(g, "norm2"),
            }
        })
    }
}

/// A block of a transformer encoder (Vaswani et al., 2017): self-attention between all rows, then
/// two feed-forward layers, each added to its input, with a layer norm.
#[derive(Clone, Debug)]
pub struct EncoderBlock {
    config: EncoderBlockConfig,
    attention: SelfAttention,
    norm1: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    norm2: LayerNorm,
}

impl EncoderBlock {
    /// Applies the block to `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.apply(g, x.into(), None)
    }

    /// Applies the block with a mask: see [`SelfAttention::forward_masked`].
    #[track_caller]
    pub fn forward_masked(&self, g: &mut Graph, x: impl Into<Value>, mask: impl Into<Value>) -> NodeId {
        self.apply(g, x.into(), Some(mask.into()))
    }

    #[track_caller]
    fn apply(&self, g: &mut Graph, x: Value, mask: Option<Value>) -> NodeId {
        g.at_caller(|g| {
            let dropout = Dropout::new(self.config.dropout);
            let attend = |g: &mut Graph, x: Value| {
                let y = match mask {
                    Some(mask) => self.attention.forward_masked(g, x, mask),
                    None => self.attention.forward(g, x),
                };
                dropout.forward(g, y)
            };
            let feed_forward = |g: &mut Graph, x: NodeId| {
                let y = self.fc1.forward(g, x);
                let y = self.config.activation.forward(g, y);
                let y = self.fc2.forward(g, y);
                dropout.forward(g, y)
            };
            if self.config.norm_first {
                let y = self.norm1.forward(g, x);
                let y = attend(g, y.into());
                let x = g.add(x, y);
                let y = self.norm2.forward(g, x);
                let y = feed_forward(g, y);
                g.add(x, y)
            } else {
                let y = attend(g, x);
                let y = g.add(x, y);
                let x = self.norm1.forward(g, y);
                let y = feed_forward(g, x);
                let y = g.add(x, y);
                self.norm2.forward(g, y)
            }
        })
    }
}
