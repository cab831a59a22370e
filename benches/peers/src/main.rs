//! The same work in Meganeura and in other frameworks, in one run: contestants take turns, so that a machine that is
//! shared is as slow for each. Nothing is timed before all of them have given the same results.

mod contest;
mod language;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// SmolLM2-135M with random weights reads 128 tokens; logits are those of the last.
    Prefill,
    /// The same model makes one token behind 128 that are cached.
    Decode,
    /// From nothing to the first token after 16, with weights read from a file and plans that are cached.
    FirstToken,
}

/// Compares frameworks on the CPU.
#[derive(Debug, Parser)]
struct Args {
    /// What to compare; everything by default.
    #[arg(value_enum)]
    work: Vec<Work>,

    /// Threads of every contestant.
    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// How often each contestant gets its turn.
    #[arg(long, default_value_t = 15)]
    turns: usize,

    /// Keep the checkpoint with random weights in this folder, and use it if it is there.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", args.threads.to_string()) };
    let temporary = tempfile::tempdir()?;
    let folder = args
        .checkpoint
        .clone()
        .unwrap_or_else(|| temporary.path().join("model"));
    language::checkpoint(&folder)?;
    let all = Work::value_variants();
    for &work in if args.work.is_empty() { all } else { &args.work } {
        match work {
            Work::Prefill => language::prefill(&folder, args.threads)?.run(args.turns),
            Work::Decode => language::decode(&folder, args.threads)?.run(args.turns),
            Work::FirstToken => language::first_token(&folder, args.threads)?.run(args.turns),
        }
    }
    Ok(())
}
