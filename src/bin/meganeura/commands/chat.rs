//! `meganeura chat`.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use meganeura::llm::{ChatTemplate, Generator, Message, ModelConfig, Request, Tokenizer};

use super::Outcome;
use super::language::{ModelArgs, show, summary};

/// Options of `chat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What the model is told to be.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

/// A conversation: lines of standard input are what the user says.
pub(crate) fn run(args: &Args) -> Outcome {
    let folder = args.model.folder()?;
    let config = ModelConfig::open(&folder)?;
    let tokenizer = Tokenizer::open(&folder)?;
    tokenizer.check(&config)?;
    let template = ChatTemplate::open(&folder)?;
    // As long as the model and its memory allow: every turn reads on where the last one ended.
    const USUAL: usize = 4096;
    let mut generator = args.model.generator(&folder, config.context, USUAL)?;
    let mut messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let asks = io::stdin().is_terminal();
    let mut lines = io::stdin().lock().lines();
    loop {
        if asks {
            show("> ")?;
        }
        let Some(said) = lines.next().transpose()? else {
            return Ok(ExitCode::SUCCESS);
        };
        if said.trim().is_empty() {
            continue;
        }
        messages.push(Message::new("user", said));
        let prompt = tokenizer.encode_plain(&template.render(&messages)?)?;
        let answer = answer(args, &mut generator, &tokenizer, &prompt)?;
        messages.push(Message::new("assistant", answer));
    }
}

fn answer(args: &Args, generator: &mut Generator, tokenizer: &Tokenizer, prompt: &[u32]) -> meganeura::Result<String> {
    let shown = |part: &str| show(part).map_err(|e| meganeura::Error::misuse(format!("cannot print: {e}"), ""));
    let request = Request {
        max_tokens: args.model.max_tokens,
        sampling: args.model.sampling(),
        stop: None,
    };
    let mut generation = generator.generate(prompt, &request)?;
    let (mut stream, mut answer) = (tokenizer.stream(), String::new());
    for token in generation.by_ref() {
        let part = stream.push(token?)?;
        shown(&part)?;
        answer.push_str(&part);
    }
    let rest = stream.finish()?;
    shown(&rest)?;
    shown("\n")?;
    log::info!("{}", summary(&generation.speed()));
    Ok(answer + &rest)
}
