//! The same work in Meganeura and in other frameworks, in one run: contestants take turns, so that a machine that is
//! shared is as slow for each. Nothing is timed before all of them have given the same results.

mod contest;
mod kernels;
mod language;
mod problem;
mod python;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use problem::Problem;

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// Single calls: products, a perceptron, softmax, layer norm, GELU, a convolution.
    Kernels,
    /// SmolLM2-135M with random weights reads 128 tokens; logits are those of the last.
    Prefill,
    /// The same model makes one token behind 128 that are cached.
    Decode,
    /// From nothing to the first token after 16, with weights read from a file and plans that are cached.
    FirstToken,
}

/// Compares frameworks on the CPU: candle in this program; PyTorch (eager, compiled, with little overhead) and
/// ONNX Runtime through python3, or the interpreter that MEGANEURA_PEERS_PYTHON names, where they are installed.
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

    /// Devices of Meganeura that do single calls, too, beside its CPU backend.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// Keep the checkpoint with random weights in this folder, and use it if it is there.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", args.threads.to_string()) };
    let all = Work::value_variants();
    let works = if args.work.is_empty() { all } else { &args.work };
    if works.contains(&Work::Kernels) {
        for problem in Problem::all() {
            kernels::contest(&problem, args.threads, &args.device)?.run(args.turns);
        }
    }
    if works.iter().all(|work| *work == Work::Kernels) {
        return Ok(());
    }
    let temporary = tempfile::tempdir()?;
    let folder = args
        .checkpoint
        .clone()
        .unwrap_or_else(|| temporary.path().join("model"));
    language::checkpoint(&folder)?;
    for &work in works {
        match work {
            Work::Kernels => {}
            Work::Prefill => language::prefill(&folder, args.threads)?.run(args.turns),
            Work::Decode => language::decode(&folder, args.threads)?.run(args.turns),
            Work::FirstToken => language::first_token(&folder, args.threads)?.run(args.turns),
        }
    }
    Ok(())
}
