//! Decoder-only language models of the Llama family.

mod block;
mod cache;
mod config;
mod feed_forward;
mod storage;

pub use block::LlamaBlock;
pub use cache::CacheType;
pub use config::{LayerSet, LlamaConfig, NormPlacement, ShortConvLayers};
pub use feed_forward::{MoeConfig, Routing};
pub use storage::StorageMap;

use meganeura_core::graph::{NodeKind, Value};
use meganeura_core::{Graph, Init, NodeId};

use crate::layers::{
    Embedding, EmbeddingConfig, KvCache, LORA_PART, Linear, LinearConfig, PagedRows, RmsNorm, reject, scoped,
};

impl LlamaConfig {
    /// Registers the layers under the names of published checkpoints: `{name}.model.embed_tokens`,
    /// `model.layers.0.input_layernorm`, `.self_attn.q_proj` (`k_proj`, `v_proj`, `o_proj`),
    /// `.post_attention_layernorm`, `.mlp.gate_proj` (`up_proj`, `down_proj`) ..., `model.norm` and, if embeddings are
    /// not tied, `lm_head`. Other norms are `.self_attn.q_norm` and `k_norm`, `.pre_feedforward_layernorm` and
    /// `.post_feedforward_layernorm`. Layers with experts have `.mlp.gate`, `.mlp.experts.gate_proj` (`up_proj`,
    /// `down_proj`), each with the matrices of all experts, `[experts, outputs, inputs]`, and maybe
    /// `.mlp.shared_expert.gate_proj` (...) and `.mlp.shared_expert_gate`. With [`Routing::Sigmoid`], they also have
    /// `.mlp.gate.e_score_correction_bias`, and shared experts are `.mlp.shared_experts.gate_proj` (...). Attention sinks are
    /// `.self_attn.sinks`. Layers with a short convolution have `.conv.in_proj`, `.conv.conv` and `.conv.out_proj` in place of
    /// `.self_attn`. Weights of linear layers are
    /// `[inputs, outputs]`, the transpose of a checkpoint's. With adapters, everything else is frozen.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Llama {
        match reject(g, "LlamaConfig", self.find_fault()) {
            // The first error is the reason; blocks would add one error per layer.
            Some(_) => LlamaConfig { layers: 0, ..self }.register(g, name),
            None => g.at_caller(|g| self.register(g, name)),
        }
    }

    #[track_caller]
    fn register(self, g: &mut Graph, name: &str) -> Llama {
        let first = g.nodes().len();
        // A standard deviation of the order of the residual stream's, as usual for language models.
        let init = Init::Normal { std: 0.02 };
        let model = scoped(name, "model");
        let embedding = EmbeddingConfig::new(self.vocab, self.dim)
            .init(init)
            .storage(self.weights.embedding());
        let embedding = embedding.build(g, &scoped(&model, "embed_tokens"));
        let blocks = (0..self.layers).map(|i| self.block_of_layer(g, &scoped(&model, &format!("layers.{i}")), i));
        let blocks = blocks.collect();
        let norm = self.norm(g, &scoped(&model, "norm"));
        let head = (!self.tied_embeddings).then(|| {
            let head = LinearConfig::new(self.dim, self.vocab)
                .bias(false)
                .init(init)
                .storage(self.weights.head());
            head.build(g, &scoped(name, "lm_head"))
        });
        if self.lora.is_some() {
            freeze_all_but_adapters(g, first);
        }
        Llama {
            embedding,
            embedding_multiplier: self.embedding_multiplier,
            blocks,
            norm,
            head,
            logits_scaling: self.logits_scaling,
            logit_softcap: self.logit_softcap,
        }
    }
}

/// Freezes all nodes from `first` on, except for adapters.
fn freeze_all_but_adapters(g: &mut Graph, first: usize) {
    let is_frozen = |id: &NodeId| {
        let node = &g.nodes()[id.index()];
        let is_adapter = node.name.as_deref().is_some_and(|name| name.contains(LORA_PART));
        matches!(node.kind, NodeKind::Parameter { .. }) && !is_adapter
    };
    let frozen: Vec<NodeId> = g.node_ids().skip(first).filter(is_frozen).collect();
    for id in frozen {
        g.trainable(id, false);
    }
}

/// A decoder-only language model (Touvron et al., "LLaMA", 2023).
#[derive(Clone, Debug)]
pub struct Llama {
    embedding: Embedding,
    embedding_multiplier: Option<f32>,
    blocks: Vec<LlamaBlock>,
    norm: RmsNorm,
    head: Option<Linear>,
    logits_scaling: Option<f32>,
    logit_softcap: Option<f32>,
}

