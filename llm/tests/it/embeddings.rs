//! Tests of encoders of every family against Hugging Face's transformers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_cpu::CpuDevice;
use meganeura_llm::{Embedder, EmbedderOptions, EncoderConfig, Pooling};
use serde_json::Value;

const MODELS: [&str; 3] = ["bert", "roberta", "distilbert"];
/// Maximum error, relative to the largest number.
const TOLERANCE: f64 = 1e-5;

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/embeddings")
        .join(model)
}

fn expected(model: &str) -> Value {
    let text = std::fs::read_to_string(folder(model).join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

fn texts(expected: &Value) -> Vec<String> {
    let list = expected["texts"].as_array().expect("texts").iter();
    list.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

fn vectors(value: &Value) -> Vec<Vec<f64>> {
    let numbers = |row: &Value| {
        let row = row.as_array().expect("a vector").iter();
        row.map(|x| x.as_f64().expect("a number")).collect()
    };
    value.as_array().expect("vectors").iter().map(numbers).collect()
}

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn open(model: &str, options: &EmbedderOptions) -> Embedder {
    Embedder::on(device(), &folder(model), options).expect("an encoder")
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn assert_close(found: &[f32], wanted: &[f64], what: &str) {
    assert_within(found, wanted, TOLERANCE, what);
}

/// Checks that the error is at most `tolerance`, relative to the largest number.
fn assert_within(found: &[f32], wanted: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let size = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (i, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
        let off = (f64::from(found) - wanted).abs();
        assert!(off <= tolerance * size, "{what}, number {i}: {found}, not {wanted}");
    }
}

#[test]
fn embeddings_are_those_of_transformers() {
    for model in MODELS {
        let expected = expected(model);
        let texts = texts(&expected);
        for (pooling, name) in [(Pooling::Mean, "mean"), (Pooling::Cls, "cls")] {
            let options = EmbedderOptions {
                pooling: Some(pooling),
                normalize: Some(false),
                ..EmbedderOptions::default()
            };
            // Texts of a step are padded to the longest one, and some rows stay empty.
            for texts_per_step in [1, 3] {
                let mut embedder = open(model, &options).texts_per_step(texts_per_step);
                let found = embedder.embed(&texts).expect("embeddings");
                let wanted = vectors(&expected[name]);
                assert_eq!(found.len(), wanted.len());
                for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    assert_close(
                        found,
                        wanted,
                        &format!("{model}, {name}, text {i}, {texts_per_step} a step"),
                    );
                }
            }
        }
    }
}

#[test]
fn tokens_are_those_of_transformers() {
    for model in MODELS {
        let expected = expected(model);
        let embedder = open(model, &EmbedderOptions::default());
        for (text, ids) in texts(&expected)
            .iter()
            .zip(expected["tokens"].as_array().expect("tokens"))
        {
            let wanted: Vec<u64> = ids.as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
            let found: Vec<u64> = embedder
                .text_encoder()
                .tokens(text)
                .expect("tokens")
                .into_iter()
                .map(u64::from)
                .collect();
            assert_eq!(found, wanted, "{model}: {text:?}");
        }
    }
}

fn gguf(model: &str) -> PathBuf {
    folder("../gguf").join(format!("{model}_f32.gguf"))
}

/// GGUF files of the same encoders result in the same tokens and embeddings: see
/// `scripts/verify-external/make_gguf_encoders.py`.
#[test]
fn gguf_files_have_the_tokens_and_embeddings_of_folders() {
    // A GGUF file contains no activation; RoBERTa's fixture has another one than usual.
    for (model, tolerance) in [("bert", TOLERANCE), ("distilbert", TOLERANCE), ("roberta", 0.05)] {
        assert!(EncoderConfig::is_one(&gguf(model)));
        let expected = expected(model);
        let texts = texts(&expected);
        for (pooling, name) in [(Pooling::Mean, "mean"), (Pooling::Cls, "cls")] {
            let options = EmbedderOptions {
                pooling: Some(pooling),
                normalize: Some(false),
                ..EmbedderOptions::default()
            };
            let mut embedder = Embedder::on(device(), &gguf(model), &options).expect("an encoder");
            let of_folder = open(model, &options);
            for text in texts
                .iter()
                .map(String::as_str)
                .chain(["Naïve CAFÉ 你好, zzyzx!", "[SEP] a"])
            {
                let [found, wanted] = [&embedder, &of_folder].map(|e| e.text_encoder().tokens(text).expect("tokens"));
                assert_eq!(found, wanted, "{model}: {text:?}");
            }
            let found = embedder.embed(&texts).expect("embeddings");
            for (i, (found, wanted)) in found.iter().zip(&vectors(&expected[name])).enumerate() {
                assert_within(found, wanted, tolerance, &format!("{model}, {name}, text {i}"));
            }
        }
    }
}

#[test]
fn gguf_files_have_a_pooling_and_a_context() {
    let of = |model: &str| EncoderConfig::open(&gguf(model)).expect("a configuration");
    let [bert, roberta, distilled] = ["bert", "roberta", "distilbert"].map(of);
    let of = |config: &EncoderConfig| (config.pooling, config.normalize, config.max_tokens);
    assert_eq!(of(&bert), (Pooling::Mean, true, 64));
    assert_eq!(of(&roberta), (Pooling::Cls, true, 64));
    assert_eq!(of(&distilled), (Pooling::Mean, true, 64));
    assert_eq!((roberta.network.first_position, distilled.network.token_types), (0, 0));
}

#[test]
fn gguf_files_that_are_no_encoder_are_refused() {
    use super::gguf::files::{file, replaced, says, text, with_count, with_value};

    let whole = std::fs::read(gguf("bert")).expect("a fixture");
    let open = |bytes: &[u8]| {
        let (folder, path) = file(bytes);
        let opened = Embedder::on(device(), &path, &EmbedderOptions::default());
        (folder, opened)
    };
    let refused = |bytes: &[u8], parts: &[&str]| says(open(bytes).1, parts);
    let pooling = "bert.pooling_type";
    refused(
        &with_count(&whole, pooling, 3),
        &["a pooling by the last token", pooling],
    );
    refused(&with_count(&whole, pooling, 4), &["a reranker"]);
    assert!(open(&with_count(&whole, pooling, 0)).1.is_ok());
    let context = "bert.context_length";
    let (_folder, short) = open(&with_count(&whole, context, 16));
    assert_eq!(short.expect("an encoder").config().max_tokens, 16);
    let id = "tokenizer.ggml.seperator_token_id";
    refused(
        &with_count(&whole, id, 300),
        &["seperator_token_id' is 300", "300 tokens"],
    );
    let without = replaced(
        &whole,
        "tokenizer.ggml.seperator_token_id",
        "tokenizer.ggml.seperator_token_no",
    );
    // The default id, 102, belongs to another token here.
    assert!(open(&without).1.is_ok());
    refused(
        &replaced(&whole, "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight"),
        &["encoder.layer.1.intermediate.dense.weight"],
    );
    let blocks = "bert.block_count";
    refused(&with_count(&whole, blocks, 2_000_000_000), &["2000000000 layers"]);
    for (key, count) in [
        ("bert.embedding_length", u32::MAX),
        ("bert.feed_forward_length", u32::MAX),
        ("bert.embedding_length", 27),
        ("bert.attention.head_count", 0),
        ("bert.attention.head_count", 5),
    ] {
        assert!(open(&with_count(&whole, key, count)).1.is_err(), "{key}: {count}");
    }
    let unigram = replaced(&whole, "tokenizer.ggml.model", "tokenizer.ggml.modes");
    let unigram = with_value(&unigram, "tokenizer.ggml.model", super::gguf::files::TEXT, &text("t5"));
    refused(&unigram, &["a tokenizer of the kind 't5'", "tokenizer.json"]);
    // A text model is not an encoder, and an encoder is not a text model.
    let llama = folder("../gguf").join("llama_f32.gguf");
    assert!(!EncoderConfig::is_one(&llama));
    let error = EncoderConfig::open(&llama).expect_err("no encoder").to_string();
    assert!(error.contains("architecture 'llama'"), "{error}");
}

#[test]
fn modules_of_sentence_transformers_decide() {
    let of = |model: &str| EncoderConfig::open(&folder(model)).expect("a configuration");
    let bert = of("bert");
    assert_eq!(
        (bert.pooling, bert.normalize, bert.max_tokens),
        (Pooling::Mean, true, 60)
    );
    let roberta = of("roberta");
    assert_eq!(
        (roberta.pooling, roberta.normalize, roberta.max_tokens),
        (Pooling::Cls, false, 60)
    );
    // The files contain no pooling settings.
    let distilled = of("distilbert");
    assert_eq!(
        (distilled.pooling, distilled.normalize, distilled.max_tokens),
        (Pooling::Mean, true, 64)
    );

    let expected = expected("bert");
    let found = open("bert", &EmbedderOptions::default())
        .embed(&texts(&expected))
        .expect("embeddings");
    for (found, wanted) in found.iter().zip(vectors(&expected["mean"])) {
        let length = length(&wanted);
        let wanted: Vec<f64> = wanted.iter().map(|x| x / length).collect();
        assert_close(found, &wanted, "normalized");
    }
}

#[test]
fn order_and_company_do_not_matter() {
    let texts = texts(&expected("bert"));
    let mut embedder = open("bert", &EmbedderOptions::default()).texts_per_step(2);
    let together = embedder.embed(&texts).expect("embeddings");
    let turned: Vec<&String> = texts.iter().rev().collect();
    let mut backwards = embedder.embed(&turned).expect("embeddings");
    backwards.reverse();
    for (i, text) in texts.iter().enumerate() {
        let alone = embedder.embed(std::slice::from_ref(text)).expect("an embedding");
        let alone: Vec<f64> = alone[0].iter().map(|&x| f64::from(x)).collect();
        assert_close(&together[i], &alone, text);
        assert_close(&backwards[i], &alone, text);
    }
    assert!(embedder.embed(&[] as &[&str]).expect("none").is_empty());
}

#[test]
fn long_texts_are_refused_or_truncated() {
    let long = "down ".repeat(200);
    let mut embedder = open("bert", &EmbedderOptions::default());
    let error = embedder.embed(&[&long]).expect_err("too long").to_string();
    assert!(error.contains("at most 60 tokens"), "{error}");
    let options = EmbedderOptions {
        truncate: true,
        ..EmbedderOptions::default()
    };
    let mut embedder = open("bert", &options);
    let tokens = embedder.text_encoder().tokens(&long).expect("tokens");
    let whole = embedder.text_encoder().tokenizer().encode(&long).expect("tokens");
    assert_eq!(tokens.len(), 60);
    assert_eq!(tokens[..59], whole[..59], "the beginning");
    assert_eq!(tokens.last(), whole.last(), "the mark of the end");
    assert_eq!(embedder.embed(&[&long]).expect("an embedding")[0].len(), embedder.dim());
}

/// A word of more than 100 letters is one unknown token, also if the text is split to count its tokens.
#[test]
fn long_texts_of_few_tokens_fit() {
    let words = ["x".repeat(101), "y".repeat(120)].join(" ") + " ";
    let embedder = open("bert", &EmbedderOptions::default());
    for blanks in [0, 40, 79] {
        let text = " ".repeat(blanks) + &words.repeat(29);
        assert!(text.len() > 6_000);
        assert_eq!(
            embedder.text_encoder().tokens(&text).expect("it fits").len(),
            60,
            "{blanks}"
        );
    }
    let text = " ".repeat(1_000) + &".".repeat(1_000_000);
    let error = embedder.text_encoder().tokens(&text).expect_err("too long").to_string();
    assert!(error.contains("found more"), "{error}");
}

#[test]
fn wrong_tokens_are_named() {
    let mut embedder = open("bert", &EmbedderOptions::default());
    for (tokens, said) in [
        (vec![], "a text of 0 tokens"),
        (vec![2; 61], "a text of 61 tokens"),
        (vec![2, 300], "token 300 is not in the model's vocabulary of 300"),
    ] {
        let error = embedder
            .embed_tokens(&[vec![2, 3], tokens])
            .expect_err(said)
            .to_string();
        assert!(error.contains(said), "{error:?} lacks {said:?}");
    }
    assert!(embedder.embed_tokens(&[vec![2, 3]]).is_ok(), "nothing is lost");
}

#[test]
fn folders_that_are_no_encoder_are_refused() {
    let refused = |change: &dyn Fn(&Path)| {
        let copy = tempfile::tempdir().expect("a folder");
        for file in std::fs::read_dir(folder("bert")).expect("a fixture").flatten() {
            let to = copy.path().join(file.file_name());
            if file.path().is_dir() {
                std::fs::create_dir(&to).expect("a folder");
                std::fs::copy(file.path().join("config.json"), to.join("config.json")).expect("a copy");
            } else {
                std::fs::copy(file.path(), to).expect("a copy");
            }
        }
        change(copy.path());
        let error = Embedder::on(device(), copy.path(), &EmbedderOptions::default());
        error.expect_err("an error").to_string()
    };
    let edit = |file: &'static str, from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path).expect("a file");
            assert!(text.contains(from), "{text}");
            std::fs::write(&path, text.replace(from, to)).expect("written");
        }
    };
    let error = refused(&edit("modules.json", "models.Normalize", "models.Dense"));
    assert!(error.contains("a module 'Dense' after the encoder"), "{error}");
    let error = refused(&edit("modules.json", "1_Pooling", "../1_Pooling"));
    assert!(error.contains("which is in another folder"), "{error}");
    let error = refused(&edit("config.json", "\"hidden_size\": 24", "\"hidden_size\": 27"));
    assert!(error.contains("mis-shaped"), "{error}");
    let error = refused(&edit("config.json", "hidden_layers\": 2", "hidden_layers\": 3"));
    assert!(error.contains("encoder.layer.2.attention.self.query.weight"), "{error}");
    let error = refused(&edit(
        "config.json",
        "hidden_layers\": 2",
        "hidden_layers\": 2000000000",
    ));
    assert!(error.contains("too few for the 2000000000 layers"), "{error}");
    let error = refused(&edit("config.json", "vocab_size\": 300", "vocab_size\": 299"));
    assert!(
        error.contains("mis-shaped") || error.contains("the model only 299"),
        "{error}"
    );
    let error = refused(&|folder| std::fs::remove_file(folder.join("tokenizer.json")).expect("removed"));
    assert!(error.contains("tokenizer.json"), "{error}");
}
