//! Tests of adapters on GGUF files, against folders of safetensors with the same numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_cpu::CpuDevice;
use meganeura_llm::engine::{Event, SequenceRequest};
use meganeura_llm::{
    CacheType, Checkpoint, Engine, EngineOptions, Generator, GeneratorOptions, ModelConfig, Projections, WeightStorage,
    saving,
};
use meganeura_nn::models::{StorageMap, language_model};
use serde_json::json;
use tempfile::TempDir;

use super::{FILES, ROWS_ROUNDED, SCALES_ROUNDED, TOLERANCE, path, prompt};
use crate::adapted::{assert_losses, on_ranks, random_adapters, train};
use crate::transformers;

/// Maximum error of Q4_K files: minima of random blocks are as large as the numbers, so that their rounding shows more.
const MINIMA_ROUNDED: f32 = 20.0 * SCALES_ROUNDED;

/// Writes the model of a GGUF file as a folder in `f32`.
fn folder_of(file: &Path, model_type: &str) -> TempDir {
    let config = ModelConfig::open(file).expect("a configuration");
    let network = &config.network;
    let graph = language_model(1, 4, |g, tokens| network.build(g, "").forward(g, tokens));
    let (mut session, _) = Builder::on(Arc::new(CpuDevice::new(2)))
        .build(&graph)
        .expect("a session");
    let checkpoint = Checkpoint::open(file).expect("weights");
    checkpoint.load_into(&mut session).expect("they fit");
    let folder = tempfile::tempdir().expect("a folder");
    saving::save_weights(folder.path(), &mut session, None, Projections::Separate).expect("saved");
    let stored = json!({
        "model_type": model_type,
        "vocab_size": network.vocab,
        "hidden_size": network.dim,
        "intermediate_size": network.hidden,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads,
        "head_dim": network.head_dim(),
        "max_position_embeddings": config.context,
        "rms_norm_eps": network.eps,
        "rope_theta": network.rope_theta,
        "tie_word_embeddings": network.tied_embeddings,
        "hidden_act": "silu",
    });
    std::fs::write(folder.path().join("config.json"), stored.to_string()).expect("written");
    folder
}

/// A GGUF file, the folder with its numbers, and the maximum error of logits.
struct Model {
    name: &'static str,
    file: PathBuf,
    folder: PathBuf,
    tolerance: f32,
    /// Removes the folder when it is dropped.
    _temporary: Option<TempDir>,
}

/// Returns models of type llama in several types of matrices, one of type qwen2 and one of type granite.
fn models() -> Vec<Model> {
    let temporary = |name, model_type, tolerance| {
        let folder = folder_of(&path(name), model_type);
        Model {
            name,
            file: path(name),
            folder: folder.path().to_owned(),
            tolerance,
            _temporary: Some(folder),
        }
    };
    vec![
        temporary("llama_f32", "llama", TOLERANCE),
        temporary("llama_bf16", "llama", TOLERANCE),
        temporary("llama_f16", "llama", TOLERANCE),
        temporary("llama_q8_0", "llama", ROWS_ROUNDED),
        temporary("llama_q4_k", "llama", MINIMA_ROUNDED),
        temporary("llama_q4_0_mixed", "llama", SCALES_ROUNDED),
        temporary("qwen2_q8_0", "qwen2", ROWS_ROUNDED),
        Model {
            name: "granite_bf16",
            file: path("granite_bf16"),
            folder: transformers::folder("granite"),
            tolerance: TOLERANCE,
            _temporary: None,
        },
    ]
}

/// Returns the logits of a prompt with adapters. They are merged into `f32` weights, and separate with other storage
/// types.
fn logits(model: &Path, adapters: Option<&Path>, weights: Option<WeightStorage>) -> Vec<f32> {
    let config = ModelConfig::open(model).expect("a configuration");
    let checkpoint = Checkpoint::open(model).expect("weights");
    let options = GeneratorOptions {
        prefill_rows: Some(5),
        adapters: adapters.map(Path::to_owned),
        weights,
        ..GeneratorOptions::default()
    };
    let device = Arc::new(CpuDevice::new(2));
    let mut generator = Generator::on(device, config, checkpoint, &options).expect("a generator");
    generator.prompt_logits(&prompt()).expect("logits")
}

