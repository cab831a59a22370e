//! Options of the models of the Llama family.

use meganeura_core::Error;
use meganeura_core::ops::RopeScaling;

use super::{CacheType, MoeConfig, StorageMap};
use crate::layers::{
    Activation, Fault, LongRope, LoraConfig, QkNorm, QueryGrowth, SelfAttentionConfig, ShortConvConfig, WeightStorage,
    check_eps, check_heads, check_rotary_dim, check_sizes, check_theta,
};

/// The position of the norms in the two parts of a block, attention and feed-forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormPlacement {
    /// Norm of a part's input (pre-norm: Llama, Mistral, Qwen, Phi-3): `x + f(norm(x))`.
    #[default]
    Pre,
    /// Norm of a part's output, before it is added (reordered norm; "2 OLMo 2 Furious", OLMo team,
    /// 2025, section 3.2): `x + norm(f(x))`.
    Post,
    /// Norms of both ("Gemma 2", Gemma Team, 2024, section 2): `x + norm(f(norm(x)))`.
    PreAndPost,
}

/// A set of layers, by their numbers from 0 to 127.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayerSet(u128);

impl LayerSet {
    /// No layer.
    pub const NONE: LayerSet = LayerSet(0);
    /// Number of layers that a set can contain; later ones are in no set.
    pub const LAYERS: usize = u128::BITS as usize;

