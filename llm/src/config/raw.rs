//! Fields of `config.json`, and the defaults of model families for missing ones.

use std::path::Path;

use meganeura_core::Result;
use meganeura_core::ops::RopeScaling;
use meganeura_nn::layers::{Activation, LongRope, QkNorm, QueryGrowth};
use meganeura_nn::models::{CacheType, LayerSet, LlamaConfig, NormPlacement, StorageMap};
use serde::Deserialize;

use super::lfm2::Lfm2;
use super::rope::Rope;
use super::{MAX_SIZE, ModelConfig, Projections, SamplingDefaults, unsupported};
use crate::files::damaged;

/// Fields of `config.json`, with the defaults of the families.
#[derive(Deserialize)]
pub(super) struct Raw {
    vocab_size: Option<usize>,
    hidden_size: usize,
    #[serde(default)]
    pub(super) intermediate_size: usize,
    #[serde(flatten)]
    pub(super) lfm2: Lfm2,
    pub(super) num_hidden_layers: usize,
    num_attention_heads: Option<usize>,
    #[serde(default, deserialize_with = "given")]
    num_key_value_heads: OptionalField<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    original_max_position_embeddings: Option<u32>,
    rms_norm_eps: Option<f32>,
    norm_eps: Option<f32>,
    rope_theta: Option<f32>,
    rope_local_base_freq: Option<f32>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    partial_rotary_factor: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    #[serde(default, deserialize_with = "given")]
    sliding_window: OptionalField<u32>,
    sliding_window_pattern: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) no_rope_layers: Option<Vec<u32>>,
    pub(super) no_rope_layer_interval: Option<usize>,
    query_pre_attn_scalar: Option<f32>,
    #[serde(default, deserialize_with = "given")]
    attn_logit_softcapping: OptionalField<f32>,
    #[serde(default, deserialize_with = "given")]
    final_logit_softcapping: OptionalField<f32>,
    use_bidirectional_attention: Option<bool>,
    embedding_multiplier: Option<f32>,
    attention_multiplier: Option<f32>,
    residual_multiplier: Option<f32>,
    logits_scaling: Option<f32>,
    qkv_bias: Option<bool>,
    pub(super) num_experts: Option<usize>,
    pub(super) num_local_experts: Option<usize>,
    pub(super) num_experts_per_tok: Option<usize>,
    pub(super) moe_intermediate_size: Option<usize>,
    pub(super) shared_expert_intermediate_size: Option<usize>,
    pub(super) norm_topk_prob: Option<bool>,
    pub(super) decoder_sparse_step: Option<usize>,
    pub(super) mlp_only_layers: Option<Vec<usize>>,
    pub(super) clip_qkv: Option<f32>,
    use_qk_norm: Option<bool>,
    pub(super) n_routed_experts: Option<usize>,
    pub(super) n_shared_experts: Option<usize>,
    pub(super) n_group: Option<usize>,
    pub(super) topk_group: Option<usize>,
    pub(super) first_k_dense_replace: Option<usize>,
    routed_scaling_factor: Option<f32>,
    swiglu_limit: Option<f32>,
    swiglu_alpha: Option<f32>,
    #[serde(default)]
    eos_token_id: Ids,
}

/// An optional field that distinguishes a missing value (outer `None`) from `null` (inner `None`).
type OptionalField<T> = Option<Option<T>>;

fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<OptionalField<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A field with one id, several ids, or none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a token id, or a list of token ids, from 0 to 4294967295"
)]
pub(super) enum Ids {
    #[default]
    None,
    One(u32),
    Several(Vec<u32>),
}

impl Ids {
    pub(super) fn list(self) -> Vec<u32> {
        match self {
            Ids::None => Vec::new(),
            Ids::One(id) => vec![id],
            Ids::Several(ids) => ids,
        }
    }
}

