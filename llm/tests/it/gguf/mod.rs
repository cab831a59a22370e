//! Tests of GGUF files that the package `gguf` wrote, against Hugging Face's transformers with the same numbers.

mod adapters;
mod bad;
mod families;
pub(crate) mod files;
mod metadata;
mod parts;
mod pieces;
mod pre_tokenizers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_core::quantization::BlockFormat;
use meganeura_cpu::CpuDevice;
use meganeura_llm::{
    ChatTemplate, Checkpoint, Generator, GeneratorOptions, Message, ModelConfig, Projections, Tokenizer, WeightStorage,
};
use meganeura_nn::layers::QkNorm;
use meganeura_nn::models::StorageMap;
use safetensors::SafeTensors;
use serde_json::Value;

const FILES: [&str; 21] = [
    "llama_f32",
    "llama_f16",
    "llama_bf16",
    "llama_q8_0",
    "llama_q4_0",
    "llama_q5_0",
    "llama_q4_k",
    "llama_q6_k",
    "llama_q4_0_mixed",
    "llama3_q8_0",
    "qwen2_q8_0",
    "qwen3_q4_0",
    "mistral_q8_0",
    "gemma2_q8_0",
    "gemma3_q8_0",
    "phi3_q8_0",
    "olmo2_q8_0",
    "qwen3moe_q4_0",
    "qwen2moe_q8_0",
    "olmoe_q8_0",
    "mixtral_q8_0",
];
/// Maximum error relative to the largest logit if the numbers of a file are unchanged.
const TOLERANCE: f32 = 1e-4;
/// Maximum error for matrices in blocks: CPUs with VNNI round rows to 16 bits.
const ROWS_ROUNDED: f32 = 4e-4;
/// Maximum error if scales are rounded to `f16`.
const SCALES_ROUNDED: f32 = 1e-3;
/// Maximum error if weights are rounded to another storage type.
const ROUNDED: f32 = 0.03;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf")
}

fn path(name: &str) -> PathBuf {
    folder().join(format!("{name}.gguf"))
}

