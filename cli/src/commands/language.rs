//! Options and helpers shared by the commands of language models.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meganeura::files::place_of;
use meganeura::llm::hub::PullRequest;
use meganeura::llm::library::{self, ModelFolders, NameError};
use meganeura::llm::{CacheType, Generator, GeneratorOptions, Sampling, Speed, WeightStorage, hub};
use meganeura::{Error, Result};

use super::{loading_bar, pull};
use crate::output::text;

/// Options of a model and of sampling.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// Checkpoint folder in Hugging Face's layout (config.json, safetensors files, tokenizer.json), a GGUF file, or a
    /// name from `meganeura models`, such as HuggingFaceTB/SmolLM2-135M or SmolLM2-135M. With the feature `hub`, a name
    /// on the Hugging Face Hub is downloaded.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    model: PathBuf,

    /// Folder of a LoRA adapter in PEFT's layout, with any --weights. The adapter is merged into f32 weights; with
    /// other types, it is computed separately.
    #[arg(long, value_name = "DIR")]
    lora: Option<PathBuf>,

    /// Maximum number of tokens to generate [default: 128, or less if the model's context is full earlier]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Sampling temperature; 0 selects greedy decoding.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Sample only from this number of most likely tokens.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Sample only from the most likely tokens whose probabilities add up to P (nucleus sampling).
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Sample only from tokens whose probability is at least P times the maximum.
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Repetition penalty; values above 1 make tokens of the prompt and the output so far less likely.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,

    /// Seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Size of the KV cache in tokens, prompt included [default: as needed, at least 512]
    #[arg(long, value_name = "ROWS")]
    cache: Option<usize>,

    /// Maximum number of tokens per prefill step (prefill chunk) [default: 64; 512 for longer prompts on devices with
    /// their own memory]
    #[arg(long, value_name = "ROWS")]
    prefill_rows: Option<usize>,

    /// Storage type of all weight matrices: f32, f16, or blocks of 8, 6, 5 or 4 bits with scales (q6 is Q6_K, q5_1 is
    /// Q5_K and q4_1 is Q4_K of GGUF files) [default: for GGUF files the type of each matrix in the file, else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Storage type of the KV cache. f16 takes half of the memory, with a relative rounding error of at most 2^-11. q8 takes
    /// about a quarter: blocks of 32 integers of 8 bits with an f16 scale, and an error of 1/254 of the largest number of a
    /// block. It needs keys with a multiple of 64 numbers.
    #[arg(long, value_name = "f32|f16|q8", value_parser = cache_type, default_value = "f32")]
    cache_type: CacheType,

    /// Compile plans at each start, instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// Returns the folder or file of a model: an existing path, or otherwise the model with this name on this machine. A name on the
