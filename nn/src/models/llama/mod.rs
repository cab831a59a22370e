//! Decoder-only language models of the Llama family.

use meganeura_core::graph::{NodeKind, Value};
use meganeura_core::ops::RopeScaling;
use meganeura_core::{Error, Graph, Init, NodeId};

use crate::layers::{
    Embedding, EmbeddingConfig, Fault, LORA_PART, Linear, LinearConfig, LoraConfig, PagedRows, RmsNorm, SelfAttention,
    SelfAttentionConfig, WeightStorage, WithKv, check_eps, check_heads, check_sizes, check_theta, reject, scoped,
};

/// Options of a [`Llama`] model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Number of tokens that there are.
    pub vocab: usize,
    /// Features of a token.
    pub dim: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Features of a head; `dim / heads` if `None`.
    pub head_dim: Option<usize>,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Features inside the feed-forward layers.
    pub hidden: usize,
    /// Base of the rotary position embedding.
    pub rope_theta: f32,
    /// Its speeds for longer contexts.
    pub rope_scaling: RopeScaling,
    /// How many of the latest positions a position sees, itself included; all if `None` (Mistral 7B).
    pub window: Option<u32>,
    /// Whether heads of queries and keys have a norm of their own (Qwen3).
    pub head_norm: bool,
    /// Whether the projections to queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Whether the projection of the attention's result has one.
    pub attention_out_bias: bool,
    /// Whether the feed-forward layers have.
    pub mlp_bias: bool,
    /// Number added to the mean square in the norms.
    pub eps: f32,
    /// Whether the logits are products with the token embeddings; otherwise `lm_head` is a matrix of its own.
    pub tied_embeddings: bool,
    /// Adapters; with them, nothing else is trained.
    pub lora: Option<LoraConfig>,
    /// How matrices are stored. All but `f32` are for models that are not trained; norms and biases stay `f32`.
    pub weights: WeightStorage,
}

impl LlamaConfig {
    /// A model small enough to train on a CPU: 4 blocks of 128 features with 4 heads, 2 key-value heads and tied
    /// embeddings.
    pub fn small(vocab: usize) -> Self {
        LlamaConfig {
            vocab,
            dim: 128,
            layers: 4,
            heads: 4,
            head_dim: None,
            kv_heads: 2,
            hidden: 344,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            window: None,
            head_norm: false,
            qkv_bias: false,
            attention_out_bias: false,
            mlp_bias: false,
            eps: 1e-5,
            tied_embeddings: true,
            lora: None,
            weights: WeightStorage::F32,
        }
    }

    /// SmolLM2-135M: 30 blocks of 576 features with 9 heads and 3 key-value heads, 49,152 tokens.
    pub fn smollm2_135m() -> Self {
        LlamaConfig {
            dim: 576,
            layers: 30,
            heads: 9,
            kv_heads: 3,
            hidden: 1536,
            rope_theta: 100_000.0,
            ..LlamaConfig::small(49_152)
        }
    }

    /// SmolLM2-360M: 32 blocks of 960 features with 15 heads and 5 key-value heads, 49,152 tokens.
    pub fn smollm2_360m() -> Self {
        LlamaConfig {
            dim: 960,
            layers: 32,
            heads: 15,
            kv_heads: 5,
            hidden: 2560,
            ..LlamaConfig::smollm2_135m()
        }
    }

    /// SmolLM2-1.7B: 24 blocks of 2048 features with 32 heads, each with keys and values of its own, 49,152 tokens.
    pub fn smollm2_1_7b() -> Self {
        LlamaConfig {
            dim: 2048,
            layers: 24,
            heads: 32,
            kv_heads: 32,
            hidden: 8192,
            rope_theta: 130_000.0,
            ..LlamaConfig::smollm2_135m()
        }
    }

