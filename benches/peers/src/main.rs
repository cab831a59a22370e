//! The same workload in Meganeura and in other frameworks, in one run: candidates take turns, so that a machine that is
//! shared is as slow for each. Nothing is timed before all of them have given the same results.

mod comparison;
mod images;
mod kernels;
mod language;
mod onnx;
mod problem;
mod public;
mod python;
mod training;
#[cfg(feature = "burn")]
mod with_burn;
#[cfg(feature = "tract")]
mod with_tract;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use meganeura::backend::Device;
use meganeura::build::Builder;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, Mode, Session, Update, select};
use problem::Problem;
use training::Network;

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Single calls: products, a perceptron, softmax, layer norm, GELU, a convolution.
    Kernels,
    /// Training steps of a perceptron, 784-128-10, with batches of 32 and of 512.
    Mlp,
    /// Training steps of a convolutional network, with a batch of 32 images of 28x28.
    Cnn,
    /// Inference of ResNet-50, an image of 224x224.
    Resnet50,
    /// SmolLM2-135M with random weights reads 128 tokens; logits are those of the last.
    Prefill,
    /// The same model makes one token behind 128 that are cached.
    Decode,
    /// The same model is trained for a step with a sequence of 128 tokens.
    Train,
    /// From nothing to the first token after 16, with weights read from a file and plans that are cached.
    FirstToken,
    /// Inference of public ONNX models beside ONNX Runtime, with the ratio of their times; needs `--models`.
    Public,
}

impl Workload {
    /// Whether it reads the checkpoint.
    fn is_language(self) -> bool {
        matches!(
            self,
            Workload::Prefill | Workload::Decode | Workload::Train | Workload::FirstToken
        )
    }
}

/// Who takes part, and how.
#[derive(Debug)]
struct Setup {
    /// Threads of every candidate.
    threads: usize,
    /// Devices of Meganeura beside its CPU backend.
    devices: Vec<String>,
    /// Parts of the names of candidates; all of them if there are none.
    only: Vec<String>,
}

/// A device of Meganeura as a candidate.
struct Entrant {
    name: String,
    tolerance: f32,
    device: Arc<dyn Device>,
    precision: Precision,
}

impl Entrant {
    /// What builds sessions in this precision, whatever is the default of the device.
    fn builder(self) -> Builder {
        let rewrite = RewriteConfig {
            precision: Some(self.precision),
            ..RewriteConfig::default()
        };
        Builder::on(self.device).rewrite(rewrite)
    }

    fn build(self, graph: &Graph, mode: Mode, update: Option<Update>) -> meganeura::Result<Session> {
        Ok(self.builder().mode(mode).maybe_optimizer(update).build(graph)?.0)
    }
}

/// How much further results may be off where products round their operands to `f16`.
const ROUNDED: f32 = 10.0;

impl Setup {
    /// Meganeura with its CPU backend, with which all others have to agree, and with the devices that are asked for, whose results
    /// may be off by `tolerance`; those that are faster in mixed precision once more in that.
    fn meganeura(&self, tolerance: f32) -> comparison::Result<Vec<Entrant>> {
        let mut entrants = vec![Entrant {
            name: "meganeura cpu".to_owned(),
            tolerance: 0.0,
            device: Arc::new(CpuDevice::new(self.threads)),
            precision: Precision::F32,
        }];
        for selector in &self.devices {
            let config = Config::load()?;
            let device = select::select(Some(selector), &config)?.open(&config)?;
            let mixed = device.has_mixed_precision().then(|| Entrant {
                name: format!("meganeura {selector} mixed"),
                tolerance: tolerance * ROUNDED,
                device: Arc::clone(&device),
                precision: Precision::Mixed,
            });
            entrants.push(Entrant {
                name: format!("meganeura {selector}"),
                tolerance,
                device,
                precision: Precision::F32,
            });
            entrants.extend(mixed);
        }
        Ok(entrants)
    }

    /// Whether a candidate other than Meganeura takes part.
    fn wants(&self, candidate: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| candidate.contains(part.as_str()))
    }
}

/// Compares frameworks: candle and, where this is built with the features of their names, burn and tract in this program; PyTorch
/// (eager, compiled, with little overhead) and ONNX Runtime through python3, or the interpreter that MEGANEURA_PEERS_PYTHON
/// names, where they are installed. All of them run on the CPU; burn, with its features for that, on a GPU as well.
#[derive(Debug, Parser)]
struct Args {
    /// Workloads to compare [default: all]
    #[arg(value_enum)]
    workload: Vec<Workload>,

    /// Threads of every candidate.
    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// Turns of each candidate.
    #[arg(long, default_value_t = 15)]
    turns: usize,

    /// Devices of Meganeura to compare in addition to its CPU backend, except in workloads of language models.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// Only other frameworks whose names contain one of these.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,

    /// Keep the checkpoint with random weights in this folder, and use it if it is there.
    #[arg(long)]
    checkpoint: Option<PathBuf>,

    /// The folder that scripts/verify-external/onnx_public_models.py has filled, for `public`.
    #[arg(long, value_name = "FOLDER")]
    models: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", args.threads.to_string()) };
    let setup = Setup {
        threads: args.threads,
        devices: args.device,
        only: args.only,
    };
    for (name, feature, built) in [
        ("burn flex", "burn", cfg!(feature = "burn")),
        ("burn wgpu", "burn-wgpu or burn-vulkan", cfg!(feature = "burn-wgpu")),
        ("tract", "tract", cfg!(feature = "tract")),
    ] {
        if !built && setup.wants(name) {
            println!("{name:28} left out: built without --features {feature}");
        }
    }
    let all = Workload::value_variants();
    let mut workloads = if args.workload.is_empty() {
        all.to_vec()
    } else {
        args.workload
    };
    if args.models.is_none() && workloads.len() == all.len() {
        println!("{:28} left out: --models names no folder", "public ONNX models");
        workloads.retain(|workload| *workload != Workload::Public);
    }
    // Of processors alone, none waits for a clock.
    let warms = !setup.devices.is_empty();
    let temporary = tempfile::tempdir()?;
    let folder = args.checkpoint.unwrap_or_else(|| temporary.path().join("model"));
    if workloads.iter().any(|workload| workload.is_language()) {
        language::checkpoint(&folder)?;
    }
    for workload in &workloads {
        let comparison = match workload {
            Workload::Kernels => {
                for problem in Problem::all() {
                    kernels::comparison(&problem, &setup)?.run(args.turns, warms);
                }
                continue;
            }
            Workload::Mlp => {
                training::comparison(Network::Mlp, 32, &setup)?.run(args.turns, warms);
                training::comparison(Network::Mlp, 512, &setup)?
            }
            Workload::Cnn => training::comparison(Network::Cnn, 32, &setup)?,
            Workload::Resnet50 => images::comparison(&setup)?,
            Workload::Prefill => language::prefill(&folder, &setup)?,
            Workload::Decode => language::decode(&folder, &setup)?,
            Workload::Train => language::train(&folder, &setup)?,
            Workload::FirstToken => language::first_token(&folder, &setup)?,
            Workload::Public => {
                let folder = args.models.as_deref().ok_or("`public` needs --models FOLDER")?;
                let mut ratios = Vec::new();
                for model in public::models(folder)? {
                    let timed = public::comparison(folder, &model, &setup)?.run(args.turns, warms);
                    ratios.extend(timed.iter().filter(|t| t.name == public::RUNTIME).map(|t| t.ratio));
                }
                println!("\n{}", public::summary(ratios));
                continue;
            }
        };
        comparison.run(args.turns, warms);
    }
    Ok(())
}
