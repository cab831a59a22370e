//! Tests that every family in GGUF files loads and generates text. For Granite and SmolLM3 see
//! `scripts/verify-external/make_gguf_families.py`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use meganeura_cpu::CpuDevice;
use meganeura_llm::{Checkpoint, Generator, GeneratorOptions, ModelConfig, Request, WeightStorage};
use meganeura_nn::models::LlamaConfig;
use safetensors::SafeTensors;

use super::files::{file, replaced, says, with_count};
use super::{FILES, TOLERANCE, path, prompt, wanted};
use crate::transformers;

fn generator(path: &Path, weights: Option<WeightStorage>) -> Generator {
    let config = ModelConfig::open(path).expect("a configuration");
    let checkpoint = Checkpoint::open(path).expect("weights");
    let options = GeneratorOptions {
        prefill_rows: Some(5),
        weights,
        ..GeneratorOptions::default()
    };
    Generator::on(Arc::new(CpuDevice::new(2)), config, checkpoint, &options).expect("a generator")
}

fn continuation(path: &Path, weights: Option<WeightStorage>, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let request = Request {
        max_tokens,
        stop: Some(Vec::new()),
        ..Request::default()
    };
    let mut generator = generator(path, weights);
    let generation = generator.generate(prompt, &request).expect("it begins");
    generation.map(|token| token.expect("a token")).collect()
}

#[track_caller]
fn assert_close(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().all(|x| x.is_finite()));
    let size = wanted.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let worst = found.iter().zip(wanted).fold(0.0f32, |a, (f, w)| a.max((f - w).abs()));
    assert!(worst <= TOLERANCE * size, "off by {}", worst / size);
}

#[test]
fn every_family_generates() {
    let prompt = prompt();
    for name in FILES {
        let logits = wanted(name);
        let last = logits
            .chunks_exact(logits.len() / prompt.len())
            .next_back()
            .expect("rows");
        let likeliest = (0..last.len())
            .max_by(|&a, &b| last[a].total_cmp(&last[b]))
            .expect("tokens");
        let found = continuation(&path(name), Some(WeightStorage::F32), &prompt, 4);
        assert_eq!((found.len(), found[0] as usize), (4, likeliest), "{name}");
        // In the storage type of the file.
        assert_eq!(continuation(&path(name), None, &prompt, 4).len(), 4, "{name}");
    }
}

/// GGUF files of OLMo 3 have the architecture `olmo2`. Every fourth layer uses YaRN; all other layers have a window.
#[test]
fn files_have_the_logits_and_texts_of_transformers() {
    for model in ["granite", "olmo3", "lfm2"] {
        let file = path(&format!("{model}_bf16"));
        let expected = transformers::expected(model);
        let prompt = transformers::ids(&expected["prompt_ids"]);
        let found = generator(&file, None).prompt_logits(&prompt).expect("logits");
        assert_close(&found, &transformers::logits(model));
        let wanted = transformers::ids(&expected["continuation"]);
        assert_eq!(continuation(&file, None, &prompt, wanted.len()), wanted, "{model}");
    }
}

/// Experts in MXFP4 are stored in 8 bits without rounding, with biases and sinks in other types.
#[test]
fn gpt_oss_has_the_logits_and_texts_of_transformers() {
    let (model, file) = ("gpt_oss_mxfp4", path("gpt_oss_mxfp4"));
    let config = ModelConfig::open(&file).expect("a configuration");
    let original = ModelConfig::open(&transformers::folder(model)).expect("a configuration");
    let network = LlamaConfig {
        weights: original.network.weights,
        ..config.network
    };
    assert_eq!(network, original.network);
    let expected = transformers::expected(model);
    let prompt = transformers::ids(&expected["prompt_ids"]);
    let wanted = transformers::ids(&expected["continuation"]);
    for weights in [Some(WeightStorage::F32), None] {
        let found = generator(&file, weights).prompt_logits(&prompt).expect("logits");
        assert_close(&found, &transformers::logits(model));
        assert_eq!(continuation(&file, weights, &prompt, wanted.len()), wanted);
    }
}

/// A missing scale and a scale of 0 have the same effect.
#[test]
fn scales_of_granite_may_be_missing() {
    let whole = std::fs::read(path("granite_bf16")).expect("a fixture");
    let config = |bytes: &[u8]| {
        let (_folder, path) = file(bytes);
        ModelConfig::open(&path).expect("a configuration").network
    };
    let network = config(&whole);
    assert_eq!(
        (network.embedding_multiplier, network.logits_scaling),
        (Some(3.0), Some(2.0))
    );
    for key in [
        "granite.embedding_scale",
        "granite.logit_scale",
        "granite.residual_scale",
    ] {
        let without = config(&with_count(&whole, key, 0));
        let other = config(&replaced(&whole, key, &format!("{}?", &key[..key.len() - 1])));
        assert_eq!(without, other, "{key}");
        assert_ne!(without, network, "{key}");
    }
    let (_folder, path) = file(&replaced(&whole, "granite.block_count", "granite.block_limit"));
    says(ModelConfig::open(&path), &["granite.block_count"]);
}

/// A GGUF file has the logits of the equal checkpoint of SmolLM3, with a fourth layer without rotary positions.
#[test]
fn smollm3_has_the_logits_of_the_same_checkpoint() {
    let from = transformers::folder("smollm3");
    let folder = tempfile::tempdir().expect("a folder");
    let config = std::fs::read_to_string(from.join("config.json")).expect("a fixture");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("json");
    config["num_hidden_layers"] = 4.into();
    config["no_rope_layers"] = vec![1, 1, 1, 0].into();
    config["layer_types"] = vec!["full_attention"; 4].into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let bytes = std::fs::read(from.join("model.safetensors")).expect("a fixture");
    let mut tensors: BTreeMap<String, _> = SafeTensors::deserialize(&bytes)
        .expect("tensors")
        .tensors()
        .into_iter()
        .collect();
    let first: Vec<_> = tensors.iter().filter(|(name, _)| name.contains(".layers.0.")).collect();
    let fourth: Vec<_> = first
        .into_iter()
        .map(|(n, t)| (n.replace(".0.", ".3."), t.clone()))
        .collect();
    tensors.extend(fourth);
    let written = safetensors::serialize(tensors, None).expect("bytes");
    std::fs::write(folder.path().join("model.safetensors"), written).expect("written");

    let prompt = prompt();
    let file = path("smollm3_bf16");
    let wanted = generator(folder.path(), Some(WeightStorage::F32))
        .prompt_logits(&prompt)
        .expect("logits");
    let found = generator(&file, Some(WeightStorage::F32))
        .prompt_logits(&prompt)
        .expect("logits");
    assert_close(&found, &wanted);
    let wanted = continuation(folder.path(), Some(WeightStorage::F32), &prompt, 16);
    assert_eq!(continuation(&file, None, &prompt, 16), wanted);
}
