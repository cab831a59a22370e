//! What `config.json` says of a model.

use std::path::Path;

use meganeura_core::ops::RopeScaling;
use meganeura_core::{Error, Result};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::LlamaConfig;
use serde::Deserialize;
use serde_json::Value;

use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};

/// Families that are known, by the `model_type` of their configurations.
pub const FAMILIES: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];

/// A model and what generation needs to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The network.
    pub network: LlamaConfig,
    /// Positions that it was made for.
    pub context: usize,
    /// Tokens that end a text.
    pub stop: Vec<u32>,
}

/// Fields of `config.json`, with the defaults of the families.
#[derive(Deserialize)]
struct Raw {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(default, deserialize_with = "given")]
    num_key_value_heads: Given<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f32>,
    rope_theta: Option<f32>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    partial_rotary_factor: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    #[serde(default, deserialize_with = "given")]
    sliding_window: Given<u32>,
    use_sliding_window: Option<bool>,
    #[serde(default)]
    eos_token_id: Ids,
}

/// What a file says: nothing, or something, which may be that there is none.
type Given<T> = Option<Option<T>>;

fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Given<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What files of a family leave out: transformers writes everything, but reads files that do not.
struct Usual {
    context: usize,
    /// As many as heads if `None`.
    kv_heads: Option<usize>,
    /// All features over all heads if `None`.
    head_dim: Option<usize>,
    window: Option<u32>,
}

impl Usual {
    fn of(family: &str) -> Self {
        let llama = Usual {
            context: 2048,
            kv_heads: None,
            head_dim: None,
            window: None,
        };
        match family {
            "mistral" => Usual {
                context: 131_072,
                kv_heads: Some(8),
                window: Some(4096),
                ..llama
            },
            "qwen2" | "qwen3" => Usual {
                context: 32_768,
                kv_heads: Some(32),
                head_dim: (family == "qwen3").then_some(128),
                ..llama
            },
            _ => llama,
        }
    }
}

/// Rotary positions, in the spelling of either generation of the format.
#[derive(Default, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<u32>,
    partial_rotary_factor: Option<f64>,
}

/// One id, several, or none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
enum Ids {
    #[default]
    None,
    One(u32),
    Several(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Ids::None => Vec::new(),
            Ids::One(id) => vec![id],
            Ids::Several(ids) => ids,
        }
    }
}

impl ModelConfig {
    /// Reads `config.json` of a folder, and `generation_config.json` if there is one; or the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`]: a file that cannot be read or parsed, a family or an option that is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        if gguf::is_one(folder) {
            let text = Gguf::open(folder)?.config(FAMILIES)?;
            return ModelConfig::parse(&text, folder);
        }
        let path = folder.join("config.json");
        let mut config = ModelConfig::parse(&read_text(&path)?, &path)?;
        let path = folder.join("generation_config.json");
        if path.exists() {
            #[derive(Deserialize)]
            struct Generation {
                #[serde(default)]
                eos_token_id: Ids,
            }
            let generation: Generation = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
            let stop = generation.eos_token_id.list();
            if !stop.is_empty() {
                config.stop = stop;
            }
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`ModelConfig::open`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let json: Value = serde_json::from_str(text).map_err(|e| damaged(path, e))?;
        let family = json["model_type"].as_str().unwrap_or("").to_owned();
        if !FAMILIES.contains(&family.as_str()) {
            return Err(unsupported(path, format!("a model of type '{family}'")));
        }
        let raw: Raw = serde_json::from_value(json).map_err(|e| damaged(path, e))?;
        raw.model(&family, path)
    }
}

fn unsupported(path: &Path, what: String) -> Error {
    Error::file(
        path,
        format!("describes {what}, which is not supported"),
        format!(
            "supported are the types {} with the activation silu and rotary positions that are plain, linear, dynamic or llama3",
            FAMILIES.join(", ")
        ),
    )
}

