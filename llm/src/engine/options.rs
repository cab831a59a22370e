//! Options of an engine.

use std::path::PathBuf;

use meganeura_core::backend::Device;
use meganeura_core::{Error, Result};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::{CacheType, StorageMap};

use crate::adapters::{Adapters, PackedAdapters};
use crate::checkpoint::{Checkpoint, LoadObserver};
use crate::plans::{PREFILL_ROWS, max_prefill_rows};

/// Options of a draft model.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// Folder of its checkpoint, or a GGUF file.
    pub model: PathBuf,
    /// Folder that caches its plans.
    pub plans: Option<PathBuf>,
}

/// Options of [`Engine::open`](super::Engine::open).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Maximum number of sequences that are computed at the same time; further ones wait.
    pub sequences: usize,
    /// Maximum number of tokens of a sequence, including the prompt; `None` is the model's context.
    pub context: Option<usize>,
    /// Number of tokens that the KV cache stores for all sequences together. `None` is enough for half of the sequences at their
    /// full length, and at least for one.
    pub cache_tokens: Option<usize>,
    /// Maximum number of tokens of a step, which is also the size of a prefill chunk. `None` is 512 on devices with their own memory
    /// and 64 on others, but at least [`sequences`](Self::sequences). A step of many tokens reads the weights once for all of them; a
    /// step of few tokens delays sequences that generate less.
    pub step_tokens: Option<usize>,
    /// Maximum number of draft tokens of a sequence that one step verifies; 0 disables them. The draft model predicts them; without
    /// one, they are copied from an earlier occurrence of the last tokens. The output is the same as without draft tokens
    /// (speculative decoding; Leviathan, Kalman and Matias, 2023).
    pub draft_tokens: usize,
    /// The draft model. It must have the same vocabulary.
    pub draft_model: Option<DraftOptions>,
    /// If true, common prefixes of sequences are computed once.
    pub prefix_cache: bool,
    /// If true, the device samples the tokens, so that the host does not read the logits. The host still samples the tokens of
    /// sequences with penalties, biases, constraints or log-probabilities. `None` is true on devices with their own memory. A seed
    /// gives another text than with sampling on the host.
    pub device_sampling: Option<bool>,
    /// Folder that caches plans.
    pub plans: Option<PathBuf>,
    /// Folder of adapters that all sequences use. They are merged into weights stored as `f32`, and computed separately with
    /// other types.
    pub adapters: Option<PathBuf>,
    /// Folders of adapters that sequences select by their index ([`SequenceRequest::adapter`](super::SequenceRequest::adapter)).
    pub named_adapters: Vec<PathBuf>,
    /// Storage type of the matrices of the model and of the draft model on the device; `None` is
    /// [`Checkpoint::usual_storage`](crate::Checkpoint::usual_storage) of each.
    pub weights: Option<WeightStorage>,
    /// Storage type of the KV caches of the model and of the draft model.
    pub cache_type: CacheType,
    /// Receives reports while the weights are loaded.
    pub observer: Option<LoadObserver>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: None,
            sequences: 8,
            context: None,
            cache_tokens: None,
            step_tokens: None,
            draft_tokens: 0,
            draft_model: None,
            prefix_cache: true,
            device_sampling: None,
            plans: None,
            adapters: None,
            named_adapters: Vec::new(),
            weights: None,
            cache_type: CacheType::F32,
            observer: None,
        }
    }
}

/// Maximum number of sequences of a step. A step of this size would take tens of gigabytes.
const MAX_SEQUENCES: usize = 1 << 16;

impl EngineOptions {
    /// Returns the storage types of the matrices of a checkpoint.
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
                PackedAdapters::select(named.collect::<Result<Vec<_>>>()?)
            }
        }
    }

    /// Returns the maximum number of tokens of a step.
    pub(super) fn max_step_tokens(&self) -> usize {
        self.step_tokens.unwrap_or(PREFILL_ROWS).max(self.sequences)
    }

    /// Sets the size of steps for a device, if it is not set.
    pub(super) fn set_step_tokens(&mut self, device: &dyn Device) {
        self.step_tokens
            .get_or_insert(max_prefill_rows(device).max(self.sequences));
    }

    /// Checks the options for sequences of `context` tokens, and a model with `of_model` positions.
    ///
    /// # Errors
    /// No sequences; a context of 0 or beyond the model's; steps shorter than the number of sequences; a cache whose indices exceed
    /// 32 bits.
    pub(super) fn check(&self, context: usize, of_model: usize) -> Result<()> {
        let refuse = |message: String, remedy: &str| Err(Error::misuse(message, remedy));
        if self.sequences == 0 {
            return refuse("expected at least 1 sequence, found 0".into(), "give at least one");
        }
        if self.sequences > MAX_SEQUENCES {
            return refuse(
                format!("expected at most {MAX_SEQUENCES} sequences, found {}", self.sequences),
                "further requests wait in the queue",
            );
        }
        if context == 0 || context > of_model {
            return refuse(
                format!("expected sequences of 1 to {of_model} tokens, the positions of the model, found {context}"),
                "use at least 1 token, and at most the number of positions of the model",
            );
        }
        if let Some(tokens) = self.step_tokens.filter(|&tokens| tokens < self.sequences) {
            return refuse(
                format!(
                    "expected steps of at least {} tokens, one for each sequence, found {tokens}",
                    self.sequences
                ),
                "raise the maximum number of tokens of a step, or lower the number of sequences",
            );
        }
        let rows = self.cache_tokens.unwrap_or(context);
        if u32::try_from(rows.saturating_mul(2)).is_err() {
            return refuse(
                format!("the cache is too large: {rows} tokens"),
                "use fewer sequences or a shorter context",
            );
        }
        Ok(())
    }
}
