//! Comparison of SmolLM2-135M with random weights.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::llm::saving::{make_folder, save_config, save_weights};
use meganeura::llm::{Checkpoint, Generator, GeneratorOptions, ModelConfig, Projections, Request, WeightStorage};
use meganeura::nn::models::{KV_POS, LOGITS_ROW, LlamaConfig, LogitsOf, TARGETS, TOKENS, language_model, preset};
use meganeura::{Adam, Session};
use serde_json::json;

use crate::comparison::{Comparison, Result};
use crate::problem::Handout;
use crate::training::{self, ComparedSession, RATE, STEPS, Training};
use crate::{Setup, python};

const CONTEXT: usize = 2048;
const CAPACITY: usize = 512;
const PROMPT: usize = 128;
const VOCAB: usize = 49_152;
/// Maximum difference from the other framework's results in `f32`, relative to the largest number.
const SAME: f32 = 1e-4;

/// Writes a checkpoint with random weights, unless the folder contains one.
pub(crate) fn checkpoint(folder: &Path) -> Result<()> {
    if folder.join("config.json").exists() {
        return Ok(());
    }
    let model = preset("smollm2-135m").ok_or("there is no such preset")?;
    let config = model.language_model().ok_or("it is no language model")?;
    let device = Arc::new(CpuDevice::new(2));
    let (mut session, _) = Builder::on(device).inference().build(&model.graph(1))?;
    session.initialize_parameters(1);
    make_folder(folder)?;
    save_weights(folder, &mut session, None, Projections::Separate)?;
    save_config(folder, &config, CONTEXT, None)?;
    Ok(())
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * 311 % VOCAB as u32).collect()
}

/// Creates a session that appends `rows` tokens to the cache.
fn session(folder: &Path, threads: usize, weights: WeightStorage, rows: usize) -> Result<Session> {
    let config = LlamaConfig {
        weights: weights.into(),
        ..ModelConfig::open(folder)?.network
    };
    let logits = if rows == 1 { LogitsOf::AllRows } else { LogitsOf::OneRow };
    let graph = config.decode_graph(&[], rows, CAPACITY, logits);
    let (mut session, _) = Builder::on(Arc::new(CpuDevice::new(threads)))
        .inference()
        .build(&graph)?;
    Checkpoint::open(folder)?.load_into(&mut session)?;
    if rows > 1 {
        session.try_set_input_u32(LOGITS_ROW, &[rows as u32 - 1])?;
    }
    Ok(session)
}

/// Appends tokens to the cache; returns the logits of the last one.
fn read(session: &mut Session, position: usize, tokens: &[u32]) -> Result<Vec<f32>> {
    session.try_set_input_u32(TOKENS, tokens)?;
    session.try_set_input_u32(KV_POS, &[position as u32])?;
    session.try_step()?;
    Ok(session.try_read_output(VOCAB)?)
}

/// Opens the model in candle, with `f32` weights and an empty cache.
fn candle(folder: &Path) -> Result<(Llama, Cache)> {
    let model = ModelConfig::open(folder)?.network;
    let config = Config {
        hidden_size: model.dim,
        intermediate_size: model.hidden,
        vocab_size: model.vocab,
        num_hidden_layers: model.layers,
        num_attention_heads: model.heads,
        num_key_value_heads: model.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: f64::from(model.eps),
        rope_theta: model.rope_theta,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: CONTEXT,
        tie_word_embeddings: model.tied_embeddings,
    };
    let file = folder.join("model.safetensors");
    // SAFETY: the file is not written while this program runs.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu)? };
    let cache = Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    Ok((Llama::load(weights, &config)?, cache))
}

/// Appends tokens to candle's cache; returns the logits of the last one.
fn read_with_candle(model: &Llama, cache: &mut Cache, position: usize, tokens: &[u32]) -> Result<Vec<f32>> {
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    Ok(model.forward(&tokens, position, cache)?.flatten_all()?.to_vec1()?)
}

/// Storage types that are compared.
const STORAGES: [WeightStorage; 4] = [
    WeightStorage::F32,
    WeightStorage::F16,
    WeightStorage::Q8,
    WeightStorage::Q4,
];

/// Returns the maximum difference of results from those of `f32` weights.
fn tolerance(weights: WeightStorage) -> f32 {
    match weights {
        WeightStorage::F32 => 0.0,
        WeightStorage::F16 => 2e-3,
        WeightStorage::Q8 => 2e-2,
        _ => 0.4,
    }
}

/// Returns the workload for programs in other languages: appending tokens after a prompt.
fn reading(folder: &Path, prompt: &[u32], tokens: &[u32]) -> Handout<'static> {
    Handout {
        kind: "LlamaRead".to_owned(),
        operands: &[],
        settings: json!({
            "checkpoint": folder,
            "capacity": CAPACITY,
            "prompt": prompt,
            "position": prompt.len(),
            "tokens": tokens,
        }),
        onnx: None,
    }
}