    /// Returns true if a layer is in the set.
    pub fn contains(self, layer: usize) -> bool {
        layer < LayerSet::LAYERS && self.0 >> layer & 1 == 1
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<usize> for LayerSet {
    /// Collects layers; numbers from [`LayerSet::LAYERS`] on are ignored.
    fn from_iter<I: IntoIterator<Item = usize>>(layers: I) -> Self {
        let inside = layers.into_iter().filter(|&layer| layer < LayerSet::LAYERS);
        LayerSet(inside.fold(0, |set, layer| set | 1 << layer))
    }
}

/// Layers with a gated short convolution in place of attention: see [`ShortConv`](crate::layers::ShortConv).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortConvLayers {
    /// The layers.
    pub layers: LayerSet,
    /// Number of tokens that a token's result depends on, itself included.
    pub taps: usize,
    /// True if the projections and the convolution have a bias.
    pub bias: bool,
}

impl ShortConvLayers {
    /// Maximum number of taps.
    pub const MAX_TAPS: usize = 64;
}

/// Options of a [`Llama`](super::Llama) model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Number of features of a token.
    pub dim: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of features of a head; `dim / heads` if `None`.
    pub head_dim: Option<usize>,
    /// Number of key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Number of features inside the feed-forward layers.
    pub hidden: usize,
    /// Mixtures of experts that replace the feed-forward layers.
    pub moe: Option<MoeConfig>,
    /// Factor of the sum of a token's chosen experts (`routed_scaling_factor`).
    pub routed_scaling: Option<f32>,
    /// Base of the rotary position embedding.
    pub rope_theta: f32,
    /// Base in the layers with a window, whose frequencies are not scaled; `rope_theta` if `None` ("Gemma 3", Gemma
    /// Team, 2025, section 2: `rope_local_base_freq`).
    pub rope_local_theta: Option<f32>,
    /// Scaling of the rotary frequencies for longer contexts.
    pub rope_scaling: RopeScaling,
    /// Factors of the rotary frequency of each pair, in place of `rope_scaling` (LongRoPE of Phi-3, YaRN).
    pub longrope: Option<LongRope>,
    /// Factor of queries that grows with their position (`llama_4_scaling_beta`; Ministral 3).
    pub query_growth: Option<QueryGrowth>,
    /// Number of features of a head that are rotated, from the first one on (`partial_rotary_factor` times `head_dim`);
    /// all if `None`.
    pub rotary_dim: Option<usize>,
    /// Layers without a position embedding (NoPE; Kazemnejad et al., 2023; SmolLM3).
    pub nope_layers: LayerSet,
    /// Number of latest positions that a position sees, itself included; all if `None` (Mistral
    /// 7B).
    pub window: Option<u32>,
    /// Layers with a short convolution in place of attention (LFM2).
    pub short_conv: Option<ShortConvLayers>,
    /// Layers that see all positions despite a window (`full_attention` in `layer_types`; Gemma 2
    /// and 3).
    pub full_attention_layers: LayerSet,
    /// Norms of queries and keys: of each head (Qwen3, Gemma 3), or of all heads together (OLMo 2).
    pub qk_norm: QkNorm,
    /// Factor by which attention scores are multiplied; `1 / sqrt(head_dim)` if `None` (`query_pre_attn_scalar ^ -0.5`
    /// in Gemma).
    pub attention_scale: Option<f32>,
    /// Soft cap of the attention scores: `cap * tanh(score / cap)` ("Gemma 2", section 2: `attn_logit_softcapping`).
    /// Memory then grows with the number of scores. In a step with a paged cache, this is the number of tokens times
    /// the maximum number of positions of a sequence, for each head.
    pub attention_softcap: Option<f32>,
    /// True if each head has an attention sink, a trained score without a value (gpt-oss).
    pub attention_sinks: bool,
    /// Soft cap of the logits, in the same form (`final_logit_softcapping`).
    pub logit_softcap: Option<f32>,
    /// Activation of the gate in the feed-forward layers: SiLU (SwiGLU; Shazeer, 2020), or GELU in its tanh
    /// approximation (GeGLU; Gemma).
    pub activation: Activation,
    /// Limit `l` of the gated feed-forward layers of gpt-oss (OpenAI, 2025), which replaces the activation:
    /// `(clamp(up, -l, l) + 1) * gate' * sigmoid(1.702 gate')` with `gate' = min(gate, l)`.
    pub gate_limit: Option<f32>,
    /// Position of the norms in a block.
    pub norms: NormPlacement,
    /// True if the norms multiply by `1 + weight` (Gemma; `zero_centered_gamma` of Transformer
    /// Engine), so that weights begin at 0 and decay to a factor of 1.
    pub zero_centered_norms: bool,
    /// Factor by which embeddings are multiplied before the first block: `sqrt(dim)` in Gemma,
    /// `embedding_multiplier` in Granite.
    pub embedding_multiplier: Option<f32>,
    /// Factor of each part's result before the addition (`residual_multiplier` in Granite).
    pub residual_multiplier: Option<f32>,
    /// Number that logits are divided by, before the soft cap (`logits_scaling` in Granite).
    pub logits_scaling: Option<f32>,
    /// True if the projections to queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// True if the output projection of the attention has a bias.
    pub attention_out_bias: bool,
    /// True if the feed-forward layers have a bias.
    pub mlp_bias: bool,
    /// Number added to the mean square in the norms.
    pub eps: f32,
    /// True if the logits are products with the token embeddings; otherwise `lm_head` is a separate
    /// matrix.
    pub tied_embeddings: bool,
    /// Adapters; with them, only the adapters are trained.
    pub lora: Option<LoraConfig>,
    /// Adds the input [`ADAPTER_SCALES`](crate::models::ADAPTER_SCALES) to a [`LlamaConfig::paged_graph`] with
    /// adapters. It replaces the factor `alpha / rank`, so that each row selects its own adapter.
    pub lora_per_row: bool,
    /// Storage types of the matrices. All but `f32` are for models that are not trained; norms and
    /// biases stay `f32`.
    pub weights: StorageMap,
    /// Storage type of cached keys and values.
    pub cache_type: CacheType,
}

impl LlamaConfig {
    /// Returns a model small enough to train on a CPU: 4 blocks of 128 features with 4 heads, 2
    /// key-value heads and tied embeddings.
    pub const fn small(vocab: usize) -> Self {
        LlamaConfig {
            vocab,
            dim: 128,
            layers: 4,
            heads: 4,
            head_dim: None,
            kv_heads: 2,
            hidden: 344,
            moe: None,
            routed_scaling: None,
            rope_theta: 10_000.0,
            rope_local_theta: None,
            rope_scaling: RopeScaling::None,
            longrope: None,
            query_growth: None,
            rotary_dim: None,
            nope_layers: LayerSet::NONE,
            window: None,
            short_conv: None,
            full_attention_layers: LayerSet::NONE,
            qk_norm: QkNorm::None,
            attention_scale: None,
            attention_softcap: None,
            attention_sinks: false,
            logit_softcap: None,
            activation: Activation::Silu,
            gate_limit: None,
            norms: NormPlacement::Pre,
            zero_centered_norms: false,
            embedding_multiplier: None,
            residual_multiplier: None,
            logits_scaling: None,
            qkv_bias: false,
            attention_out_bias: false,
            mlp_bias: false,
            eps: 1e-5,
            tied_embeddings: true,
            lora: None,
            lora_per_row: false,
            weights: StorageMap::all(WeightStorage::F32),
            cache_type: CacheType::F32,
        }
    }

