//! Tests of checkpoints of every family against Hugging Face's transformers: logits at every position, greedy continuations token
//! by token, and a training step.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use half::{bf16, f16};
use meganeura_compiler::builder::Builder;
use meganeura_core::backend::Device;
use meganeura_core::quantization::BLOCK;
use meganeura_cpu::CpuDevice;
use meganeura_llm::{
    CacheType, ChatTemplate, Checkpoint, Generator, GeneratorOptions, LoadObserver, Message, ModelConfig, Request,
    Sampling, Tokenizer, WeightStorage,
};
use meganeura_nn::models::{LlamaConfig, LogitsOf, TARGETS, TOKENS, language_model};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

pub(crate) const MODELS: [&str; 26] = [
    "llama",
    "llama_sharded",
    "llama_linear",
    "mistral",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_partial",
    "phi3_longrope",
    "smollm3",
    "olmo2",
    "granite",
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "mixtral",
    "qwen3_yarn",
    "olmo3",
    "ministral3",
    "glm4_moe",
    "lfm2",
    "gpt_oss",
    "gpt_oss_mxfp4",
];
/// Maximum error relative to the largest logit.
const TOLERANCE: f32 = 1e-4;

pub(crate) fn folder(model: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/fixtures/transformers").join(model)
}

pub(crate) fn expected(model: &str) -> Value {
    let text = std::fs::read_to_string(folder(model).join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list").iter();
    list.map(|id| id.as_u64().expect("a token") as u32).collect()
}

pub(crate) fn logits(model: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder(model).join("expected.safetensors")).expect("a fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let data = tensors.tensor("logits").expect("logits").data();
    let (words, _) = data.as_chunks::<4>();
    words.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

pub(crate) fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

pub(crate) fn generator(model: &str, prefill_rows: usize) -> Generator {
    generator_with(model, prefill_rows, WeightStorage::F32)
}

fn generator_with(model: &str, prefill_rows: usize, weights: WeightStorage) -> Generator {
    generator_in(&folder(model), prefill_rows, weights)
}

fn generator_in(folder: &Path, prefill_rows: usize, weights: WeightStorage) -> Generator {
    let options = GeneratorOptions {
        prefill_rows: Some(prefill_rows),
        weights: Some(weights),
        ..GeneratorOptions::default()
    };
    generator_of(folder, &options)
}

/// Creates a generator with caches in `f16`.
pub(crate) fn generator_with_half_cache(model: &str, prefill_rows: usize) -> Generator {
    let options = GeneratorOptions {
        prefill_rows: Some(prefill_rows),
        cache_type: CacheType::F16,
        ..GeneratorOptions::default()
    };
    generator_of(&folder(model), &options)
}

fn generator_of(folder: &Path, options: &GeneratorOptions) -> Generator {
    let config = ModelConfig::open(folder).expect("a configuration");
    let checkpoint = Checkpoint::open(folder).expect("weights");
    Generator::on(device(), config, checkpoint, options).expect("a generator")
}

#[test]
fn logits_agree_at_every_position() {
    for model in MODELS {
        let prompt = ids(&expected(model)["prompt_ids"]);
        let wanted = logits(model);
        let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        for rows in [1, 7, 64] {
            let found = generator(model, rows).prompt_logits(&prompt).expect("logits");
            assert_eq!(found.len(), wanted.len(), "{model}");
            // The maximum of distances would ignore NaN.
            assert!(found.iter().all(|x| x.is_finite()), "{model} by {rows}");
            let worst = found.iter().zip(&wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs()));
            assert!(worst <= TOLERANCE * size, "{model} by {rows}: off by {}", worst / size);
        }
    }
}

fn norm(x: impl IntoIterator<Item = f32>) -> f32 {
    x.into_iter().map(|x| x * x).sum::<f32>().sqrt()
}

pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    norm(a.iter().zip(b).map(|(a, b)| a - b)) / norm(b.iter().copied())
}

/// Returns the numbers of a tensor in `f32`.
fn numbers(view: &TensorView) -> Vec<f32> {
    let halves = view.data().as_chunks().0.iter();
    match view.dtype() {
        Dtype::F32 => {
            let words = view.data().as_chunks().0.iter();
            words.map(|&b| f32::from_le_bytes(b)).collect()
        }
        Dtype::F16 => halves.map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        _ => halves.map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
    }
}

