//! Tests of invalid files and requests: each gives one clear error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_core::random::SplitMix64;
use meganeura_core::{Error, Result};
use meganeura_cpu::CpuDevice;
use meganeura_llm::{Checkpoint, Generator, GeneratorOptions, ModelConfig, Request, Sampling, Tokenizer};

fn fixture(model: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/fixtures/transformers").join(model)
}

/// Copies a checkpoint, so that it can be damaged.
fn copy(model: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(fixture(model)).expect("a fixture") {
        let path = entry.expect("readable").path();
        fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    folder
}

fn generator(folder: &Path, capacity: Option<usize>) -> Result<Generator> {
    let options = GeneratorOptions {
        capacity,
        ..GeneratorOptions::default()
    };
    let config = ModelConfig::open(folder)?;
    Generator::on(Arc::new(CpuDevice::new(1)), config, Checkpoint::open(folder)?, &options)
}

#[track_caller]
fn says<T>(result: Result<T>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn absent_files() {
    let empty = tempfile::tempdir().expect("a folder");
    says(
        ModelConfig::open(empty.path()),
        &["config.json", "cannot be read", "help"],
    );
    says(
        Checkpoint::open(empty.path()),
        &["model.safetensors", "cannot be read", "help"],
    );
    says(Tokenizer::open(empty.path()), &["tokenizer.json", "cannot be read"]);
    let folder = copy("llama_sharded");
    fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).expect("removed");
    says(
        Checkpoint::open(folder.path()),
        &["model-00002-of-00003.safetensors", "cannot be read"],
    );
}

#[test]
fn an_index_that_lies() {
    let folder = copy("llama_sharded");
    let index = folder.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).expect("readable");
    for (from, to, said) in [
        ("model-00001-of-00003", "../model-00001-of-00003", "in another folder"),
        (
            "\"model.norm.weight\"",
            "\"model.other.weight\"",
            "no file has the tensor 'model.other.weight'",
        ),
        ("weight_map", "weights", "weight_map"),
    ] {
        fs::write(&index, text.replace(from, to)).expect("written");
        says(Checkpoint::open(folder.path()), &[said, "index.json"]);
    }
    fs::write(&index, "{\"weight_map\": {}}").expect("written");
    says(Checkpoint::open(folder.path()), &["lists no tensors", "index.json"]);
    // One tensor in two files.
    let twice = folder.path().join("model-00002-of-00003.safetensors");
    fs::copy(folder.path().join("model-00001-of-00003.safetensors"), twice).expect("copied");
    fs::write(&index, text).expect("written");
    says(Checkpoint::open(folder.path()), &["too"]);
}

#[test]
fn all_differences_come_together() {
    let folder = copy("llama");
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).expect("readable");
    let changed = text
        .replace("\"intermediate_size\": 48", "\"intermediate_size\": 50")
        .replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")
        .replace("\"mlp_bias\": false", "\"mlp_bias\": true");
    assert_ne!(changed, text);
    fs::write(&config, changed).expect("written");
    says(
        generator(folder.path(), None),
        &[
            "3 missing: model.layers.0.mlp.down_proj.bias",
            "9 unexpected: model.layers.1.input_layernorm.weight",
            "and 1 more",
            "3 mis-shaped: model.layers.0.mlp.down_proj.weight ([32, 48], not [32, 50])",
            "model.safetensors",
        ],
    );
}

/// Sizes in a configuration are compared with the tensors before memory is allocated for them.
#[test]
fn sizes_are_compared_before_memory_is_taken() {
    let folder = copy("llama");
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).expect("readable");
    for (name, from, said) in [
        ("num_hidden_layers", "2", "too few for the 2000000000 layers"),
        ("vocab_size", "320", "mis-shaped: model.embed_tokens.weight"),
        ("intermediate_size", "48", "mis-shaped"),
        ("hidden_size", "32", "mis-shaped"),
        ("head_dim", "8", "mis-shaped"),
    ] {
        let [from, to] = [from, "2000000000"].map(|size| format!("\"{name}\": {size}"));
        let changed = text.replace(&from, &to);
        assert_ne!(changed, text, "{from}");
        fs::write(&config, changed).expect("written");
        says(generator(folder.path(), Some(4)), &[said, "model.safetensors"]);
    }
    // A context can only be compared with the device's memory.
    let changed = text.replace("embeddings\": 128", "embeddings\": 2000000000");
    fs::write(&config, changed).expect("written");
    let mut generator = generator(folder.path(), None).expect("the weights are there");
    let error = generator.generate(&[1, 2], &Request::default()).map(|_| ()).err();
    assert!(matches!(error, Some(Error::OutOfMemory { .. })), "{error:?}");
}

