//! Tests of checkpoints whose tensors are stored differently from a model's parameters: training and saving.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura_compiler::builder::Builder;
use meganeura_core::ops::RopeScaling;
use meganeura_core::random::SplitMix64;
use meganeura_core::{Adam, Session};
use meganeura_llm::{Adapters, Checkpoint, Generator, GeneratorOptions, ModelConfig, Request, WeightStorage, saving};
use meganeura_nn::layers::{Activation, LoraConfig, LoraTargets};
use meganeura_nn::models::{LayerSet, LlamaConfig, TARGETS, TOKENS, language_model};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::transformers::{self, MODELS, device, expected, folder, ids};

/// Creates a session that trains a checkpoint on its prompt.
fn training(model: &str, lora: Option<LoraConfig>) -> Session {
    let prompt = ids(&expected(model)["prompt_ids"]);
    let config = ModelConfig::open(&folder(model)).expect("a configuration");
    let network = LlamaConfig { lora, ..config.network };
    let rows = prompt.len() - 1;
    let graph = language_model(1, rows, |g, tokens| network.build(g, "").forward(g, tokens));
    let (mut session, _) = Builder::on(device()).build(&graph).expect("a session");
    let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
    checkpoint.load_into(&mut session).expect("they fit");
    session.set_input_u32(TOKENS, &prompt[..rows]);
    session.set_input_u32(TARGETS, &prompt[1..]);
    session
}

/// Returns shapes and numbers of the tensors in a folder.
fn tensors(folder: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !(name.starts_with("model") && name.ends_with(".safetensors")) {
            continue;
        }
        let bytes = std::fs::read(&path).expect("readable");
        for (name, view) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
            let data = view.data();
            let values = match view.dtype() {
                Dtype::F32 => data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
                Dtype::F16 => data
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| half::f16::from_le_bytes(b).to_f32())
                    .collect(),
                _ => data
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| half::bf16::from_le_bytes(b).to_f32())
                    .collect(),
            };
            all.insert(name, (view.shape().to_vec(), values));
        }
    }
    all
}

fn logits(folder: &Path, adapters: Option<&Path>, prompt: &[u32]) -> Vec<f32> {
    let config = ModelConfig::open(folder).expect("a configuration");
    logits_of(folder, config, adapters, prompt)
}

/// Returns the logits of the weights in a folder with the given configuration.
fn logits_of(folder: &Path, config: ModelConfig, adapters: Option<&Path>, prompt: &[u32]) -> Vec<f32> {
    let mut checkpoint = Checkpoint::open(folder).expect("weights");
    if let Some(adapters) = adapters {
        let adapters = Adapters::open(adapters).expect("adapters");
        checkpoint = checkpoint.with_adapters(adapters).expect("they fit");
    }
    let options = GeneratorOptions {
        weights: Some(WeightStorage::F32),
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::on(device(), config, checkpoint, &options).expect("a generator");
    generator.prompt_logits(prompt).expect("logits")
}

fn off(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    found.iter().zip(wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs())) / size
}

/// Saved names, shapes and numbers equal those of the loaded checkpoint, so that transformers can read it.
#[test]
fn what_is_saved_is_what_was_loaded() {
    // Packed experts are saved as numbers.
    for model in MODELS.into_iter().filter(|model| !model.ends_with("mxfp4")) {
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let mut session = training(model, None);
        let saved = tempfile::tempdir().expect("a folder");
        saving::save_weights(saved.path(), &mut session, None, config.projections).expect("saved");
        let (found, wanted) = (tensors(saved.path()), tensors(&folder(model)));
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            wanted.keys().collect::<Vec<_>>(),
            "{model}"
        );
        for (name, (shape, values)) in &wanted {
            let (own_shape, own) = &found[name];
            assert_eq!((own_shape, own), (shape, values), "{model} {name}");
        }
    }
}