/// Writes tensors of a file in a type, after a change of their shapes and numbers.
pub(crate) fn write_tensors(from: &Path, to: &Path, dtype: Dtype, change: impl Fn(&str, &mut [usize], &mut Vec<f32>)) {
    let bytes = std::fs::read(from).expect("a fixture");
    let mut tensors = Vec::new();
    for (name, view) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
        let (mut shape, mut values) = (view.shape().to_vec(), numbers(&view));
        change(&name, &mut shape, &mut values);
        let data: Vec<u8> = match dtype {
            Dtype::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::BF16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        tensors.push((name, shape, data));
    }
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(dtype, shape.clone(), data).expect("a tensor");
        (name, view)
    });
    let stored = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(to, stored).expect("written");
}

/// Writes a checkpoint whose matrices were rounded to a storage type, in `f32`.
fn rounded(model: &str, weights: WeightStorage) -> tempfile::TempDir {
    let target = tempfile::tempdir().expect("a folder");
    let [from, to] = [&folder(model), target.path()].map(|folder| folder.join("model.safetensors"));
    write_tensors(&from, &to, Dtype::F32, |name, shape, values| {
        // Routers, and gates of shared experts, are not rounded.
        if let (&[_, width], false) = (&*shape, name.ends_with("gate.weight")) {
            match weights.format().filter(|_| width.is_multiple_of(BLOCK)) {
                Some(format) => {
                    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
                    format.quantize(values, &mut bytes, &mut scales);
                    *values = format.dequantize(&bytes, &scales);
                }
                None => values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            }
        }
    });
    std::fs::copy(folder(model).join("config.json"), target.path().join("config.json")).expect("copied");
    target
}

#[test]
fn packed_weights_are_the_rounded_numbers() {
    for model in [
        "llama",
        "llama_linear",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma3",
        "phi3",
        "olmo2",
        "qwen2_moe",
        "olmoe",
        "mixtral",
        "glm4_moe",
    ] {
        let prompt = ids(&expected(model)["prompt_ids"]);
        for &weights in &WeightStorage::ALL[1..] {
            let folder = rounded(model, weights);
            let wanted = generator_in(folder.path(), 64, WeightStorage::F32).prompt_logits(&prompt);
            let wanted = wanted.expect("logits");
            for rows in [1, 7, 64] {
                let found = generator_with(model, rows, weights)
                    .prompt_logits(&prompt)
                    .expect("logits");
                let error = distance(&found, &wanted);
                // For weights in blocks, a CPU with VNNI rounds rows to 16 bits.
                let tolerance = if weights.format().is_some() {
                    4.0 * TOLERANCE
                } else {
                    TOLERANCE
                };
                assert!(error <= tolerance, "{model} in {weights:?} by {rows}: off by {error}");
            }
        }
    }
}

/// Experts in MXFP4 stay packed, in 8 bits without rounding; other matrices are `f32`.
#[test]
fn packed_experts_of_a_checkpoint_stay_packed() {
    let model = "gpt_oss_mxfp4";
    let storage = Checkpoint::open(&folder(model)).expect("weights").usual_storage();
    for (name, wanted) in [
        ("mlp.experts.gate_proj", WeightStorage::Q8),
        ("mlp.experts.up_proj", WeightStorage::Q8),
        ("mlp.experts.down_proj", WeightStorage::Q8),
        ("self_attn.q_proj", WeightStorage::F32),
    ] {
        let found = storage.of(&format!("model.layers.1.{name}.weight"));
        assert_eq!(found, Some(wanted), "{name}");
    }
    let prompt = ids(&expected(model)["prompt_ids"]);
    let mut generator = generator_of(&folder(model), &GeneratorOptions::default());
    let found = generator.prompt_logits(&prompt).expect("logits");
    let error = distance(&found, &logits(model));
    // A CPU with VNNI rounds rows to 16 bits.
    assert!(error <= 4.0 * TOLERANCE, "off by {error}");
}

/// Rounding keys and values to `f16` changes the logits only slightly.
#[test]
fn logits_with_caches_of_f16_are_near() {
    for model in MODELS {
        let prompt = ids(&expected(model)["prompt_ids"]);
        for rows in [1, 7, 64] {
            let found = generator_with_half_cache(model, rows)
                .prompt_logits(&prompt)
                .expect("logits");
            let error = distance(&found, &logits(model));
            assert!((1e-6..5e-3).contains(&error), "{model} by {rows}: off by {error}");
        }
    }
}

