//! Helpers for tests of adapters: random adapters for any model, and training on any number of ranks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meganeura_compiler::builder::Builder;
use meganeura_core::distributed::{Communicator, ThreadGroup};
use meganeura_core::random::SplitMix64;
use meganeura_llm::{Adapters, Checkpoint, ModelConfig, saving};
use meganeura_nn::data::Dataset;
use meganeura_nn::layers::{LoraConfig, LoraTargets};
use meganeura_nn::models::{LlamaConfig, StorageMap, TARGETS, TOKENS, language_model};
use meganeura_nn::trainer::{Schedule, SilentObserver, TrainConfig, Trainer};

use crate::transformers::device;

pub(crate) type Ranks = Option<Arc<dyn Communicator>>;

/// Tokens of a sequence.
const ROWS: usize = 16;
/// Sequences of a batch; divisible by 2 and 3.
const BATCH: usize = 6;

/// Writes random adapters of all layers of a model in the layout of PEFT.
pub(crate) fn random_adapters(model: &Path, seed: u64) -> tempfile::TempDir {
    let lora = LoraConfig {
        alpha: 6.0,
        targets: LoraTargets::ALL,
        ..LoraConfig::new(4)
    };
    let config = ModelConfig::open(model).expect("a configuration");
    let network = LlamaConfig {
        lora: Some(lora),
        ..config.network
    };
    let graph = language_model(1, 4, |g, tokens| network.build(g, "").forward(g, tokens));
    let (mut session, _) = Builder::on(device()).build(&graph).expect("a session");
    let mut rng = SplitMix64::new(seed);
    let mut views = session.plan().parameters();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    for view in views.iter().filter(|view| view.name.contains(".lora_")) {
        let values: Vec<f32> = (0..view.ty.numel()).map(|_| 0.4 * (rng.unit() as f32 - 0.5)).collect();
        session.set_parameter(&view.name, &values);
    }
    let folder = tempfile::tempdir().expect("a folder");
    saving::save_adapters(folder.path(), &mut session, &lora, "model").expect("saved");
    folder
}

/// Trains a model for two epochs, or only its adapters if there are any. Returns the losses of both epochs.
pub(crate) fn train(
    model: &Path,
    adapters: Option<&Path>,
    weights: StorageMap,
    ranks: Ranks,
    change: &dyn Fn(&mut TrainConfig),
) -> Vec<f64> {
    let tokens: Vec<u32> = (0..800_u32).map(|i| 5 + i * i % 31 + i % 7).collect();
    let data = Dataset::from_tokens("text", &tokens, ROWS, ROWS, 320).expect("valid");
    let adapters = adapters.map(|folder| Adapters::open(folder).expect("adapters"));
    let mut config = TrainConfig {
        epochs: 2,
        batch_size: BATCH,
        learning_rate: 0.01,
        schedule: Schedule::Constant,
        device: Some("cpu".into()),
        features: TOKENS.into(),
        labels: TARGETS.into(),
        distributed: ranks,
        ..TrainConfig::default()
    };
    change(&mut config);
    let network = LlamaConfig {
        lora: adapters.as_ref().map(|adapters| *adapters.config()),
        weights,
        ..ModelConfig::open(model).expect("a configuration").network
    };
    let batch = config.local_batch_size();
    let graph = language_model(batch, ROWS, |g, tokens| network.build(g, "").forward(g, tokens));
    let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
    let checkpoint = Checkpoint::open(model).expect("weights");
    checkpoint.load_into(trainer.session_mut()).expect("they fit");
    if let Some(adapters) = &adapters {
        adapters.load_into(trainer.session_mut()).expect("they fit");
    }
    let report = trainer.fit(&data, None, &mut SilentObserver).expect("trains");
    report.epochs.iter().map(|epoch| epoch.train_loss).collect()
}

/// Runs a function on all ranks of a group. All ranks must return the same.
pub(crate) fn on_ranks<T: Send + PartialEq>(size: usize, run: impl Fn(Ranks) -> T + Sync) -> T {
    let run = &run;
    std::thread::scope(|scope| {
        let group = ThreadGroup::new(size, Duration::from_secs(120)).into_iter();
        let ranks: Vec<_> = group.map(|rank| scope.spawn(move || run(Some(rank)))).collect();
        let mut ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "ranks of {size} differ");
        ranks.swap_remove(0)
    })
}

/// Compares losses by their relative distance.
#[track_caller]
pub(crate) fn assert_losses(what: &str, found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (f, w) in found.iter().zip(wanted) {
        assert!(
            (f / w - 1.0).abs() < tolerance,
            "{what}: expected {wanted:?}, found {found:?}"
        );
    }
}
