//! What commands of language models share.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meganeura::Result;
use meganeura::llm::{Generator, GeneratorOptions, Sampling, Speed, WeightStorage, hub};

use crate::output::text;

/// Options of a model and of how it goes on.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// Folder of a checkpoint in Hugging Face's layout (config.json, safetensors files and tokenizer.json), or a GGUF file.
    /// With the feature `hub` also a name there, such as HuggingFaceTB/SmolLM2-135M, which is downloaded.
    #[arg(long, value_name = "DIR|FILE.gguf")]
    model: PathBuf,

    /// Folder of LoRA adapters in PEFT's layout, which are merged into the model.
    #[arg(long, value_name = "DIR")]
    lora: Option<PathBuf>,

    /// Most tokens to generate [default: 128, or as many as the model's context has room for]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// 0 takes the most likely token; higher ones make unlikely ones likelier.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Only so many of the most likely tokens.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Only the most likely tokens that have this probability together.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Only tokens that are at least this fraction as likely as the most likely one.
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Above 1 makes tokens that there are already less likely.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,

    /// Seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Rows of the key-value cache: a prompt and what follows it. What is needed, at least 512, by default.
    #[arg(long, value_name = "ROWS")]
    cache: Option<usize>,

    /// Tokens of a piece in which prompts are read.
    #[arg(long, value_name = "ROWS", default_value_t = 64)]
    prefill_rows: usize,

    /// How weights are stored on the device: 32 or 16 bits, or 8 or 4 bits with a scale for 32 weights. As a GGUF file
    /// stores most of them by default, else f32.
    #[arg(long, value_name = "f32|f16|q8|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Make plans anew instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

pub(super) fn storage(name: &str) -> std::result::Result<WeightStorage, String> {
    let known = || WeightStorage::ALL.map(WeightStorage::name).join(", ");
    WeightStorage::from_name(name).ok_or_else(|| format!("there are {}", known()))
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
        }
    }

    /// The folder of the model.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        hub::locate(&self.model)
    }

    /// The model with a cache of so many rows, or of those that were asked for.
    pub(super) fn generator(&self, folder: &Path, context: usize, needed: usize) -> Result<Generator> {
        const LEAST: usize = 512;
        // Powers of two, so that prompts of similar lengths have one plan.
        let usual = needed.checked_next_power_of_two().unwrap_or(needed).max(LEAST);
        let options = GeneratorOptions {
            device: self.device.clone(),
            capacity: Some(self.cache.unwrap_or(usual.min(context))),
            prefill_rows: self.prefill_rows,
            adapters: self.lora.clone(),
            plans: if self.no_plan_cache { None } else { plans_of(folder) },
            weights: self.weights,
        };
        Generator::open(folder, options)
    }
}

/// Where the plans of a model are kept: a folder of its name in the user's cache folder, if there is one.
fn plans_of(model: &Path) -> Option<PathBuf> {
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