/// The defaults of a family for missing fields: transformers writes all fields, but also reads
/// files without them.
struct FamilyDefaults {
    vocab: Option<usize>,
    context: usize,
    heads: Option<usize>,
    /// Number of key-value heads; if `None`, the number of query heads.
    kv_heads: Option<usize>,
    /// Features of a head; all features divided by the heads if `None`.
    head_dim: Option<usize>,
    window: Option<u32>,
    theta: f32,
    eps: f32,
    tied: bool,
}

impl FamilyDefaults {
    fn of(family: &str) -> Self {
        let llama = FamilyDefaults {
            vocab: None,
            context: 2048,
            heads: None,
            kv_heads: None,
            head_dim: None,
            window: None,
            theta: 10_000.0,
            eps: 1e-6,
            tied: false,
        };
        let gemma2 = FamilyDefaults {
            vocab: Some(256_000),
            context: 8192,
            heads: Some(8),
            kv_heads: Some(4),
            head_dim: Some(256),
            window: Some(4096),
            tied: true,
            ..llama
        };
        match family {
            "mistral" => FamilyDefaults {
                context: 131_072,
                kv_heads: Some(8),
                window: Some(4096),
                ..llama
            },
            "qwen2" | "qwen3" => FamilyDefaults {
                context: 32_768,
                kv_heads: Some(32),
                head_dim: (family == "qwen3").then_some(128),
                window: Some(4096),
                ..llama
            },
            "gemma2" => gemma2,
            "gemma3_text" => FamilyDefaults {
                vocab: Some(262_208),
                context: 131_072,
                theta: 1e6,
                ..gemma2
            },
            "phi3" => FamilyDefaults {
                context: 4096,
                eps: 1e-5,
                ..llama
            },
            "smollm3" => FamilyDefaults {
                context: 32_768,
                heads: Some(16),
                kv_heads: Some(4),
                theta: 2e6,
                tied: true,
                ..llama
            },
            "olmo2" => FamilyDefaults { eps: 1e-5, ..llama },
            "olmo3" => FamilyDefaults {
                window: Some(4096),
                theta: 5e5,
                eps: 1e-5,
                ..llama
            },
            "ministral3" => FamilyDefaults {
                vocab: Some(131_072),
                context: 262_144,
                heads: Some(32),
                kv_heads: Some(8),
                head_dim: Some(128),
                theta: 1e6,
                eps: 1e-5,
                ..llama
            },
            "glm4_moe" => FamilyDefaults {
                vocab: Some(151_552),
                context: 131_072,
                heads: Some(96),
                kv_heads: Some(8),
                eps: 1e-5,
                ..llama
            },
            "lfm2" => FamilyDefaults {
                vocab: Some(65_536),
                context: 128_000,
                heads: Some(32),
                kv_heads: Some(8),
                theta: 1e6,
                eps: 1e-5,
                tied: true,
                ..llama
            },
            "gpt_oss" => FamilyDefaults {
                vocab: Some(201_088),
                context: 131_072,
                heads: Some(64),
                kv_heads: Some(8),
                head_dim: Some(64),
                window: Some(128),
                theta: 150_000.0,
                eps: 1e-5,
                ..llama
            },
            "qwen3_moe" => FamilyDefaults {
                vocab: Some(151_936),
                context: 32_768,
                heads: Some(32),
                kv_heads: Some(4),
                window: Some(4096),
                ..llama
            },
            "qwen2_moe" => FamilyDefaults {
                vocab: Some(151_936),
                context: 32_768,
                heads: Some(16),
                kv_heads: Some(16),
                window: Some(4096),
                ..llama
            },
            "olmoe" => FamilyDefaults {
                vocab: Some(50_304),
                context: 4096,
                heads: Some(16),
                eps: 1e-5,
                ..llama
            },
            "mixtral" => FamilyDefaults {
                vocab: Some(32_000),
                context: 131_072,
                heads: Some(32),
                kv_heads: Some(8),
                theta: 1e6,
                eps: 1e-5,
                ..llama
            },
            _ => llama,
        }
    }
}

