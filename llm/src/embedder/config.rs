//! Encoder configurations, read from `config.json` and the files of sentence-transformers.

use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};
use meganeura_nn::layers::Activation;
use meganeura_nn::models::BertConfig;
use serde::Deserialize;
use serde_json::Value;

use super::{EncoderConfig, Pooling};
use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};

/// Supported families of encoders, by the `model_type` of their configurations.
pub const FAMILIES: &[&str] = &["bert", "roberta", "xlm-roberta", "camembert", "distilbert"];

/// Fields of `config.json`. DistilBERT has different names.
#[derive(Deserialize)]
struct Raw {
    vocab_size: usize,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "hidden_dim")]
    intermediate_size: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(default = "usual_positions")]
    max_position_embeddings: usize,
    type_vocab_size: Option<usize>,
    #[serde(alias = "activation", default = "usual_activation")]
    hidden_act: String,
    #[serde(default = "usual_eps")]
    layer_norm_eps: f32,
    position_embedding_type: Option<String>,
    pad_token_id: Option<usize>,
}

fn usual_positions() -> usize {
    512
}

fn usual_activation() -> String {
    "gelu".into()
}

fn usual_eps() -> f32 {
    1e-12
}

impl EncoderConfig {
    /// Reads the metadata of a GGUF file of the architecture `bert`, or `config.json` of a folder.
    /// Files of sentence-transformers in the folder define the use of the encoder's rows:
    /// `modules.json`, `sentence_bert_config.json`, and the pooling module's `config.json`.
    ///
    /// # Errors
    /// [`Error::File`]: a file that cannot be read or parsed; a family, an option or a module that is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        if gguf::is_one(folder) {
            return EncoderConfig::of_gguf(&Gguf::open(folder)?, folder);
        }
        let path = folder.join("config.json");
        let mut config = EncoderConfig::parse(&read_text(&path)?, &path)?;
        let path = folder.join("sentence_bert_config.json");
        if path.exists() {
            #[derive(Deserialize)]
            struct Sentences {
                max_seq_length: Option<usize>,
            }
            let read: Sentences = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
            if let Some(tokens) = read.max_seq_length.filter(|&tokens| tokens > 0) {
                config.max_tokens = config.max_tokens.min(tokens);
            }
        }
        config.read_modules(folder)?;
        Ok(config)
    }

    /// Reads the metadata of a GGUF file. Vectors are normalized to length 1, because files do not contain this
    /// setting.
    ///
    /// # Errors
    /// [`Error::File`]: no encoder; missing keys; a pooling or a size that is not supported.
    pub(crate) fn of_gguf(file: &Gguf, path: &Path) -> Result<Self> {
        if !file.is_encoder() {
            let family = file.architecture()?;
            return Err(unsupported(path, format!("a model of the architecture '{family}'")));
        }
        let mut config = EncoderConfig::parse(&file.encoder_config()?, path)?;
        if let Some(tokens) = file.encoder_context()?.filter(|&tokens| tokens > 0) {
            config.max_tokens = config.max_tokens.min(usize::try_from(tokens).unwrap_or(usize::MAX));
        }
        config.pooling = file.pooling()?.unwrap_or_default();
        Ok(config)
    }

    /// Parses the text of a `config.json`; `path` appears in errors.
    ///
    /// # Errors
    /// As [`EncoderConfig::open`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let json: Value = serde_json::from_str(text).map_err(|e| damaged(path, e))?;
        let family = json["model_type"].as_str().unwrap_or("").to_owned();
        if !FAMILIES.contains(&family.as_str()) {
            return Err(unsupported(path, format!("a model of type '{family}'")));
        }
        let raw: Raw = serde_json::from_value(json).map_err(|e| damaged(path, e))?;
        if let Some(kind) = raw.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(unsupported(
                path,
                format!("a model with positions of the type '{kind}'"),
            ));
        }
        let activation = match &*raw.hidden_act {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            other => return Err(unsupported(path, format!("a model with the activation '{other}'"))),
        };
        let is_distilled = family == "distilbert";
        let network = BertConfig {
            vocab: raw.vocab_size,
            positions: raw.max_position_embeddings,
            first_position: if family.ends_with("roberta") || family == "camembert" {
                // Positions begin after that of the padding token.
                raw.pad_token_id.unwrap_or(1).saturating_add(1)
            } else {
                0
            },
            token_types: if is_distilled {
                0
            } else {
                raw.type_vocab_size.unwrap_or(2)
            },
            dim: raw.hidden_size,
            layers: raw.num_hidden_layers,
            heads: raw.num_attention_heads,
            hidden: raw.intermediate_size,
            activation,
            eps: raw.layer_norm_eps,
        };
        network.check().map_err(|e| damaged(path, e))?;
        Ok(EncoderConfig {
            max_tokens: network.context(),
            network,
            pooling: Pooling::default(),
            normalize: true,
            is_distilled,
        })
    }

    /// Reads the modules that follow the encoder. Without a list of them, rows are averaged and the
    /// result is normalized.
    fn read_modules(&mut self, folder: &Path) -> Result<()> {
        #[derive(Deserialize)]
        struct Module {
            #[serde(default)]
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let path = folder.join("modules.json");
        if !path.exists() {
            return Ok(());
        }
        let modules: Vec<Module> = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
        self.normalize = false;
        for module in modules {
            match module.kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Pooling" => {
                    let beside = Path::new(&module.path);
                    // Names in the list of modules must not lead to files outside of the folder.
                    if beside.file_name() != Some(beside.as_os_str()) {
                        let message = format!("it names '{}', which is in another folder", module.path);
                        return Err(damaged(&path, message));
                    }
                    let path: PathBuf = folder.join(beside).join("config.json");
                    self.pooling = pooling(&read_text(&path)?, &path)?;
                }
                "Normalize" => self.normalize = true,
                other => return Err(unsupported(&path, format!("a module '{other}' after the encoder"))),
            }
        }
        Ok(())
    }
}

