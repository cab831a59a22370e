//! Tests of log-probabilities that a stream sends in several events.

use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::chat::with_tools;
use crate::client::{TestServer, options};

/// Maximum number of tokens with log-probabilities in an event.
const PART: usize = 32;

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

#[test]
fn answers_that_may_be_calls_have_the_log_probabilities_of_whole_answers() {
    let folder = with_tools();
    let server = TestServer::with(ServerOptions {
        model: folder.path().to_owned(),
        ..options()
    });
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}});
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool], "max_tokens": 75, "n": 2,
        "ignore_eos": true, "temperature": 0.9, "seed": 5, "logprobs": true, "top_logprobs": 3});
    let whole = server.post("/v1/chat/completions", &body).json();
    body["stream"] = json!(true);
    let events = server.post("/v1/chat/completions", &body).events();
    for (index, choice) in list(&whole["choices"]).iter().enumerate() {
        let of_choice: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        let parts: Vec<Vec<Value>> = of_choice
            .iter()
            .map(|part| list(&part["logprobs"]["content"]))
            .collect();
        assert!(parts.iter().all(|part| part.len() <= PART));
        let (found, wanted) = (parts.concat(), list(&choice["logprobs"]["content"]));
        assert_eq!((found.len(), wanted.len()), (75, 75));
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_eq!(found["bytes"], wanted["bytes"]);
            assert_eq!(found["top_logprobs"].as_array().map(Vec::len), Some(3));
            let [found, wanted] = [found, wanted].map(|token| token["logprob"].as_f64().expect("a number"));
            // Sums are rounded differently next to other sequences.
            assert!((found - wanted).abs() < 1e-4, "{found}, not {wanted}");
        }
        let text: String = of_choice
            .iter()
            .filter_map(|part| part["delta"]["content"].as_str())
            .collect();
        assert_eq!(choice["message"]["content"], text);
        let ends: Vec<bool> = of_choice.iter().map(|part| part["finish_reason"] == "length").collect();
        assert_eq!(ends.iter().filter(|is_end| **is_end).count(), 1);
        assert_eq!(ends.last(), Some(&true));
    }
}

#[test]
fn a_stream_that_exceeds_the_limit_ends_with_the_error() {
    let server = TestServer::with(ServerOptions {
        max_unsent_bytes: 6000,
        ..options()
    });
    let prompt: Vec<u32> = (0..100).map(|i| i * 7 % 320).collect();
    let body = json!({"prompt": prompt, "max_tokens": 0, "logprobs": 5, "echo": true, "stream": true});
    let events = server.post("/v1/completions", &body).events();
    let error = events.last().expect("events");
    assert_eq!(error["error"]["code"], "answer_too_large", "{error}");
    let tokens: usize = events
        .iter()
        .map(|event| list(&event["choices"][0]["logprobs"]["tokens"]).len())
        .sum();
    assert_eq!(tokens, 0, "parts after the error");
}

#[test]
fn repeated_prompts_have_the_log_probabilities_of_whole_answers() {
    let server = TestServer::new();
    let prompt: Vec<u32> = (0..100).map(|i| i * 7 % 320).collect();
    let mut body =
        json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true, "temperature": 0, "logprobs": 2, "echo": true});
    let whole = server.post("/v1/completions", &body).json();
    body["stream"] = json!(true);
    let events = server.post("/v1/completions", &body).events();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts: Vec<Vec<Value>> = events
            .iter()
            .map(|event| list(&event["choices"][0]["logprobs"][name]))
            .collect();
        // The first token of a prompt has no log-probability.
        assert!(parts.iter().all(|part| part.len() <= PART + 1));
        let wanted = list(&whole["choices"][0]["logprobs"][name]);
        assert!(parts.concat() == wanted, "{name} differ");
    }
}
