//! Measures a training step of a language model on the CPU: `step-time STEPS BATCH`, in a single
//! process or as a rank under `mpirun`, with BATCH rows over all ranks. The first rank prints the
//! median time of the steps, in milliseconds, after warm-up steps
//! that are not counted. `scripts/measure-ranks` compares.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use meganeura_core::distributed::{CommunicatorOptions, open};
// Links the backend, which registers itself.
use meganeura_cpu as _;
use meganeura_nn::models::{LlamaConfig, TARGETS, TOKENS, language_model};
use meganeura_nn::trainer::{TrainConfig, Trainer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROWS: usize = 128;
const VOCAB: usize = 512;
/// Number of warm-up steps.
const WARM_UP: usize = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [steps, batch] = &words[..] else {
        return Err("usage: step-time STEPS BATCH".into());
    };
    let (steps, batch): (usize, usize) = (steps.parse()?, batch.parse()?);
    let options = CommunicatorOptions::with_time_limit(Duration::from_secs(60));
    let communicator = open(meganeura_mpi::NAME, &options)?;
    let config = TrainConfig {
        batch_size: batch,
        features: TOKENS.into(),
        labels: TARGETS.into(),
        device: Some("cpu".into()),
        distributed: Some(communicator.clone()),
        ..TrainConfig::default()
    };
    let network = LlamaConfig {
        dim: 256,
        layers: 4,
        heads: 4,
        kv_heads: 4,
        hidden: 688,
        ..LlamaConfig::small(VOCAB)
    };
    let graph = |batch| language_model(batch, ROWS, |g, tokens| network.build(g, "").forward(g, tokens));
    let mut trainer = Trainer::new(graph, config)?;
    let local = trainer.config().local_batch_size();
    let tokens: Vec<u32> = (0..local * ROWS).map(|i| (i * 7919 % VOCAB) as u32).collect();
    let session = trainer.session_mut();
    session.try_set_input_u32(TOKENS, &tokens)?;
    session.try_set_input_u32(TARGETS, &tokens)?;
    let mut times = Vec::new();
    for step in 0..WARM_UP + steps {
        let start = Instant::now();
        session.try_step()?;
        session.try_wait()?;
        if step >= WARM_UP {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    if communicator.rank() == 0 {
        println!("{:.3}", times[times.len() / 2]);
    }
    Ok(())
}
