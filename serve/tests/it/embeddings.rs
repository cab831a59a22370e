//! Tests of `/v1/embeddings`. The expected vectors are from transformers with the same encoder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meganeura_llm::EmbedderOptions;
use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{TestServer, options};

fn encoder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/embeddings")
        .join(name)
}

pub(crate) fn of(name: &str) -> ServerOptions {
    ServerOptions {
        model: encoder(name),
        embedder: EmbedderOptions {
            device: Some("cpu".into()),
            ..EmbedderOptions::default()
        },
        ..options()
    }
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(encoder(name).join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a vector").iter();
    list.map(|x| x.as_f64().expect("a number")).collect()
}

fn normalized(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

fn assert_close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-5, "{found}, not {wanted}");
    }
}

#[test]
fn an_encoder_in_a_gguf_file_is_served() {
    let server = TestServer::with(of("../gguf/bert_f32.gguf"));
    let expected = expected("bert");
    let response = server.post("/v1/embeddings", &json!({"input": expected["texts"]}));
    assert_eq!(response.status, 200, "{}", response.body);
    let data = response.json()["data"].clone();
    let found = data.as_array().expect("vectors").iter();
    for (found, wanted) in found.zip(expected["mean"].as_array().expect("vectors")) {
        assert_close(&numbers(&found["embedding"]), &normalized(&numbers(wanted)));
    }
}

#[test]
fn vectors_are_those_of_transformers_from_texts_and_tokens() {
    let server = TestServer::with(of("bert"));
    let expected = expected("bert");
    for input in [&expected["texts"], &expected["tokens"]] {
        let response = server.post("/v1/embeddings", &json!({"model": "bert", "input": input}));
        assert_eq!(response.status, 200, "{}", response.body);
        let value = response.json();
        assert_eq!((&value["object"], &value["model"]), (&json!("list"), &json!("bert")));
        assert_eq!(value["usage"], json!({"prompt_tokens": 59, "total_tokens": 59}));
        let data = value["data"].as_array().expect("data");
        let wanted = expected["mean"].as_array().expect("vectors");
        assert_eq!(data.len(), wanted.len());
        for (i, (found, wanted)) in data.iter().zip(wanted).enumerate() {
            assert_eq!(
                (&found["object"], found["index"].as_u64()),
                (&json!("embedding"), Some(i as u64))
            );
            assert_close(&numbers(&found["embedding"]), &normalized(&numbers(wanted)));
        }
    }
    // One text, and one list of tokens.
    for input in [&expected["texts"][0], &expected["tokens"][0]] {
        let value = server.post("/v1/embeddings", &json!({ "input": input })).json();
        assert_close(
            &numbers(&value["data"][0]["embedding"]),
            &normalized(&numbers(&expected["mean"][0])),
        );
    }
    server.end().expect("it ends");
}

#[test]
fn forms_of_vectors() {
    let server = TestServer::with(of("bert"));
    let expected = normalized(&numbers(&expected("bert")["mean"][1]));
    let ask = |more: Value| {
        let mut body = json!({"input": "Rabbit"});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        server.post("/v1/embeddings", &body)
    };
    let base64 = ask(json!({"encoding_format": "base64"})).json();
    let text = base64["data"][0]["embedding"].as_str().expect("text").to_owned();
    // 24 numbers of four bytes, in groups of three.
    assert_eq!(text.len(), 128);
    let digit = |c: u8| {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        alphabet.iter().position(|&a| a == c).expect("a digit") as u32
    };
    let bytes: Vec<u8> = text
        .as_bytes()
        .chunks_exact(4)
        .flat_map(|four| {
            let bits = four.iter().fold(0, |bits, &c| bits << 6 | digit(c));
            bits.to_be_bytes()[1..].to_vec()
        })
        .collect();
    let found: Vec<f64> = bytes
        .chunks_exact(4)
        .map(|word| f64::from(f32::from_le_bytes([word[0], word[1], word[2], word[3]])))
        .collect();
    assert_close(&found, &expected);

    let first = ask(json!({"dimensions": 8})).json();
    assert_close(&numbers(&first["data"][0]["embedding"]), &normalized(&expected[..8]));

    for (more, field) in [
        (json!({"encoding_format": "hex"}), "encoding_format"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"dimensions": 25}), "dimensions"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": [[300]]}), "input"),
        (json!({"input": "down ".repeat(100)}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"dimension": 8}), "dimension"),
    ] {
        let response = ask(more.clone());
        assert!((400..500).contains(&response.status), "{more}: {}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{more}: {}", response.body);
    }
    let response = server.post("/v1/embeddings", &json!({"input": 5}));
    assert_eq!(response.status, 400, "{}", response.body);
    server.end().expect("it ends");
}