    /// Features of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.dim / self.heads.max(1))
    }

    /// Checks what [`build`](LlamaConfig::build) checks.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the field that is wrong, its value and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        self.find_fault()
            .map_err(|(message, remedy)| Error::misuse(format!("LlamaConfig: {message}"), remedy))
    }

    fn find_fault(&self) -> Result<(), Fault> {
        check_sizes(&[("vocab", self.vocab), ("hidden", self.hidden)])?;
        check_heads([self.dim, self.heads, self.kv_heads], self.head_dim, true)?;
        check_theta(self.rope_theta)?;
        check_eps(self.eps)?;
        match self.window {
            Some(0) => Err((
                "window is 0".into(),
                "a window has at least the own position: 1 or more, or `None`",
            )),
            _ => Ok(()),
        }
    }

    fn attention(&self) -> SelfAttentionConfig {
        let mut attention = SelfAttentionConfig::new(self.dim, self.heads)
            .kv_heads(self.kv_heads)
            .biases(self.qkv_bias, self.attention_out_bias)
            .causal(true)
            .rope(self.rope_theta)
            .rope_scaling(self.rope_scaling)
            .lora(self.lora)
            .storage(self.weights);
        if let Some(head_dim) = self.head_dim {
            attention = attention.head_dim(head_dim);
        }
        if let Some(window) = self.window {
            attention = attention.window(window);
        }
        match self.head_norm {
            true => attention.head_norm(self.eps),
            false => attention,
        }
    }

    /// Features of a row of a layer's keys, and of its values.
    pub fn kv_width(&self) -> usize {
        self.attention().kv_width()
    }

    /// Registers the layers under the names of published checkpoints: `{name}.model.embed_tokens`,
    /// `model.layers.0.input_layernorm`, `.self_attn.q_proj` (`k_proj`, `v_proj`, `o_proj`),
    /// `.post_attention_layernorm`, `.mlp.gate_proj` (`up_proj`, `down_proj`) ..., `model.norm` and, if embeddings
    /// are not tied, `lm_head`. Weights of linear layers are `[inputs, outputs]`, the transpose of a checkpoint's. With
    /// adapters, everything else is frozen.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Llama {
        match reject(g, "LlamaConfig", self.find_fault()) {
            // Its first error says what is wrong; blocks would add theirs, and as many as there are layers.
            Some(_) => LlamaConfig { layers: 0, ..self }.register(g, name),
            None => g.at_caller(|g| self.register(g, name)),
        }
    }

    #[track_caller]
    fn register(self, g: &mut Graph, name: &str) -> Llama {
        let first = g.nodes().len();
        // Of the order of the residual stream's own size, as language models have it.
        let init = Init::Normal { std: 0.02 };
        let model = scoped(name, "model");
        let embedding = EmbeddingConfig::new(self.vocab, self.dim)
            .init(init)
            .storage(self.weights);
        let embedding = embedding.build(g, &scoped(&model, "embed_tokens"));
        let blocks = (0..self.layers).map(|i| self.block(g, &scoped(&model, &format!("layers.{i}"))));
        let blocks = blocks.collect();
        let norm = RmsNorm::new(g, &scoped(&model, "norm"), self.dim, self.eps);
        let head = (!self.tied_embeddings).then(|| {
            let head = LinearConfig::new(self.dim, self.vocab)
                .bias(false)
                .init(init)
                .storage(self.weights);
            head.build(g, &scoped(name, "lm_head"))
        });
        if self.lora.is_some() {
            freeze_all_but_adapters(g, first);
        }
        Llama {
            embedding,
            blocks,
            norm,
            head,
        }
    }

    /// Registers one block, for models of one's own.
    #[track_caller]
    pub fn block(&self, g: &mut Graph, name: &str) -> LlamaBlock {
        g.at_caller(|g| {
            let norm = |g: &mut Graph, child| RmsNorm::new(g, &scoped(name, child), self.dim, self.eps);
            let linear = |g: &mut Graph, child: &str, [inputs, outputs]: [usize; 2]| {
                LinearConfig::new(inputs, outputs)
                    .bias(self.mlp_bias)
                    .storage(self.weights)
                    .init(Init::xavier_uniform(inputs, outputs))
                    .lora(self.lora)
                    .build(g, &scoped(name, &format!("mlp.{child}")))
            };
            LlamaBlock {
                name: name.to_owned(),
                attention_norm: norm(g, "input_layernorm"),
                attention: self.attention().build(g, &scoped(name, "self_attn")),
                feed_forward_norm: norm(g, "post_attention_layernorm"),
                gate: linear(g, "gate_proj", [self.dim, self.hidden]),
                up: linear(g, "up_proj", [self.dim, self.hidden]),
                down: linear(g, "down_proj", [self.hidden, self.dim]),
            }
        })
    }
}

/// Of the nodes from a number on.
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

/// One block: causal self-attention with rotary positions, then a gated feed-forward layer (SwiGLU; Shazeer,
/// 2020), each behind a norm and added to its input.
#[derive(Clone, Debug)]
pub struct LlamaBlock {
    name: String,
    attention_norm: RmsNorm,
    attention: SelfAttention,
    feed_forward_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl LlamaBlock {
    /// `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.forward_with_kv(g, x).y
    }

    /// [`LlamaBlock::forward`], with the keys and values that a cache is filled with.
    #[track_caller]
    pub fn forward_with_kv(&self, g: &mut Graph, x: impl Into<Value>) -> WithKv {
        let x = x.into();
        let y = self.attention_norm.forward(g, x);
        let attended = self.attention.forward_with_kv(g, y);
        WithKv {
            y: self.feed_forward(g, x, attended.y),
            ..attended
        }
    }

    /// A step of decoding with the block's cache: see [`SelfAttention::forward_cached`].
    #[track_caller]
    pub fn forward_cached(&self, g: &mut Graph, x: impl Into<Value>, cache: [NodeId; 2], kv_pos: NodeId) -> NodeId {
        let x = x.into();
        let y = self.attention_norm.forward(g, x);
        let y = self.attention.forward_cached(g, y, cache, kv_pos);
        self.feed_forward(g, x, y)
    }