/// Returns the only enabled pooling of a module's configuration.
fn pooling(text: &str, path: &Path) -> Result<Pooling> {
    let json: Value = serde_json::from_str(text).map_err(|e| damaged(path, e))?;
    let fields = json.as_object().ok_or_else(|| damaged(path, "it is not an object"))?;
    let on: Vec<&str> = fields
        .iter()
        .filter(|(name, value)| name.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(name, _)| name.trim_start_matches("pooling_mode_"))
        .collect();
    match *on {
        ["mean_tokens"] => Ok(Pooling::Mean),
        ["cls_token"] => Ok(Pooling::Cls),
        [] => Err(damaged(path, "no pooling is enabled")),
        _ => Err(unsupported(path, format!("a pooling by {}", on.join(" and ")))),
    }
}

fn unsupported(path: &Path, what: String) -> Error {
    Error::file(
        path,
        format!("describes {what}, which is not supported"),
        format!(
            "supported are encoders of the types {} with absolute positions, averaged (mean) or by their first token (cls)",
            FAMILIES.join(", ")
        ),
    )
}

/// Returns the name of a tensor among the parameters of [`BertConfig::build`]; `None` for tensors
/// that embeddings do not need: heads for other tasks, and tables that follow from the
/// configuration.
pub(super) fn parameter_name(name: &str, is_distilled: bool) -> Option<String> {
    const TASKS: [&str; 6] = ["pooler.", "cls.", "lm_head.", "classifier.", "vocab_", "qa_outputs."];
    let name = ["bert.", "roberta.", "distilbert."]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    if TASKS.iter().any(|task| name.starts_with(task))
        || name.ends_with("position_ids")
        || name.ends_with("token_type_ids")
    {
        return None;
    }
    if !is_distilled {
        return Some(name.to_owned());
    }
    let Some(rest) = name.strip_prefix("transformer.layer.") else {
        return Some(name.to_owned());
    };
    let (layer, rest) = rest.split_once('.')?;
    let (layer_of, end) = rest.rsplit_once('.')?;
    let own = match layer_of {
        "attention.q_lin" => "attention.self.query",
        "attention.k_lin" => "attention.self.key",
        "attention.v_lin" => "attention.self.value",
        "attention.out_lin" => "attention.output.dense",
        "sa_layer_norm" => "attention.output.LayerNorm",
        "ffn.lin1" => "intermediate.dense",
        "ffn.lin2" => "output.dense",
        "output_layer_norm" => "output.LayerNorm",
        other => other,
    };
    Some(format!("encoder.layer.{layer}.{own}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: &str = r#"{"model_type": "bert", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 9,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16, "hidden_act": "gelu"}"#;

    fn parse(text: &str) -> Result<EncoderConfig> {
        EncoderConfig::parse(text, Path::new("config.json"))
    }

    #[test]
    fn what_is_not_supported_is_named() {
        assert!(parse(BERT).is_ok());
        for (from, to, said) in [
            ("\"bert\"", "\"t5\"", "a model of type 't5'"),
            ("\"gelu\"", "\"mish\"", "the activation 'mish'"),
            (
                "16,",
                "16, \"position_embedding_type\": \"relative_key\",",
                "positions of the type 'relative_key'",
            ),
            ("heads\": 2", "heads\": 3", "not a multiple of heads = 3"),
            ("vocab_size\": 10", "vocab_size\": 0", "vocab is 0"),
            ("\"vocab_size\": 10,", "", "vocab_size"),
            ("embeddings\": 16", "embeddings\": 0", "of 0 positions"),
        ] {
            let text = BERT.replace(from, to);
            assert_ne!(text, BERT, "{from}");
            let error = parse(&text).expect_err(said).to_string();
            assert!(error.contains(said), "{error:?} lacks {said:?}");
        }
    }

    #[test]
    fn positions_begin_behind_that_of_padding() {
        let roberta = BERT
            .replace("\"bert\"", "\"roberta\"")
            .replace("16,", "16, \"pad_token_id\": 1,");
        let config = parse(&roberta).expect("a model");
        assert_eq!((config.network.first_position, config.max_tokens), (2, 14));
    }

    #[test]
    fn poolings_are_read() {
        let of = |fields: &str| {
            pooling(
                &format!("{{\"word_embedding_dimension\": 8{fields}}}"),
                Path::new("config.json"),
            )
        };
        let on = |name: &str| format!(", \"pooling_mode_{name}\": true, \"pooling_mode_max_tokens\": false");
        assert_eq!(of(&on("mean_tokens")).expect("a pooling"), Pooling::Mean);
        assert_eq!(of(&on("cls_token")).expect("a pooling"), Pooling::Cls);
        let error = of(&on("lasttoken")).expect_err("unknown").to_string();
        assert!(error.contains("a pooling by lasttoken"), "{error}");
        let error = of("").expect_err("none").to_string();
        assert!(error.contains("no pooling is enabled"), "{error}");
    }

    #[test]
    fn tensors_have_the_names_of_parameters() {
        for (name, is_distilled, wanted) in [
            (
                "bert.embeddings.word_embeddings.weight",
                false,
                Some("embeddings.word_embeddings.weight"),
            ),
            (
                "encoder.layer.3.output.dense.bias",
                false,
                Some("encoder.layer.3.output.dense.bias"),
            ),
            ("roberta.pooler.dense.weight", false, None),
            ("cls.predictions.bias", false, None),
            ("embeddings.position_ids", false, None),
            (
                "distilbert.transformer.layer.0.attention.q_lin.weight",
                true,
                Some("encoder.layer.0.attention.self.query.weight"),
            ),
            (
                "transformer.layer.11.output_layer_norm.bias",
                true,
                Some("encoder.layer.11.output.LayerNorm.bias"),
            ),
        ] {
            assert_eq!(parameter_name(name, is_distilled).as_deref(), wanted, "{name}");
        }
    }
}
