//! Tests of fine-tuning against Hugging Face's transformers and PEFT: a step, a loss curve, and adapters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use meganeura_compiler::builder::Builder;
use meganeura_core::quantization::BLOCK;
use meganeura_core::{Adam, Session};
use meganeura_cpu::CpuDevice;
use meganeura_llm::adapters::set_lengths;
use meganeura_llm::{
    Adapters, Checkpoint, Generator, GeneratorOptions, ModelConfig, Projections, Request, WeightStorage, saving,
};
use meganeura_nn::layers::{LoraConfig, LoraTargets};
use meganeura_nn::models::{LlamaConfig, TARGETS, TOKENS, language_model};
use meganeura_nn::trainer::{Checkpoints, TrainConfig};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::adapted::{Ranks, assert_losses, on_ranks, train};

/// Maximum relative error of a loss and of the norm of a gradient.
const TOLERANCE: f64 = 1e-4;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn model() -> PathBuf {
    fixtures().join("transformers/llama")
}

fn lora() -> PathBuf {
    fixtures().join("finetuning/lora")
}

fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(fixtures().join("finetuning").join(name)).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list").iter();
    list.map(|id| id.as_u64().expect("a token") as u32).collect()
}

fn network(lora: Option<LoraConfig>) -> LlamaConfig {
    let config = ModelConfig::open(&model()).expect("a configuration");
    LlamaConfig { lora, ..config.network }
}

/// Creates a session that trains the checkpoint on batches of this shape.
fn training(lora: Option<LoraConfig>, batch: usize, rows: usize) -> Session {
    training_with(lora, WeightStorage::F32, batch, rows)
}

fn training_with(lora: Option<LoraConfig>, weights: WeightStorage, batch: usize, rows: usize) -> Session {
    let network = LlamaConfig {
        weights: weights.into(),
        ..network(lora)
    };
    let graph = language_model(batch, rows, |g, tokens| network.build(g, "").forward(g, tokens));
    let device = Arc::new(CpuDevice::new(2));
    let (mut session, _) = Builder::on(device).build(&graph).expect("a session");
    let checkpoint = Checkpoint::open(&model()).expect("weights");
    checkpoint.load_into(&mut session).expect("they fit");
    session
}

fn close(what: &str, found: f64, wanted: f64) {
    assert!(
        (found / wanted - 1.0).abs() < TOLERANCE,
        "{what}: {found}, not {wanted}"
    );
}

/// Runs the steps of a fixture and compares losses and the norms of the first gradients.
fn follow(session: &mut Session, curve: &Value) {
    let number = |name: &str| curve["adamw"][name].as_f64().expect("a number") as f32;
    session.set_optimizer(Adam {
        eps: number("epsilon"),
        ..Adam::adamw(number("rate"), number("weight_decay"))
    });
    let norms = curve["gradient_norms"].as_object().expect("norms by parameter");
    let trained = session.plan().gradients().len();
    assert_eq!(trained, norms.len(), "as many parameters are trained");
    let batches = curve["batches"].as_array().expect("a list");
    let losses = curve["losses"].as_array().expect("a list");
    assert_eq!((batches.len(), losses.len()), (20, 20));
    for (step, (batch, loss)) in batches.iter().zip(losses).enumerate() {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for row in batch.as_array().expect("rows") {
            let row = ids(row);
            tokens.extend_from_slice(&row[..row.len() - 1]);
            targets.extend_from_slice(&row[1..]);
        }
        session.set_input_u32(TOKENS, &tokens);
        session.set_input_u32(TARGETS, &targets);
        session.step();
        let found = f64::from(session.read_loss());
        close(&format!("loss of step {step}"), found, loss.as_f64().expect("a number"));
        if step == 0 {
            for (name, norm) in norms {
                let squares = session.read_grad(name).into_iter().map(|g| f64::from(g).powi(2));
                close(name, squares.sum::<f64>().sqrt(), norm.as_f64().expect("a number"));
            }
        }
    }
    let first = losses[0].as_f64().expect("a number");
    let least = losses.iter().filter_map(Value::as_f64).fold(first, f64::min);
    assert!(least < 0.98 * first, "nothing was learnt");
}

