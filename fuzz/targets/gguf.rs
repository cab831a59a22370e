//! GGUF files: metadata, model, weights, tokenizer, chat template. Weights are zeros behind what is changed.
#![no_main]

use meganeura_fuzz::{binary, in_file, seed, target};
use meganeura_llm::{ChatTemplate, Checkpoint, ModelConfig, Tokenizer};

const WEIGHTS: usize = 64 << 10;

/// All up to the weights.
fn head(mut file: Vec<u8>) -> Vec<u8> {
    let last = b"output_norm.weight";
    let at = file.windows(last.len()).rposition(|w| w == last).expect("a model");
    file.truncate(at + last.len() + 64);
    file
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        head(seed!("tests/fixtures/gguf/llama_q4_0.gguf")),
        head(seed!("tests/fixtures/gguf/llama3_q8_0.gguf")),
        head(seed!("tests/fixtures/gguf/qwen3_q4_0.gguf")),
        seed!("tests/fixtures/sentencepiece/vocab.gguf"),
    ]
}

target!(seeds: seeds, change: binary::with_text, |data| {
    let mut file = data.to_vec();
    file.resize(data.len() + WEIGHTS, 0);
    in_file("model.gguf", &file, |path| {
        if let (Ok(checkpoint), Ok(config)) = (Checkpoint::open(path), ModelConfig::open(path)) {
            let _ = checkpoint.check_model(&config.network);
        }
        if let Ok(tokenizer) = Tokenizer::open(path) {
            let _ = tokenizer.encode("a word, 12 \u{e9}");
        }
        let _ = ChatTemplate::open(path);
    });
});
