//! Options and helpers shared by the commands of language models.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meganeura::files::place_of;
use meganeura::llm::hub::PullRequest;
use meganeura::llm::library::{self, ModelFolders, NameError};
use meganeura::llm::{CacheType, Generator, GeneratorOptions, Sampling, Speed, WeightStorage, hub};
use meganeura::{Error, Result};

use super::pull;
use crate::output::text;

/// Options of a model and of sampling.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// Folder of a checkpoint in Hugging Face's layout (config.json, safetensors files and tokenizer.json), a GGUF file, or
    /// a name that `meganeura models` lists, such as HuggingFaceTB/SmolLM2-135M or SmolLM2-135M. With the feature `hub`, a
    /// name on the Hugging Face Hub is downloaded.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    model: PathBuf,

    /// Folder of LoRA adapters in PEFT's layout, with any --weights: merged into f32 weights, computed separately with other types.
    #[arg(long, value_name = "DIR")]
    lora: Option<PathBuf>,

    /// Maximum number of tokens to generate [default: 128, or as many as the model's context has room for]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Sampling temperature; with 0, decoding is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Sample from this number of the most likely tokens.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Sample from the most likely tokens whose total probability is P (nucleus sampling).
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Sample from tokens whose probability is at least P times that of the most likely one.
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Repetition penalty: values above 1 make tokens that occurred already less likely.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,

    /// Seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Rows of the KV cache, for the prompt and the generated tokens [default: what is needed, at least 512]
    #[arg(long, value_name = "ROWS")]
    cache: Option<usize>,

    /// Tokens per prefill step; longer prompts are split.
    #[arg(long, value_name = "ROWS", default_value_t = 64)]
    prefill_rows: usize,

    /// Storage type of all matrices of weights: f32, f16, or blocks of 8, 6, 5 or 4 bits with scales (q6 is Q6_K, q5_1 is Q5_K
    /// and q4_1 is Q4_K of GGUF files) [default: as stored in a GGUF file, each matrix in its own type; else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Storage type of the cached keys and values: f16 takes half of the memory, and rounds each by at most 2^-11 of its magnitude.
    #[arg(long, value_name = "f32|f16", value_parser = cache_type, default_value = "f32")]
    cache_type: CacheType,

    /// Build plans each time instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// The folder or file of a model: what there is at a path, else the model of that name on this machine, which is downloaded
/// if it is a name on the Hub and the program can do that. For one that is not there, the error says where to get it.
pub(super) fn locate(model: &Path) -> Result<PathBuf> {
    // A save that was killed between two renames has left it under another name.
    let place = place_of(model);
    if place != model || model.exists() {
        return Ok(place);
    }
    let name = model.to_string_lossy();
    let can_be_pulled = cfg!(feature = "hub") && hub::name(model).is_some();
    let found = match library::is_name(&name) {
        true => library::find(&name, &ModelFolders::from_environment()),
        false => Err(NameError::Unknown {
            name: name.to_string(),
            closest: String::new(),
        }),
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

/// The name that a model is shown by: the one that it was asked for by, where that is no path.
pub(super) fn shown_name(model: &Path) -> Option<String> {
    let is_path = model.exists() || place_of(model) != model;
    (!is_path).then(|| model.to_string_lossy().into_owned())
}

/// The error for a model that is nowhere.
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
    let by_itself = match cfg!(feature = "hub") {
        true => format!("or `meganeura pull {on_hub}` downloads it, then give --model {on_hub}"),
        false => {
            format!(
                "or build with `--features hub`: then `meganeura pull {on_hub}` downloads it, as --model {on_hub} does"
            )
        }
    };
    let close = match closest.is_empty() {
        true => String::new(),
        false => format!(", and none of that name on this machine; the closest names are {closest}"),
    };
    Error::misuse(
        format!("there is no model at '{name}'{close}"),
        format!(
            "give the folder of one (config.json, *.safetensors and tokenizer.json), a GGUF file, or a name that `meganeura models` lists. \
             `hf download {on_hub} --local-dir {folder}` gets one from the Hugging Face \
             Hub (`pip install huggingface_hub` has the command; SmolLM2-135M takes 270 MB), then give --model {folder}; \
             {by_itself}"
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

/// Tokens that are generated at most if nothing is said.
const USUAL_TOKENS: usize = 128;

impl ModelArgs {
    /// Tokens to generate at most behind a prompt, where so many rows may be cached.
    pub(super) fn most_tokens(&self, prompt: usize, rows: usize) -> usize {
        let room = rows.saturating_sub(prompt).max(1);
        self.max_tokens.unwrap_or(USUAL_TOKENS.min(room))
    }

    /// Whether a prompt leaves room for an answer: what was asked for, or a usual one's beginning.
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

    /// The folder of the model.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        locate(&self.model)
    }

    /// The model with a cache of so many rows, or of those that were asked for.
    pub(super) fn generator(&self, folder: &Path, context: usize, needed: usize) -> Result<Generator> {
        const MIN_ROWS: usize = 512;
        // Powers of two, so that prompts of similar lengths have one plan.
        let usual = needed.checked_next_power_of_two().unwrap_or(needed).max(MIN_ROWS);
        let options = GeneratorOptions {
            device: self.device.clone(),
            capacity: Some(self.cache.unwrap_or(usual.min(context))),
            prefill_rows: self.prefill_rows,
            adapters: self.lora.clone(),
            plans: if self.no_plan_cache { None } else { plans_of(folder) },
            weights: self.weights,
            cache_type: self.cache_type,
        };
        Generator::open(folder, options)
    }
}

/// Where the plans of a model are kept: a folder of its name in the user's cache folder, if there is one.
pub(super) fn plans_of(model: &Path) -> Option<PathBuf> {
    let name = model.canonicalize().ok()?.file_name()?.to_owned();
    let plans = meganeura::files::cache_folder()?.join("plans").join(name);
    std::fs::create_dir_all(&plans).ok()?;
    Some(plans)
}

/// Shows a part of a text at once.
pub(super) fn show(part: &str) -> io::Result<()> {
    text(part)?;
    io::stdout().flush()
}

/// How fast a prompt was read and its continuation generated.
pub(super) fn summary(speed: &Speed) -> String {
    format!(
        "{} tokens read at {:.1} tokens/s, {} generated at {:.1} tokens/s",
        speed.prefill_tokens,
        speed.prefill_tokens_per_second(),
        speed.decode_tokens,
        speed.decode_tokens_per_second()
    )
}