#[test]
fn twenty_steps_of_all_parameters_are_the_same() {
    follow(&mut training(None, 2, 24), &json("curve.json"));
}

#[test]
fn twenty_steps_of_adapters_are_the_same() {
    for name in ["lora", "dora"] {
        let adapters = Adapters::open(&of_peft(name)).expect("adapters");
        let mut session = training(Some(*adapters.config()), 2, 24);
        adapters.load_into(&mut session).expect("they fit");
        let frozen = "model.layers.0.self_attn.q_proj.weight";
        let before = session.read_parameter(frozen);
        follow(&mut session, &json(&format!("{name}_curve.json")));
        assert_eq!(
            session.read_parameter(frozen),
            before,
            "the model itself stays as it is"
        );
    }
}

/// Returns the values of weights stored in fewer bits: rows of `[outputs, inputs]` in blocks, rows of other lengths in `f16`.
fn rounded(weight: &[f32], inputs: usize, storage: WeightStorage) -> Vec<f32> {
    let Some(format) = storage.format().filter(|_| inputs.is_multiple_of(BLOCK)) else {
        return weight.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    };
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    format.quantize(weight, &mut bytes, &mut scales);
    format.dequantize(&bytes, &scales)
}

/// Adapters on packed weights (QLoRA; Dettmers et al., 2023) learn the same as on the dequantized weights in `f32`.
#[test]
fn adapters_on_packed_weights_follow_those_on_their_numbers() {
    let adapters = Adapters::open(&lora()).expect("adapters");
    let lora = Some(*adapters.config());
    let curve = json("lora_curve.json");
    for &storage in &WeightStorage::ALL[1..] {
        let mut packed = training_with(lora, storage, 2, 24);
        let mut plain = training(lora, 2, 24);
        for view in plain.plan().parameters() {
            let (name, shape) = (&view.name, view.ty.shape.to_vec());
            let &[rows, columns] = &shape[..] else { continue };
            if name.contains("lora_") {
                continue;
            }
            let values = plain.read_parameter(name);
            let values = if name.ends_with("embed_tokens.weight") {
                rounded(&values, columns, storage)
            } else {
                // Graphs have `[inputs, outputs]`.
                let turn = |from: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                    (0..rows * columns)
                        .map(|i| from[i % rows * columns + i / rows])
                        .collect()
                };
                turn(&rounded(&turn(&values, rows, columns), rows, storage), columns, rows)
            };
            plain.set_parameter(name, &values);
        }
        for session in [&mut packed, &mut plain] {
            adapters.load_into(session).expect("they fit");
            session.set_optimizer(Adam::adamw(0.01, 0.0));
        }
        let trained = packed.plan().gradients().len();
        assert_eq!(trained, plain.plan().gradients().len(), "the adapters alone");
        let mut losses = Vec::new();
        for batch in curve["batches"].as_array().expect("a list") {
            let rows: Vec<Vec<u32>> = batch.as_array().expect("rows").iter().map(ids).collect();
            let tokens: Vec<u32> = rows.iter().flat_map(|row| row[..row.len() - 1].to_vec()).collect();
            let targets: Vec<u32> = rows.iter().flat_map(|row| row[1..].to_vec()).collect();
            for session in [&mut packed, &mut plain] {
                session.set_input_u32(TOKENS, &tokens);
                session.set_input_u32(TARGETS, &targets);
                session.step();
            }
            let found = f64::from(packed.read_loss());
            close(&format!("{storage:?}"), found, f64::from(plain.read_loss()));
            losses.push(found);
        }
        assert!(losses[losses.len() - 1] < losses[0], "nothing was learnt: {losses:?}");
    }
}

