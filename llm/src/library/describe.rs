//! Descriptions of models from their headers.

use std::fs;
use std::path::{Path, PathBuf};

use meganeura_core::Error;
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::CacheType;
use serde_json::Value;

use super::memory::{MemoryEstimate, Network};
use super::places::{Candidate, Origin, entries, folder_bytes};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::embedder::{EncoderConfig, check_weights};
use crate::files::{damaged, read_text};
use crate::gguf::Gguf;

/// Usability of a model by this library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The model generates text.
    Text,
    /// The model computes embeddings.
    Encoder,
    /// A model of an unsupported kind, with the reason.
    Unsupported(String),
    /// A model with missing or damaged files or an incomplete download, with the reason.
    Broken(String),
}

impl Support {
    /// Returns true if the model can be used.
    pub fn is_usable(&self) -> bool {
        matches!(self, Support::Text | Support::Encoder)
    }

    /// Returns the reason why the model cannot be used.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Support::Text | Support::Encoder => None,
            Support::Unsupported(reason) | Support::Broken(reason) => Some(reason),
        }
    }

    /// Returns the lower-case name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Support::Text => "text",
            Support::Encoder => "encoder",
            Support::Unsupported(_) => "unsupported",
            Support::Broken(_) => "broken",
        }
    }
}

/// A model on this machine. Properties that its headers do not contain are `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalModel {
    /// Name for [`find`](super::find): `ORG/NAME` for a model in the Hub's cache, with `@REVISION` if it is not the
    /// main revision. For other models, the path relative to the folder that the model was found in; for GGUF files,
    /// without the extension.
    pub name: String,
    /// Path for [`Generator::open`](crate::Generator::open) and other functions: a folder, or a
    /// GGUF file.
    pub path: PathBuf,
    /// Kind of folder that it was found in.
    pub origin: Origin,
    /// Commit, for models in the Hub's cache.
    pub revision: Option<String>,
    /// The family: `model_type` of `config.json`, or `general.architecture` of a GGUF file.
    pub architecture: Option<String>,
    /// Number of elements of all tensors; for multimodal models, of the text part.
    pub parameters: Option<u64>,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Storage of most of its weights, in lower case: `bf16`, `q4_k_m`.
    pub stored: Option<String>,
    /// Maximum number of positions.
    pub context: Option<usize>,
    /// Usability of the model.
    pub support: Support,
    network: Option<Network>,
}

/// Result of a step of describing a model; an error is the final [`Support`], and ends the description early.
type StepResult = std::result::Result<(), Support>;

impl LocalModel {
    pub(super) fn describe(place: &Candidate) -> Self {
        let mut model = LocalModel {
            name: place.name.clone(),
            path: place.path.clone(),
            origin: place.origin,
            revision: place.revision.clone(),
            architecture: None,
            parameters: None,
            disk_bytes: if place.parts.is_empty() {
                folder_bytes(&place.path)
            } else {
                place
                    .parts
                    .iter()
                    .filter_map(|part| Some(fs::metadata(part).ok()?.len()))
                    .sum()
            },
            stored: None,
            context: None,
            support: Support::Text,
            network: None,
        };
        let read = match (&place.problem, place.parts.is_empty()) {
            (Some(problem), true) => Err(Support::Broken(problem.clone())),
            (problem, false) => model.read_gguf(&place.parts, problem.as_deref()),
            (None, true) => model.read_folder(),
        };
        if let Err(support) = read {
            model.support = support;
        }
        model
    }

    /// Returns the memory that the model needs on a device: its weights, in the given storage type (`None` for the type
    /// in the files), and the keys and values of a sequence in a cache of the given type. The sequence has `context`
    /// tokens ([`USUAL_CONTEXT`](super::USUAL_CONTEXT) if `None`), but at most the model's context. Encoders are in
    /// `f32`, and have no cache. `None` if the model cannot be used.
    pub fn memory(
        &self,
        weights: Option<WeightStorage>,
        context: Option<usize>,
        cache: CacheType,
    ) -> Option<MemoryEstimate> {
        self.network.as_ref()?.memory(weights, context, cache).ok()
    }