    /// Returns SmolLM2-135M: 30 blocks of 576 features with 9 heads and 3 key-value heads, 49,152
    /// tokens.
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

    /// Returns SmolLM2-360M: 32 blocks of 960 features with 15 heads and 5 key-value heads, 49,152
    /// tokens.
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

    /// Returns SmolLM2-1.7B: 24 blocks of 2048 features with 32 heads, each with its own keys and
    /// values, 49,152 tokens.
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

    /// Returns Llama-3.2-3B: 28 blocks of 3072 features with 24 heads and 8 key-value heads, 128,256
    /// tokens. Positions are not scaled for long contexts.
    pub fn llama3_2_3b() -> Self {
        LlamaConfig {
            dim: 3072,
            layers: 28,
            heads: 24,
            hidden: 8192,
            tied_embeddings: true,
            ..LlamaConfig::llama3_8b()
        }
    }

    /// Returns Llama-3-8B: 32 blocks of 4096 features with 32 heads and 8 key-value heads, 128,256
    /// tokens.
    pub fn llama3_8b() -> Self {
        LlamaConfig {
            dim: 4096,
            layers: 32,
            heads: 32,
            kv_heads: 8,
            hidden: 14_336,
            rope_theta: 500_000.0,
            tied_embeddings: false,
            ..LlamaConfig::small(128_256)
        }
    }

    /// Returns Llama-3-70B: 80 blocks of 8192 features with 64 heads and 8 key-value heads, 128,256
    /// tokens.
    pub fn llama3_70b() -> Self {
        LlamaConfig {
            dim: 8192,
            layers: 80,
            heads: 64,
            hidden: 28_672,
            ..LlamaConfig::llama3_8b()
        }
    }

    /// Returns Qwen3-8B: 36 blocks of 4096 features with 32 heads of 128 and 8 key-value heads,
    /// 151,936 tokens.
    pub fn qwen3_8b() -> Self {
        LlamaConfig {
            layers: 36,
            hidden: 12_288,
            head_dim: Some(128),
            qk_norm: QkNorm::PerHead,
            rope_theta: 1_000_000.0,
            eps: 1e-6,
            vocab: 151_936,
            ..LlamaConfig::llama3_8b()
        }
    }