/// Rounded weights change the logits. These models are small and random, which is the worst case.
#[test]
fn logits_of_rounded_weights_are_near() {
    for model in MODELS {
        let prompt = ids(&expected(model)["prompt_ids"]);
        for (weights, tolerance) in [(WeightStorage::F16, 5e-3), (WeightStorage::Q8, 0.1)] {
            let found = generator_with(model, 64, weights)
                .prompt_logits(&prompt)
                .expect("logits");
            let error = distance(&found, &logits(model));
            assert!(error <= tolerance, "{model} in {weights:?}: off by {error}");
        }
    }
}

#[test]
fn tied_embeddings_are_stored_once_and_packed() {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let bytes = |weights: WeightStorage| {
        let network = LlamaConfig {
            weights: weights.into(),
            ..config.network
        };
        let graph = network.decode_graph(&[], 1, 16, LogitsOf::AllRows);
        let (session, _) = Builder::on(device()).inference().build(&graph).expect("a session");
        let parameters = session.plan().parameters();
        let names = parameters.iter().filter(|view| view.name.contains("embed_tokens"));
        let matrices = parameters
            .iter()
            .filter(|view| view.name.contains("weight") && view.ty.shape.rank() == 2);
        (names.count(), matrices.map(|view| view.ty.bytes()).sum::<usize>())
    };
    let (_, whole) = bytes(WeightStorage::F32);
    assert_eq!(bytes(WeightStorage::F16), (1, whole / 2));
    // The length of some rows is not a multiple of 32: they use 16 bits.
    let (count, packed) = bytes(WeightStorage::Q8);
    assert!(
        count == 2 && packed < whole * 34 / 128 + 4096,
        "{count} {packed} of {whole}"
    );
}

#[test]
fn greedy_continuations_are_the_same() {
    let request = Request {
        max_tokens: 64,
        // They continue after the end of a text.
        stop: Some(Vec::new()),
        ..Request::default()
    };
    for model in MODELS {
        let expected = expected(model);
        let prompt = ids(&expected["prompt_ids"]);
        for rows in [1, 8] {
            let mut generator = generator(model, rows);
            let generation = generator.generate(&prompt, &request).expect("it begins");
            let found: Vec<u32> = generation.map(|token| token.expect("a token")).collect();
            assert_eq!(found, ids(&expected["continuation"]), "{model} by {rows}");
        }
    }
}

#[test]
fn tokens_and_text_are_the_same() {
    for model in ["llama", "qwen3"] {
        let expected = expected(model);
        let tokenizer = Tokenizer::open(&folder(model)).expect("a tokenizer");
        let prompt = expected["prompt"].as_str().expect("text");
        assert_eq!(tokenizer.encode(prompt).expect("tokens"), ids(&expected["prompt_ids"]));
        tokenizer
            .check(&ModelConfig::open(&folder(model)).expect("a configuration"))
            .expect("they belong together");
        let continuation = ids(&expected["continuation"]);
        let text = expected["text"].as_str().expect("text");
        assert_eq!(tokenizer.decode(&continuation).expect("text"), text);
        // The same text in pieces.
        for pieces in [
            &continuation,
            &tokenizer.encode("“Curious”, and naïve: 好奇 🐇!").expect("tokens"),
        ] {
            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            for &token in pieces {
                streamed += &stream.push(token).expect("text");
            }
            streamed += &stream.finish().expect("text");
            assert_eq!(streamed, tokenizer.decode(pieces).expect("text"));
        }
        let template = ChatTemplate::open(&folder(model)).expect("a template");
        let chat = template
            .render(&[Message::new("user", "Do cats eat bats? ")], None)
            .expect("text");
        let wanted = std::fs::read_to_string(folder(model).join("expected_chat.txt")).expect("a fixture");
        assert_eq!(chat.text, wanted);
    }
}

