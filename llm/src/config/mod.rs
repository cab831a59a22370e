//! Model configurations, read from `config.json`.

mod experts;
mod generation;
mod layers;
mod lfm2;
mod raw;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use meganeura_core::{Error, Result};
use meganeura_nn::models::LlamaConfig;
use serde_json::Value;

use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};
pub use generation::SamplingDefaults;
use raw::Raw;

/// Supported families, by the `model_type` of their configurations. For multimodal models (`gemma3`, `mistral3`), the text part
/// is read.
pub const FAMILIES: &[&str] = &[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "phi3",
    "smollm3",
    "olmo2",
    "granite",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "mixtral",
    "olmo3",
    "ministral3",
    "mistral3",
    "glm4_moe",
    "gpt_oss",
    "lfm2",
];

/// Multimodal models, with the types of their text parts.
const MULTIMODAL: [(&str, &[&str]); 2] = [("gemma3", &["gemma3_text"]), ("mistral3", &["ministral3", "mistral"])];

/// Storage in a checkpoint of projections with the same input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Projections {
    /// Separate tensors: `q_proj`, `k_proj` and `v_proj`, `gate_proj` and `up_proj`.
    #[default]
    Separate,
    /// Stacked rows: `qkv_proj` `[(heads + 2 kv_heads) * head_dim, dim]` and `gate_up_proj`
    /// `[2 hidden, dim]` (Phi-3).
    Fused,
    /// Separate tensors, with Mixtral's names for those of experts: `block_sparse_moe.experts.0.w1`
    /// for `mlp.experts.0.gate_proj`, `w3` for `up_proj`, `w2` for `down_proj`.
    Mixtral,
    /// The matrices of all experts in one tensor: `mlp.experts.gate_up_proj` `[experts, dim, 2 hidden]` with alternating columns of both
    /// projections, and `down_proj` `[experts, hidden, dim]`; or blocks of MXFP4 with their transposes. The router is `mlp.router`.
    GptOss,
    /// Separate tensors with the names of LFM2: `operator_norm`, `feed_forward.w1`; filters `[dim, 1, taps]`.
    Lfm2,
}

/// A model and its settings for generation.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The network.
    pub network: LlamaConfig,
    /// Maximum number of positions.
    pub context: usize,
    /// Tokens that end a text: the union of `config.json`, `generation_config.json` and `tokenizer_config.json`.
    pub stop: Vec<u32>,
    /// Sampling values of `generation_config.json`.
    pub sampling: SamplingDefaults,
    /// Storage of projections in the model's checkpoints.
    pub projections: Projections,
}

impl ModelConfig {
    /// Reads `config.json` of a folder, and `generation_config.json` and `tokenizer_config.json` if they exist; or the metadata
    /// of a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`]: a file that cannot be read or parsed, a family or an option that is not supported, an end token that is
    /// not in the vocabulary.
    pub fn open(folder: &Path) -> Result<Self> {
        if gguf::is_one(folder) {
            return ModelConfig::of_gguf(&Gguf::open(folder)?, folder);
        }
        let path = folder.join("config.json");
        let mut config = ModelConfig::parse(&read_text(&path)?, &path)?;
        config.read_generation(folder)?;
        Ok(config)
    }

    /// Reads the metadata of a GGUF file; `path` appears in errors.
    pub(crate) fn of_gguf(file: &Gguf, path: &Path) -> Result<Self> {
        let mut config = ModelConfig::parse(&file.config()?, path)?;
        // GGUF files have the factors of the norms themselves. A model saved from one is not a GGUF
        // file.
        config.network.zero_centered_norms = false;
        config.projections = Projections::Separate;
        Ok(config)
    }