fn expected() -> Value {
    let text = std::fs::read_to_string(folder().join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

fn prompt() -> Vec<u32> {
    let expected = expected();
    let ids = expected["prompt_ids"].as_array().expect("a list").iter();
    ids.map(|id| id.as_u64().expect("a token") as u32).collect()
}

fn wanted(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder().join(format!("{name}.safetensors"))).expect("a fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (words, _) = tensors.tensor("logits").expect("logits").data().as_chunks::<4>();
    words.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// Returns the error of the logits of a file, relative to the largest one.
fn error(name: &str, weights: Option<WeightStorage>, prefill_rows: usize) -> f32 {
    error_at(&path(name), name, weights, prefill_rows)
}

/// Returns the error of a file at another path.
fn error_at(path: &Path, name: &str, weights: Option<WeightStorage>, prefill_rows: usize) -> f32 {
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    let options = GeneratorOptions {
        prefill_rows: Some(prefill_rows),
        weights,
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::on(Arc::new(CpuDevice::new(2)), config, checkpoint, &options).expect("a generator");
    let found = generator.prompt_logits(&prompt()).expect("logits");
    let wanted = wanted(name);
    assert_eq!(found.len(), wanted.len(), "{name}");
    // The maximum of distances would ignore NaN.
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    found.iter().zip(&wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs())) / size
}

#[test]
fn logits_agree_whatever_the_file_stores() {
    for name in FILES {
        for rows in [1, 5, 12] {
            let error = error(name, Some(WeightStorage::F32), rows);
            assert!(error <= TOLERANCE, "{name} by {rows}: off by {error}");
        }
    }
}

#[test]
fn numbers_of_files_stay_as_they_are() {
    for (name, storage, tolerance) in [
        ("llama_f32", WeightStorage::F32, TOLERANCE),
        ("llama_bf16", WeightStorage::F32, TOLERANCE),
        ("llama_f16", WeightStorage::F16, TOLERANCE),
        ("llama_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("llama_q4_0", WeightStorage::Q4, ROWS_ROUNDED),
        ("llama_q5_0", WeightStorage::Q5_0, ROWS_ROUNDED),
        ("llama3_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("qwen2_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("qwen3_q4_0", WeightStorage::Q4, ROWS_ROUNDED),
        ("mistral_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("gemma2_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("gemma3_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("phi3_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("olmo2_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("qwen3moe_q4_0", WeightStorage::Q4, ROWS_ROUNDED),
        ("qwen2moe_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("olmoe_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
        ("mixtral_q8_0", WeightStorage::Q8, ROWS_ROUNDED),
    ] {
        let checkpoint = Checkpoint::open(&path(name)).expect("weights");
        assert_eq!(checkpoint.usual_storage(), StorageMap::all(storage), "{name}");
        for rows in [1, 12] {
            let error = error(name, None, rows);
            assert!(error <= tolerance, "{name} by {rows}: off by {error}");
        }
    }
}

/// Older files of Mixtral, with a separate tensor for each expert, have the same logits.
#[test]
fn experts_may_have_tensors_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let older = folder.path().join("model.gguf");
    let bytes = std::fs::read(path("mixtral_q8_0")).expect("a fixture");
    let bytes = files::with_a_tensor_for_each_expert(&bytes);
    std::fs::write(&older, &bytes).expect("written");
    for (weights, tolerance) in [(Some(WeightStorage::F32), TOLERANCE), (None, ROWS_ROUNDED)] {
        let error = error_at(&older, "mixtral_q8_0", weights, 5);
        assert!(error <= tolerance, "off by {error}");
    }
    // One that lacks an expert.
    std::fs::write(&older, files::with_count(&bytes, "llama.expert_count", 5)).expect("written");
    files::says(
        ModelConfig::open(&older),
        &["blk.0.ffn_gate_exps.weight", "[4, 32, 64]", "[5, 32, 64]"],
    );
}

/// Each matrix keeps the storage type of the file. Files of K formats have several types: for matrices whose rows are
/// not whole super-blocks, and for the projection to logits.
#[test]
fn matrices_of_files_stay_as_each_is() {
    use WeightStorage::{Q4, Q4_1, Q6, Q8};
    const NAMES: [&str; 4] = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "lm_head.weight",
    ];
    for (name, storages, tolerance) in [
        // Minima of random blocks are as large as the numbers, so that their rounding shows more.
        ("llama_q4_k", [Q4_1, Q4_1, Q8, Q4_1], 10.0 * SCALES_ROUNDED),
        ("llama_q6_k", [Q6, Q6, Q8, Q6], SCALES_ROUNDED),
        ("llama_q4_0_mixed", [Q4, Q4, Q4, Q6], SCALES_ROUNDED),
    ] {
        let map = Checkpoint::open(&path(name)).expect("weights").usual_storage();
        let found = NAMES.map(|name| map.of(name).expect("a matrix"));
        assert_eq!(found, storages, "{name}");
        for rows in [1, 5, 12] {
            let error = error(name, None, rows);
            assert!(error <= tolerance, "{name} by {rows}: off by {error}");
        }
    }
}

/// A requested storage type replaces the type in the file.
#[test]
fn one_storage_can_be_forced() {
    for (name, weights, tolerance) in [
        ("llama_q4_k", WeightStorage::Q8, ROUNDED),
        ("llama_q6_k", WeightStorage::Q8, ROUNDED),
        ("llama_q6_k", WeightStorage::F16, ROUNDED),
        ("llama_q4_0_mixed", WeightStorage::Q8, ROUNDED),
        ("llama_q6_k", WeightStorage::Q6, 0.05),
        ("llama_q6_k", WeightStorage::Q4_1, 0.4),
    ] {
        let error = error(name, Some(weights), 12);
        assert!(error <= tolerance, "{name} in {weights:?}: off by {error}");
    }
}

/// Quantizing numbers results in the same bytes of blocks and scales as the package `gguf`.
#[test]
fn numbers_are_rounded_as_gguf_rounds_them() {
    let expected = expected();
    let rounding = &expected["rounding"];
    let values = rounding["values"].as_array().expect("a list").iter();
    let values: Vec<f32> = values.map(|v| v.as_f64().expect("a number") as f32).collect();
    for (format, name) in [(BlockFormat::Q8_0, "Q8_0"), (BlockFormat::Q4_0, "Q4_0")] {
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        format.quantize(&values, &mut bytes, &mut scales);
        let blocks = scales.iter().zip(bytes.chunks(format.bytes()));
        let stored = blocks.flat_map(|(scale, q)| [&scale.to_le_bytes()[..], q].concat());
        let hex: String = stored.map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, rounding[name].as_str().expect("bytes"), "{name}");
    }
}

#[test]
fn tokenizers_and_templates_of_files() {
    let tokenizer = Tokenizer::open(&path("llama_q8_0")).expect("a tokenizer");
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let original = Tokenizer::open(&root.join("../tests/fixtures/transformers/llama")).expect("a tokenizer");
    for text in [
        "Alice was not a bit hurt, and she jumped up",
        "“Curious”, and naïve: 好奇 🐇! It's 12345\n\n  done",
        "<|im_start|>user\nhi<|im_end|>",
    ] {
        let ids = tokenizer.encode(text).expect("tokens");
        assert_eq!(ids, original.encode(text).expect("tokens"), "{text}");
        assert_eq!(
            tokenizer.decode(&ids).expect("text"),
            original.decode(&ids).expect("text")
        );
    }
    tokenizer
        .check(&ModelConfig::open(&path("llama_q8_0")).expect("a configuration"))
        .expect("they belong together");
    let template = ChatTemplate::open(&path("llama_q8_0")).expect("a template");
    let chat = template.render(&[Message::new("user", "hi")], None).expect("text").text;
    assert_eq!(chat, "<|endoftext|>hi");
}

#[test]
fn configurations_of_files() {
    let llama = ModelConfig::open(&path("llama_f16")).expect("a configuration");
    assert_eq!((llama.context, llama.stop.as_slice()), (128, &[2][..]));
    assert!(!llama.network.tied_embeddings && llama.network.window.is_none());
    let mistral = ModelConfig::open(&path("mistral_q8_0")).expect("a configuration");
    assert_eq!((mistral.network.window, mistral.network.head_dim), (Some(5), Some(32)));
    let qwen = ModelConfig::open(&path("qwen3_q4_0")).expect("a configuration");
    assert!(qwen.network.qk_norm == QkNorm::PerHead && qwen.network.tied_embeddings);
    // Files contain the factors of Gemma's norms, and so do saved files.
    let gemma = ModelConfig::open(&path("gemma3_q8_0"))
        .expect("a configuration")
        .network;
    assert!(!gemma.zero_centered_norms && gemma.qk_norm == QkNorm::PerHead);
    let full: Vec<usize> = (0..7)
        .filter(|&layer| gemma.full_attention_layers.contains(layer))
        .collect();
    assert_eq!((full, gemma.window), (vec![5], Some(5)));
    let phi = ModelConfig::open(&path("phi3_q8_0")).expect("a configuration");
    assert_eq!((phi.projections, phi.network.rotary_dim), (Projections::Separate, None));
}
