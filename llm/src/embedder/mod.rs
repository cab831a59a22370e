//! Embeddings of texts by encoders of the BERT family: vectors whose directions are closer the more
//! similar two texts are.

mod config;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_core::backend::{Device, DeviceKind};
use meganeura_core::config::Config;
use meganeura_core::{Error, Graph, Result, select};
use meganeura_nn::models::{ATTENTION_MASK, BertConfig, POOLING_WEIGHTS, TOKENS};

use crate::checkpoint::Checkpoint;
use crate::gguf::{self, Gguf};
use crate::plans::{Plans, SharedSession, StepShape};
pub use crate::pooling::Pooling;
use crate::tokenizer::Tokenizer;
pub use config::FAMILIES;

/// Number of rows per text of the smallest step; each larger step has twice the rows.
const MIN_ROWS: usize = 16;
/// Texts of a step on a device with slow launches, such as a GPU.
const TEXTS: usize = 8;

/// An encoder and the pooling of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// The network.
    pub network: BertConfig,
    /// Maximum tokens of a text, including the marks of its beginning and end.
    pub max_tokens: usize,
    /// Pooling of rows into one vector.
    pub pooling: Pooling,
    /// True if vectors are normalized to length 1.
    pub normalize: bool,
    /// True if tensors have DistilBERT's names.
    is_distilled: bool,
}

impl EncoderConfig {
    /// Returns true if a folder or a GGUF file contains an encoder of a supported
    /// [family](FAMILIES). Files that cannot be read contain none.
    pub fn is_one(folder: &Path) -> bool {
        if gguf::is_one(folder) {
            return Gguf::open_part(folder).is_ok_and(|file| file.is_encoder());
        }
        let text = crate::files::read_text(&folder.join("config.json")).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        json["model_type"]
            .as_str()
            .is_some_and(|family| FAMILIES.contains(&family))
    }
}

/// Options of [`Embedder::open`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbedderOptions {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Pooling instead of the model's.
    pub pooling: Option<Pooling>,
    /// True if vectors are normalized to length 1; the model's setting if `None`.
    pub normalize: Option<bool>,
    /// True if tokens in the middle of too long texts are removed; otherwise such texts are
    /// refused.
    pub truncate: bool,
    /// Folder that keeps plans from one start to the next.
    pub plans: Option<PathBuf>,
}

/// A step of `texts` texts with `rows` tokens each, including padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Batch {
    texts: usize,
    rows: usize,
}

impl StepShape for Batch {
    type Network = BertConfig;

    fn name(&self) -> String {
        format!("{}x{}", self.texts, self.rows)
    }

    fn file(&self, _: &BertConfig) -> String {
        format!("embed-{}", self.name())
    }

    fn graph(&self, network: &BertConfig) -> Graph {
        network.embedding_graph(self.texts, self.rows)
    }
}

/// A tokenizer for the texts of an [`Embedder`].
#[derive(Clone, Debug)]
pub struct TextEncoder {
    tokenizer: Tokenizer,
    max_tokens: usize,
    truncate: bool,
}

impl TextEncoder {
    /// Returns the tokens of a text, including the marks of its beginning and end, at most the
    /// model's maximum.
    ///
    /// # Errors
    /// [`Error::InvalidUse`]: a text of more tokens, if truncation is disabled; errors of the
    /// tokenizer.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let most = self.max_tokens;
        let too_long = |found: &str| {
            Error::misuse(
                format!("expected texts of at most {most} tokens, found {found}"),
                "shorten the text, embed its parts, or have long texts truncated",
            )
        };
        let text = match self.tokenizer.end_of_excess(text, most)? {
            None => text,
            Some(end) if self.truncate => &text[..end],
            Some(_) => return Err(too_long("more")),
        };
        let mut tokens = self.tokenizer.encode(text)?;
        let count = tokens.len();
        if count > most {
            if !self.truncate {
                return Err(too_long(&count.to_string()));
            }
            // The token that marks the end stays.
            tokens.drain(most.saturating_sub(1)..count - 1);
        }
        Ok(tokens)
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// An encoder with its tokenizer.
///
/// ```no_run
/// use meganeura_llm::{Embedder, EmbedderOptions};
///
/// # fn main() -> meganeura_core::Result<()> {
/// let folder = std::path::Path::new("all-MiniLM-L6-v2");
/// let mut embedder = Embedder::open(folder, EmbedderOptions::default())?;
/// let vectors = embedder.embed(&["A cat sat on the mat.", "There was a cat on a rug."])?;
/// let similarity: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
/// # Ok(())
/// # }
/// ```
pub struct Embedder {
    config: EncoderConfig,
    texts_to_tokens: TextEncoder,
    checkpoint: Checkpoint,
    plans: Plans<Batch>,
    selector: String,
    /// Texts per step.
    texts: usize,
    active: Option<SharedSession<Batch>>,
}

impl Embedder {
    /// Opens the encoder in a GGUF file, or in a folder: `config.json`, safetensors files and `tokenizer.json`, and the files of
    /// sentence-transformers ([`EncoderConfig::open`]).
    ///
    /// # Errors
    /// The errors of [`EncoderConfig::open`], [`Checkpoint::open`] and [`Tokenizer::open`]; a
    /// device that cannot be selected; weights or a tokenizer of another model.
    pub fn open(folder: &Path, options: EmbedderOptions) -> Result<Self> {
        let settings = Config::load()?;
        let selected = select::select(options.device.as_deref(), &settings)?;
        let mut embedder = Embedder::on(selected.open(&settings)?, folder, &options)?;
        embedder.plans.rewrite = settings.rewrite;
        embedder.texts = match selected.info.kind {
            DeviceKind::Cpu | DeviceKind::Software => 1,
            _ => TEXTS,
        };
        embedder.selector = selected.selector;
        Ok(embedder)
    }