#[test]
fn a_trained_model_is_saved_and_opened() {
    for model in [
        "gemma2",
        "gemma3",
        "phi3",
        "smollm3",
        "olmo2",
        "qwen2_moe",
        "mixtral",
        "olmo3",
        "ministral3",
        "glm4_moe",
        "lfm2",
        "gpt_oss",
        "gpt_oss_mxfp4",
    ] {
        let prompt = ids(&expected(model)["prompt_ids"]);
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let mut session = training(model, None);
        session.set_optimizer(Adam::adamw(1e-3, 0.01));
        let mut losses = Vec::new();
        for _ in 0..5 {
            session.step();
            losses.push(session.read_loss());
        }
        assert!(losses[4] < 0.9 * losses[0], "{model}: {losses:?}");
        let saved = tempfile::tempdir().expect("a folder");
        saving::copy_descriptions(&folder(model), saved.path()).expect("copied");
        saving::save_weights(saved.path(), &mut session, None, config.projections).expect("saved");
        // Results of the session before the next update.
        session.step();
        let mut wanted = vec![0.0; (prompt.len() - 1) * config.network.vocab];
        session.read_output_by_index(1, &mut wanted);
        let found = logits(saved.path(), None, &prompt[..prompt.len() - 1]);
        assert!(off(&found, &wanted) < 1e-5, "{model}: off by {}", off(&found, &wanted));
    }
}

#[test]
fn adapters_of_every_layer_are_saved_and_merged() {
    for model in ["gemma3", "phi3", "olmo2"] {
        let prompt = ids(&expected(model)["prompt_ids"]);
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let lora = LoraConfig {
            targets: LoraTargets::ALL,
            ..LoraConfig::new(2)
        };
        let mut session = training(model, Some(lora));
        let mut rng = SplitMix64::new(3);
        let views = session.plan().parameters();
        for view in views.iter().filter(|view| view.name.contains(".lora_")) {
            let values: Vec<f32> = (0..view.ty.numel()).map(|_| 0.2 * (rng.unit() as f32 - 0.5)).collect();
            session.set_parameter(&view.name, &values);
        }
        // Only adapters are trained.
        let trained = session.plan().gradients().len();
        assert_eq!(trained, 14 * config.network.layers, "{model}");
        let adapters = tempfile::tempdir().expect("a folder");
        saving::save_adapters(adapters.path(), &mut session, &lora, model).expect("saved");
        let merged = tempfile::tempdir().expect("a folder");
        saving::copy_descriptions(&folder(model), merged.path()).expect("copied");
        saving::save_weights(merged.path(), &mut session, Some(&lora), config.projections).expect("saved");
        let wanted = logits(&folder(model), Some(adapters.path()), &prompt);
        let found = logits(merged.path(), None, &prompt);
        assert!(off(&found, &wanted) < 1e-5, "{model}: off by {}", off(&found, &wanted));
        let without = logits(&folder(model), None, &prompt);
        assert!(off(&without, &wanted) > 0.02, "{model}: adapters change little");
    }
}

