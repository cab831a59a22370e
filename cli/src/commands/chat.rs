//! Command `meganeura chat`.

use std::error::Error;
use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use meganeura::llm::{ChatTemplate, Generator, Message, ModelConfig, Request, Sampling, Tokenizer};

use super::Outcome;
use super::language::{ModelArgs, show, summary};
use crate::output::notice;

/// Options of `chat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// System prompt: instructions to the model, before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

/// Runs a conversation; the lines of standard input are the user's messages.
pub(crate) fn run(args: &Args) -> Outcome {
    let folder = args.model.folder()?;
    let config = ModelConfig::open(&folder)?;
    let tokenizer = Tokenizer::open(&folder)?;
    tokenizer.check(&config)?;
    let template = ChatTemplate::open(&folder)?;
    // The context is as long as the model and its memory allow: every turn continues after the last one.
    const USUAL: usize = 4096;
    let mut generator = args.model.generator(&folder, config.context, USUAL)?;
    let mut messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let special = tokenizer.special_tokens();
    let mut turn = 0;
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
        let mut prompt = tokenizer.encode_chat(&template.render(&messages, Some(&special))?)?;
        while !args.model.fits(prompt.len(), generator.capacity()) && forget(&mut messages) {
            notice("(the oldest turn was dropped, because the context is full)")?;
            prompt = tokenizer.encode_chat(&template.render(&messages, Some(&special))?)?;
        }
        let answer = answer(args, &mut generator, &tokenizer, &prompt, turn)?;
        turn += 1;
        messages.push(Message::new("assistant", answer));
    }
}

/// Removes the oldest turn, but not the system prompt. Returns true if there was a turn before the last one.
fn forget(messages: &mut Vec<Message>) -> bool {
    let first = usize::from(messages.first().is_some_and(|m| m.role == "system"));
    // A message and its answer.
    let is_old = messages.len() >= first + 3;
    if is_old {
        messages.drain(first..first + 2);
    }
    is_old
}

fn answer(
    args: &Args,
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    turn: u64,
) -> Result<String, Box<dyn Error>> {
    let sampling = args.model.sampling();
    let request = Request {
        max_tokens: args.model.most_tokens(prompt.len(), generator.capacity()),
        // Every turn uses other random numbers.
        sampling: Sampling {
            seed: sampling.seed.wrapping_add(turn),
            ..sampling
        },
        stop: None,
    };
    let mut generation = generator.generate(prompt, &request)?;
    let (mut stream, mut answer) = (tokenizer.stream(), String::new());
    for token in generation.by_ref() {
        let part = stream.push(token?)?;
        show(&part)?;
        answer.push_str(&part);
    }
    let rest = stream.finish()?;
    show(&rest)?;
    show("\n")?;
    log::info!("{}", summary(&generation.speed()));
    Ok(answer + &rest)
}
