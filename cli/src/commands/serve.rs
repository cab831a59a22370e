//! `meganeura serve`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use meganeura::Error;
use meganeura::llm::engine::DraftOptions;
use meganeura::llm::library::USUAL_CONTEXT;
use meganeura::llm::{CacheType, EmbedderOptions, EncoderConfig, EngineOptions, Pooling, WeightStorage};
use meganeura_serve::{Server, ServerOptions};

use super::Outcome;
use super::language::{cache_type, locate, plans_of, shown_name, storage};
use crate::output::notice;

/// Options of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a checkpoint in Hugging Face's layout (config.json, safetensors files and tokenizer.json), a GGUF file, or
    /// a name that `meganeura models` lists; an encoder of the BERT family is served for embeddings. With the feature `hub`, a
    /// name on the Hugging Face Hub, such as HuggingFaceTB/SmolLM2-135M, is downloaded.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    model: PathBuf,

    /// Name that requests give the model [default: the one given by --model, or that of the folder or file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Address to listen at. Another than the machine's own needs --api-key or --no-auth.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port to listen at; 0 for any that is free.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,

    /// Key that requests have to send as `Authorization: Bearer KEY`. Better set in the environment, as other users see options.
    #[arg(long, value_name = "KEY", env = "MEGANEURA_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Let everybody who reaches the address use the model.
    #[arg(long, conflicts_with = "api_key")]
    no_auth: bool,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Storage type of all matrices of weights: f32, f16, or blocks of 8, 6, 5 or 4 bits with scales (q6 is Q6_K, q5_1 is Q5_K
    /// and q4_1 is Q4_K of GGUF files) [default: as stored in a GGUF file, each matrix in its own type; else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Storage type of the cached keys and values: f16 takes half of the memory, and rounds each by at most 2^-11 of its magnitude.
    #[arg(long, value_name = "f32|f16", value_parser = cache_type, default_value = "f32")]
    cache_type: CacheType,

    /// Folder of LoRA adapters in PEFT's layout, which are merged into the model.
    #[arg(long, value_name = "DIR")]
    lora: Option<PathBuf>,

    /// Sequences that are computed at the same time at most.
    #[arg(long, value_name = "N", default_value_t = 8)]
    sequences: usize,

    /// Tokens of a sequence at most, the prompt included [default: 4096, or the model's context if that is shorter]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,

    /// Tokens that the key-value cache holds for all sequences together, at least those of one [default: half of --sequences times --context]
    #[arg(long, value_name = "TOKENS")]
    cache: Option<usize>,

    /// Tokens of a step at most: how much of a prompt is read beside sequences that generate.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    step_tokens: usize,

    /// Speculative decoding: draft tokens of each sequence that are checked in one step, guessed by --draft-model, else taken from
    /// what followed the same tokens before. The texts are the same [default: 0, or 4 with --draft-model]
    #[arg(long, value_name = "N")]
    draft_tokens: Option<usize>,

    /// A smaller model with the same vocabulary that guesses draft tokens, as --model has it.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    draft_model: Option<PathBuf>,

    /// Compute equal beginnings of prompts each time.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Of an encoder: how the rows of tokens become one vector [default: as the model says, else mean]
    #[arg(long, value_name = "mean|cls", value_parser = clap::value_parser!(Pooling))]
    pooling: Option<Pooling>,

    /// Of an encoder: truncate texts that are longer than it takes, instead of refusing them.
    #[arg(long)]
    truncate: bool,

    /// Sequences that may wait, of an encoder requests; others beyond get the status 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,

    /// Longest time of a request, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    timeout: u64,

    /// How long requests may go on after Ctrl-C or SIGTERM, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=MAX_SECONDS))]
    shutdown_timeout: u64,

    /// Build plans each time instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// Seconds of a year.
const MAX_SECONDS: u64 = 31_536_000;

/// Draft tokens of a draft model, unless another number is given.
const DRAFT_TOKENS: usize = 4;

pub(crate) fn run(args: &Args) -> Outcome {
    let model = locate(&args.model)?;
    let context = match EncoderConfig::is_one(&model) {
        true => None,
        false => {
            let longest = meganeura::llm::ModelConfig::open(&model)?.context;
            Some(args.context.unwrap_or(longest.min(USUAL_CONTEXT)))
        }
    };
    let plans_of = |model: &Path| if args.no_plan_cache { None } else { plans_of(model) };
    let plans = plans_of(&model);
    let draft_model = match &args.draft_model {
        None => None,
        Some(_) if context.is_none() => {
            return Err(Error::misuse("a draft model for an encoder", "give none: it generates no text").into());
        }
        Some(draft) => {
            let model = locate(draft)?;
            Some(DraftOptions {
                plans: plans_of(&model),
                model,
            })
        }
    };
    let options = ServerOptions {
        name: args.name.clone().or_else(|| shown_name(&args.model)),
        address: args.host,
        port: args.port,
        api_key: args.api_key.clone(),
        no_auth: args.no_auth,
        queue: args.queue,
        request_timeout: Duration::from_secs(args.timeout),
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
        engine: EngineOptions {
            device: args.device.clone(),
            sequences: args.sequences,
            context,
            cache_tokens: args.cache,
            step_tokens: args.step_tokens,
            draft_tokens: match (args.draft_tokens, &draft_model) {
                (Some(count), _) => count,
                (None, Some(_)) => DRAFT_TOKENS,
                (None, None) => 0,
            },
            draft_model,
            device_sampling: None,
            prefix_cache: !args.no_prefix_cache,
            plans: plans.clone(),
            adapters: args.lora.clone(),
            weights: args.weights,
            cache_type: args.cache_type,
        },
        embedder: EmbedderOptions {
            device: args.device.clone(),
            pooling: args.pooling,
            normalize: None,
            truncate: args.truncate,
            plans,
        },
        ..ServerOptions::new(&model)
    };
    let server = Server::bind(options)?;
    let address = server.address()?;
    let page = match (server.embeds(), server.chats()) {
        (true, _) => "",
        (false, true) => "chat page there, ",
        (false, false) => "completions only, as the model has no chat template; ",
    };
    notice(format_args!(
        "serving {} on {} at http://{address} ({page}API at http://{address}/v1); Ctrl-C ends it",
        server.model(),
        server.device()
    ))?;
    server.run_until_signal()?;
    Ok(ExitCode::SUCCESS)
}