    /// Opens an embedder on a device that is already open; the options' device is ignored. Its
    /// steps have one text.
    ///
    /// # Errors
    /// As [`Embedder::open`].
    pub fn on(device: Arc<dyn Device>, folder: &Path, options: &EmbedderOptions) -> Result<Self> {
        let mut config = EncoderConfig::open(folder)?;
        config.pooling = options.pooling.unwrap_or(config.pooling);
        config.normalize = options.normalize.unwrap_or(config.normalize);
        let tokenizer = Tokenizer::open(folder)?;
        let checkpoint = check_weights(&config, Checkpoint::open(folder)?)?;
        let (own, vocab) = (tokenizer.vocab(), config.network.vocab);
        if own > vocab {
            return Err(Error::misuse(
                format!("the tokenizer has {own} tokens, the model only {vocab}"),
                "use the tokenizer.json that belongs to the model",
            ));
        }
        Ok(Embedder {
            selector: device.capabilities().name.clone(),
            plans: Plans::new(device, options.plans.clone()),
            texts_to_tokens: TextEncoder {
                tokenizer,
                max_tokens: config.max_tokens,
                truncate: options.truncate,
            },
            config,
            checkpoint,
            texts: 1,
            active: None,
        })
    }

    /// Sets the number of texts per step, at least one. Larger steps take less time per text on
    /// devices with slow launches.
    #[must_use]
    pub fn texts_per_step(mut self, texts: usize) -> Self {
        self.texts = texts.max(1);
        self.active = None;
        self
    }

    /// Returns the encoder.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Returns the tokenizer of its texts.
    pub fn text_encoder(&self) -> &TextEncoder {
        &self.texts_to_tokens
    }

    /// Returns the string that selects its device.
    pub fn device(&self) -> &str {
        &self.selector
    }

    /// Returns the number of components of an embedding.
    pub fn dim(&self) -> usize {
        self.config.network.dim
    }