/// Returns the largest difference relative to the largest logit.
fn off(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    // The maximum of distances would ignore NaN.
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    found.iter().zip(wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs())) / size
}

/// The log-probabilities of a prompt, and the tokens after it.
type Text = (Vec<f32>, Vec<u32>);

/// Returns texts of an engine, without adapters and with each of them.
fn texts(model: &Path, adapters: &[&Path]) -> Vec<Text> {
    let options = EngineOptions {
        named_adapters: adapters.iter().map(|&folder| folder.to_owned()).collect(),
        ..EngineOptions::default()
    };
    let mut engine = engine(model, options);
    let selected = std::iter::once(None).chain((0..adapters.len()).map(Some));
    let requests = selected.map(|adapter| SequenceRequest {
        adapter,
        prompt_logprobs: Some(0),
        ..SequenceRequest::new(prompt(), 8)
    });
    run(&mut engine, requests.collect())
}

fn engine(model: &Path, options: EngineOptions) -> Engine {
    let config = ModelConfig::open(model).expect("a configuration");
    let checkpoint = Checkpoint::open(model).expect("weights");
    Engine::on(Arc::new(CpuDevice::new(2)), config, &checkpoint, options).expect("an engine")
}

/// Returns the texts of some requests, which share steps.
fn run(engine: &mut Engine, requests: Vec<SequenceRequest>) -> Vec<Text> {
    let ids = requests.into_iter().map(|r| engine.submit(r).expect("a request"));
    let ids: Vec<_> = ids.collect();
    let mut texts = vec![Text::default(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().expect("a step") {
            let index = |id| ids.iter().position(|other| *other == id).expect("a sequence");
            match event {
                Event::Token(id, chosen) => texts[index(id)].1.push(chosen.token),
                Event::Prompt(id, _, scored) => {
                    let scores = scored.iter().map(|chosen| chosen.logprobs.as_ref().expect("scores").0);
                    texts[index(id)].0 = scores.collect();
                }
                Event::Failed(_, error) => panic!("{error}"),
                Event::Finished(..) => (),
            }
        }
    }
    texts
}

#[test]
fn adapters_of_requests_compute_what_they_do_on_folders() {
    for model in models() {
        let (file, folder) = (&model.file, &model.folder);
        let adapters = [1, 2].map(|seed| random_adapters(folder, seed));
        let adapters = adapters.each_ref().map(TempDir::path);
        let (found, wanted) = (texts(file, &adapters), texts(folder, &adapters));
        for (number, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let error = off(&found.0, &wanted.0);
            assert!(error <= model.tolerance, "{}, {number}: off by {error}", model.name);
            // Rounded scales may change a text.
            if model.tolerance < SCALES_ROUNDED {
                assert_eq!(found.1, wanted.1, "{}, {number}", model.name);
            }
        }
        for other in [(0, 1), (0, 2), (1, 2)] {
            let change = off(&found[other.0].0, &found[other.1].0);
            assert!(change > 0.05, "{}: adapters {other:?} differ by {change}", model.name);
        }
    }
}

#[test]
fn merged_adapters_compute_what_they_do_on_folders() {
    for model in models() {
        let adapters = random_adapters(&model.folder, 3);
        let adapters = Some(adapters.path());
        let wanted = logits(&model.folder, adapters, Some(WeightStorage::F32));
        let change = off(&logits(&model.folder, None, Some(WeightStorage::F32)), &wanted);
        assert!(change > 0.05, "{}: adapters change {change}", model.name);
        for (weights, tolerance) in [(Some(WeightStorage::F32), TOLERANCE), (None, model.tolerance)] {
            let error = off(&logits(&model.file, adapters, weights), &wanted);
            assert!(error <= tolerance, "{} as {weights:?}: off by {error}", model.name);
        }
    }
}

/// In all families, separate adapters on packed matrices have the same results as adapters that are merged into the
/// dequantized matrices.
#[test]
fn separate_adapters_of_every_family_compute_what_merged_ones_do() {
    for name in FILES {
        let file = path(name);
        let adapters = random_adapters(&file, 4);
        let adapters = Some(adapters.path());
        let wanted = logits(&file, adapters, Some(WeightStorage::F32));
        let error = off(&logits(&file, adapters, None), &wanted);
        let tolerance = if name == "llama_q4_k" {
            MINIMA_ROUNDED
        } else {
            SCALES_ROUNDED
        };
        assert!(error <= tolerance, "{name}: off by {error}");
        assert!(off(&logits(&file, None, None), &wanted) > 0.05, "{name}");
    }
}

#[test]
fn drafts_and_prefix_caches_change_no_text_with_adapters() {
    let prompt: Vec<u32> = prompt().into_iter().cycle().take(40).collect();
    for name in [
        "llama_q8_0",
        "llama_q4_k",
        "llama_bf16",
        "qwen2_q8_0",
        "gemma3_q8_0",
        "granite_bf16",
    ] {
        let file = path(name);
        let adapters = random_adapters(&file, 5);
        let texts = |draft_model: bool, draft_tokens, prefix_cache| {
            let options = EngineOptions {
                cache_type: CacheType::F16,
                draft_tokens,
                prefix_cache,
                named_adapters: vec![adapters.path().to_owned()],
                ..EngineOptions::default()
            };
            let mut engine = engine(&file, options);
            if draft_model {
                let config = ModelConfig::open(&file).expect("a configuration");
                let checkpoint = Checkpoint::open(&file).expect("weights");
                let drafting = engine.with_draft_model(Arc::new(CpuDevice::new(2)), config, &checkpoint);
                engine = drafting.expect("an engine with a draft model");
            }
            let mut texts = Vec::new();
            // The second time, prompts are in the prefix cache.
            for _ in 0..2 {
                let requests = [None, Some(0), None, Some(0)].map(|adapter| SequenceRequest {
                    adapter,
                    ..SequenceRequest::new(prompt.clone(), 10)
                });
                texts.extend(run(&mut engine, requests.into()).into_iter().map(|(_, tokens)| tokens));
            }
            let counts = engine.counts();
            assert_eq!(counts.cached_tokens > 0, prefix_cache, "{name}: {counts:?}");
            assert!(!draft_model || counts.accepted_tokens > 0, "{name}: {counts:?}");
            texts
        };
        let wanted = texts(false, 0, false);
        assert_ne!(wanted[0], wanted[1], "{name}: the adapters change nothing");
        for (draft_model, draft_tokens) in [(false, 0), (false, 3), (true, 3)] {
            let found = texts(draft_model, draft_tokens, true);
            assert_eq!(
                found, wanted,
                "{name}, draft model {draft_model}, {draft_tokens} draft tokens"
            );
        }
    }
}

#[test]
fn adapters_are_trained_on_files_on_any_number_of_ranks() {
    for model in models() {
        let adapters = random_adapters(&model.folder, 6);
        let adapters = Some(adapters.path());
        let own = Checkpoint::open(&model.file).expect("weights").usual_storage();
        let run = |ranks| train(&model.file, adapters, own, ranks, &|_| ());
        let single = run(None);
        assert!(single[1] < single[0], "{}: {single:?}", model.name);
        let wanted = train(&model.folder, adapters, StorageMap::default(), None, &|_| ());
        let tolerance = f64::from(model.tolerance);
        assert_losses(model.name, &single, &wanted, tolerance);
        for size in [2, 3] {
            let what = format!("{}, {size} ranks", model.name);
            assert_losses(&what, &on_ranks(size, run), &single, 1e-4);
        }
    }
}