    /// Returns the number of features of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.dim / self.heads.max(1))
    }

    /// Checks the same as [`build`](LlamaConfig::build).
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the invalid field, its value and the valid ones.
    pub fn check(&self) -> Result<(), Error> {
        self.find_fault()
            .map_err(|(message, remedy)| Error::misuse(format!("LlamaConfig: {message}"), remedy))
    }

    pub(super) fn find_fault(&self) -> Result<(), Fault> {
        check_sizes(&[("vocab", self.vocab), ("hidden", self.hidden)])?;
        check_heads([self.dim, self.heads, self.kv_heads], self.head_dim, true)?;
        check_theta(self.rope_theta)?;
        check_eps(self.eps)?;
        self.rope_local_theta.map_or(Ok(()), check_theta)?;
        self.check_factors()?;
        self.moe.map_or(Ok(()), |moe| moe.check())?;
        if let Some(rotated) = self.rotary_dim {
            check_rotary_dim(rotated, self.head_dim())?;
        }
        if let Some(longrope) = self.longrope {
            longrope.check(self.rotary_dim.unwrap_or(self.head_dim()) / 2)?;
        }
        self.query_growth.map_or(Ok(()), |growth| growth.check())?;
        self.check_cache()?;
        if let Some(conv) = self.short_conv {
            let most = ShortConvLayers::MAX_TAPS;
            if !(1..=most).contains(&conv.taps) {
                return Err((format!("short_conv.taps is {}", conv.taps), "use 1 to 64 taps"));
            }
        }
        match self.window {
            Some(0) => Err((
                "window is 0".into(),
                "a window contains at least the token itself: use 1 or more, or `None`",
            )),
            _ => Ok(()),
        }
    }

    fn check_cache(&self) -> Result<(), Fault> {
        let width = self.kv_width();
        match self.cache_type {
            CacheType::Q8 if !width.is_multiple_of(CacheType::Q8_MULTIPLE) => Err((
                format!(
                    "keys have {width} numbers a token, but a cache of q8 needs a multiple of {}",
                    CacheType::Q8_MULTIPLE
                ),
                "use the cache type f16",
            )),
            _ => Ok(()),
        }
    }

    fn check_factors(&self) -> Result<(), Fault> {
        for (name, factor) in [
            ("attention_scale", self.attention_scale),
            ("embedding_multiplier", self.embedding_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("routed_scaling", self.routed_scaling),
        ] {
            if let Some(factor) = factor.filter(|factor| !factor.is_finite()) {
                return Err((
                    format!("{name} is {factor}"),
                    "a factor is finite, or `None` for the default",
                ));
            }
        }
        for (name, bound) in [
            ("attention_softcap", self.attention_softcap),
            ("logit_softcap", self.logit_softcap),
            ("logits_scaling", self.logits_scaling),
            ("gate_limit", self.gate_limit),
        ] {
            if let Some(bound) = bound.filter(|bound| !(*bound > 0.0 && bound.is_finite())) {
                return Err((format!("{name} is {bound}"), "it is finite and above 0, or `None`"));
            }
        }
        Ok(())
    }

    /// Returns the short convolution of a layer, if it has one in place of attention.
    pub(in crate::models) fn short_conv_of(&self, layer: usize) -> Option<ShortConvConfig> {
        let conv = self.short_conv.filter(|conv| conv.layers.contains(layer))?;
        Some(ShortConvConfig {
            dim: self.dim,
            taps: conv.taps,
            bias: conv.bias,
            storages: ["conv.in_proj", "conv.out_proj"].map(|module| self.weights.of_layer(layer, module)),
        })
    }

    /// Returns the number of earlier tokens that a row of a step needs: the columns of the input
    /// [`EARLIER_ROWS`](crate::models::EARLIER_ROWS). 0 for a model without it.
    pub fn earlier_rows(&self) -> usize {
        self.short_conv
            .filter(|conv| !conv.layers.is_empty())
            .map_or(0, |conv| conv.taps - 1)
    }

    /// Returns true if a layer is limited to the window.
    fn is_local(&self, layer: usize) -> bool {
        self.window.is_some() && !self.full_attention_layers.contains(layer)
    }

    pub(super) fn attention(&self, layer: usize) -> SelfAttentionConfig {
        let mut attention = SelfAttentionConfig::new(self.dim, self.heads)
            .kv_heads(self.kv_heads)
            .biases(self.qkv_bias, self.attention_out_bias)
            .causal(true)
            .qk_norm(self.qk_norm, self.eps)
            .zero_centered_norms(self.zero_centered_norms)
            .scale(self.attention_scale)
            .softcap(self.attention_softcap)
            .sinks(self.attention_sinks)
            .lora(self.lora)
            .storages(["q_proj", "k_proj", "v_proj", "o_proj"].map(|module| self.weights.of_layer(layer, module)));
        if let Some(head_dim) = self.head_dim {
            attention = attention.head_dim(head_dim);
        }
        let is_local = self.is_local(layer);
        if let Some(window) = self.window.filter(|_| is_local) {
            attention = attention.window(window);
        }
        if self.nope_layers.contains(layer) {
            return attention;
        }
        if let Some(rotated) = self.rotary_dim {
            attention = attention.rotary_dim(rotated);
        }
        if let Some(growth) = self.query_growth {
            attention = attention.query_growth(growth);
        }
        if let Some(theta) = self.rope_local_theta.filter(|_| is_local) {
            return attention.rope(theta);
        }
        if let Some(longrope) = self.longrope {
            attention = attention.longrope(longrope);
        }
        attention.rope(self.rope_theta).rope_scaling(self.rope_scaling)
    }

    /// Returns the number of features of a row of a layer's keys, or of its values.
    pub fn kv_width(&self) -> usize {
        self.attention(0).kv_width()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_layers() {
        let set: LayerSet = [0, 5, 127, 128, 1000].into_iter().collect();
        let found: Vec<usize> = (0..2000).filter(|&layer| set.contains(layer)).collect();
        assert_eq!(found, [0, 5, 127]);
        assert!(!set.is_empty() && LayerSet::NONE.is_empty() && !LayerSet::NONE.contains(0));
    }
}