    /// A step of decoding for tokens of several sequences: see [`SelfAttention::forward_paged`].
    #[track_caller]
    pub fn forward_paged(&self, g: &mut Graph, x: impl Into<Value>, cache: [NodeId; 2], at: PagedRows) -> NodeId {
        let x = x.into();
        let y = self.attention_norm.forward(g, x);
        let y = self.attention.forward_paged(g, y, cache, at);
        self.feed_forward(g, x, y)
    }

    #[track_caller]
    fn feed_forward(&self, g: &mut Graph, x: Value, attended: NodeId) -> NodeId {
        let x = g.add(x, attended);
        let y = self.feed_forward_norm.forward(g, x);
        let gate = self.gate.forward(g, y);
        let up = self.up.forward(g, y);
        let y = g.swiglu(gate, up);
        g.named(y, &self.name);
        let y = self.down.forward(g, y);
        g.add(x, y)
    }
}

/// A decoder-only language model (Touvron et al., "LLaMA", 2023).
#[derive(Clone, Debug)]
pub struct Llama {
    embedding: Embedding,
    blocks: Vec<LlamaBlock>,
    norm: RmsNorm,
    head: Option<Linear>,
}

impl Llama {
    /// `u32` tokens `[..., rows] -> f32 [..., rows, vocab]`: for each position the logits of the token that
    /// follows it. A token that is not in the vocabulary is an error of the step.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, tokens: impl Into<Value>) -> NodeId {
        let mut x = self.embedding.forward(g, tokens);
        for block in &self.blocks {
            x = block.forward(g, x);
        }
        self.logits(g, x)
    }

    /// The blocks' results for `u32` tokens `[..., rows]`, and each block's keys and values.
    #[track_caller]
    pub(super) fn forward_with_kv(&self, g: &mut Graph, tokens: NodeId) -> (NodeId, Vec<[NodeId; 2]>) {
        let mut x = self.embedding.forward(g, tokens);
        let mut all = Vec::new();
        for block in &self.blocks {
            let WithKv { y, kv } = block.forward_with_kv(g, x);
            all.push(kv);
            x = y;
        }
        (x, all)
    }

    /// The blocks' results for `u32` tokens `[..., rows]` that follow `kv_pos` cached ones; `caches` has each block's.
    #[track_caller]
    pub(super) fn forward_cached(
        &self,
        g: &mut Graph,
        tokens: NodeId,
        caches: &[[NodeId; 2]],
        kv_pos: NodeId,
    ) -> NodeId {
        let mut x = self.embedding.forward(g, tokens);
        for (block, &cache) in self.blocks.iter().zip(caches) {
            x = block.forward_cached(g, x, cache, kv_pos);
        }
        x
    }

    /// The blocks' results for `u32` tokens `[rows]` of several sequences; `caches` has each block's.
    #[track_caller]
    pub(super) fn forward_paged(&self, g: &mut Graph, tokens: NodeId, caches: &[[NodeId; 2]], at: PagedRows) -> NodeId {
        let mut x = self.embedding.forward(g, tokens);
        for (block, &cache) in self.blocks.iter().zip(caches) {
            x = block.forward_paged(g, x, cache, at);
        }
        x
    }

    /// Logits `[..., rows, vocab]` of what the last block yields.
    #[track_caller]
    pub(super) fn logits(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let x = self.norm.forward(g, x);
        match &self.head {
            Some(head) => head.forward(g, x),
            None => {
                let logits = self.embedding.scores(g, x);
                g.named(logits, "lm_head")
            }
        }
    }
}

/// Name of the input that holds the tokens of a [`language_model`].
pub const TOKENS: &str = "tokens";
/// Name of the input that holds the tokens that follow them.
pub const TARGETS: &str = "targets";

/// A graph that trains the language model that `logits` builds.
///
/// Inputs: `tokens` and `targets`, `u32 [batch, rows]`; `targets` is usually `tokens` moved by one. Outputs: the
/// mean cross-entropy in nats over all positions, `f32 []`, and the logits, `f32 [batch, rows, vocab]`.
#[track_caller]
pub fn language_model(batch: usize, rows: usize, logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    language_model_of(&[batch, rows], logits)
}

/// [`language_model`] of tokens in any shape that ends in the rows.
#[track_caller]
pub(super) fn language_model_of(shape: &[usize], logits: impl FnOnce(&mut Graph, NodeId) -> NodeId) -> Graph {
    let mut g = Graph::new();
    let tokens = g.input_u32(TOKENS, shape);
    let targets = g.input_u32(TARGETS, shape);
    let logits = logits(&mut g, tokens);
    let loss = g.cross_entropy_loss(logits, targets);
    g.named(loss, "loss");
    g.set_outputs(vec![loss, logits]);
    g
}
