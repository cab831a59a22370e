//! Choices of an engine.

use std::path::PathBuf;

use meganeura_core::{Error, Result};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::{CacheType, StorageMap};

use crate::adapters::{Adapters, PackedAdapters};
use crate::checkpoint::Checkpoint;

/// A smaller model that guesses tokens.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// Folder of its checkpoint, or a GGUF file.
    pub model: PathBuf,
    /// Folder that keeps its plans from one start to the next.
    pub plans: Option<PathBuf>,
}

/// Choices of [`Engine::open`](super::Engine::open).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Sequences that are computed at the same time at most; others wait.
    pub sequences: usize,
    /// Tokens of a sequence at most, the prompt included. The model's context if `None`.
    pub context: Option<usize>,
    /// Tokens that the caches hold for all sequences together; if `None`, as many as fill half of the sequences to their end,
    /// and at least one.
    pub cache_tokens: Option<usize>,
    /// Tokens of a step at most: how much of a prompt is read beside sequences that generate.
    pub step_tokens: usize,
    /// Draft tokens for each sequence that are checked in one step (speculative decoding; Leviathan, Kalman and Matias, 2023),
    /// guessed by the draft model, else taken from what followed the same tokens before; 0 for none. The result is that of
    /// decoding without.
    pub draft_tokens: usize,
    /// The model that guesses draft tokens: one with the same vocabulary.
    pub draft_model: Option<DraftOptions>,
    /// Whether equal beginnings of sequences are computed once.
    pub prefix_cache: bool,
    /// Whether the device draws tokens for sequences without `top_k`, `top_p` below 1, `min_p`, penalties, constraints and logarithms of
    /// probabilities, so that their logits need not be read; `None` if the device has memory of its own. A seed gives other texts
    /// then than where the host draws.
    pub device_sampling: Option<bool>,
    /// Folder that keeps plans from one start to the next.
    pub plans: Option<PathBuf>,
    /// Folder of adapters that all sequences use. They are merged into weights stored as `f32`, and computed separately with
    /// other types.
    pub adapters: Option<PathBuf>,
    /// Folders of adapters that sequences select by their index ([`SequenceRequest::adapter`](super::SequenceRequest::adapter)).
    pub named_adapters: Vec<PathBuf>,
    /// How matrices of the model and of the draft model are stored on the device; as `None` the way that each checkpoint asks for
    /// ([`Checkpoint::usual_storage`](crate::Checkpoint::usual_storage)).
    pub weights: Option<WeightStorage>,
    /// How the keys and values of the model and of the draft model are cached.
    pub cache_type: CacheType,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: None,
            sequences: 8,
            context: None,
            cache_tokens: None,
            step_tokens: 64,
            draft_tokens: 0,
            draft_model: None,
            prefix_cache: true,
            device_sampling: None,
            plans: None,
            adapters: None,
            named_adapters: Vec::new(),
            weights: None,
            cache_type: CacheType::F32,
        }
    }
}

impl EngineOptions {
    /// How the matrices of a checkpoint are stored.
    pub(super) fn storage(&self, checkpoint: &Checkpoint) -> StorageMap {
        self.weights.map_or_else(|| checkpoint.usual_storage(), StorageMap::all)
    }

    /// Opens the adapters to merge into the weights: the adapters of all sequences, if all weights are stored as `f32`.
    ///
    /// # Errors
    /// Errors of [`Adapters::open`].
    pub(super) fn adapters_to_merge(&self, checkpoint: &Checkpoint) -> Result<Option<Adapters>> {
        let is_f32 = self.storage(checkpoint) == StorageMap::all(WeightStorage::F32);
        let folder = self
            .adapters
            .as_ref()
            .filter(|_| is_f32 && self.named_adapters.is_empty());
        folder.map(|folder| Adapters::open(folder)).transpose()
    }

    /// Opens the adapters that are not merged.
    ///
    /// # Errors
    /// Both kinds of adapters; errors of [`Adapters::open`]; adapters of another model.
    pub(super) fn packed_adapters(&self, checkpoint: &Checkpoint) -> Result<PackedAdapters> {
        let open = |folder: &PathBuf| {
            let adapters = Adapters::open(folder)?;
            checkpoint.check_adapters(&adapters)?;
            Ok(adapters)
        };
        match &self.adapters {
            Some(_) if !self.named_adapters.is_empty() => Err(Error::misuse(
                "expected either adapters for all sequences or adapters that sequences select, found both",
                "give all of them names",
            )),
            Some(folder) => Ok(PackedAdapters::for_all(open(folder)?)),
            None => {
                let named = self.named_adapters.iter().map(open);
                Ok(PackedAdapters::select(named.collect::<Result<Vec<_>>>()?))
            }
        }
    }

    /// Whether they make sense for sequences of so many tokens, and a model of so many positions.
    pub(super) fn check(&self, context: usize, of_model: usize) -> Result<()> {
        let refuse = |message: String, remedy: &str| Err(Error::misuse(message, remedy));
        if self.sequences == 0 {
            return refuse("an engine of no sequences".into(), "give at least one");
        }
        if context == 0 || context > of_model {
            return refuse(
                format!("sequences of {context} tokens, for a model of {of_model} positions"),
                "give at least one token, and at most as many as the model has positions",
            );
        }
        if self.step_tokens < self.sequences {
            return refuse(
                format!(
                    "steps of {} tokens cannot read one of each of {} sequences",
                    self.step_tokens, self.sequences
                ),
                "give at least as many tokens as sequences",
            );
        }
        let rows = self.cache_tokens.unwrap_or(context);
        if u32::try_from(rows.saturating_mul(2)).is_err() {
            return refuse(
                format!("a cache of {rows} tokens"),
                "ask for fewer sequences, or for a shorter context",
            );
        }
        Ok(())
    }
}
