//! Target: safetensors files, and their comparison with the configuration of a language model.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use meganeura_core::Weights;
use meganeura_fuzz::{binary, in_file, seed, target};
use meganeura_llm::{Checkpoint, ModelConfig};

fn config() -> &'static ModelConfig {
    static CONFIG: OnceLock<ModelConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let text = include_str!("../../tests/fixtures/transformers/llama/config.json");
        ModelConfig::parse(text, Path::new("config.json")).expect("a fixture")
    })
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        seed!("tests/fixtures/finetuning/lora/adapter_model.safetensors"),
        seed!("tests/fixtures/gguf/llama_q4_0.safetensors"),
    ]
}

target!(seeds: seeds, change: binary::safetensors, |data| {
    let _ = Weights::parse(Path::new("model.safetensors"), data);
    in_file("model.safetensors", data, |path| {
        if let Ok(checkpoint) = Checkpoint::open(path) {
            let _ = checkpoint.check_model(&config().network);
        }
    });
});