    fn read_folder(&mut self) -> StepResult {
        let folder = self.path.clone();
        let config = folder.join("config.json");
        let broken = |error: Error| Support::Broken(reason(&error, &folder));
        let unsupported = |error: Error| Support::Unsupported(reason(&error, &folder));
        // Weights provide information even if the configuration is missing.
        let checkpoint = Checkpoint::open(&folder);
        if let Ok(checkpoint) = &checkpoint {
            self.parameters = Some(checkpoint.parameters());
            self.stored = checkpoint.stored();
        }
        if !config.exists() {
            return Err(Support::Broken("has no config.json".into()));
        }
        let text = read_text(&config).map_err(broken)?;
        let json: Value = serde_json::from_str(&text).map_err(|e| broken(damaged(&config, e)))?;
        let field = |name: &str| {
            [&json[name], &json["text_config"][name]]
                .into_iter()
                .find(|v| !v.is_null())
        };
        self.architecture = json["model_type"].as_str().map(str::to_owned);
        self.context = field("max_position_embeddings")
            .and_then(Value::as_u64)
            .and_then(|positions| usize::try_from(positions).ok());
        if let Some(method) = json["quantization_config"]["quant_method"].as_str() {
            self.stored = Some(method.to_lowercase());
        }
        let (network, encoder) = if EncoderConfig::is_one(&folder) {
            let config = EncoderConfig::open(&folder).map_err(unsupported)?;
            self.context = Some(config.max_tokens);
            (Network::Encoder(Box::new(config.network)), Some(config))
        } else {
            let config = ModelConfig::open(&folder).map_err(unsupported)?;
            self.context = Some(config.context);
            let network = Network::Text(Box::new(config.network), config.context);
            (network, None)
        };
        let checkpoint = match checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Err(without_weights(&folder).unwrap_or_else(|| broken(error))),
        };
        if !folder.join("tokenizer.json").exists() {
            return Err(Support::Broken("has no tokenizer.json".into()));
        }
        match (&network, encoder) {
            (_, Some(config)) => {
                check_weights(&config, checkpoint).map_err(unsupported)?;
                self.support = Support::Encoder;
            }
            (Network::Text(config, ..), _) => checkpoint.check_model(config).map_err(unsupported)?,
            (Network::Encoder(_), None) => {}
        }
        self.network = Some(network);
        Ok(())
    }

    fn read_gguf(&mut self, parts: &[PathBuf], problem: Option<&str>) -> StepResult {
        let path = self.path.clone();
        let broken = |error: Error| Support::Broken(reason(&error, &path));
        let unsupported = |error: Error| Support::Unsupported(reason(&error, &path));
        let first = Gguf::open_part(&path).map_err(broken)?;
        let architecture = first.architecture().map_err(broken)?;
        self.architecture = Some(architecture.to_owned()).filter(|name| !name.is_empty());
        self.stored = first.stored();
        self.context = first.context();
        let mut others = Vec::new();
        for part in parts.iter().filter(|part| **part != path) {
            others.push(Gguf::open_part(part).map_err(|error| Support::Broken(reason(&error, Path::new(""))))?);
        }
        let parameters = others.iter().map(Gguf::parameters);
        self.parameters = Some(parameters.fold(first.parameters(), u64::saturating_add));
        if let Some(problem) = problem {
            return Err(Support::Broken(problem.to_owned()));
        }
        // A file without a part number in its header is the whole model, whatever other files are
        // in its folder.
        if first.others().map_err(broken)?.is_empty() {
            others.clear();
        }
        let first = first.with_others(others.into_iter().map(Ok)).map_err(broken)?;
        // A `tokenizer.json` in the same folder replaces it.
        if !path.with_file_name("tokenizer.json").exists() {
            first.check_tokenizer().map_err(unsupported)?;
        }
        if first.is_encoder() {
            let config = EncoderConfig::of_gguf(&first, &path).map_err(unsupported)?;
            let checkpoint = Checkpoint::of_gguf(first).map_err(unsupported)?;
            self.context = Some(config.max_tokens);
            check_weights(&config, checkpoint).map_err(unsupported)?;
            self.support = Support::Encoder;
            self.network = Some(Network::Encoder(Box::new(config.network)));
            return Ok(());
        }
        let config = ModelConfig::of_gguf(&first, &path).map_err(unsupported)?;
        let checkpoint = Checkpoint::of_gguf(first).map_err(unsupported)?;
        checkpoint.check_model(&config.network).map_err(unsupported)?;
        let mut network = config.network;
        network.weights = checkpoint.usual_storage();
        self.network = Some(Network::Text(Box::new(network), config.context));
        Ok(())
    }
}

/// Returns the support of a folder without safetensors files, if its weights are in files of other formats.
fn without_weights(folder: &Path) -> Option<Support> {
    let files: Vec<String> = entries(folder).ok()?.into_iter().map(|(name, _)| name).collect();
    let ends = |ends: &[&str]| files.iter().find(|name| ends.iter().any(|end| name.ends_with(end)));
    if ends(&[".safetensors", ".safetensors.index.json"]).is_some() {
        return None;
    }
    let other = ends(&[".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx"]);
    Some(match other {
        Some(name) => Support::Unsupported(format!("has its weights in '{name}', not in safetensors files")),
        None => Support::Broken("has no safetensors files".into()),
    })
}

/// Returns an error about a file of a model as one line, with the name of the file if it is not the
/// model itself.
fn reason(error: &Error, model: &Path) -> String {
    let text = match error {
        Error::File { path, message, .. } => match Path::new(path).file_name() {
            Some(name) if Path::new(path) != model => format!("'{}' {message}", name.to_string_lossy()),
            _ => message.clone(),
        },
        other => other.to_string(),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join(" ")
}