    /// Parses the text of a `config.json`; `path` appears in errors.
    ///
    /// # Errors
    /// As [`ModelConfig::open`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let mut json: Value = serde_json::from_str(text).map_err(|e| damaged(path, e))?;
        let mut family = json["model_type"].as_str().unwrap_or("").to_owned();
        if !FAMILIES.contains(&family.as_str()) {
            return Err(unsupported(path, format!("a model of type '{family}'")));
        }
        if let Some((_, texts)) = MULTIMODAL.iter().find(|(whole, _)| *whole == family) {
            json = text_part(json).ok_or_else(|| damaged(path, "it has no text_config"))?;
            family = json["model_type"].as_str().unwrap_or("").to_owned();
            if !texts.contains(&family.as_str()) {
                return Err(unsupported(path, format!("a text part of type '{family}'")));
            }
        }
        let raw: Raw = serde_json::from_value(json).map_err(|e| damaged(path, e))?;
        raw.model(&family, path)
    }
}

/// Returns the architecture of the text part of a multimodal model, as `config.json` of a separate model names it.
pub(crate) fn text_architecture(text: &Value) -> Option<&'static str> {
    match text["model_type"].as_str()? {
        "gemma3_text" => Some("Gemma3ForCausalLM"),
        "ministral3" => Some("Ministral3ForCausalLM"),
        "mistral" => Some("MistralForCausalLM"),
        _ => None,
    }
}

/// Returns the configuration of the text part of a multimodal model.
pub(crate) fn text_part(mut whole: Value) -> Option<Value> {
    let mut text = whole.get_mut("text_config")?.take();
    let fields = text.as_object_mut()?;
    // Some files only have these fields for the whole model.
    for name in ["eos_token_id", "tie_word_embeddings"] {
        if let (None, Some(value)) = (fields.get(name), whole.get(name)) {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    Some(text)
}

fn unsupported(path: &Path, what: String) -> Error {
    Error::file(
        path,
        format!("describes {what}, which is not supported"),
        format!(
            "supported are the types {} with the activations silu, gelu and gelu_pytorch_tanh, and rotary positions that \
             are plain, linear, dynamic, llama3, yarn or, of phi3, longrope",
            FAMILIES.join(", ")
        ),
    )
}

/// Maximum of any size in a configuration. It is larger than any real size, and a product of two such sizes does not
/// overflow.
const MAX_SIZE: usize = i32::MAX as usize;

impl ModelConfig {
    /// Checks that a prompt has tokens, and that all are in the model's vocabulary.
    pub(crate) fn check_prompt(&self, prompt: &[u32]) -> Result<()> {
        let vocab = self.network.vocab;
        if prompt.is_empty() {
            return Err(Error::misuse("the prompt has no tokens", "give at least one"));
        }
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(Error::misuse(
                format!("token {token} is not in the model's vocabulary of {vocab}"),
                "use the tokenizer that belongs to the model",
            ));
        }
        Ok(())
    }

    /// Checks that such a model is possible with any weights.
    fn check(&self, path: &Path) -> Result<()> {
        let network = &self.network;
        for (name, size) in [
            ("vocab_size", network.vocab),
            ("hidden_size", network.dim),
            ("intermediate_size", network.hidden),
            ("num_hidden_layers", network.layers),
            ("num_attention_heads", network.heads),
            ("num_key_value_heads", network.kv_heads),
            ("head_dim", network.head_dim()),
            ("max_position_embeddings", self.context),
        ] {
            if !(1..=MAX_SIZE).contains(&size) {
                return Err(damaged(
                    path,
                    format!("{name} is {size}, and has to be from 1 to {MAX_SIZE}"),
                ));
            }
        }
        let (heads, kv_heads, head_dim) = (network.heads, network.kv_heads, network.head_dim());
        if !heads.is_multiple_of(kv_heads) {
            let message = format!(
                "expected a number of heads divisible by the {kv_heads} key-value heads, found \
                {heads}"
            );
            return Err(damaged(path, message));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(damaged(
                path,
                format!("expected an even head size for rotary positions, found {head_dim}"),
            ));
        }
        let (eps, theta) = (network.eps, network.rope_theta);
        if !(eps >= 0.0 && eps.is_finite()) {
            return Err(damaged(path, format!("rms_norm_eps is {eps}")));
        }
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(damaged(path, format!("rope_theta is {theta}")));
        }
        network.check().map_err(|e| damaged(path, e))
    }
}
