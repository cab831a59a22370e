//! Tests of safetensors in `bf16` and `f16` against files in `f32` with the same numbers. All results must be the same bits.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use meganeura_llm::engine::{ChosenToken, Event, SequenceRequest};
use meganeura_llm::{CacheType, Checkpoint, Engine, EngineOptions, Generator, GeneratorOptions, ModelConfig};
use meganeura_nn::layers::WeightStorage;
use safetensors::Dtype;
use tempfile::TempDir;

use crate::adapted::{assert_losses, on_ranks, random_adapters, train};
use crate::transformers::{device, expected, folder, ids, write_tensors};

const TYPES: [Dtype; 2] = [Dtype::BF16, Dtype::F16];

/// Copies a folder twice: with `file` in a type of 16 bits, and in `f32` with the same numbers.
fn pair(from: &Path, config: &str, file: &str, dtype: Dtype) -> [TempDir; 2] {
    [dtype, Dtype::F32].map(|stored| {
        let target = tempfile::tempdir().expect("a folder");
        write_tensors(&from.join(file), &target.path().join(file), stored, |_, _, values| {
            for x in values {
                *x = match dtype {
                    Dtype::BF16 => bf16::from_f32(*x).to_f32(),
                    _ => f16::from_f32(*x).to_f32(),
                };
            }
        });
        std::fs::copy(from.join(config), target.path().join(config)).expect("copied");
        target
    })
}

fn models(model: &str, dtype: Dtype) -> [TempDir; 2] {
    pair(&folder(model), "config.json", "model.safetensors", dtype)
}

fn adapters(model: &str, dtype: Dtype) -> [TempDir; 2] {
    let random = random_adapters(&folder(model), 11);
    pair(random.path(), "adapter_config.json", "adapter_model.safetensors", dtype)
}

fn prompt(model: &str) -> Vec<u32> {
    ids(&expected(model)["prompt_ids"])
}

fn logits(model: &str, path: &Path, options: &GeneratorOptions) -> Vec<f32> {
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    let mut generator = Generator::on(device(), config, checkpoint, options).expect("a generator");
    generator.prompt_logits(&prompt(model)).expect("logits")
}

/// Files in 16 bits have the same results as `f32` files, for families with separate projections, fused projections and
/// experts.
#[test]
fn files_in_16_bits_compute_what_their_numbers_do() {
    for model in ["llama", "phi3", "qwen2_moe"] {
        for dtype in TYPES {
            let [halves, whole] = models(model, dtype);
            let size = |folder: &TempDir| {
                let file = folder.path().join("model.safetensors");
                std::fs::metadata(file).expect("a file").len()
            };
            assert!(size(&halves) * 10 < size(&whole) * 7, "{dtype:?} has 16 bits");
            for weights in WeightStorage::ALL {
                let options = GeneratorOptions {
                    prefill_rows: Some(8),
                    weights: Some(weights),
                    ..GeneratorOptions::default()
                };
                let [found, wanted] = [&halves, &whole].map(|folder| logits(model, folder.path(), &options));
                assert!(found.iter().all(|x| x.is_finite()), "{model} {dtype:?} {weights:?}");
                assert!(found == wanted, "{model} {dtype:?} as {weights:?}");
            }
        }
    }
}

/// The tokens of a text and the scores of its prompt.
type Text = (Vec<u32>, Vec<ChosenToken>);

/// Returns texts of sequences with and without adapters. The second time, prompts are in the prefix cache. With draft tokens, the model
/// is its own draft model.
fn texts(path: &Path, options: EngineOptions) -> Vec<Text> {
    let has_draft_model = options.draft_tokens > 0;
    let prompt: Vec<u32> = prompt("llama").into_iter().cycle().take(40).collect();
    let has_names = !options.named_adapters.is_empty();
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    let mut engine = Engine::on(device(), config.clone(), &checkpoint, options).expect("an engine");
    if has_draft_model {
        let drafting = engine.with_draft_model(device(), config, &checkpoint);
        engine = drafting.expect("an engine with a draft model");
    }
    let mut texts = Vec::new();
    for prompt_logprobs in [None, None, Some(2)] {
        for adapter in [None, has_names.then_some(0)] {
            let id = engine.submit(SequenceRequest {
                adapter,
                prompt_logprobs,
                ..SequenceRequest::new(prompt.clone(), 10)
            });
            let id = id.expect("a request");
            let (mut tokens, mut scores) = (Vec::new(), Vec::new());
            while !engine.is_idle() {
                for event in engine.step().expect("a step") {
                    match event {
                        Event::Token(of, chosen) if of == id => tokens.push(chosen.token),
                        Event::Prompt(_, _, scored) => scores = scored,
                        _ => (),
                    }
                }
            }
            texts.push((tokens, scores));
        }
    }
    let counts = engine.counts();
    assert!(!has_draft_model || counts.accepted_tokens > 0, "{counts:?}");
    texts
}

#[test]
fn files_in_16_bits_take_adapters_draft_models_and_prefix_caches() {
    for dtype in TYPES {
        let [halves, whole] = models("llama", dtype);
        let [half_adapters, adapters] = adapters("llama", dtype);
        for (weights, draft_tokens) in [
            (WeightStorage::F32, 3),
            (WeightStorage::F16, 0),
            (WeightStorage::Q8, 3),
            (WeightStorage::Q4_1, 0),
        ] {
            let options = |named: &[PathBuf], merged: Option<&TempDir>| EngineOptions {
                weights: Some(weights),
                cache_type: CacheType::F16,
                draft_tokens,
                named_adapters: named.to_vec(),
                adapters: merged.map(|folder| folder.path().to_owned()),
                ..EngineOptions::default()
            };
            let what = format!("{dtype:?} as {weights:?}");
            let by_request = [half_adapters.path().to_owned()];
            let found = texts(halves.path(), options(&by_request, None));
            let wanted = texts(whole.path(), options(&[adapters.path().to_owned()], None));
            assert_eq!(found, wanted, "{what}");
            assert_ne!(found[0], found[1], "{what}: adapters change nothing");
            assert_eq!(found[0], found[2], "{what}: the prefix cache changes a text");
            assert!(!found[4].1.is_empty() && found[4].1 != found[5].1, "{what}: scores");

            let found = texts(halves.path(), options(&[], Some(&half_adapters)));
            let wanted = texts(whole.path(), options(&[], Some(&adapters)));
            assert_eq!(found, wanted, "{what}, merged");
        }
    }
}

#[test]
fn files_in_16_bits_are_fine_tuned_on_any_number_of_ranks() {
    for dtype in TYPES {
        let [halves, whole] = models("llama", dtype);
        let [half_adapters, adapters] = adapters("llama", dtype);
        for (lora, weights) in [
            (true, WeightStorage::F32),
            (true, WeightStorage::F16),
            (true, WeightStorage::Q8),
            (false, WeightStorage::F32),
        ] {
            let what = format!("{dtype:?} as {weights:?}, adapters {lora}");
            let half_adapters = lora.then_some(half_adapters.path());
            let of_halves = |ranks| train(halves.path(), half_adapters, weights.into(), ranks, &|_| ());
            let single = of_halves(None);
            let adapters = lora.then_some(adapters.path());
            let wanted = train(whole.path(), adapters, weights.into(), None, &|_| ());
            assert_eq!(single, wanted, "{what}");
            assert!(single[1] < single[0], "{what}: {single:?}");
            for size in [2, 3] {
                assert_losses(
                    &format!("{what}, {size} ranks"),
                    &on_ranks(size, of_halves),
                    &single,
                    1e-4,
                );
            }
        }
    }
}