/// The position embedding of a model.
struct Positions {
    theta: f32,
    local_theta: Option<f32>,
    scaling: RopeScaling,
    longrope: Option<LongRope>,
    query_growth: Option<QueryGrowth>,
    rotary_dim: Option<usize>,
}

impl Raw {
    pub(super) fn model(mut self, family: &str, path: &Path) -> Result<ModelConfig> {
        let short_conv = self.short_conv(family, path)?;
        let usual = FamilyDefaults::of(family);
        let is_gemma = family.starts_with("gemma");
        let is_gpt_oss = family == "gpt_oss";
        let needed = |name: &str, size: Option<usize>| size.ok_or_else(|| damaged(path, format!("it has no {name}")));
        let vocab = needed("vocab_size", self.vocab_size.or(usual.vocab))?;
        let heads = needed("num_attention_heads", self.num_attention_heads.or(usual.heads))?;
        let kv_heads = match self.num_key_value_heads {
            None => usual.kv_heads,
            Some(given) => given,
        };
        if self.use_bidirectional_attention == Some(true) {
            let what = "attention to later positions, too (use_bidirectional_attention)";
            return Err(unsupported(path, what.into()));
        }
        if self.num_hidden_layers > MAX_SIZE {
            // Checked before iterating over the layers.
            let message = format!("num_hidden_layers is {}, more than {MAX_SIZE}", self.num_hidden_layers);
            return Err(damaged(path, message));
        }
        let nope_layers = self.nope_layers(family, path)?;
        let (window, full_attention_layers) = self.all_windows(family, &usual, nope_layers, path)?;
        let bias = self.attention_bias.unwrap_or(is_gpt_oss) && family != "phi3";
        let head_dim = self.head_dim.filter(|_| family != "phi3").or(usual.head_dim);
        let positions = self.positions(
            family,
            &usual,
            head_dim.unwrap_or(self.hidden_size / heads.max(1)),
            path,
        )?;
        if is_gpt_oss && self.swiglu_alpha.is_some_and(|alpha| alpha != 1.702) {
            return Err(unsupported(
                path,
                "another factor of gates than 1.702 (swiglu_alpha)".into(),
            ));
        }
        let network = LlamaConfig {
            vocab,
            dim: self.hidden_size,
            layers: self.num_hidden_layers,
            heads,
            head_dim,
            kv_heads: kv_heads.unwrap_or(heads),
            hidden: self.intermediate_size,
            moe: self.moe(family, path)?,
            routed_scaling: self
                .routed_scaling_factor
                .filter(|&factor| family == "glm4_moe" && factor != 1.0),
            rope_theta: positions.theta,
            rope_local_theta: positions.local_theta,
            rope_scaling: positions.scaling,
            longrope: positions.longrope,
            query_growth: positions.query_growth,
            rotary_dim: positions.rotary_dim,
            nope_layers,
            window,
            short_conv,
            full_attention_layers,
            qk_norm: match family {
                "qwen3" | "qwen3_moe" | "gemma3_text" | "lfm2" => QkNorm::PerHead,
                "olmo2" | "olmo3" | "olmoe" => QkNorm::AllHeads,
                "glm4_moe" if self.use_qk_norm == Some(true) => QkNorm::PerHead,
                _ => QkNorm::None,
            },
            attention_scale: self.attention_scale(family),
            attention_softcap: self.attention_softcap(family, path)?,
            attention_sinks: is_gpt_oss,
            logit_softcap: match family {
                "gemma2" => self.final_logit_softcapping.unwrap_or(Some(30.0)),
                "gemma3_text" => self.final_logit_softcapping.flatten(),
                _ => None,
            },
            activation: self.activation(is_gemma, path)?,
            gate_limit: is_gpt_oss.then(|| self.swiglu_limit.unwrap_or(7.0)),
            norms: match family {
                "olmo2" | "olmo3" => NormPlacement::Post,
                _ if is_gemma => NormPlacement::PreAndPost,
                _ => NormPlacement::Pre,
            },
            zero_centered_norms: is_gemma,
            embedding_multiplier: match family {
                "granite" => self.embedding_multiplier,
                _ => is_gemma.then_some((self.hidden_size as f64).sqrt() as f32),
            },
            residual_multiplier: self.residual_multiplier.filter(|_| family == "granite"),
            logits_scaling: self.logits_scaling.filter(|_| family == "granite"),
            qkv_bias: match family {
                "qwen2_moe" => self.qkv_bias.unwrap_or(true),
                _ => bias || family == "qwen2",
            },
            attention_out_bias: bias && !matches!(family, "qwen2" | "qwen2_moe" | "glm4_moe"),
            mlp_bias: self.mlp_bias.unwrap_or(false),
            eps: self
                .rms_norm_eps
                .or(self.norm_eps.filter(|_| family == "lfm2"))
                .unwrap_or(usual.eps),
            tied_embeddings: self
                .lfm2
                .tie_embedding
                .or(self.tie_word_embeddings)
                .unwrap_or(usual.tied),
            lora: None,
            lora_per_row: false,
            weights: StorageMap::default(),
            cache_type: CacheType::default(),
        };
        let config = ModelConfig {
            network,
            context: self.max_position_embeddings.unwrap_or(usual.context),
            stop: self.eos_token_id.list(),
            sampling: SamplingDefaults::default(),
            projections: match family {
                "phi3" => Projections::Fused,
                "mixtral" => Projections::Mixtral,
                "gpt_oss" => Projections::GptOss,
                "lfm2" => Projections::Lfm2,
                _ => Projections::Separate,
            },
        };
        config.check(path)?;
        Ok(config)
    }

