//! Comparison of the same workloads in Meganeura and in other frameworks. Candidates run in turns in one run, so that
//! other load on the machine slows all of them equally. Times are measured only after all candidates have returned the
//! same results.

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
use meganeura::builder::Builder;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, Mode, Session, Update, select};
use problem::Problem;
use training::Network;

/// Workload to compare.
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
    /// Prefill of 128 tokens by SmolLM2-135M with random weights, with the logits of the last token.
    Prefill,
    /// Decoding of one token after 128 cached tokens, by the same model.
    Decode,
    /// Training step of the same model, with a sequence of 128 tokens.
    Train,
    /// Time from opening the checkpoint to the first token after a prompt of 16, with cached plans.
    FirstToken,
    /// Inference of public ONNX models, compared with ONNX Runtime; needs `--models`.
    Public,
}

impl Workload {
    /// Returns true if the workload needs the checkpoint of the language model.
    fn is_language(self) -> bool {
        matches!(
            self,
            Workload::Prefill | Workload::Decode | Workload::Train | Workload::FirstToken
        )
    }
}

/// Candidates and settings of a run.
#[derive(Debug)]
struct Setup {
    /// Number of threads of every candidate.
    threads: usize,
    /// Devices of Meganeura in addition to its CPU backend.
    devices: Vec<String>,
    /// Parts of the names of other frameworks to compare; all if empty.
    only: Vec<String>,
}

/// Device of Meganeura in a precision, as a candidate.
struct Entrant {
    name: String,
    tolerance: f32,
    device: Arc<dyn Device>,
    precision: Precision,
}

impl Entrant {
    /// Returns a builder of sessions in this precision, independent of the device's default.
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

/// Factor of the tolerance if matmuls round their operands to `f16`.
const ROUNDED: f32 = 10.0;

impl Setup {
    /// Returns Meganeura's candidates: the CPU backend (the reference for all candidates), and the requested
    /// devices, whose results may differ by `tolerance`. Devices that are faster in mixed precision are also added in
    /// that precision.
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

    /// Returns true if the command line selects another framework.
    fn wants(&self, candidate: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| candidate.contains(part.as_str()))
    }
}

/// Compares Meganeura with other frameworks: candle, and burn and tract if this program is built with the features of
/// their names; PyTorch (eager, compiled, with reduced overhead) and ONNX Runtime if they are installed for python3, or
/// for the interpreter in MEGANEURA_PEERS_PYTHON. All of them run on the CPU. With further features, burn also runs on
/// a GPU.
#[derive(Debug, Parser)]
struct Args {
    /// Workloads to compare [default: all]
    #[arg(value_enum)]
    workload: Vec<Workload>,

    /// Number of threads of every candidate.
    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// Number of turns of each candidate.
    #[arg(long, default_value_t = 15)]
    turns: usize,

    /// Devices of Meganeura to compare in addition to its CPU backend, except in workloads of language models.
    #[arg(long, value_name = "SEL", value_delimiter = ',')]
    device: Vec<String>,

    /// Compare only the other frameworks whose names contain one of these texts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,

    /// Folder for the checkpoint with random weights, which later runs use again.
    #[arg(long)]
    checkpoint: Option<PathBuf>,

    /// Folder of the models for `public`, which scripts/verify-external/onnx_public_models.py fills.
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
    // CPUs need no warm-up of their clock.
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
