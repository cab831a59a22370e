//! Language models as workloads: presets, checkpoint folders and GGUF files.

use std::path::Path;

use meganeura::Graph;
use meganeura::llm::library::{self, ModelFolders};
use meganeura::llm::{Checkpoint, ModelConfig};
use meganeura::nn::layers::{LoraConfig, LoraTargets, WeightStorage};
use meganeura::nn::models::{LlamaConfig, StorageMap, preset};

use crate::commands::language::{locate, storage};

/// Default number of tokens of a sequence for models that are not presets.
const USUAL_ROWS: usize = 128;

/// Options of language models. Weights are random; only the shapes come from a file.
#[derive(Debug, clap::Args)]
pub(crate) struct LanguageOptions {
    /// Number of sequences in a batch of a language model. With --cache, each sequence has its own cache [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sequences: Option<u32>,

    /// Storage type of the matrices of a language model. Training needs f32, or --lora with frozen matrices of any type
    /// [default: the types in a GGUF file, else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Number of layers of a language model [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

    /// Train LoRA adapters of this rank and freeze the language model.
    #[arg(long, value_name = "RANK", requires = "train", value_parser = clap::value_parser!(u32).range(1..))]
    lora: Option<u32>,

    /// Projections with adapters: q, k, v, o, gate, up, down or all. Separate several with commas.
    #[arg(long, value_name = "LIST", requires = "lora", default_value = "q,v")]
    lora_targets: LoraTargets,
}

impl LanguageOptions {
    /// Returns the number of sequences.
    pub(in crate::commands) fn sequences(&self) -> usize {
        self.sequences.unwrap_or(1) as usize
    }

    /// Returns true if only adapters are trained.
    pub(in crate::commands) fn is_lora(&self) -> bool {
        self.lora.is_some()
    }

    /// Returns the name of the first given option.
    pub(in crate::commands) fn given(&self) -> Option<&'static str> {
        let options = [
            ("--sequences", self.sequences.is_some()),
            ("--weights", self.weights.is_some()),
            ("--layers", self.layers.is_some()),
            ("--lora", self.lora.is_some()),
        ];
        options
            .into_iter()
            .find(|(_, is_given)| *is_given)
            .map(|(option, _)| option)
    }

    /// Returns the shape of the model with these options applied.
    ///
    /// # Errors
    /// More layers than the model has, or weights that cannot be trained.
    pub(super) fn configure(&self, model: &LanguageModel, is_training: bool) -> Result<LlamaConfig, String> {
        let (name, mut config) = (&model.name, model.config);
        if let Some(layers) = self.layers {
            if layers as usize > config.layers {
                return Err(format!(
                    "'{name}' has {} layers, fewer than --layers {layers}",
                    config.layers
                ));
            }
            config.layers = layers as usize;
        }
        config.weights = match self.weights {
            Some(storage) => storage.into(),
            // Files store the weights to run; training without adapters needs them in f32.
            None if is_training && self.lora.is_none() => StorageMap::default(),
            None => config.weights,
        };
        if is_training && self.lora.is_none() && config.weights != StorageMap::default() {
            return Err(
                "--weights: only f32 weights can be trained; add --lora RANK to train adapters of frozen weights"
                    .into(),
            );
        }
        config.lora = self.lora.map(|rank| LoraConfig {
            targets: self.lora_targets,
            ..LoraConfig::new(rank as usize)
        });
        Ok(config)
    }

    /// Returns the graph that trains a model, or runs it without a cache, on `rows` tokens of each sequence, and the number of
    /// rows.
    ///
    /// # Errors
    /// As [`LanguageOptions::configure`]; no rows.
    pub(in crate::commands) fn graph(
        &self,
        model: &LanguageModel,
        rows: Option<usize>,
        is_training: bool,
    ) -> Result<(Graph, usize), String> {
        let rows = rows.unwrap_or(model.rows);
        if rows == 0 {
            return Err("--seq: expected at least 1, found 0".into());
        }
        let config = self.configure(model, is_training)?;
        let graph = match self.sequences() {
            1 => config.training_graph(&[], rows),
            sequences => config.training_graph(&[sequences], rows),
        };
        Ok((graph, rows))
    }
}

/// The shape of a language model.
#[derive(Debug)]
pub(in crate::commands) struct LanguageModel {
    pub(super) name: String,
    pub(super) config: LlamaConfig,
    /// Default number of rows: the tokens of a sequence.
    rows: usize,
}

impl LanguageModel {
    /// Returns the language model with this name: a preset, a checkpoint folder, a GGUF file, or a model in the folders of
    /// `meganeura models`. `None`: there is no model with this name, or the preset is no language model.
    ///
    /// # Errors
    /// The model's files cannot be read, or its family is not supported.
    pub(in crate::commands) fn named(name: &str) -> Result<Option<Self>, String> {
        if let Some(preset) = preset(name) {
            let model = preset.language_model().map(|config| LanguageModel {
                name: name.to_owned(),
                config,
                rows: preset.rows,
            });
            return Ok(model);
        }
        let path = Path::new(name);
        let is_known = || library::is_name(name) && library::find(name, &ModelFolders::from_environment()).is_ok();
        let is_gguf = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        let is_model = if path.exists() {
            path.is_dir() || is_gguf
        } else {
            is_known()
        };
        if !is_model {
            return Ok(None);
        }
        let open = || -> meganeura::Result<LlamaConfig> {
            let path = locate(path)?;
            let mut config = ModelConfig::open(&path)?.network;
            config.weights = Checkpoint::open(&path)?.usual_storage();
            Ok(config)
        };
        let config = open().map_err(|e| e.to_string())?;
        Ok(Some(LanguageModel {
            name: name.to_owned(),
            config,
            rows: USUAL_ROWS,
        }))
    }
}
