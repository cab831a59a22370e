//! Command `meganeura generate`.

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::llm::{Generator, ModelConfig, Request, Tokenizer};
use meganeura::nn::data::write_npy;
use serde_json::json;

use super::Outcome;
use super::language::{ModelArgs, show, summary};
use crate::commands::outputs::keep_inputs;
use crate::output::{line, notice};
use crate::signals;

/// Options of `generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Text to continue.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_ids")]
    prompt: Option<String>,

    /// Token ids to continue, instead of a text: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    prompt_ids: Option<Vec<u32>>,

    /// Write the logits of all prompt positions to a NumPy file.
    #[arg(long, value_name = "FILE.npy")]
    logits: Option<PathBuf>,

    /// Print one JSON object instead of the text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.json {
        // After a signal, the text so far is printed like a complete one.
        signals::watch("generation");
        signals::watch_termination();
    }
    let folder = args.model.folder()?;
    keep_inputs(&[("--logits", args.logits.as_deref())], [folder.as_path()])?;
    let config = ModelConfig::open(&folder)?;
    // Prompt ids need no tokenizer, but their text is shown if there is one.
    let needs_none = args.prompt_ids.is_some() && folder.is_dir() && !folder.join("tokenizer.json").exists();
    let tokenizer = if needs_none {
        None
    } else {
        let tokenizer = Tokenizer::open(&folder)?;
        tokenizer.check(&config)?;
        Some(tokenizer)
    };
    let prompt = match (&args.prompt_ids, &args.prompt, &tokenizer) {
        (Some(ids), ..) => ids.clone(),
        (None, Some(text), Some(tokenizer)) => tokenizer.encode(text)?,
        _ => Vec::new(),
    };
    let most = args.model.most_tokens(prompt.len(), config.context);
    let mut generator = args
        .model
        .generator(&folder, config.context, prompt.len().saturating_add(most))?;
    if let Some(path) = &args.logits {
        let logits = generator.prompt_logits(&prompt)?;
        write_npy(path, &[prompt.len(), config.network.vocab], &logits)?;
    }
    generate(args, &mut generator, tokenizer.as_ref(), &prompt)
}

fn generate(args: &Args, generator: &mut Generator, tokenizer: Option<&Tokenizer>, prompt: &[u32]) -> Outcome {
    let device = generator.device().to_owned();
    let request = Request {
        max_tokens: args.model.most_tokens(prompt.len(), generator.capacity()),
        sampling: args.model.sampling(),
        stop: None,
    };
    let mut generation = generator.generate(prompt, &request)?;
    let mut stream = tokenizer.map(Tokenizer::stream);
    let mut text = String::new();
    let mut shown = |part: String| {
        text.push_str(&part);
        if args.json { Ok(()) } else { show(&part) }
    };
    if let (Some(prompt), false) = (&args.prompt, args.json) {
        show(prompt)?;
    }
    let mut failed = None;
    for token in generation.by_ref() {
        let token = match token {
            Ok(token) => token,
            // With --json, the generated text is printed before the error.
            Err(error) if args.json => {
                failed = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        };
        shown(match &mut stream {
            Some(stream) => stream.push(token)?,
            None => format!("{token} "),
        })?;
        if signals::happened() {
            break;
        }
    }
    if let Some(stream) = stream {
        shown(stream.finish()?)?;
    }
    let speed = generation.speed();
    if args.json {
        line(json!({
            "prompt_ids": prompt,
            "token_ids": generation.tokens()[prompt.len()..],
            "text": tokenizer.map(|_| text),
            "prefill_tokens_per_second": speed.prefill_tokens_per_second(),
            "decode_tokens_per_second": speed.decode_tokens_per_second(),
            "device": device,
            "interrupted": signals::happened(),
            "error": failed.as_ref().map(ToString::to_string),
        }))?;
    } else {
        line("")?;
        notice(format_args!("{}, on {device}", summary(&speed)))?;
    }
    match failed {
        Some(error) => Err(error.into()),
        None if signals::happened() => Ok(ExitCode::from(signals::exit_code())),
        None => Ok(ExitCode::SUCCESS),
    }
}