/// The text part of a checkpoint with an image encoder (Gemma 3) generates text, and is saved as a separate model.
#[test]
fn the_text_part_of_a_larger_model() {
    let prompt = ids(&expected("gemma3")["prompt_ids"]);
    let text = std::fs::read_to_string(folder("gemma3").join("config.json")).expect("a fixture");
    let mut text: Value = serde_json::from_str(&text).expect("json");
    let stop = text.as_object_mut().and_then(|fields| fields.remove("eos_token_id"));
    let whole = json!({"model_type": "gemma3", "text_config": text, "vision_config": {}, "eos_token_id": stop});
    for (prefix, image) in [
        ("language_model.", "vision_tower."),
        ("model.language_model.", "model.vision_tower."),
    ] {
        let large = tempfile::tempdir().expect("a folder");
        let wrapped = tensors(&folder("gemma3")).into_iter().map(|(name, (shape, values))| {
            let name = match prefix {
                "language_model." => format!("{prefix}{name}"),
                _ => name.replacen("model.", prefix, 1),
            };
            (name, shape, values)
        });
        let image = (format!("{image}patch.weight"), vec![1, 2], vec![1.0f32, 2.0]);
        let all: Vec<(String, Vec<usize>, Vec<u8>)> = wrapped
            .chain([image])
            .map(|(name, shape, values)| (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
            .collect();
        let views = all.iter().map(|(name, shape, data)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), data).expect("a tensor");
            (name, view)
        });
        let stored = safetensors::serialize(views, None).expect("serialized");
        std::fs::write(large.path().join("model.safetensors"), stored).expect("written");
        std::fs::write(large.path().join("config.json"), whole.to_string()).expect("written");
        let config = ModelConfig::open(large.path()).expect("a configuration");
        assert_eq!(config, ModelConfig::open(&folder("gemma3")).expect("a configuration"));
        let wanted = logits(&folder("gemma3"), None, &prompt);
        assert_eq!(logits(large.path(), None, &prompt), wanted, "{prefix}");
        let saved = tempfile::tempdir().expect("a folder");
        saving::copy_descriptions(large.path(), saved.path()).expect("copied");
        let description = std::fs::read_to_string(saved.path().join("config.json")).expect("written");
        let description: Value = serde_json::from_str(&description).expect("json");
        assert_eq!(description["model_type"], "gemma3_text");
        assert_eq!(description["architectures"], json!(["Gemma3ForCausalLM"]));
        assert_eq!(ModelConfig::open(saved.path()).expect("a configuration"), config);
    }
}

/// The error of an indivisible projection uses its stored name and shape.
#[test]
fn projections_that_are_not_whole() {
    let config = ModelConfig::open(&folder("phi3")).expect("a configuration");
    let target = tempfile::tempdir().expect("a folder");
    let mut all = tensors(&folder("phi3"));
    let name = "model.layers.1.self_attn.qkv_proj.weight";
    let (shape, values) = all.get_mut(name).expect("a tensor");
    shape[0] -= 1;
    values.truncate(shape.iter().product());
    let all: Vec<(String, Vec<usize>, Vec<u8>)> = all
        .into_iter()
        .map(|(name, (shape, values))| (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = all.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data).expect("a tensor");
        (name, view)
    });
    let stored = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(target.path().join("model.safetensors"), stored).expect("written");
    let checkpoint = Checkpoint::open(target.path()).expect("weights");
    let error = checkpoint
        .check_model(&config.network)
        .expect_err("no such model")
        .to_string();
    assert!(error.contains("3 missing") && error.contains(name), "{error}");
}