impl Raw {
    fn model(self, family: &str, path: &Path) -> Result<ModelConfig> {
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(unsupported(path, format!("a model with the activation '{act}'")));
        }
        let bias = self.attention_bias.unwrap_or(false);
        let qwen = family.starts_with("qwen");
        let usual = Usual::of(family);
        let window = match (family, self.use_sliding_window) {
            ("mistral", _) => self.sliding_window.unwrap_or(usual.window).filter(|&w| w > 0),
            (_, Some(true)) if qwen => {
                return Err(unsupported(
                    path,
                    "a model with a sliding window in some of its layers".into(),
                ));
            }
            _ => None,
        };
        let context = self.max_position_embeddings.unwrap_or(usual.context);
        let kv_heads = match self.num_key_value_heads {
            None => usual.kv_heads,
            Some(given) => given,
        };
        let rope = self.rope_parameters.or(self.rope_scaling).unwrap_or_default();
        let rotated = rope.partial_rotary_factor.or(self.partial_rotary_factor);
        if rotated.is_some_and(|part| part != 1.0) {
            return Err(unsupported(path, "heads of which only a part is rotated".into()));
        }
        let rope_theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        let config = ModelConfig {
            network: LlamaConfig {
                vocab: self.vocab_size,
                dim: self.hidden_size,
                layers: self.num_hidden_layers,
                heads: self.num_attention_heads,
                head_dim: self.head_dim.or(usual.head_dim),
                kv_heads: kv_heads.unwrap_or(self.num_attention_heads),
                hidden: self.intermediate_size,
                rope_theta,
                rope_scaling: rope.scaling(path)?,
                window,
                head_norm: family == "qwen3",
                qkv_bias: bias || family == "qwen2",
                attention_out_bias: bias && family != "qwen2",
                mlp_bias: self.mlp_bias.unwrap_or(false),
                eps: self.rms_norm_eps.unwrap_or(1e-6),
                tied_embeddings: self.tie_word_embeddings.unwrap_or(false),
                lora: None,
                weights: WeightStorage::F32,
            },
            context,
            stop: self.eos_token_id.list(),
        };
        config.check(path)?;
        Ok(config)
    }
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
        Ok(())
    }
}