#[test]
fn many_at_once_get_their_own() {
    let server = TestServer::with(of("roberta"));
    let expected = expected("roberta");
    let texts = expected["texts"].as_array().expect("texts");
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for round in 0..5 {
                    // Long and short texts in one batch.
                    let picked: Vec<usize> = (0..40).map(|i| (i * (worker + 1) + round) % texts.len()).collect();
                    let input: Vec<&Value> = picked.iter().map(|&i| &texts[i]).collect();
                    let value = server.post("/v1/embeddings", &json!({ "input": input })).json();
                    for (found, &i) in value["data"].as_array().expect("data").iter().zip(&picked) {
                        // This model's vectors keep their length.
                        let (found, wanted) = (numbers(&found["embedding"]), numbers(&expected["cls"][i]));
                        let size = wanted.iter().fold(1.0f64, |most, x| most.max(x.abs()));
                        let scaled = |vector: &[f64]| -> Vec<f64> { vector.iter().map(|x| x / size).collect() };
                        assert_close(&scaled(&found), &scaled(&wanted));
                    }
                }
            });
        }
    });
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("meganeura_steps_total "), "{metrics}");
    server.end().expect("it ends");
}

#[test]
fn other_paths_say_what_the_model_is_for() {
    let server = TestServer::with(of("bert"));
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let response = server.post(path, &json!({"prompt": "a", "messages": []}));
        assert_eq!(response.status, 501, "{}", response.body);
        assert!(response.body.contains("use /v1/embeddings"), "{}", response.body);
    }
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("bert"), &json!(60))
    );
    assert_eq!(server.get("/health").json()["status"], "ok");
    server.end().expect("it ends");
}

#[test]
fn a_full_queue_and_a_short_time() {
    let body = json!({"input": vec!["Down, down, down. Would the fall never come to an end?"; 2000]});
    let server = TestServer::with(ServerOptions {
        request_timeout: Duration::from_millis(1),
        ..of("bert")
    });
    let response = server.post("/v1/embeddings", &body);
    assert_eq!(response.status, 504, "{}", response.body);
    server.end().expect("it ends");

    let server = TestServer::with(ServerOptions { queue: 1, ..of("bert") });
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| server.post("/v1/embeddings", &body).status))
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert!(
        statuses.iter().all(|status| [200, 429].contains(status)),
        "{statuses:?}"
    );
    server.end().expect("it ends");
}

#[test]
fn options_of_text_models_are_refused() {
    let changes: [fn(&mut meganeura_llm::EngineOptions); 7] = [
        |e| e.weights = Some(meganeura_llm::WeightStorage::Q8),
        |e| e.cache_type = meganeura_llm::CacheType::F16,
        |e| e.adapters = Some("adapters".into()),
        |e| e.draft_tokens = 2,
        |e| e.context = Some(16),
        |e| e.cache_tokens = Some(64),
        |e| e.prefix_cache = false,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut options = of("bert");
        change(&mut options.engine);
        let error = meganeura_serve::Server::bind(options)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("encoders take no adapters"), "{number}: {error}");
    }
}

#[test]
fn options_of_encoders_are_refused_by_text_models() {
    let changes: [fn(&mut meganeura_llm::EmbedderOptions); 3] = [
        |e| e.pooling = Some("cls".parse().expect("a pooling")),
        |e| e.normalize = Some(true),
        |e| e.truncate = true,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut options = crate::client::options();
        change(&mut options.embedder);
        let error = meganeura_serve::Server::bind(options)
            .err()
            .expect("refused")
            .to_string();
        assert!(
            error.contains("do not support the options of encoders"),
            "{number}: {error}"
        );
    }
}

/// Copies the encoder, with NaN as the embedding of token 7.
fn damaged() -> tempfile::TempDir {
    let (from, to) = (encoder("bert"), tempfile::tempdir().expect("a folder"));
    for file in [
        "config.json",
        "tokenizer.json",
        "modules.json",
        "sentence_bert_config.json",
    ] {
        std::fs::copy(from.join(file), to.path().join(file)).expect("copied");
    }
    std::fs::create_dir(to.path().join("1_Pooling")).expect("a folder");
    std::fs::copy(
        from.join("1_Pooling/config.json"),
        to.path().join("1_Pooling/config.json"),
    )
    .expect("copied");
    let mut bytes = std::fs::read(from.join("model.safetensors")).expect("a fixture");
    // The file begins with the length of a JSON header, which contains the offsets of the tensors.
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let table = &tensors["embeddings.word_embeddings.weight"];
    let [start, width] =
        [&table["data_offsets"][0], &table["shape"][1]].map(|n| n.as_u64().expect("a number") as usize);
    for at in (0..width).map(|column| 8 + header + start + 4 * (7 * width + column)) {
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(to.path().join("model.safetensors"), bytes).expect("written");
    to
}

#[test]
fn a_vector_that_is_not_finite_is_an_error() {
    let folder = damaged();
    let server = TestServer::with(ServerOptions {
        model: folder.path().to_owned(),
        ..of("bert")
    });
    let response = server.post("/v1/embeddings", &json!({"input": [5, 7, 9]}));
    assert_eq!(response.status, 500, "{}", response.body);
    assert!(response.body.contains("NaN or infinity"), "{}", response.body);
    let response = server.post("/v1/embeddings", &json!({"input": [5, 8, 9]}));
    assert_eq!(response.status, 200, "{}", response.body);
}
