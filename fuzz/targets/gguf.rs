//! Target: GGUF files, with metadata, model, weights, tokenizer and chat template. After the mutated part, the weights
//! repeat its bytes.
#![no_main]

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use meganeura_core::Session;
use meganeura_core::plan::compile_for;
use meganeura_cpu::CpuDevice;
use meganeura_fuzz::{SplitMix64, binary, in_file, seed, target};
use meganeura_llm::{ChatTemplate, Checkpoint, ModelConfig, Tokenizer, WeightStorage};
use meganeura_nn::models::{LogitsOf, StorageMap};

const WEIGHTS: usize = 176 << 10;

/// Returns everything before the weights.
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
        head(seed!("tests/fixtures/gguf/llama_q5_0.gguf")),
        head(seed!("tests/fixtures/gguf/llama_q4_k.gguf")),
        head(seed!("tests/fixtures/gguf/llama_q6_k.gguf")),
        head(seed!("tests/fixtures/gguf/llama_q4_0_mixed.gguf")),
        seed!("tests/fixtures/sentencepiece/vocab.gguf"),
    ]
}

/// Returns sessions that weights are loaded into. Their models have rows of one block and of a super-block, in all
/// storage types.
fn sessions() -> Vec<Session> {
    let mut sessions = Vec::new();
    for name in ["llama_q5_0", "llama_q4_k"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/gguf/{name}.gguf"));
        let network = ModelConfig::open(&path).expect("a fixture").network;
        for storage in WeightStorage::ALL {
            let mut network = network.clone();
            network.weights = StorageMap::all(storage);
            let device = Arc::new(CpuDevice::new(1));
            let plan = compile_for(&network.decode_graph(&[], 1, 1, LogitsOf::AllRows), &*device);
            let session = plan.and_then(|plan| Session::on(device, plan));
            sessions.push(session.expect("operators that ship"));
        }
    }
    sessions
}

thread_local! {
    static SESSIONS: RefCell<Vec<Session>> = RefCell::new(sessions());
}

target!(seeds: seeds, change: binary::with_text, |data| {
    let mut file = data.to_vec();
    file.extend(data.iter().cycle().take(WEIGHTS));
    in_file("model.gguf", &file, |path| {
        if let Ok(checkpoint) = Checkpoint::open(path) {
            if let Ok(config) = ModelConfig::open(path) {
                let _ = checkpoint.check_model(&config.network);
            }
            let _ = (checkpoint.usual_storage(), checkpoint.parameters());
            SESSIONS.with_borrow_mut(|sessions| {
                // One of them, always the same for the same file; usually none, because loading
                // takes longer than everything else.
                let sum = data.iter().fold(0, |sum: u64, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                let chosen = SplitMix64::new(sum).below(4 * sessions.len());
                if let Some(session) = sessions.get_mut(chosen) {
                    let _ = checkpoint.load_into(session);
                }
            });
        }
        if let Ok(tokenizer) = Tokenizer::open(path) {
            let _ = tokenizer.encode("a word, 12 \u{e9}");
        }
        let _ = ChatTemplate::open(path);
    });
});
