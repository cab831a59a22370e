//! Tests of invalid and unsupported GGUF files: each gives one clear error.

use std::fs;
use std::path::PathBuf;

use meganeura_core::Error;
use meganeura_core::random::SplitMix64;
use meganeura_llm::{ChatTemplate, Checkpoint, ModelConfig, Tokenizer};

use super::files::{file, fixture, replaced, says, with_count};
use crate::one_token::generate;

#[test]
fn what_is_no_such_file() {
    let (folder, path) = file(b"");
    says(
        ModelConfig::open(&folder.path().join("model.gguf")),
        &["within the 4 bytes"],
    );
    fs::write(&path, b"GGML\0\0\0\0").expect("written");
    says(Checkpoint::open(&path), &["begin with GGUF"]);
    fs::write(&path, b"GGUF\x01\0\0\0").expect("written");
    says(Checkpoint::open(&path), &["expected version 2 or 3, found 1"]);
    let absent = folder.path().join("other").join("model.gguf");
    says(Checkpoint::open(&absent), &["cannot be read"]);
    let mut huge = b"GGUF\x03\0\0\0".to_vec();
    huge.extend(u64::MAX.to_le_bytes());
    huge.extend(1u64.to_le_bytes());
    fs::write(&path, huge).expect("written");
    says(Checkpoint::open(&path), &["declares 18446744073709551615"]);
}

#[test]
fn what_is_not_supported() {
    let whole = fixture("llama_q8_0");
    let other = replaced(&whole, "llama", "bloom");
    let (_folder, path) = file(&other);
    says(ModelConfig::open(&path), &["'bloom'", "llama, mistral, qwen2, qwen3"]);
    let (_folder, path) = file(&replaced(&whole, "gpt2", "rwkv"));
    says(Tokenizer::open(&path), &["'rwkv'", "tokenizer.json"]);
    let (_folder, path) = file(&replaced(&whole, "gpt-2", "gpt-9"));
    says(Tokenizer::open(&path), &["'gpt-9'", "tokenizer.json"]);
    // An adjacent tokenizer file replaces the missing tokenizer.
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
    fs::copy(root.join("tokenizer.json"), path.with_file_name("tokenizer.json")).expect("copied");
    assert_eq!(Tokenizer::open(&path).expect("a tokenizer").vocab(), 320);
    let (_folder, path) = file(&replaced(&whole, "tokenizer.chat_template", "tokenizer.that_template"));
    says(ChatTemplate::open(&path), &["no chat template"]);
    let (_folder, path) = file(&replaced(&whole, "blk.1.ffn_up.weight", "blk.1.ffn_it.weight"));
    says(
        generate(&path),
        &[
            "1 missing: model.layers.1.mlp.up_proj.weight",
            "1 unexpected: blk.1.ffn_it.weight",
        ],
    );
}

#[test]
fn metadata_of_another_model() {
    let whole = fixture("llama_f32");
    for (key, count, said) in [
        ("llama.block_count", u32::MAX, "4294967295 blocks"),
        ("llama.block_count", 0, "no positive number 'llama.block_count'"),
        ("llama.attention.head_count", 0, "no positive number"),
        (
            "llama.attention.head_count_kv",
            4,
            "'blk.0.attn_k.weight': expected [64, 64] from the metadata, found [32, 64]",
        ),
        ("llama.feed_forward_length", u32::MAX, "'blk.0.ffn_down.weight'"),
        ("llama.embedding_length", 65, "'blk.0.attn_q.weight'"),
        ("llama.rope.dimension_count", 8, "heads with partial rotation"),
    ] {
        let (_folder, path) = file(&with_count(&whole, key, count));
        says(generate(&path), &[said]);
    }
}

/// Loading a damaged file either succeeds or returns an error.
#[test]
fn damaged_files_are_read_or_refused() {
    let mut rng = SplitMix64::new(5);
    let (mut read, mut refused) = (0, 0);
    for name in ["llama_q4_0", "llama_q4_k"] {
        let whole = fixture(name);
        let tokens = whole
            .windows(21)
            .position(|w| w == b"tokenizer.ggml.tokens")
            .expect("tokens");
        let data = whole.windows(11).rposition(|w| w == b"output_norm").expect("tensors");
        for round in 0..400 {
            let mut bytes = whole.clone();
            // Mostly in the header, but not in the tokens.
            for _ in 0..1 + rng.below(3) {
                let at = match rng.below(3) {
                    0 => rng.below(tokens),
                    1 => data - rng.below(1200),
                    _ => rng.below(24),
                };
                let at = at.min(bytes.len() - 1);
                match (round + rng.below(2)) % 4 {
                    0 => bytes[at] = rng.below(256) as u8,
                    1 => bytes[at] = 0xff,
                    2 => bytes[at] ^= 1 << rng.below(8),
                    _ => bytes.truncate(1 + rng.below(whole.len())),
                }
            }
            let (_folder, path) = file(&bytes);
            let outcomes = [
                generate(&path),
                Tokenizer::open(&path).map(|_| ()),
                ChatTemplate::open(&path).map(|_| ()),
            ];
            for outcome in outcomes {
                match outcome {
                    Ok(()) => read += 1,
                    Err(Error::File { .. }) => refused += 1,
                    // Fewer positions than rows of the cache, or no token 2.
                    Err(Error::InvalidUse { .. }) => refused += 1,
                    Err(other) => panic!("{name} {round}: another error: {other}"),
                }
            }
        }
    }
    assert!(read > 100 && refused > 500, "{read} read, {refused} refused");
}