    /// Computes the embeddings of texts, `dim` numbers each.
    ///
    /// # Errors
    /// As [`TextEncoder::tokens`] and [`Embedder::embed_tokens`].
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let encoder = &self.texts_to_tokens;
        let tokens: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| encoder.tokens(text.as_ref()))
            .collect::<Result<_>>()?;
        self.embed_tokens(&tokens)
    }

    /// Computes the embeddings of tokenized texts. Texts of about the same length share a step, regardless of the order
    /// of the texts.
    ///
    /// # Errors
    /// [`Error::InvalidUse`]: a text without tokens, with too many tokens, or with one that the
    /// model does not have; a step that fails.
    pub fn embed_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let (most, vocab) = (self.config.max_tokens, self.config.network.vocab);
        for tokens in texts {
            if tokens.is_empty() || tokens.len() > most {
                return Err(Error::misuse(
                    format!("a text of {} tokens", tokens.len()),
                    format!("expected 1 to {most} tokens"),
                ));
            }
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
                return Err(Error::misuse(
                    format!("token {token} is not in the model's vocabulary of {vocab}"),
                    "use the model's own tokenizer",
                ));
            }
        }
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| texts[i].len());
        let mut found = vec![Vec::new(); texts.len()];
        for together in order.chunks(self.texts) {
            let longest = together.iter().map(|&i| texts[i].len()).max().unwrap_or(0);
            let batch: Vec<&[u32]> = together.iter().map(|&i| &*texts[i]).collect();
            let numbers = self.step(&batch, longest)?;
            for (&i, vector) in together.iter().zip(numbers.chunks_exact(self.config.network.dim)) {
                found[i] = self.finished(vector);
            }
        }
        Ok(found)
    }

    /// Creates the session with steps of all lengths in advance, so that no text has to wait for a new session.
    ///
    /// # Errors
    /// A plan that cannot be made, or a device without the memory.
    pub fn prepare(&mut self) -> Result<()> {
        let mut shapes = vec![self.batch(1)];
        while let Some(last) = shapes.last().filter(|last| last.rows < self.config.max_tokens) {
            shapes.push(self.batch(last.rows + 1));
        }
        self.need(&shapes)
    }

    /// Returns the step for texts of this number of tokens.
    fn batch(&self, tokens: usize) -> Batch {
        let rows = tokens.next_power_of_two().max(MIN_ROWS).min(self.config.max_tokens);
        Batch {
            texts: self.texts,
            rows,
        }
    }

    /// Ensures that the session has steps of these shapes.
    fn need(&mut self, shapes: &[Batch]) -> Result<()> {
        let mut all: Vec<Batch> = self.active.iter().flat_map(|a| &a.steps).map(|s| s.shape).collect();
        let known = all.len();
        for shape in shapes {
            if !all.contains(shape) {
                all.push(*shape);
            }
        }
        if all.len() > known {
            // The old session is dropped before the new one allocates its memory.
            self.active = None;
            let mut joined = self.plans.session(&self.config.network, &all)?;
            self.checkpoint.load_into(&mut joined.session)?;
            self.active = Some(joined);
        }
        Ok(())
    }

    /// Runs one step; returns the sums of the rows of each text.
    fn step(&mut self, texts: &[&[u32]], longest: usize) -> Result<Vec<f32>> {
        let shape = self.batch(longest);
        let Batch { texts: room, rows } = shape;
        let mut tokens = vec![0u32; room * rows];
        let mut mask = vec![0u32; room * rows];
        let mut weights = vec![0.0f32; room * rows];
        for (i, text) in texts.iter().enumerate() {
            let own = i * rows..i * rows + text.len();
            tokens[own.clone()].copy_from_slice(text);
            mask[own.clone()].fill(1);
            match self.config.pooling {
                Pooling::Mean => weights[own].fill(1.0 / text.len() as f32),
                Pooling::Cls => weights[own.start] = 1.0,
            }
        }
        self.need(&[shape])?;
        let Some(SharedSession { session, steps }) = &mut self.active else {
            return Err(Error::misuse("there is no session", ""));
        };
        let step = steps.iter().find(|step| step.shape == shape);
        let step = step.ok_or_else(|| Error::misuse("the session has no such step", ""))?;
        session.try_set_input_u32(&step.input(TOKENS), &tokens)?;
        session.try_set_input_u32(&step.input(ATTENTION_MASK), &mask)?;
        session.try_set_input(&step.input(POOLING_WEIGHTS), &weights)?;
        step.run(session)?;
        step.read(session, 0, texts.len() * self.config.network.dim)
    }

    /// Returns a vector normalized to length 1, if the configuration requires it.
    fn finished(&self, vector: &[f32]) -> Vec<f32> {
        /// Minimum divisor, as in PyTorch's `normalize`: shorter vectors do not reach the length 1.
        const SMALLEST: f64 = 1e-12;
        if !self.config.normalize {
            return vector.to_vec();
        }
        let length = vector
            .iter()
            .map(|&x| f64::from(x) * f64::from(x))
            .sum::<f64>()
            .sqrt()
            .max(SMALLEST);
        vector.iter().map(|&x| (f64::from(x) / length) as f32).collect()
    }
}

/// Renames the weights to the names of parameters, and checks that they are those of the encoder.
///
/// # Errors
/// As [`Checkpoint::check_model`].
pub(crate) fn check_weights(config: &EncoderConfig, checkpoint: Checkpoint) -> Result<Checkpoint> {
    let checkpoint = checkpoint.renamed(|name| config::parameter_name(name, config.is_distilled))?;
    checkpoint.check_layers(config.network.layers)?;
    checkpoint.check_graph(&config.network.embedding_graph(1, 1))?;
    Ok(checkpoint)
}

impl std::fmt::Debug for Embedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedder")
            .field("config", &self.config)
            .field("device", &self.selector)
            .finish_non_exhaustive()
    }
}

/// Checks that all numbers of vectors are finite. They may not be if a file is damaged, or if a sum overflows.
///
/// # Errors
/// NaN or infinity in a vector.
pub fn check_vectors(vectors: &[Vec<f32>]) -> Result<()> {
    if vectors.iter().flatten().all(|x| x.is_finite()) {
        return Ok(());
    }
    Err(Error::misuse(
        "the vector of a text contains NaN or infinity",
        "check the model's weights; `step_debug` finds the first operator with a result that is not finite",
    ))
}