    fn activation(&mut self, is_gemma: bool, path: &Path) -> Result<Activation> {
        let (given, usual) = if is_gemma {
            (self.hidden_activation.take(), "gelu_pytorch_tanh")
        } else {
            (self.hidden_act.take(), "silu")
        };
        match given.as_deref().unwrap_or(usual) {
            "silu" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            other => Err(unsupported(path, format!("a model with the activation '{other}'"))),
        }
    }

    fn attention_scale(&self, family: &str) -> Option<f32> {
        const GEMMA: f32 = 256.0;
        match family {
            "gemma2" | "gemma3_text" => Some(self.query_pre_attn_scalar.unwrap_or(GEMMA).powf(-0.5)),
            "granite" => Some(self.attention_multiplier.unwrap_or(1.0)),
            _ => None,
        }
    }

    fn attention_softcap(&self, family: &str, path: &Path) -> Result<Option<f32>> {
        match (family, self.attn_logit_softcapping) {
            ("gemma2", given) => Ok(given.unwrap_or(Some(50.0))),
            // In transformers, this field has no effect.
            ("gemma3_text", Some(Some(_))) => {
                let what = "bounded scores of attention (attn_logit_softcapping)";
                Err(unsupported(path, what.into()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the window, and the layers without it.
    fn all_windows(
        &self,
        family: &str,
        usual: &FamilyDefaults,
        nope_layers: LayerSet,
        path: &Path,
    ) -> Result<(Option<u32>, LayerSet)> {
        let window = self.sliding_window.unwrap_or(usual.window).filter(|&window| window > 0);
        let used = window.filter(|_| self.use_sliding_window == Some(true));
        match family {
            "mistral" | "mixtral" | "ministral3" => Ok((window, LayerSet::NONE)),
            "olmo3" => self.windows(window, path, |layer| !(layer + 1).is_multiple_of(4)),
            // In all layers, if it is enabled.
            "qwen3_moe" => Ok((used, LayerSet::NONE)),
            "qwen2_moe" => {
                const FIRST: usize = 28;
                let last = self.max_window_layers.unwrap_or(FIRST);
                self.windows(used, path, |layer| layer.is_multiple_of(2) && layer < last)
            }
            "phi3" => Ok((window, LayerSet::NONE)),
            "gemma2" | "gemma3_text" => {
                let every = match family {
                    "gemma2" => 2,
                    _ => self.sliding_window_pattern.unwrap_or(6),
                };
                if every == 0 {
                    return Err(damaged(path, "sliding_window_pattern is 0"));
                }
                self.windows(window, path, |layer| !(layer + 1).is_multiple_of(every))
            }
            "qwen2" | "qwen3" => {
                const FIRST: usize = 28;
                let first = self.max_window_layers.unwrap_or(FIRST);
                self.windows(used, path, |layer| layer >= first)
            }
            "gpt_oss" => self.windows(window, path, |layer| layer.is_multiple_of(2)),
            "smollm3" => self.windows(used, path, |layer| nope_layers.contains(layer)),
            _ => Ok((None, LayerSet::NONE)),
        }
    }

    /// Returns the rotary position embedding for heads of `head_dim` elements.
    fn positions(&mut self, family: &str, usual: &FamilyDefaults, head_dim: usize, path: &Path) -> Result<Positions> {
        // If a file has both names, transformers reads the older one.
        let mut rope = self
            .rope_scaling
            .take()
            .or(self.rope_parameters.take())
            .unwrap_or_default();
        let local = rope.sliding_attention.take();
        let rope = match rope.full_attention.take() {
            Some(full) => *full,
            None => rope,
        };
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(usual.theta);
        let local_theta = match family {
            "gemma3_text" => {
                const LOCAL: f32 = 10_000.0;
                let given = local.as_ref().and_then(|local| local.rope_theta);
                Some(given.or(self.rope_local_base_freq).unwrap_or(LOCAL))
            }
            // Only layers without a window are scaled.
            "olmo3" => Some(local.as_ref().and_then(|local| local.rope_theta).unwrap_or(theta)),
            _ => None,
        };
        if let Some(local) = local {
            if local_theta.is_none() {
                let what = "rotary positions that differ by layer (rope_parameters)";
                return Err(unsupported(path, what.into()));
            }
            if local.scaling(path)? != RopeScaling::None {
                let what = "scaled rotary positions in layers with a window (rope_parameters)";
                return Err(unsupported(path, what.into()));
            }
        }
        let is_partial = matches!(family, "phi3" | "glm4_moe");
        let part = rope.partial_rotary_factor.or(self.partial_rotary_factor);
        let part = part.or((family == "glm4_moe").then_some(0.5));
        let rotary_dim = match part.filter(|&part| part != 1.0) {
            None => None,
            // Rounded as in transformers.
            Some(part) if is_partial && part > 0.0 && part < 1.0 => Some((head_dim as f64 * part) as usize),
            Some(_) => {
                let what = "heads with partial rotation (partial_rotary_factor)";
                return Err(unsupported(path, what.into()));
            }
        };
        let context = self.max_position_embeddings.unwrap_or(usual.context);
        let longrope = match family {
            "phi3" => rope.longrope(context, self.original_max_position_embeddings, path)?,
            _ => rope.yarn(theta, rotary_dim.unwrap_or(head_dim), context, path)?,
        };
        let growth = |beta: f32| {
            let context = rope.original_context()? as usize;
            Some(QueryGrowth { beta, context })
        };
        Ok(Positions {
            longrope,
            query_growth: rope
                .llama_4_scaling_beta
                .filter(|_| family == "ministral3")
                .and_then(growth),
            theta,
            local_theta,
            scaling: match longrope {
                Some(_) => RopeScaling::None,
                None => rope.scaling(path)?,
            },
            rotary_dim,
        })
    }
}