/// Two tensors whose names map to the same parameter are an error.
#[test]
fn tensors_that_get_one_name_are_told() {
    for (model, other, said) in [
        (
            "mixtral",
            "model.layers.0.mlp.experts.0.gate_proj.weight",
            "are both 'model.layers.0.mlp.experts.0.gate_proj.weight'",
        ),
        (
            "gemma3",
            "language_model.model.norm.weight",
            "'language_model.model.norm.weight' and 'model.norm.weight' are both 'model.norm.weight'",
        ),
        (
            "phi3",
            "model.layers.0.self_attn.k_proj.weight",
            "'model.layers.0.self_attn.qkv_proj.weight' contains 'model.layers.0.self_attn.k_proj.weight'",
        ),
    ] {
        let folder = copy(model);
        let file = folder.path().join("model.safetensors");
        let bytes = fs::read(&file).expect("readable");
        let all = safetensors::SafeTensors::deserialize(&bytes).expect("a checkpoint");
        let mut tensors = all.tensors();
        let one = tensors[0].1.clone();
        tensors.push((other.to_owned(), one));
        let changed = safetensors::serialize(tensors, None).expect("serialised");
        fs::write(&file, changed).expect("written");
        says(Checkpoint::open(folder.path()), &[said, "model.safetensors"]);
    }
}

#[test]
fn requests_that_do_not_fit() {
    let folder = fixture("llama");
    let request = |max_tokens| Request {
        max_tokens,
        ..Request::default()
    };
    let mut generator = self::generator(&folder, Some(20)).expect("a generator");
    let mut outcome = |prompt: &[u32], request: &Request| generator.generate(prompt, request).map(|_| ());
    says(outcome(&[], &request(1)), &["no tokens"]);
    says(
        outcome(&[3, 320], &request(1)),
        &["token 320", "vocabulary of 320", "tokenizer"],
    );
    says(outcome(&[3; 21], &request(0)), &["21 tokens", "20 rows"]);
    says(
        outcome(&[3; 15], &request(6)),
        &["15 tokens and 6 generated tokens", "20 rows"],
    );
    says(outcome(&[3], &request(usize::MAX)), &["do not fit"]);
    let sampling = Sampling {
        top_k: Some(0),
        ..Sampling::default()
    };
    says(outcome(&[3], &Request { sampling, ..request(1) }), &["top-k"]);
    // After these errors, a request that fits still succeeds, up to the last row.
    assert!(outcome(&[3; 15], &request(5)).is_ok());
    says(
        self::generator(&folder, Some(0)).map(|_| ()),
        &["1 to 128 rows", "found 0"],
    );
    says(
        self::generator(&folder, Some(129)).map(|_| ()),
        &["1 to 128 rows", "found 129"],
    );
}

#[test]
fn a_tokenizer_of_another_model() {
    let folder = copy("llama");
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).expect("readable");
    fs::write(&config, text.replace("\"vocab_size\": 320", "\"vocab_size\": 300")).expect("written");
    let tokenizer = Tokenizer::open(folder.path()).expect("a tokenizer");
    let config = ModelConfig::open(folder.path()).expect("a configuration");
    says(tokenizer.check(&config), &["320 tokens", "only 300"]);
    fs::write(folder.path().join("tokenizer.json"), "{}").expect("written");
    says(
        Tokenizer::open(folder.path()),
        &["tokenizer.json", "is damaged or of another format"],
    );
}

/// Loading a damaged file either succeeds or returns an error.
#[test]
fn damaged_weights_are_read_or_refused() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("readable");
    let mut rng = SplitMix64::new(11);
    let (mut read, mut refused) = (0, 0);
    for round in 0..300 {
        let mut bytes = whole.clone();
        // Mostly in the header: its length, names, shapes and offsets.
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(2500).min(bytes.len() - 1);
            match (round + rng.below(2)) % 4 {
                0 => bytes[at] = rng.below(256) as u8,
                1 => bytes[at] = b'0' + rng.below(10) as u8,
                2 => bytes[rng.below(8)] = rng.below(256) as u8,
                _ => bytes.truncate(1 + rng.below(whole.len())),
            }
            if bytes.len() < 8 {
                break;
            }
        }
        // Another file, because the previous one may still be mapped.
        fs::remove_file(&path).expect("removed");
        fs::write(&path, &bytes).expect("written");
        let outcome = generator(folder.path(), Some(4)).and_then(|mut generator| {
            let generated = generator.generate(
                &[1, 2],
                &Request {
                    max_tokens: 1,
                    ..Request::default()
                },
            );
            generated.map(|_| ())
        });
        match outcome {
            Ok(()) => read += 1,
            Err(Error::File { .. }) => refused += 1,
            Err(other) => panic!("another error: {other}"),
        }
    }
    assert!(read > 0 && refused > 100, "{read} read, {refused} refused");
}
