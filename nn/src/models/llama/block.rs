//! Transformer blocks of the Llama family.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, NodeId};

use super::config::{LlamaConfig, NormPlacement};
use super::feed_forward::FeedForward;
use super::scaled;
use crate::layers::{KvCache, PagedRows, RmsNorm, SelfAttention, WithKv, scoped};

impl LlamaConfig {
    /// Registers a norm over the features of a token, or of queries or keys.
    #[track_caller]
    pub(super) fn norm(&self, g: &mut Graph, name: &str) -> RmsNorm {
        if self.zero_centered_norms {
            RmsNorm::zero_centered(g, name, self.dim, self.eps)
        } else {
            RmsNorm::new(g, name, self.dim, self.eps)
        }
    }

    /// Registers one block for a custom model, with the options of the first layer.
    #[track_caller]
    pub fn block(&self, g: &mut Graph, name: &str) -> LlamaBlock {
        self.block_of_layer(g, name, 0)
    }

    /// Registers one block with the options of layer `layer`, counted from 0: layers differ in
    /// their windows, in the position embedding and in the use of experts.
    #[track_caller]
    pub fn block_of_layer(&self, g: &mut Graph, name: &str, layer: usize) -> LlamaBlock {
        g.at_caller(|g| {
            // Names in checkpoints: `post_attention_layernorm` is the norm after the attention,
            // either before the feed-forward part or at the end of the attention.
            let [
                before_attention,
                after_attention,
                before_feed_forward,
                after_feed_forward,
            ] = match self.norms {
                NormPlacement::Pre => [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
                NormPlacement::Post => [
                    None,
                    Some("post_attention_layernorm"),
                    None,
                    Some("post_feedforward_layernorm"),
                ],
                NormPlacement::PreAndPost => [
                    Some("input_layernorm"),
                    Some("post_attention_layernorm"),
                    Some("pre_feedforward_layernorm"),
                    Some("post_feedforward_layernorm"),
                ],
            };
            let norm = |g: &mut Graph, child: Option<&str>| child.map(|child| self.norm(g, &scoped(name, child)));
            LlamaBlock {
                name: name.to_owned(),
                attention_norms: [norm(g, before_attention), norm(g, after_attention)],
                attention: self.attention(layer).build(g, &scoped(name, "self_attn")),
                feed_forward_norms: [norm(g, before_feed_forward), norm(g, after_feed_forward)],
                feed_forward: FeedForward::build(self, g, name, layer),
                residual_multiplier: self.residual_multiplier,
            }
        })
    }
}

/// One block: causal self-attention with rotary positions, then a gated feed-forward layer (Shazeer, 2020) or a
/// mixture of such layers ([`MoeConfig`](super::MoeConfig)), each with norms and added to its input.
#[derive(Clone, Debug)]
pub struct LlamaBlock {
    name: String,
    /// Norms of the input and of the output of the attention.
    attention_norms: [Option<RmsNorm>; 2],
    attention: SelfAttention,
    /// Norms of the input and of the output of the feed-forward part.
    feed_forward_norms: [Option<RmsNorm>; 2],
    feed_forward: FeedForward,
    residual_multiplier: Option<f32>,
}

impl LlamaBlock {
    /// Applies the block to `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.forward_with_kv(g, x).y
    }

    /// Applies the block like [`LlamaBlock::forward`], and also returns the keys and values for a
    /// cache.
    #[track_caller]
    pub fn forward_with_kv(&self, g: &mut Graph, x: impl Into<Value>) -> WithKv {
        let x = x.into();
        let y = self.attention_input(g, x);
        let attended = self.attention.forward_with_kv(g, y);
        WithKv {
            y: self.add_feed_forward(g, x, attended.y),
            ..attended
        }
    }

    /// Adds a decode step with the block's cache: see [`SelfAttention::forward_cached`].
    #[track_caller]
    pub fn forward_cached(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        cache: impl Into<KvCache>,
        kv_pos: NodeId,
    ) -> NodeId {
        let x = x.into();
        let y = self.attention_input(g, x);
        let y = self.attention.forward_cached(g, y, cache, kv_pos);
        self.add_feed_forward(g, x, y)
    }

    /// Adds a decode step for tokens of several sequences: see [`SelfAttention::forward_paged`].
    #[track_caller]
    pub fn forward_paged(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        cache: impl Into<KvCache>,
        at: PagedRows,
    ) -> NodeId {
        let x = x.into();
        let y = self.attention_input(g, x);
        let y = self.attention.forward_paged(g, y, cache, at);
        self.add_feed_forward(g, x, y)
    }

    #[track_caller]
    fn attention_input(&self, g: &mut Graph, x: Value) -> Value {
        normalized(g, &self.attention_norms[0], x)
    }

    /// Returns `x` plus the normalized and scaled result of a part of the block.
    #[track_caller]
    fn add(&self, g: &mut Graph, x: Value, part: NodeId, norm: &Option<RmsNorm>) -> NodeId {
        let part = match norm {
            Some(norm) => norm.forward(g, part),
            None => part,
        };
        let part = scaled(g, part, self.residual_multiplier);
        g.add(x, part)
    }

    #[track_caller]
    fn add_feed_forward(&self, g: &mut Graph, x: Value, attended: NodeId) -> NodeId {
        let x = self.add(g, x, attended, &self.attention_norms[1]);
        let y = normalized(g, &self.feed_forward_norms[0], x.into());
        let y = self.feed_forward.forward(g, y, &self.name);
        self.add(g, x.into(), y, &self.feed_forward_norms[1])
    }
}

#[track_caller]
fn normalized(g: &mut Graph, norm: &Option<RmsNorm>, x: Value) -> Value {
    match norm {
        Some(norm) => norm.forward(g, x).into(),
        None => x,
    }
}