/// Models and adapters train with the same losses on one, two and three ranks, and training resumes on another number
/// of ranks.
#[test]
fn models_and_adapters_learn_the_same_on_any_number_of_ranks() {
    let run = |lora: bool, weights: WeightStorage, ranks: Ranks, change: &dyn Fn(&mut TrainConfig)| {
        let adapters = lora.then(self::lora);
        train(&model(), adapters.as_deref(), weights.into(), ranks, change)
    };
    let adapted = WeightStorage::ALL.iter().map(|&weights| (true, weights));
    for (lora, weights) in [(false, WeightStorage::F32)].into_iter().chain(adapted) {
        let single = run(lora, weights, None, &|_| ());
        assert!(single[1] < single[0], "{single:?}");
        for size in [2, 3] {
            for zero1 in [false, true] {
                let found = on_ranks(size, |ranks| run(lora, weights, ranks, &|config| config.zero1 = zero1));
                let what = format!("{weights:?}, adapters {lora}, {size} ranks, zero1 {zero1}");
                assert_losses(&what, &found, &single, TOLERANCE);
            }
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let single = run(true, WeightStorage::Q8, None, &|_| ());
    for (size, epochs) in [(2, 1), (3, 2)] {
        let resumed = |config: &mut TrainConfig| {
            config.epochs = epochs;
            config.checkpoints = Some(Checkpoints {
                folder: folder.path().to_owned(),
                every: 1000,
                resume: true,
                allow_changes: Vec::new(),
            });
        };
        let found = on_ranks(size, |ranks| run(true, WeightStorage::Q8, ranks, &resumed));
        let last = &found[found.len() - 1..];
        assert_losses("resumed", last, &single[epochs - 1..epochs], TOLERANCE);
    }
}

fn logits(folder: &Path, adapters: Option<&Path>, prompt: &[u32]) -> Vec<f32> {
    let mut checkpoint = Checkpoint::open(folder).expect("weights");
    if let Some(adapters) = adapters {
        let adapters = Adapters::open(adapters).expect("adapters");
        checkpoint = checkpoint.with_adapters(adapters).expect("they fit");
    }
    let config = ModelConfig::open(folder).expect("a configuration");
    let device = Arc::new(CpuDevice::new(2));
    let mut generator = Generator::on(device, config, checkpoint, &GeneratorOptions::default()).expect("a generator");
    generator.prompt_logits(prompt).expect("logits")
}

fn off(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    // The maximum of distances would ignore NaN.
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    found.iter().zip(wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs())) / size
}

/// Folder of adapters that PEFT wrote.
fn of_peft(name: &str) -> PathBuf {
    fixtures().join("finetuning").join(name)
}

/// Logits of the prompt of `lora.json` with the adapters of a folder, as PEFT computed them.
fn logits_of_peft(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(of_peft(&format!("{name}.safetensors"))).expect("a fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (words, _) = tensors.tensor("logits").expect("logits").data().as_chunks::<4>();
    words.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// LoRA; rsLoRA with ranks and alphas that differ between layers; DoRA.
#[test]
fn merged_adapters_give_the_logits_of_peft() {
    let prompt = ids(&json("lora.json")["prompt_ids"]);
    let without = logits(&model(), None, &prompt);
    for name in ["lora", "patterns", "dora"] {
        let wanted = logits_of_peft(name);
        let found = logits(&model(), Some(&of_peft(name)), &prompt);
        assert!(off(&found, &wanted) < 1e-4, "{name}: off by {}", off(&found, &wanted));
        assert!(off(&without, &wanted) > 0.1, "{name}: adapters change little");
    }
}

/// With weights of 16 and 8 bits, adapters are not merged. Results differ only by the rounding of the weights.
#[test]
fn adapters_of_all_kinds_work_beside_packed_weights() {
    let prompt = ids(&json("lora.json")["prompt_ids"]);
    for name in ["lora", "patterns", "dora"] {
        let wanted = logits_of_peft(name);
        for (storage, tolerance) in [(WeightStorage::F16, 5e-3), (WeightStorage::Q8, 5e-2)] {
            let mut config = ModelConfig::open(&model()).expect("a configuration");
            config.network.weights = storage.into();
            let options = GeneratorOptions {
                adapters: Some(of_peft(name)),
                ..GeneratorOptions::default()
            };
            let checkpoint = Checkpoint::open(&model()).expect("weights");
            let device = Arc::new(CpuDevice::new(2));
            let mut generator = Generator::on(device, config, checkpoint, &options).expect("a generator");
            let found = generator.prompt_logits(&prompt).expect("logits");
            let off = off(&found, &wanted);
            assert!(off < tolerance, "{name} beside {storage:?}: off by {off}");
        }
    }
}

/// Untrained DoRA adapters do not change the loss, with weights of any storage type.
#[test]
fn new_dora_adapters_change_nothing() {
    let lora = LoraConfig {
        dora: true,
        targets: LoraTargets::ALL,
        ..LoraConfig::new(2)
    };
    let tokens: Vec<u32> = (0..8).collect();
    for &storage in &WeightStorage::ALL {
        let losses = [None, Some(lora)].map(|lora| {
            let mut session = training_with(lora, storage, 1, 8);
            set_lengths(&mut session).expect("sets");
            session.set_input_u32(TOKENS, &tokens);
            session.set_input_u32(TARGETS, &tokens);
            session.step();
            f64::from(session.read_loss())
        });
        close(&format!("{storage:?}"), losses[1], losses[0]);
    }
}

#[test]
fn what_is_saved_is_what_was_trained() {
    let prompt = ids(&json("lora.json")["prompt_ids"]);
    let opened = |name: &str| {
        let adapters = Adapters::open(&of_peft(name)).expect("adapters");
        let config = *adapters.config();
        let mut session = training(Some(config), 1, 8);
        adapters.load_into(&mut session).expect("they fit");
        (session, config)
    };
    for name in ["lora", "patterns", "dora"] {
        let (mut session, config) = opened(name);
        let wanted = logits(&model(), Some(&of_peft(name)), &prompt);
        // Adapters: the same bits.
        let folder = tempfile::tempdir().expect("a folder");
        saving::save_adapters(folder.path(), &mut session, &config, "model").expect("saved");
        assert_eq!(*Adapters::open(folder.path()).expect("adapters").config(), config);
        assert_eq!(logits(&model(), Some(folder.path()), &prompt), wanted);
        // A whole model.
        let merged = tempfile::tempdir().expect("a folder");
        saving::copy_descriptions(&model(), merged.path()).expect("copied");
        saving::save_weights(merged.path(), &mut session, Some(&config), Projections::Separate).expect("saved");
        let found = logits(merged.path(), None, &prompt);
        assert!(off(&found, &wanted) < 1e-6, "{name}: off by {}", off(&found, &wanted));
    }
    let (mut session, config) = opened("lora");

    // Nothing is saved if training diverged.
    let (name, spoilt) = (
        "model.layers.0.self_attn.q_proj.lora_B.weight",
        tempfile::tempdir().expect("a folder"),
    );
    let mut values = session.read_parameter(name);
    values[0] = f32::NAN;
    session.set_parameter(name, &values);
    for error in [
        saving::save_adapters(spoilt.path(), &mut session, &config, "model").expect_err("refused"),
        saving::save_weights(spoilt.path(), &mut session, Some(&config), Projections::Separate).expect_err("refused"),
    ] {
        let said = format!("'{name}' has numbers that are not finite");
        assert!(error.to_string().contains(&said), "{error}");
    }
    assert_eq!(std::fs::read_dir(spoilt.path()).expect("a folder").count(), 0);

    // A new configuration.
    let own = tempfile::tempdir().expect("a folder");
    let opened = ModelConfig::open(&model()).expect("a configuration");
    saving::save_config(own.path(), &opened.network, opened.context, Some(2)).expect("saved");
    let again = ModelConfig::open(own.path()).expect("a configuration");
    let head_dim = Some(opened.network.head_dim());
    let network = LlamaConfig {
        head_dim,
        ..opened.network
    };
    assert_eq!(
        (again.network, again.context, again.stop),
        (network, opened.context, vec![2])
    );
    let window = LlamaConfig {
        window: Some(8),
        ..opened.network
    };
    let error = saving::save_config(own.path(), &window, 8, None).expect_err("not of the type llama");
    assert!(error.to_string().contains("type llama"), "{error}");
}

#[test]
fn adapters_that_cannot_be_used_are_one_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = Adapters::open(folder.path()).expect_err("no files").to_string();
    assert!(
        error.contains("adapter_config.json") && error.contains("give the folder of adapters"),
        "{error}"
    );
    let error = ModelConfig::open(&lora()).expect_err("no model").to_string();
    assert!(error.contains("this folder has adapters"), "{error}");
    let config = std::fs::read_to_string(lora().join("adapter_config.json")).expect("a fixture");
    let matrices = std::fs::read(lora().join("adapter_model.safetensors")).expect("a fixture");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("written");
    write("adapter_config.json", config.as_bytes());
    let error = Adapters::open(folder.path()).expect_err("no matrices").to_string();
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    write("adapter_model.safetensors", &matrices);
    for (from, to, said) in [
        ("\"use_dora\": false", "\"use_dora\": true", "0 lengths (DoRA)"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "trained biases"),
        (
            "\"rank_pattern\": {}",
            "\"rank_pattern\": {\"q_proj\": 2}",
            "matrices of rank 2",
        ),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 0}", "is 0"),
        (
            "\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\".*\\\\.q_proj\": 2}",
            "regular expression",
        ),
        (
            "\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\"q_proj\": \"x\"}",
            "alpha_pattern of 'q_proj'",
        ),
        (
            "\"init_lora_weights\": true",
            "\"init_lora_weights\": \"pissa_niter_16\"",
            "initialized with \"pissa_niter_16\" (init_lora_weights)",
        ),
        (
            "\"alora_invocation_tokens\": null",
            "\"alora_invocation_tokens\": [3]",
            "begin to act at some tokens",
        ),
        ("\"lora_bias\": false", "\"lora_bias\": true", "biases of adapters"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "'IA3'"),
        ("\"v_proj\"", "\"norm\"", "'norm'"),
        ("\"r\": 4", "\"r\": 0", "rank 0"),
        ("\"r\": 4", "\"r\": 5", "matrices of rank 5"),
        ("\"r\": 4", "\"r\": []", "invalid type"),
    ] {
        let changed = config.replace(from, to);
        assert_ne!(changed, config, "{from}");
        write("adapter_config.json", changed.as_bytes());
        let error = Adapters::open(folder.path()).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    for begun in ["\"gaussian\"", "false", "null"] {
        let changed = config.replace(
            "\"init_lora_weights\": true",
            &format!("\"init_lora_weights\": {begun}"),
        );
        write("adapter_config.json", changed.as_bytes());
        assert!(Adapters::open(folder.path()).is_ok(), "{begun}");
    }
    write("adapter_config.json", config.as_bytes());
    write("adapter_model.safetensors", &matrices[..matrices.len() / 2]);
    let error = Adapters::open(folder.path()).expect_err("half of a file").to_string();
    assert!(error.contains("is damaged or of another format"), "{error}");

    // Adapters of another model.
    let other = Checkpoint::open(&fixtures().join("transformers/llama_linear")).expect("weights");
    let error = other
        .with_adapters(Adapters::open(&lora()).expect("adapters"))
        .expect_err("other shapes");
    assert!(error.to_string().contains("of shape"), "{error}");
    let mut session = training(Some(LoraConfig::new(2)), 1, 8);
    let error = Adapters::open(&lora())
        .expect("adapters")
        .load_into(&mut session)
        .expect_err("another rank");
    assert!(error.to_string().contains("does not hold"), "{error}");
}

#[test]
fn adapters_change_what_is_generated() {
    let request = Request {
        max_tokens: 8,
        stop: Some(Vec::new()),
        ..Request::default()
    };
    let text = |adapters: Option<PathBuf>| {
        let options = GeneratorOptions {
            device: Some("cpu".into()),
            adapters,
            ..GeneratorOptions::default()
        };
        let mut generator = Generator::open(&model(), options).expect("a generator");
        let generation = generator.generate(&[35, 78, 312], &request).expect("it begins");
        generation.map(|token| token.expect("a token")).collect::<Vec<u32>>()
    };
    assert_ne!(text(Some(lora())), text(None));
}