/// Changing any single option of a fixture's configuration changes the logits.
#[test]
fn every_option_changes_the_logits() {
    type Change = fn(&mut LlamaConfig);
    let changes: [(&str, &[(&str, Change)]); 14] = [
        (
            "gemma2",
            &[
                ("window", |n| n.window = Some(7)),
                ("full_attention_layers", |n| n.full_attention_layers = LayerSet::NONE),
                ("other layers", |n| n.full_attention_layers = [0].into_iter().collect()),
                ("attention_scale", |n| n.attention_scale = None),
                ("attention_softcap", |n| n.attention_softcap = None),
                ("logit_softcap", |n| n.logit_softcap = None),
                ("activation", |n| n.activation = Activation::Silu),
                ("zero_centered_norms", |n| n.zero_centered_norms = false),
                ("embedding_multiplier", |n| n.embedding_multiplier = None),
            ],
        ),
        (
            "gemma3",
            &[
                ("window", |n| n.window = Some(7)),
                ("full_attention_layers", |n| n.full_attention_layers = LayerSet::NONE),
                ("rope_local_theta", |n| n.rope_local_theta = None),
                ("rope_theta", |n| n.rope_theta = 10_000.0),
                ("rope_scaling", |n| n.rope_scaling = RopeScaling::None),
                ("zero_centered_norms", |n| n.zero_centered_norms = false),
            ],
        ),
        (
            "qwen2_window",
            &[("full_attention_layers", |n| n.full_attention_layers = LayerSet::NONE)],
        ),
        ("phi3", &[("window", |n| n.window = None)]),
        ("phi3_partial", &[("rotary_dim", |n| n.rotary_dim = None)]),
        ("phi3_longrope", &[("longrope", |n| n.longrope = None)]),
        (
            "smollm3",
            &[
                ("nope_layers", |n| n.nope_layers = LayerSet::NONE),
                ("other layers", |n| n.nope_layers = [0].into_iter().collect()),
            ],
        ),
        ("olmo2", &[("eps", |n| n.eps = 1e-2)]),
        ("qwen3_yarn", &[("longrope", |n| n.longrope = None)]),
        (
            "olmo3",
            &[
                ("longrope", |n| n.longrope = None),
                ("rope_local_theta", |n| n.rope_local_theta = None),
                ("full_attention_layers", |n| n.full_attention_layers = LayerSet::NONE),
            ],
        ),
        (
            "ministral3",
            &[
                ("longrope", |n| n.longrope = None),
                ("query_growth", |n| n.query_growth = None),
            ],
        ),
        (
            "glm4_moe",
            &[
                ("routed_scaling", |n| n.routed_scaling = None),
                ("rotary_dim", |n| n.rotary_dim = None),
            ],
        ),
        (
            "gpt_oss",
            &[
                ("longrope", |n| n.longrope = None),
                ("gate_limit", |n| n.gate_limit = Some(7.0)),
                ("window", |n| n.window = None),
                ("full_attention_layers", |n| n.full_attention_layers = LayerSet::NONE),
            ],
        ),
        (
            "granite",
            &[
                ("attention_scale", |n| n.attention_scale = None),
                ("embedding_multiplier", |n| n.embedding_multiplier = None),
                ("residual_multiplier", |n| n.residual_multiplier = None),
                ("logits_scaling", |n| n.logits_scaling = None),
            ],
        ),
    ];
    for (model, changes) in changes {
        let prompt = ids(&expected(model)["prompt_ids"]);
        let wanted = logits(&folder(model), None, &prompt);
        for (name, change) in changes {
            let mut config = ModelConfig::open(&folder(model)).expect("a configuration");
            change(&mut config.network);
            let found = logits_of(&folder(model), config, None, &prompt);
            let error = off(&found, &wanted);
            assert!(error > 2e-3, "{model} without {name}: off by {error} only");
        }
    }
}

/// The size of the cache selects the factors of LongRoPE: the short ones are used up to the original context.
#[test]
fn factors_of_a_short_context() {
    let model = "phi3_longrope_short";
    let expected = expected(model);
    let prompt = ids(&expected["prompt_ids"]);
    let wanted = transformers::logits(model);
    let generator = |capacity| {
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
        let options = GeneratorOptions {
            capacity: Some(capacity),
            weights: Some(WeightStorage::F32),
            ..GeneratorOptions::default()
        };
        Generator::on(device(), config, checkpoint, &options).expect("a generator")
    };
    let found = generator(96).prompt_logits(&prompt).expect("logits");
    assert!(off(&found, &wanted) < 1e-4, "off by {}", off(&found, &wanted));
    let long = generator(97).prompt_logits(&prompt).expect("logits");
    assert!(off(&long, &wanted) > 1e-2, "off by {} only", off(&long, &wanted));
    let request = Request {
        max_tokens: 64,
        stop: Some(Vec::new()),
        ..Request::default()
    };
    let mut short = generator(96);
    let generation = short.generate(&prompt, &request).expect("it begins");
    let found: Vec<u32> = generation.map(|token| token.expect("a token")).collect();
    assert_eq!(found, ids(&expected["continuation"]));
}