impl Rope {
    fn scaling(&self, path: &Path) -> Result<RopeScaling> {
        let factor = || {
            let factor = self.factor.filter(|f| *f > 0.0 && f.is_finite());
            factor.ok_or_else(|| damaged(path, "scaled rotary positions need a positive factor"))
        };
        match self.rope_type.as_deref() {
            // Dynamic scaling begins behind the context, which a cache never exceeds.
            None | Some("default" | "dynamic") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("llama3") => {
                let (Some(low), Some(high), Some(context)) = (
                    self.low_freq_factor,
                    self.high_freq_factor,
                    self.original_max_position_embeddings,
                ) else {
                    return Err(damaged(
                        path,
                        "rotary positions of type llama3 need low_freq_factor, high_freq_factor and \
                         original_max_position_embeddings",
                    ));
                };
                if !(low > 0.0 && high > low && high.is_finite() && context > 0) {
                    let message = format!(
                        "rotary positions of type llama3 with the factors {low} and {high} in a context of {context}"
                    );
                    return Err(damaged(path, message));
                }
                Ok(RopeScaling::Llama3 {
                    factor: factor()?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_context: context,
                })
            }
            Some(other) => Err(unsupported(path, format!("rotary positions of type '{other}'"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: &str = r#""vocab_size": 10, "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1"#;

    fn parse(fields: &str) -> Result<ModelConfig> {
        ModelConfig::parse(&format!("{{{SIZES}, {fields}}}"), Path::new("config.json"))
    }

    #[test]
    fn older_spellings_of_positions() {
        let old = r#""model_type": "llama", "rope_theta": 5e5, "eos_token_id": [1, 2], "rope_scaling": {"type": "linear",
            "factor": 2.0}"#;
        let config = parse(old).expect("a model");
        assert_eq!(config.network.rope_theta, 5e5);
        assert_eq!(config.network.rope_scaling, RopeScaling::Linear { factor: 2.0 });
        assert_eq!(config.stop, [1, 2]);
        assert!(!config.network.tied_embeddings);
        let dynamic = r#""model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}"#;
        assert_eq!(parse(dynamic).expect("a model").network.rope_scaling, RopeScaling::None);
    }

    #[test]
    fn what_is_not_supported_is_listed() {
        for (fields, said) in [
            (r#""model_type": "gpt2""#, "type 'gpt2'"),
            (r#""other": 1"#, "type ''"),
            (r#""model_type": "llama", "hidden_act": "gelu""#, "activation 'gelu'"),
            (
                r#""model_type": "llama", "rope_scaling": {"rope_type": "yarn"}"#,
                "'yarn'",
            ),
            (
                r#""model_type": "llama", "partial_rotary_factor": 0.5"#,
                "only a part is rotated",
            ),
            (
                r#""model_type": "qwen3", "use_sliding_window": true"#,
                "some of its layers",
            ),
        ] {
            let error = parse(fields).expect_err(said).to_string();
            assert!(
                error.contains(said) && error.contains("llama, mistral, qwen2, qwen3"),
                "{error}"
            );
        }
    }

    #[test]
    fn broken_files_are_errors() {
        for (text, said) in [
            ("{", "EOF"),
            (r#"{"model_type": "llama"}"#, "vocab_size"),
            (r#"{"model_type": "llama", "vocab_size": -1}"#, "-1"),
        ] {
            let error = ModelConfig::parse(text, Path::new("c.json"))
                .expect_err(said)
                .to_string();
            assert!(error.contains(said) && error.contains("c.json"), "{error}");
        }
        let error = parse(r#""model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#);
        assert!(error.expect_err("no factors").to_string().contains("low_freq_factor"));
        let error = parse(r#""model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 0.0}"#);
        assert!(error.expect_err("no factor").to_string().contains("positive factor"));
        let llama3 = |low: f64, high: f64, context: u32| {
            parse(&format!(
                r#""model_type": "llama", "rope_scaling": {{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": {low},
                "high_freq_factor": {high}, "original_max_position_embeddings": {context}}}"#
            ))
        };
        assert!(llama3(1.0, 4.0, 8192).is_ok());
        for (low, high, context) in [(4.0, 1.0, 8192), (0.0, 4.0, 8192), (1.0, 4.0, 0)] {
            let error = llama3(low, high, context).expect_err("no rule").to_string();
            assert!(error.contains("of type llama3 with the factors"), "{error}");
        }
    }

    #[test]
    fn sizes_that_no_model_has_are_errors() {
        let whole = r#"{"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 9,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;
        let path = Path::new("config.json");
        assert!(ModelConfig::parse(whole, path).is_ok());
        for (from, to, said) in [
            ("\"vocab_size\": 10", "\"vocab_size\": 0", "vocab_size is 0"),
            ("layers\": 1", "layers\": 2147483648", "num_hidden_layers is 2147483648"),
            (
                "\"hidden_size\": 8",
                "\"hidden_size\": 18446744073709551615",
                "hidden_size is 18446744073709551615",
            ),
            (
                "attention_heads\": 2",
                "attention_heads\": 0",
                "num_attention_heads is 0",
            ),
            (
                "value_heads\": 1",
                "value_heads\": 3",
                "2 heads cannot share those of 3",
            ),
            ("head_dim\": 4", "head_dim\": 5", "heads of 5 elements"),
            ("embeddings\": 16", "embeddings\": 0", "max_position_embeddings is 0"),
            ("1e-5", "-1e-5", "rms_norm_eps is -0.00001"),
            ("1e-5", "1e300", "rms_norm_eps is inf"),
            ("1e4", "0", "rope_theta is 0"),
        ] {
            let text = whole.replace(from, to);
            assert_ne!(text, whole, "{from}");
            let error = ModelConfig::parse(&text, path).expect_err(said).to_string();
            assert!(error.contains(said), "{error:?} lacks {said:?}");
        }
    }

    #[test]
    fn what_families_leave_out() {
        let parse = |family: &str, more: &str| {
            let text = format!(
                r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 128, "intermediate_size": 9,
                "num_hidden_layers": 1, "num_attention_heads": 32{more}}}"#
            );
            ModelConfig::parse(&text, Path::new("config.json")).expect("a model")
        };
        for (family, context, kv_heads, head_dim, window) in [
            ("llama", 2048, 32, 4, None),
            ("mistral", 131_072, 8, 4, Some(4096)),
            ("qwen2", 32_768, 32, 4, None),
            ("qwen3", 32_768, 32, 128, None),
        ] {
            let config = parse(family, "");
            let network = config.network;
            let found = (config.context, network.kv_heads, network.head_dim(), network.window);
            assert_eq!(found, (context, kv_heads, head_dim, window), "{family}");
        }
        // What is said to be none is none.
        let none = parse("mistral", r#", "sliding_window": null, "num_key_value_heads": null"#).network;
        assert_eq!((none.window, none.kv_heads), (None, 32));
    }
}
