//! What `config.json` says of a model.

mod experts;
mod generation;
mod layers;
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

/// Families that are known, by the `model_type` of their configurations. Of `gemma3`, the text part is read.
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
];

/// How a checkpoint stores the matrices of a block that read the same features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Projections {
    /// Each by itself: `q_proj`, `k_proj` and `v_proj`, `gate_proj` and `up_proj`.
    #[default]
    Separate,
    /// One below the other: `qkv_proj` `[(heads + 2 kv_heads) * head_dim, dim]` and `gate_up_proj` `[2 hidden, dim]`
    /// (Phi-3).
    Fused,
    /// Each by itself, with the names that Mixtral has for those of experts: `block_sparse_moe.experts.0.w1` for
    /// `mlp.experts.0.gate_proj`, `w3` for `up_proj`, `w2` for `down_proj`.
    Mixtral,
}

/// A model and what generation needs to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The network.
    pub network: LlamaConfig,
    /// Positions that it was made for.
    pub context: usize,
    /// Tokens that end a text: the union of `config.json`, `generation_config.json` and `tokenizer_config.json`.
    pub stop: Vec<u32>,
    /// Sampling values of `generation_config.json`.
    pub sampling: SamplingDefaults,
    /// How its checkpoints store projections.
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

    /// Reads the metadata of a GGUF file; `path` is what errors call it.
    pub(crate) fn of_gguf(file: &Gguf, path: &Path) -> Result<Self> {
        let mut config = ModelConfig::parse(&file.config()?, path)?;
        // Files have the factors of the norms themselves, and what is saved of them is no file of its kind.
        config.network.zero_centered_norms = false;
        config.projections = Projections::Separate;
        Ok(config)
    }

    /// Reads the text of a `config.json`; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`ModelConfig::open`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let mut json: Value = serde_json::from_str(text).map_err(|e| damaged(path, e))?;
        let mut family = json["model_type"].as_str().unwrap_or("").to_owned();
        if !FAMILIES.contains(&family.as_str()) {
            return Err(unsupported(path, format!("a model of type '{family}'")));
        }
        if family == "gemma3" {
            json = text_part(json).ok_or_else(|| damaged(path, "it has no text_config"))?;
            family = json["model_type"].as_str().unwrap_or("").to_owned();
            if family != "gemma3_text" {
                return Err(unsupported(path, format!("a text part of type '{family}'")));
            }
        }
        let raw: Raw = serde_json::from_value(json).map_err(|e| damaged(path, e))?;
        raw.model(&family, path)
    }
}

/// The configuration of the text part of a model with several kinds of input.
pub(crate) fn text_part(mut whole: Value) -> Option<Value> {
    let mut text = whole.get_mut("text_config")?.take();
    let fields = text.as_object_mut()?;
    // Some files have these for the whole alone.
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
             are plain, linear, dynamic, llama3 or, of phi3, longrope",
            FAMILIES.join(", ")
        ),
    )
}

/// Larger than any size of a model; a product of two is a number still.
const MAX_SIZE: usize = i32::MAX as usize;

impl ModelConfig {
    /// Whether a prompt has tokens, all of them the model's.
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

    /// Whether there can be such a model, whatever its weights are.
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
            let message = format!("{heads} heads cannot share those of {kv_heads} keys and values evenly");
            return Err(damaged(path, message));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(damaged(
                path,
                format!("heads of {head_dim} elements are no pairs to be rotated"),
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
