//! Self-attention with its four projections.

use meganeura_core::graph::Value;
use meganeura_core::ops::AttentionOptions;
use meganeura_core::{Graph, Init, NodeId};

use super::{Linear, LinearConfig, scoped};

/// Options of a [`SelfAttention`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttentionConfig {
    dim: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    bias: bool,
    causal: bool,
    window: Option<u32>,
    rope: Option<f32>,
}

impl SelfAttentionConfig {
    /// Over `dim` features with so many heads of `dim / heads` each: every position sees every other, projections
    /// have no bias, positions are not encoded.
    pub fn new(dim: usize, heads: usize) -> Self {
        SelfAttentionConfig {
            dim,
            heads,
            kv_heads: heads,
            head_dim: dim / heads.max(1),
            bias: false,
            causal: false,
            window: None,
            rope: None,
        }
    }

    /// Number of key and value heads, each of which serves `heads / kv_heads` query heads (grouped-query
    /// attention; Ainslie et al., 2023).
    #[must_use]
    pub fn kv_heads(mut self, kv_heads: usize) -> Self {
        self.kv_heads = kv_heads;
        self
    }

    /// Features of a head, if not `dim / heads`.
    #[must_use]
    pub fn head_dim(mut self, head_dim: usize) -> Self {
        self.head_dim = head_dim;
        self
    }

    /// Whether the projections have a bias.
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Whether a position sees itself and earlier ones alone.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Limits a causal layer to the latest `window` positions, the own one included.
    #[must_use]
    pub fn window(mut self, window: u32) -> Self {
        self.window = Some(window);
        self
    }

    /// Rotary position embedding of queries and keys with this base (10000 in Su et al., 2021).
    #[must_use]
    pub fn rope(mut self, theta: f32) -> Self {
        self.rope = Some(theta);
        self
    }

    /// Registers `{name}.q_proj`, `k_proj`, `v_proj` and `o_proj`, each a [`Linear`] layer with Xavier weights.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> SelfAttention {
        // Sizes that overflow are refused as a shape.
        let own = self.heads.saturating_mul(self.head_dim);
        let shared = self.kv_heads.saturating_mul(self.head_dim);
        SelfAttention {
            name: name.to_owned(),
            q: self.project(g, name, "q_proj", [self.dim, own]),
            k: self.project(g, name, "k_proj", [self.dim, shared]),
            v: self.project(g, name, "v_proj", [self.dim, shared]),
            o: self.project(g, name, "o_proj", [own, self.dim]),
            config: self,
        }
    }

    #[track_caller]
    fn project(self, g: &mut Graph, name: &str, child: &str, [inputs, outputs]: [usize; 2]) -> Linear {
        LinearConfig::new(inputs, outputs)
            .bias(self.bias)
            .init(Init::xavier_uniform(inputs, outputs))
            .build(g, &scoped(name, child))
    }
}

/// Multi-head self-attention (Vaswani et al., 2017).
#[derive(Clone, Debug)]
pub struct SelfAttention {
    name: String,
    config: SelfAttentionConfig,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
}

impl SelfAttention {
    /// `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        let config = &self.config;
        let [mut q, mut k, v] = [&self.q, &self.k, &self.v].map(|layer| layer.forward(g, x));
        let head_dim = narrow(config.head_dim);
        if let Some(theta) = config.rope {
            [q, k] = [q, k].map(|x| {
                let y = g.rope(x, theta, head_dim);
                g.named(y, &self.name)
            });
        }
        let options = AttentionOptions {
            causal: config.causal,
            window: config.window,
            ..AttentionOptions::new(narrow(config.heads), narrow(config.kv_heads), head_dim)
        };
        let y = g.attention(q, k, v, options);
        g.named(y, &self.name);
        self.o.forward(g, y)
    }
}

/// A size as the operators take it. What does not fit is refused there, as no tensor is that wide.
fn narrow(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