pub(crate) fn prefill(folder: &Path, setup: &Setup) -> Result<Comparison<'static>> {
    let mut comparison = Comparison::new(format!("SmolLM2-135M, a prompt of {PROMPT} tokens"));
    let prompt = tokens(PROMPT);
    for weights in STORAGES {
        let mut session = session(folder, setup.threads, weights, PROMPT)?;
        let prompt = prompt.clone();
        let workload = Box::new(move || read(&mut session, 0, &prompt));
        comparison.add(format!("meganeura {}", weights.name()), tolerance(weights), workload);
    }
    python::add(
        &mut comparison,
        setup,
        python::OF_MODELS,
        SAME,
        &reading(folder, &[], &prompt),
    );
    if setup.wants("candle") {
        let (model, empty) = candle(folder)?;
        let workload = Box::new(move || read_with_candle(&model, &mut empty.clone(), 0, &prompt));
        comparison.add("candle f32", SAME, workload);
    }
    Ok(comparison)
}

pub(crate) fn decode(folder: &Path, setup: &Setup) -> Result<Comparison<'static>> {
    const TOKEN: u32 = 7;
    let mut comparison = Comparison::new(format!("SmolLM2-135M, a token behind {PROMPT} that are cached"));
    let prompt = tokens(PROMPT);
    for weights in STORAGES {
        let mut session = session(folder, setup.threads, weights, 1)?;
        for (position, &token) in prompt.iter().enumerate() {
            read(&mut session, position, &[token])?;
        }
        let workload = Box::new(move || read(&mut session, PROMPT, &[TOKEN]));
        comparison.add(format!("meganeura {}", weights.name()), tolerance(weights), workload);
    }
    let handout = reading(folder, &prompt, &[TOKEN]);
    python::add(&mut comparison, setup, python::OF_MODELS, SAME, &handout);
    if setup.wants("candle") {
        let (model, mut cached) = candle(folder)?;
        read_with_candle(&model, &mut cached, 0, &prompt)?;
        let workload = Box::new(move || read_with_candle(&model, &mut cached.clone(), PROMPT, &[TOKEN]));
        comparison.add("candle f32", SAME, workload);
    }
    Ok(comparison)
}

/// Compares a training step with Adam. candle's model cannot be trained.
pub(crate) fn train(folder: &Path, setup: &Setup) -> Result<Comparison<'static>> {
    const WATCHED: &str = "model.norm.weight";
    let mut comparison = Comparison::new(format!("SmolLM2-135M, training step of {PROMPT} tokens, Adam"));
    let config = ModelConfig::open(folder)?.network;
    let graph = language_model(1, PROMPT, |g, tokens| config.build(g, "").forward(g, tokens));
    let device = Arc::new(CpuDevice::new(setup.threads));
    let (mut session, _) = Builder::on(device).optimizer(Adam::new(RATE)).build(&graph)?;
    Checkpoint::open(folder)?.load_into(&mut session)?;
    let text = tokens(PROMPT + 1);
    session.try_set_input_u32(TOKENS, &text[..PROMPT])?;
    session.try_set_input_u32(TARGETS, &text[1..])?;
    comparison.add(
        "meganeura f32",
        0.0,
        Box::new(Training(ComparedSession(session, WATCHED))),
    );
    let handout = Handout {
        kind: "LlamaStep".to_owned(),
        operands: &[],
        settings: json!({
            "checkpoint": folder,
            "tokens": text[..PROMPT],
            "targets": text[1..],
            "rate": RATE,
            "steps": STEPS,
            "watched": WATCHED,
        }),
        onnx: None,
    };
    python::add(&mut comparison, setup, python::OF_MODELS, training::SAME, &handout);
    Ok(comparison)
}

/// Compares the time from opening the checkpoint to the logits of the first token.
pub(crate) fn first_token<'a>(folder: &'a Path, setup: &'a Setup) -> Result<Comparison<'a>> {
    const PROMPT: usize = 16;
    let mut comparison = Comparison::new(format!(
        "SmolLM2-135M, from opening the checkpoint to the first token after {PROMPT}"
    ));
    let plans = Arc::new(tempfile::tempdir()?);
    for weights in STORAGES {
        let options = GeneratorOptions {
            capacity: Some(CAPACITY),
            prefill_rows: Some(PROMPT),
            plans: Some(plans.path().join(weights.name())),
            weights: Some(weights),
            ..GeneratorOptions::default()
        };
        let kept = plans.clone();
        let workload = move || {
            // Keeps the folder of plans as long as this workload.
            let _ = &kept;
            let device = Arc::new(CpuDevice::new(setup.threads));
            let (config, checkpoint) = (ModelConfig::open(folder)?, Checkpoint::open(folder)?);
            let mut generator = Generator::on(device, config, checkpoint, &options)?;
            let request = Request {
                max_tokens: 1,
                ..Request::default()
            };
            let mut text = generator.generate(&tokens(PROMPT), &request)?;
            let token = text.next().ok_or("there is no token")??;
            Ok(vec![token as f32])
        };
        comparison.add(
            format!("meganeura {}", weights.name()),
            f32::INFINITY,
            Box::new(workload),
        );
    }
    let workload = move || {
        let (model, mut cache) = candle(folder)?;
        let logits = read_with_candle(&model, &mut cache, 0, &tokens(PROMPT))?;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        Ok(vec![best.unwrap_or_default() as f32])
    };
    if setup.wants("candle") {
        comparison.add("candle f32", 0.0, Box::new(workload));
    }
    Ok(comparison)
}