/// Hub is downloaded if the program supports it. If the model is missing, the error contains instructions to get it.
pub(super) fn locate(model: &Path) -> Result<PathBuf> {
    // If a save was interrupted between two renames, the model has another name.
    let place = place_of(model);
    if place != model || model.exists() {
        return Ok(place);
    }
    let name = model.to_string_lossy();
    let can_be_pulled = cfg!(feature = "hub") && hub::name(model).is_some();
    let found = if library::is_name(&name) {
        library::find(&name, &ModelFolders::from_environment())
    } else {
        Err(NameError::Unknown {
            name: name.to_string(),
            closest: String::new(),
        })
    };
    match found {
        Ok(path) => {
            log::info!("'{name}' is the model in '{}'", path.display());
            Ok(path)
        }
        Err(NameError::Unknown { .. } | NameError::Broken { .. }) if can_be_pulled => {
            Ok(pull::with_bars(&PullRequest::parse(&name)?)?)
        }
        Err(NameError::Unknown { closest, .. }) => Err(unknown(&name, &closest)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the display name of a model: the requested name, unless it is a path.
pub(super) fn shown_name(model: &Path) -> Option<String> {
    let is_path = model.exists() || place_of(model) != model;
    (!is_path).then(|| model.to_string_lossy().into_owned())
}

/// Returns the error for a model that was not found.
fn unknown(name: &str, closest: &str) -> Error {
    const EXAMPLE: &str = "HuggingFaceTB/SmolLM2-135M";
    let own = name.rsplit('/').next().unwrap_or_default();
    let on_hub = match own {
        _ if hub::name(Path::new(name)).is_some() => name.to_owned(),
        // The family of the examples in the documentation.
        own if own.starts_with("SmolLM2-") && !own.ends_with(".gguf") => format!("HuggingFaceTB/{own}"),
        _ => EXAMPLE.to_owned(),
    };
    let folder = on_hub.rsplit('/').next().unwrap_or_default();
    let by_itself = if cfg!(feature = "hub") {
        format!("or `meganeura pull {on_hub}` downloads it, then give --model {on_hub}")
    } else {
        format!("or build with `--features hub`: then `meganeura pull {on_hub}` downloads it, as --model {on_hub} does")
    };
    let close = if closest.is_empty() {
        String::new()
    } else {
        format!(", and no model with that name on this machine; the closest names are {closest}")
    };
    Error::misuse(
        format!("there is no model at '{name}'{close}"),
        format!(
            "give a checkpoint folder (config.json, *.safetensors and tokenizer.json), a GGUF file, or a name that \
             `meganeura models` lists. `hf download {on_hub} --local-dir {folder}` downloads a model from the \
             Hugging Face Hub (`pip install huggingface_hub` installs the command; SmolLM2-135M takes 270 MB), then \
             give --model {folder}; {by_itself}"
        ),
    )
}

pub(crate) fn storage(name: &str) -> std::result::Result<WeightStorage, String> {
    let known = || WeightStorage::ALL.map(WeightStorage::name).join(", ");
    WeightStorage::from_name(name).ok_or_else(|| format!("there are {}", known()))
}

pub(crate) fn cache_type(name: &str) -> std::result::Result<CacheType, String> {
    let known = || CacheType::ALL.map(CacheType::name).join(", ");
    CacheType::from_name(name).ok_or_else(|| format!("there are {}", known()))
}

/// Default maximum number of generated tokens.
const USUAL_TOKENS: usize = 128;

impl ModelArgs {
    /// Returns the maximum number of tokens to generate after a prompt, if `rows` rows can be cached.
    pub(super) fn most_tokens(&self, prompt: usize, rows: usize) -> usize {
        let room = rows.saturating_sub(prompt).max(1);
        self.max_tokens.unwrap_or(USUAL_TOKENS.min(room))
    }

    /// Returns true if a prompt leaves room for an answer: the requested tokens, or the beginning of an answer of default length.
    pub(super) fn fits(&self, prompt: usize, rows: usize) -> bool {
        const BEGINNING: usize = USUAL_TOKENS / 4;
        prompt.saturating_add(self.max_tokens.unwrap_or(BEGINNING)) <= rows
    }

    pub(super) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..Sampling::default()
        }
    }

    /// Returns the folder of the model.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        locate(&self.model)
    }

    /// Creates the generator with a cache of `needed` rows, or of the requested number.
    pub(super) fn generator(&self, folder: &Path, context: usize, needed: usize) -> Result<Generator> {
        const MIN_ROWS: usize = 512;
        // Powers of two, so that prompts of similar lengths share one plan.
        let usual = needed.checked_next_power_of_two().unwrap_or(needed).max(MIN_ROWS);
        let options = GeneratorOptions {
            device: self.device.clone(),
            capacity: Some(self.cache.unwrap_or(usual.min(context))),
            prefill_rows: self.prefill_rows,
            adapters: self.lora.clone(),
            plans: if self.no_plan_cache { None } else { plans_of(folder) },
            weights: self.weights,
            cache_type: self.cache_type,
            observer: loading_bar::observer(),
        };
        Generator::open(folder, options)
    }
}

/// Returns the folder of a model's plans: a folder with its name in the user's cache folder, if there is one.
pub(super) fn plans_of(model: &Path) -> Option<PathBuf> {
    let name = model.canonicalize().ok()?.file_name()?.to_owned();
    let plans = meganeura::files::cache_folder()?.join("plans").join(name);
    std::fs::create_dir_all(&plans).ok()?;
    Some(plans)
}

/// Prints a part of a text immediately.
pub(super) fn show(part: &str) -> io::Result<()> {
    text(part)?;
    io::stdout().flush()
}

/// Returns a summary of the speed of prefill and decode.
pub(super) fn summary(speed: &Speed) -> String {
    format!(
        "{} prompt tokens at {:.1} tokens/s, {} generated at {:.1} tokens/s",
        speed.prefill_tokens,
        speed.prefill_tokens_per_second(),
        speed.decode_tokens,
        speed.decode_tokens_per_second()
    )
}
