//! Transformer blocks of the Llama family.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, NodeId};

use super::config::{LlamaConfig, NormPlacement};
use super::feed_forward::FeedForward;
use super::scaled;
use crate::layers::{EarlierRows, KvCache, PagedRows, RmsNorm, SelfAttention, ShortConv, WithKv, reject, scoped};

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
                mixer: match self.short_conv_of(layer) {
                    Some(conv) => Mixer::ShortConv(Box::new(conv.build(g, &scoped(name, "conv")))),
                    None => Mixer::Attention(Box::new(self.attention(layer).build(g, &scoped(name, "self_attn")))),
                },
                feed_forward_norms: [norm(g, before_feed_forward), norm(g, after_feed_forward)],
                feed_forward: FeedForward::build(self, g, name, layer),
                residual_multiplier: self.residual_multiplier,
            }
        })
    }
}

/// The part of a block that combines tokens.
#[derive(Clone, Debug)]
enum Mixer {
    Attention(Box<SelfAttention>),
    ShortConv(Box<ShortConv>),
}

/// One block: causal self-attention with rotary positions, then a gated feed-forward layer (Shazeer, 2020) or a
/// mixture of such layers ([`MoeConfig`](super::MoeConfig)), each with norms and added to its input. A short convolution may replace the
/// attention.
#[derive(Clone, Debug)]
pub struct LlamaBlock {
    name: String,
    /// Norms of the input and of the output of the mixer.
    attention_norms: [Option<RmsNorm>; 2],
    mixer: Mixer,
    /// Norms of the input and of the output of the feed-forward part.
    feed_forward_norms: [Option<RmsNorm>; 2],
    feed_forward: FeedForward,
    residual_multiplier: Option<f32>,
}

impl LlamaBlock {
    /// Applies the block to `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.forward_with_rows(g, x).0
    }

    /// Applies the block like [`LlamaBlock::forward`], and also returns the keys and values for a
    /// cache. A block with a short convolution has none.
    #[track_caller]
    pub fn forward_with_kv(&self, g: &mut Graph, x: impl Into<Value>) -> WithKv {
        let (y, rows) = self.forward_with_rows(g, x);
        match *rows.as_slice() {
            [k, v] => WithKv { y, kv: [k, v] },
            _ => {
                let remedy = "use `forward_with_rows`";
                reject(
                    g,
                    &self.name,
                    Err(("a short convolution has no keys and values".to_owned(), remedy)),
                );
                WithKv { y, kv: [y; 2] }
            }
        }
    }

    /// Applies the block like [`LlamaBlock::forward`], and also returns its rows for a cache: keys and values, or the inputs of
    /// the convolution.
    #[track_caller]
    pub fn forward_with_rows(&self, g: &mut Graph, x: impl Into<Value>) -> (NodeId, Vec<NodeId>) {
        let x = x.into();
        let y = self.attention_input(g, x);
        let (y, rows) = match &self.mixer {
            Mixer::Attention(attention) => {
                let WithKv { y, kv } = attention.forward_with_kv(g, y);
                (y, kv.to_vec())
            }
            Mixer::ShortConv(conv) => {
                let [y, rows] = conv.forward_with_rows(g, y);
                (y, vec![rows])
            }
        };
        (self.add_feed_forward(g, x, y), rows)
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
        let (x, cache) = (x.into(), cache.into());
        let y = self.attention_input(g, x);
        let y = match (&self.mixer, cache) {
            (Mixer::Attention(attention), cache) => attention.forward_cached(g, y, cache, kv_pos),
            (Mixer::ShortConv(conv), KvCache::Rows { cache, earlier }) => {
                let positions = positions_of(g, y, kv_pos);
                let earlier = EarlierRows {
                    rows: earlier,
                    positions,
                };
                conv.forward_cached(g, y, earlier, |g, new| g.cache_write(new, cache, kv_pos))
            }
            (Mixer::ShortConv(conv), _) => self.no_rows(g, conv, y),
        };
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
        let (x, cache) = (x.into(), cache.into());
        let y = self.attention_input(g, x);
        let y = match (&self.mixer, cache) {
            (Mixer::Attention(attention), cache) => attention.forward_paged(g, y, cache, at),
            (Mixer::ShortConv(conv), KvCache::Rows { cache, earlier }) => {
                let positions = at.positions;
                let earlier = EarlierRows {
                    rows: earlier,
                    positions,
                };
                conv.forward_cached(g, y, earlier, |g, new| g.paged_cache_write(new, cache, at.slots))
            }
            (Mixer::ShortConv(conv), _) => self.no_rows(g, conv, y),
        };
        self.add_feed_forward(g, x, y)
    }

    /// Reports a cache of keys and values for a short convolution.
    #[track_caller]
    fn no_rows(&self, g: &mut Graph, conv: &ShortConv, y: Value) -> NodeId {
        let message = "a short convolution caches rows, found a cache of keys and values".to_owned();
        reject(g, &self.name, Err((message, "use `KvCache::Rows`")));
        conv.forward(g, y)
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

/// Returns the position of each row of `x [..., rows, dim]`, `[..., rows]`. `kv_pos` contains the position of the first row of each
/// sequence.
#[track_caller]
fn positions_of(g: &mut Graph, x: Value, kv_pos: NodeId) -> NodeId {
    let shape = g.shape(x).to_vec();
    let (rows, leading) = match shape.as_slice() {
        [leading @ .., rows, _] => (*rows, leading),
        _ => (0, &[][..]),
    };
    let first = g.reshape(kv_pos, &[leading, &[1]].concat());
    let own = g.constant_u32((0..rows).map(|row| row as u32).collect(), &[rows]);
    g.add(first, own)
}

#[track_caller]
fn normalized(g: &mut Graph, norm: &Option<RmsNorm>, x: Value) -> Value {
    match norm {
        Some(norm) => norm.forward(g, x).into(),
        None => x,
    }
}
