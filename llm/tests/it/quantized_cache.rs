//! Tests of KV caches with 8-bit integers.

use std::path::Path;

use meganeura_llm::engine::SequenceRequest;
use meganeura_llm::{CacheType, Checkpoint, Engine, EngineOptions, Generator, GeneratorOptions, ModelConfig};
use safetensors::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use crate::engine::finish;
use crate::transformers::{device, distance, expected, folder, ids, logits, write_tensors};

/// Factor of the number of heads, so that rows of keys have a multiple of 64 numbers.
const TIMES: usize = 8;

/// Writes a checkpoint that computes the same as a fixture, with eight times the heads: all heads are repeated, and the
/// output projection averages the copies.
fn with_more_heads(model: &str) -> TempDir {
    let (from, to) = (folder(model), tempfile::tempdir().expect("a folder"));
    let file = "model.safetensors";
    write_tensors(
        &from.join(file),
        &to.path().join(file),
        Dtype::F32,
        |name, shape, values| {
            if ["q_proj", "k_proj", "v_proj"].iter().any(|part| name.contains(part)) {
                shape[0] *= TIMES;
                *values = values.repeat(TIMES);
            } else if name.contains("o_proj") {
                let rows = values.chunks_exact(shape[1]).map(|row| row.repeat(TIMES));
                *values = rows.flatten().map(|x| x / TIMES as f32).collect();
                shape[1] *= TIMES;
            }
        },
    );
    let text = std::fs::read_to_string(from.join("config.json")).expect("a fixture");
    let mut config: Value = serde_json::from_str(&text).expect("json");
    if !config["head_dim"].is_u64() {
        let [width, heads] =
            ["hidden_size", "num_attention_heads"].map(|size| config[size].as_u64().expect("a number"));
        config["head_dim"] = (width / heads).into();
    }
    for heads in ["num_attention_heads", "num_key_value_heads"] {
        config[heads] = (config[heads].as_u64().expect("a number") * TIMES as u64).into();
    }
    std::fs::write(to.path().join("config.json"), config.to_string()).expect("written");
    to
}

fn generator(path: &Path, cache_type: CacheType, prefill_rows: usize) -> Generator {
    let options = GeneratorOptions {
        prefill_rows: Some(prefill_rows),
        cache_type,
        ..GeneratorOptions::default()
    };
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    Generator::on(device(), config, checkpoint, &options).expect("a generator")
}

/// The models have plain attention, windows, a soft cap of the scores, norms of queries and keys, and experts.
const MODELS: [&str; 5] = ["llama", "mistral", "gemma2", "qwen3", "mixtral"];

#[test]
fn logits_are_near_those_of_transformers() {
    for model in MODELS {
        let (path, prompt, wanted) = (
            with_more_heads(model),
            ids(&expected(model)["prompt_ids"]),
            logits(model),
        );
        for rows in [1, 7, 64] {
            let found = |cache_type| {
                let mut generator = generator(path.path(), cache_type, rows);
                generator.prompt_logits(&prompt).expect("logits")
            };
            let error = distance(&found(CacheType::F32), &wanted);
            assert!(error < 1e-4, "{model} by {rows}: heads are not repeated: {error}");
            let error = distance(&found(CacheType::Q8), &wanted);
            assert!(error < 0.05, "{model} by {rows}: {error}");
            assert!(error > 1e-5, "{model} by {rows}: nothing is rounded: {error}");
        }
    }
}

#[test]
fn sequences_together_are_as_alone() {
    for model in ["llama", "gemma2"] {
        let path = with_more_heads(model);
        let prompts: Vec<Vec<u32>> = (0..6u32)
            .map(|n| (0..5 + 7 * n).map(|i| (i * 31 + n * 17) % 300 + 3).collect())
            .collect();
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| texts(path.path(), std::slice::from_ref(prompt), 1, 64).remove(0))
            .collect();
        for step_tokens in [5, 64] {
            let together = texts(path.path(), &prompts, 4, step_tokens);
            assert_eq!(together, alone, "{model} by {step_tokens}");
        }
    }
}

/// Returns twelve greedy tokens after each prompt.
fn texts(path: &Path, prompts: &[Vec<u32>], sequences: usize, step_tokens: usize) -> Vec<Vec<u32>> {
    let options = EngineOptions {
        sequences,
        step_tokens: Some(step_tokens),
        cache_type: CacheType::Q8,
        draft_tokens: sequences - 1,
        ..EngineOptions::default()
    };
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    let mut engine = Engine::on(device(), config, &checkpoint, options).expect("an engine");
    let ids: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            engine
                .submit(SequenceRequest::new(prompt.clone(), 12))
                .expect("a sequence")
        })
        .collect();
    let mut outcomes = finish(&mut engine);
    ids.iter()
        .map(|id| outcomes.remove(id).expect("an outcome").tokens)
        .collect()
}

#[test]
fn narrow_rows_are_refused() {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    let options = GeneratorOptions {
        cache_type: CacheType::Q8,
        ..GeneratorOptions::default()
    };
    let error = Generator::on(device(), config, checkpoint, &options).expect_err("rows of 16 numbers");
    let message = error.to_string();
    assert!(
        message.contains("keys have 16 numbers a token") && message.contains("multiple of 64"),
        "{message}"
    );
}

#[test]
fn caches_take_a_quarter_of_the_memory() {
    let path = with_more_heads("llama");
    let model = ModelConfig::open(path.path()).expect("a configuration");
    let mut network = model.network;
    let bytes = [CacheType::F32, CacheType::F16, CacheType::Q8].map(|cache_type| {
        network.cache_type = cache_type;
        let graph = network.decode_graph(&[], 1, 64, meganeura_nn::models::LogitsOf::AllRows);
        let caches = graph.nodes().iter().filter(|node| {
            let name = node.name.as_deref().unwrap_or_default();
            name.starts_with("kv_cache.")
        });
        caches.map(|node| node.outputs[0].bytes()).sum::<usize>()
    });
    // 32 numbers take 34 bytes.
    assert_eq!(bytes, [bytes[0], bytes[0] / 2, bytes[0] * 34 / 128]);
}
