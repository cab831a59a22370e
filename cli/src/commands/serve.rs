//! Command `meganeura serve`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use meganeura::Error;
use meganeura::llm::engine::DraftOptions;
use meganeura::llm::library::USUAL_CONTEXT;
use meganeura::llm::{CacheType, EmbedderOptions, EncoderConfig, EngineOptions, Pooling, WeightStorage};
use meganeura_serve::{CHECK_GRAMMARS, Server, ServerOptions};

use super::language::{cache_type, locate, plans_of, shown_name, storage};
use super::{Outcome, loading_bar};
use crate::output::notice;

/// Options of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint folder in Hugging Face's layout (config.json, safetensors files, tokenizer.json), GGUF file, or a name from
    /// `meganeura models`. An encoder of the BERT family is served for embeddings. With the feature `hub`, a name on the Hugging
    /// Face Hub, such as HuggingFaceTB/SmolLM2-135M, is downloaded.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    model: PathBuf,

    /// Name of the model in requests [default: the value of --model if it is a name, else that of the folder or file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Reject requests for another model name with HTTP 404, instead of accepting any name.
    #[arg(long)]
    strict_model: bool,

    /// IP address to listen on. An address that other machines can reach needs --api-key or --no-auth.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port to listen on; 0 selects a free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,

    /// API key that requests must send as `Authorization: Bearer KEY`. Prefer the environment variable: other users can
    /// see the options of a process.
    #[arg(long, value_name = "KEY", env = "MEGANEURA_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Allow an address that other machines can reach without an API key.
    #[arg(long, conflicts_with = "api_key")]
    no_auth: bool,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Storage type of all weight matrices: f32, f16, or blocks of 8, 6, 5 or 4 bits with scales (q6 is Q6_K, q5_1 is Q5_K
    /// and q4_1 is Q4_K of GGUF files) [default: for GGUF files the type of each matrix in the file, else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Storage type of the KV cache. f16 takes half of the memory, with a relative rounding error of at most 2^-11. q8 takes
    /// about a quarter: blocks of 32 integers of 8 bits with an f16 scale, and an error of 1/254 of the largest number of a
    /// block. It needs keys with a multiple of 64 numbers.
    #[arg(long, value_name = "f32|f16|q8", value_parser = cache_type, default_value = "f32")]
    cache_type: CacheType,

    /// LoRA adapter in PEFT's layout, with any --weights. DIR applies to all requests. NAME=DIR, which may be repeated, applies to
    /// requests for the model `MODEL:NAME`.
    #[arg(long, value_name = "[NAME=]DIR")]
    lora: Vec<PathBuf>,

    /// Maximum number of sequences that are computed in one step.
    #[arg(long, value_name = "N", default_value_t = 8)]
    sequences: usize,

    /// Maximum length of a sequence in tokens, prompt included [default: 4096, or the model's context if that is
    /// shorter]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,

    /// Size of the KV cache in tokens, for all sequences together [default: half of --sequences times --context, at
    /// least --context]
    #[arg(long, value_name = "TOKENS")]
    cache: Option<usize>,

    /// Maximum number of tokens per step (prefill chunk) [default: 512 on devices with their own memory, else 64; at least
    /// --sequences]
    #[arg(long, value_name = "TOKENS")]
    step_tokens: Option<usize>,

    /// Speculative decoding: number of draft tokens per sequence and step. --draft-model proposes them, otherwise they
    /// are copied from earlier text of the sequence. Results do not change [default: 0, or 4 with --draft-model]
    #[arg(long, value_name = "N")]
    draft_tokens: Option<usize>,

    /// Draft model for speculative decoding: a smaller model with the same vocabulary, given like --model.
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    draft_model: Option<PathBuf>,

    /// Disable the prefix cache, which reuses the KV cache of equal prompt prefixes.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Ignore the sampling values of generation_config.json, which are otherwise the defaults of requests.
    #[arg(long)]
    ignore_generation_config: bool,

    /// Parse text such as `<|im_end|>` in messages as special tokens. By default it stays text, so that users cannot
    /// forge turns of the conversation.
    #[arg(long)]
    special_tokens_in_messages: bool,

    /// Pooling of an encoder: mean of all tokens, or the first token [default: the model's setting, else mean]
    #[arg(long, value_name = "mean|cls", value_parser = clap::value_parser!(Pooling))]
    pooling: Option<Pooling>,

    /// Truncate texts that exceed an encoder's maximum length, instead of rejecting the request.
    #[arg(long)]
    truncate: bool,

    /// Maximum number of queued sequences; further requests get HTTP 429. A request for N choices queues N sequences.
    /// For encoders, each request counts once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,

    /// Maximum time of a request, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    timeout: u64,

    /// Maximum time to receive the headers of a request, and each part of its body, in seconds; a whole body may take
    /// twice as long.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    read_timeout: u64,

    /// Maximum number of connections. At this limit, a new connection replaces one that waits for data from its client.
    #[arg(long, value_name = "N", default_value_t = 256)]
    connections: usize,

    /// Maximum number of connections per IP address [default: --connections]
    #[arg(long, value_name = "N")]
    connections_per_address: Option<usize>,

    /// Maximum time to finish running requests after Ctrl-C or SIGTERM, in seconds. A second signal cancels them at
    /// once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=MAX_SECONDS))]
    shutdown_timeout: u64,

    /// Compile plans at each start, instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// Number of seconds of a year.
const MAX_SECONDS: u64 = 31_536_000;

/// Default number of draft tokens of a draft model.
const DRAFT_TOKENS: usize = 4;

pub(crate) fn run(args: &Args) -> Outcome {
    let model = locate(&args.model)?;
    let is_encoder = EncoderConfig::is_one(&model);
    let context = if is_encoder {
        args.context
    } else {
        let longest = meganeura::llm::ModelConfig::open(&model)?.context;
        Some(args.context.unwrap_or(longest.min(USUAL_CONTEXT)))
    };
    let Adapters { for_all, named } = adapters(&args.lora)?;
    let plans_of = |model: &Path| if args.no_plan_cache { None } else { plans_of(model) };
    let plans = plans_of(&model);
    let draft_model = match &args.draft_model {
        None => None,
        Some(_) if is_encoder => {
            return Err(Error::misuse("an encoder cannot use a draft model", "leave --draft-model out").into());
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
        strict_model: args.strict_model,
        adapters: named,
        special_tokens_in_messages: args.special_tokens_in_messages,
        ignore_generation_config: args.ignore_generation_config,
        read_timeout: Duration::from_secs(args.read_timeout),
        max_connections: args.connections,
        max_connections_per_address: args.connections_per_address.unwrap_or(args.connections),
        address: args.host,
        port: args.port,
        api_key: args.api_key.clone(),
        no_auth: args.no_auth,
        queue: args.queue,
        request_timeout: Duration::from_secs(args.timeout),
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
        grammar_checker: own_program(),
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
            adapters: for_all,
            named_adapters: Vec::new(),
            weights: args.weights,
            cache_type: args.cache_type,
            observer: loading_bar::observer(),
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
    crate::memory::return_after_peaks();
    server.run_until_signal()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of this program.
fn own_program() -> Option<PathBuf> {
    // It stays valid if the file is replaced by a new version.
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Some(link.to_owned())
    } else {
        std::env::current_exe().ok()
    }
}

/// Checks grammars if a server started this process for that purpose. Returns the exit status, or `None` in other processes.
pub(crate) fn check_grammars() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != CHECK_GRAMMARS || arguments.next().is_some() {
        return None;
    }
    // The model comes first: twelve of these processes leave it almost half of two processors. But a busy model leaves one of them a sixth
    // of a processor, so that usual schemas do not wait for seconds.
    // SAFETY: the call has no preconditions; a failure leaves the priority as it is.
    #[cfg(unix)]
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) };
    // The server reports a process that ends early.
    let checked = meganeura_serve::check_grammars(std::io::stdin(), std::io::stdout());
    Some(if checked.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Adapters of `--lora`.
#[derive(Default)]
struct Adapters {
    /// Folder of the adapter for all requests.
    for_all: Option<PathBuf>,
    /// Names and folders of the adapters that requests select.
    named: Vec<(String, PathBuf)>,
}

fn adapters(given: &[PathBuf]) -> Result<Adapters, Error> {
    let Adapters { mut for_all, mut named } = Adapters::default();
    for value in given {
        let text = value.to_string_lossy();
        match text.split_once('=') {
            // An existing folder whose name contains the sign is a folder.
            Some((name, folder)) if !value.exists() => named.push((name.to_owned(), PathBuf::from(folder))),
            _ if for_all.is_none() => for_all = Some(value.clone()),
            _ => {
                return Err(Error::misuse(
                    "expected one --lora for all requests, found several",
                    "give each adapter a name: --lora NAME=DIR",
                ));
            }
        }
    }
    if for_all.is_some() && !named.is_empty() {
        return Err(Error::misuse(
            "expected adapters with names or one for all requests, found both",
            "give each adapter a name: --lora NAME=DIR",
        ));
    }
    Ok(Adapters { for_all, named })
}