impl Llama {
    /// Computes logits: `u32` tokens `[..., rows] -> f32 [..., rows, vocab]`, for each position
    /// those of the next token. A token that is not in the vocabulary is an error of the step.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, tokens: impl Into<Value>) -> NodeId {
        let mut x = self.embed(g, tokens);
        for block in &self.blocks {
            x = block.forward(g, x);
        }
        self.logits(g, x)
    }

    /// Returns the blocks' results for `u32` tokens `[..., rows]`, and the rows of each block for its cache.
    #[track_caller]
    pub(super) fn forward_with_rows(&self, g: &mut Graph, tokens: NodeId) -> (NodeId, Vec<NodeId>) {
        let mut x = self.embed(g, tokens);
        let mut all = Vec::new();
        for block in &self.blocks {
            let (y, rows) = block.forward_with_rows(g, x);
            all.extend(rows);
            x = y;
        }
        (x, all)
    }

    /// Returns the blocks' results for `u32` tokens `[..., rows]` after `kv_pos` cached ones;
    /// `caches` has each block's cache.
    #[track_caller]
    pub(super) fn forward_cached(&self, g: &mut Graph, tokens: NodeId, caches: &[KvCache], kv_pos: NodeId) -> NodeId {
        let mut x = self.embed(g, tokens);
        for (block, &cache) in self.blocks.iter().zip(caches) {
            x = block.forward_cached(g, x, cache, kv_pos);
        }
        x
    }

    /// Returns the blocks' results for `u32` tokens `[rows]` of several sequences; `caches` has
    /// each block's cache.
    #[track_caller]
    pub(super) fn forward_paged(&self, g: &mut Graph, tokens: NodeId, caches: &[KvCache], at: PagedRows) -> NodeId {
        let mut x = self.embed(g, tokens);
        for (block, &cache) in self.blocks.iter().zip(caches) {
            x = block.forward_paged(g, x, cache, at);
        }
        x
    }

    /// Returns logits `[..., rows, vocab]` for the result of the last block.
    #[track_caller]
    pub(super) fn logits(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let x = self.norm.forward(g, x);
        let logits = match &self.head {
            Some(head) => head.forward(g, x),
            None => {
                let logits = self.embedding.scores(g, x);
                g.named(logits, "lm_head")
            }
        };
        let logits = scaled(g, logits, self.logits_scaling.map(f32::recip));
        bounded(g, logits, self.logit_softcap)
    }

    /// Returns the input of the first block, `[..., rows, dim]`.
    #[track_caller]
    fn embed(&self, g: &mut Graph, tokens: impl Into<Value>) -> NodeId {
        let x = self.embedding.forward(g, tokens);
        scaled(g, x, self.embedding_multiplier)
    }
}

/// Returns `factor * x`, or `x` without a factor.
#[track_caller]
fn scaled(g: &mut Graph, x: NodeId, factor: Option<f32>) -> NodeId {
    let Some(factor) = factor else { return x };
    let factor = g.scalar(factor);
    g.mul(x, factor)
}

/// Returns `cap * tanh(x / cap)`, or `x` without a cap.
#[track_caller]
fn bounded(g: &mut Graph, x: NodeId, cap: Option<f32>) -> NodeId {
    let x = scaled(g, x, cap.map(f32::recip));
    let y = if cap.is_some() { g.tanh(x) } else { x };
    scaled(g, y, cap)
}

/// Name of the input with the tokens of a [`language_model`].
pub const TOKENS: &str = "tokens";
/// Name of the input with the tokens that follow them.
pub const TARGETS: &str = "targets";

/// Builds a graph for training a language model; `logits` builds the model.
///
/// Inputs: `tokens` and `targets`, `u32 [batch, rows]`; `targets` is usually `tokens` moved by one. Outputs: the
/// mean cross-entropy in nats over all positions, `f32 []`, and the logits, `f32 [batch, rows, vocab]`.
#[track_caller]
pub fn language_model(batch: usize, rows: usize, logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    language_model_of(&[batch, rows], logits)
}

/// Builds a [`language_model`] for tokens of any shape whose last axis are the rows.
#[track_caller]
fn language_model_of(shape: &[usize], logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    let mut g = Graph::new();
    let tokens = g.input_u32(TOKENS, shape);
    let targets = g.input_u32(TARGETS, shape);
    let logits = logits(&mut g, tokens);
    let loss = g.cross_entropy_loss(logits, targets);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, logits]);
    g
}

/// Name of the input with the weights of the targets of a [`weighted_language_model`].
pub const TARGET_WEIGHTS: &str = "target_weights";

/// Builds a [`language_model`] whose loss is a weighted mean over the positions, for example over the answers of
/// conversations.
///
/// Further input: `target_weights`, `f32 [batch, rows]`, at least 0. The loss is the sum of the weighted cross-entropies in
/// nats, divided by the sum of the weights; 0 if all weights are 0.
#[track_caller]
pub fn weighted_language_model(batch: usize, rows: usize, logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    let mut g = Graph::new();
    let shape = [batch, rows];
    let tokens = g.input_u32(TOKENS, &shape);
    let targets = g.input_u32(TARGETS, &shape);
    let weights = g.input(TARGET_WEIGHTS, &shape);
    let logits = logits(&mut g, tokens);
    let losses = g.cross_entropy_rows(logits, targets);
    let weighted = g.mul(losses, weights);
    let (sum, total) = (g.sum_all(weighted), g.sum_all(weights));
    let least = g.scalar(f32::MIN_POSITIVE);
    let total = g.maximum(total, least);
    let loss = g.div(sum, total);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, logits]);
    g
}

impl LlamaConfig {
    /// Returns the [`language_model`] graph of this model, with tokens of the shape `[batch.., rows]`. An empty `batch`
    /// is a single sequence without a batch axis.
    #[track_caller]
    pub fn training_graph(&self, batch: &[usize], rows: usize) -> Graph {
        let shape = [batch, &[rows]].concat();
        language_model_of(&shape, |g, tokens| self.build(g, "").forward(g, tokens))
    }
}