#[test]
fn a_step_of_training_is_the_same() {
    for model in MODELS {
        let expected = expected(model);
        let prompt = ids(&expected["prompt_ids"]);
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let rows = prompt.len() - 1;
        let graph = language_model(1, rows, |g, tokens| config.network.build(g, "").forward(g, tokens));
        let (mut session, _) = Builder::on(device()).build(&graph).expect("a session");
        let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
        checkpoint.load_into(&mut session).expect("they fit");
        session.set_input_u32(TOKENS, &prompt[..rows]);
        session.set_input_u32(TARGETS, &prompt[1..]);
        session.step();
        let close = |what: &str, found: f64| {
            let wanted = expected[what].as_f64().expect("a number");
            assert!(
                (found / wanted - 1.0).abs() < 1e-4,
                "{model}: {what} {found}, not {wanted}"
            );
        };
        close("loss", f64::from(session.read_loss()));
        // Gradients do not train the bias of the choice of experts.
        let parameters = session.plan().parameters().into_iter().map(|view| view.name);
        let names: Vec<String> = parameters
            .filter(|name| !name.ends_with("e_score_correction_bias"))
            .collect();
        let squares = names.iter().flat_map(|name| session.read_grad(name));
        close(
            "gradient_norm",
            squares.map(|g| f64::from(g).powi(2)).sum::<f64>().sqrt(),
        );
    }
}

#[test]
fn loading_reports_its_progress_and_can_be_repeated() {
    let folder = folder("llama");
    let config = ModelConfig::open(&folder).expect("a configuration");
    let graph = language_model(1, 4, |g, tokens| config.network.build(g, "").forward(g, tokens));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let observer = LoadObserver::new(move |bytes| seen.lock().expect("no panic").push(bytes));
    let checkpoint = Checkpoint::open(&folder)
        .expect("weights")
        .with_observer(Some(observer));
    let load = || {
        let (mut session, _) = Builder::on(device()).build(&graph).expect("a session");
        checkpoint.load_into(&mut session).expect("they fit");
        let names: Vec<String> = session.plan().parameters().into_iter().map(|view| view.name).collect();
        names
            .iter()
            .map(|name| session.read_parameter(name))
            .collect::<Vec<_>>()
    };
    let first = load();
    assert!(first.iter().flatten().any(|&x| x != 0.0));
    let of_one = std::mem::take(&mut *reports.lock().expect("no panic"));
    let size = std::fs::metadata(folder.join("model.safetensors"))
        .expect("a file")
        .len();
    assert_eq!(of_one.len(), first.len());
    assert!(of_one.windows(2).all(|pair| pair[0].loaded < pair[1].loaded));
    let last = of_one.last().expect("a report");
    assert!(
        last.loaded == last.total && last.total > size / 2 && last.total < size,
        "{last:?} of {size}"
    );
    assert!(load() == first);
    assert_eq!(*reports.lock().expect("no panic"), of_one);
}

#[test]
fn what_is_cached_is_not_computed_again() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    let request = Request {
        max_tokens: 5,
        sampling: Sampling {
            temperature: 0.8,
            top_k: Some(40),
            seed: 3,
            ..Sampling::default()
        },
        stop: Some(Vec::new()),
    };
    let collect = |generator: &mut Generator, prompt: &[u32]| {
        let mut generation = generator.generate(prompt, &request).expect("it begins");
        let found: Vec<u32> = generation.by_ref().map(|token| token.expect("a token")).collect();
        (found, generation.speed())
    };
    let mut generator = generator("llama", 8);
    let (first, speed) = collect(&mut generator, &prompt);
    assert_eq!(
        (first.len(), speed.prefill_tokens, speed.decode_tokens),
        (5, prompt.len(), 4)
    );
    // The same prompt: only its last token is computed. It also leads to the same text.
    let (again, speed) = collect(&mut generator, &prompt);
    assert_eq!((again, speed.prefill_tokens), (first.clone(), 1));
    // A longer prompt, as the next turn of a conversation: only its new tokens are computed, with the same result.
    let longer = [&prompt[..], &first, &[40, 41, 42]].concat();
    let (continued, speed) = collect(&mut generator, &longer);
    assert_eq!(speed.prefill_tokens, 4, "the last token of the answer, and three more");
    assert_eq!(continued, collect(&mut self::generator("llama", 8), &longer).0);
}

/// A session with steps of another shape reuses the cache in its storage type.
#[test]
fn caches_of_f16_are_taken_over() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    let longer = [&prompt[..], &[40, 41, 42]].concat();
    let request = Request {
        max_tokens: 6,
        stop: Some(Vec::new()),
        ..Request::default()
    };
    let collect = |generator: &mut Generator| -> Vec<u32> {
        let generation = generator.generate(&longer, &request).expect("it begins");
        generation.map(|token| token.expect("a token")).collect()
    };
    let mut generator = generator_with_half_cache("llama", 8);
    generator.prompt_logits(&prompt).expect("logits");
    assert_eq!(
        collect(&mut generator),
        collect(&mut generator_with_half_cache("llama", 8))
    );
}
