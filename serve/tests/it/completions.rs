//! Tests of `/v1/completions`. The expected texts are from transformers with the same model.

use serde_json::{Value, json};

use meganeura_serve::ServerOptions;

use crate::client::{TestServer, model, options};

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(model(name).join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

/// Returns true if `whole` begins with `part`, ignoring an incomplete character at the end of `part`.
fn begins(whole: &str, part: &str) -> bool {
    whole.starts_with(part.trim_end_matches('\u{fffd}'))
}

#[test]
fn texts_are_those_of_transformers_whole_and_as_events() {
    let server = TestServer::new();
    let expected = expected("llama");
    let text = expected["text"].as_str().expect("text");
    for prompt in [&expected["prompt"], &expected["prompt_ids"]] {
        let body = json!({"model": "llama", "prompt": prompt, "max_tokens": 20, "temperature": 0});
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        let value = response.json();
        assert_eq!(value["object"], "text_completion");
        let choice = &value["choices"][0];
        assert_eq!(choice["finish_reason"], "length");
        let found = choice["text"].as_str().expect("text").to_owned();
        assert!(begins(text, &found), "{found:?} in {text:?}");
        let usage = &value["usage"];
        assert_eq!(
            (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()),
            (Some(26), Some(20))
        );

        let mut body = body;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let response = server.post("/v1/completions", &body);
        assert!(response.head.contains("text/event-stream"), "{}", response.head);
        let events = response.events();
        let (last, pieces) = events.split_last().expect("events");
        assert_eq!(last["usage"]["total_tokens"], usage["total_tokens"]);
        // The prompt was computed before.
        let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached.as_u64(), Some(16));
        let streamed: String = pieces.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(streamed, found);
        assert!(pieces.len() > 5);
        assert_eq!(pieces.last().expect("a piece")["choices"][0]["finish_reason"], "length");
    }
    server.end().expect("it ends");
}

#[test]
fn several_prompts_and_texts_and_seeds() {
    let server = TestServer::new();
    let body = json!({"prompt": ["Alice", "She"], "n": 2, "max_tokens": 8, "temperature": 1.0, "seed": 7});
    let [first, second] = [(); 2].map(|()| server.post("/v1/completions", &body).json());
    let texts = |value: &Value| -> Vec<String> {
        let choices = value["choices"].as_array().expect("choices");
        assert!(choices.iter().enumerate().all(|(i, choice)| choice["index"] == i));
        choices
            .iter()
            .map(|choice| choice["text"].as_str().expect("text").to_owned())
            .collect()
    };
    assert_eq!(texts(&first).len(), 4);
    assert_eq!(texts(&first), texts(&second));
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    // Without a seed, each request uses other random numbers.
    let body = json!({"prompt": "Alice", "max_tokens": 16, "temperature": 1.0});
    let [first, second] = [(); 2].map(|()| texts(&server.post("/v1/completions", &body).json()));
    assert_ne!(first, second);
    // So does each of several equal prompts. With a seed, they have equal texts.
    let mut body = json!({"prompt": vec!["Alice"; 5], "max_tokens": 16, "temperature": 1.0});
    let mut drawn = texts(&server.post("/v1/completions", &body).json());
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 5);
    body["seed"] = json!(7);
    let mut seeded = texts(&server.post("/v1/completions", &body).json());
    seeded.dedup();
    assert_eq!(seeded.len(), 1);
    // The second text of a seed is not the first one of the next seed.
    let [own, next] = [7, 8].map(|seed| {
        let body = json!({"prompt": "Alice", "n": 2, "max_tokens": 16, "temperature": 1.0, "seed": seed});
        texts(&server.post("/v1/completions", &body).json())
    });
    assert_eq!(own[0], seeded[0]);
    assert_ne!(own[1], next[0]);
}

#[test]
fn a_string_ends_the_text() {
    let server = TestServer::new();
    let expected = expected("llama");
    let whole = expected["text"].as_str().expect("text");
    // A part of it without replaced characters, of several tokens.
    let stop = "6or";
    let at = whole.find(stop).expect("it is there");
    for stream in [false, true] {
        let body = json!({"prompt": expected["prompt_ids"], "max_tokens": 40, "temperature": 0,
            "stop": ["never there", stop], "stream": stream});
        let response = server.post("/v1/completions", &body);
        let text: String = if !stream {
            response.json()["choices"][0]["text"].as_str().expect("text").to_owned()
        } else {
            response
                .events()
                .iter()
                .filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned))
                .collect()
        };
        assert_eq!(text, whole[..at]);
    }
}

#[test]
fn logarithms_of_probabilities() {
    let server = TestServer::new();
    let body = json!({"prompt": "Alice", "max_tokens": 5, "temperature": 0, "logprobs": 3});
    let value = server.post("/v1/completions", &body).json();
    let logprobs = &value["choices"][0]["logprobs"];
    let own = logprobs["token_logprobs"].as_array().expect("a list");
    assert_eq!(own.len(), 5);
    assert!(own.iter().all(|p| p.as_f64().expect("a number") < 0.0));
    let top = logprobs["top_logprobs"].as_array().expect("a list");
    // Texts of several tokens may be equal where bytes are no characters.
    assert!(
        top.iter()
            .all(|top| (1..=3).contains(&top.as_object().expect("an object").len()))
    );
    assert_eq!(logprobs["text_offset"][0], 0);
}

#[test]
fn fields_that_make_no_sense_are_named() {
    let server = TestServer::new();
    for (field, value, said) in [
        ("temperature", json!(-1), "temperature"),
        ("top_p", json!(2), "top-p"),
        ("n", json!(0), "found 0"),
        ("max_tokens", json!(0), "max_tokens"),
        ("stop", json!([""]), "stop"),
        ("prompt", json!([]), "expected 1 to 256 prompts"),
        ("prompt", json!(""), "tokens"),
        ("prompt", json!([100_000]), "100000"),
        ("suffix", json!("x"), "suffix"),
        ("best_of", json!(2), "best_of"),
        ("logprobs", json!(21), "21"),
        ("presence_penalty", json!(3), "presence penalty"),
        ("logit_bias", json!({"1000": 1}), "'1000'"),
        ("logit_bias", json!({"1": 101}), "100"),
        ("stop_token_ids", json!([1000]), "below 320"),
        ("guided_regex", json!("("), "grammar"),
        ("use_beam_search", json!(true), "use_beam_search"),
        ("temprature", json!(1), "unknown field 'temprature'"),
        ("response_format", json!({"type": "xml"}), "xml"),
        ("prompt", json!(vec![5; 128]), "128"),
    ] {
        let mut body = json!({"prompt": "Alice", "max_tokens": 1});
        body[field] = value;
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 400, "{field}: {}", response.body);
        assert!(response.message().contains(said), "{field}: {}", response.message());
    }
    let other = json!({"prompt": "a", "model": "other", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &other).status, 200);
    let strict = TestServer::with(ServerOptions {
        strict_model: true,
        ..options()
    });
    let response = strict.post("/v1/completions", &other);
    assert_eq!(response.status, 404);
    assert!(response.message().contains("'llama'"), "{}", response.message());
}

#[test]
fn output_keeps_to_a_schema() {
    let server = TestServer::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0},
        "b": {"enum": ["x", "yes"]}}, "required": ["a", "b"], "additionalProperties": false});
    for seed in 0..4 {
        let body = json!({"prompt": "Alice", "max_tokens": 100, "temperature": 1.0, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}});
        let value = server.post("/v1/completions", &body).json();
        let choice = &value["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{value}");
        let found: Value = serde_json::from_str(choice["text"].as_str().expect("text")).expect("json");
        assert!(found["a"].as_u64().is_some_and(|a| a < 100), "{found}");
        assert!(["x", "yes"].contains(&found["b"].as_str().expect("text")), "{found}");
    }
    let body = json!({"prompt": "Alice", "max_tokens": 30, "temperature": 1.0, "grammar": "start: \"ab\" /[0-9]{3}/"});
    let value = server.post("/v1/completions", &body).json();
    let text = value["choices"][0]["text"].as_str().expect("text");
    assert!(text.len() == 5 && text.starts_with("ab"), "{text:?}");
    for (field, wrong) in [
        ("grammar", json!("start: (")),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}),
        ),
    ] {
        let mut body = json!({"prompt": "Alice"});
        body[field] = wrong;
        assert_eq!(server.post("/v1/completions", &body).status, 400);
    }
}

#[test]
fn white_space_in_json_has_bounds() {
    let mut options = options();
    // Without bounds this model writes line breaks until there is no room.
    options.model = model("qwen3");
    let server = TestServer::with(options);
    for seed in 0..6 {
        let body = json!({"prompt": "Alice", "max_tokens": 100, "temperature": 1.0, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": {
                "type": "object", "properties": {"x": {"enum": ["a", "b"]}, "y": {"type": "array", "items": {"type": "boolean"}}},
                "required": ["x", "y"], "additionalProperties": false}}}});
        let value = server.post("/v1/completions", &body).json();
        let text = value["choices"][0]["text"].as_str().expect("text");
        let runs = text.split(|c: char| !c.is_whitespace());
        for run in runs {
            assert!(run.matches('\n').count() <= 2 && run.len() <= 76, "{text:?}");
        }
    }
}

#[test]
fn values_of_other_types_are_named() {
    let server = TestServer::new();
    for (field, wrong, said) in [
        ("prompt", json!(5), "expected a text, tokens, or a list of either"),
        ("prompt", json!(null), "expected a text, tokens, or a list of either"),
        ("max_tokens", json!("5"), "a whole number of 64 bits"),
        ("max_tokens", json!(-2), "or -1 for no limit"),
        ("top_k", json!(-2), "or -1 for all tokens"),
        ("temperature", json!("hot"), "expected a number"),
        ("temperature", json!(-1), "-1"),
        ("top_p", json!(2), "2"),
        ("min_p", json!(2), "min-p above 0 and at most 1, found 2"),
        ("min_p", json!(-1), "found -1"),
        ("repetition_penalty", json!(0), "0"),
        ("seed", json!(1.5), "a whole number of 64 bits"),
        ("stop", json!([1]), "a list of texts"),
        ("stream_options", json!(1), "expected an object"),
        ("response_format", json!("json"), "expected an object"),
        ("logprobs", json!(true), "a whole number that is not negative"),
        ("logprobs", json!(21), "at most 20"),
        ("user_defined", json!(1), "unknown field"),
        ("user", json!("me"), ""),
    ] {
        let mut body = json!({"prompt": "Alice", "max_tokens": 1});
        body[field] = wrong;
        let response = server.post("/v1/completions", &body);
        if said.is_empty() {
            assert_eq!(response.status, 200, "{field}: {}", response.body);
            continue;
        }
        assert_eq!(response.status, 400, "{field}: {}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{}", response.body);
        assert!(response.message().contains(said), "{field}: {}", response.message());
    }
    let response = server.post("/v1/completions", &json!({"max_tokens": 1}));
    assert_eq!(response.json()["error"]["param"], "prompt");
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "logprobs": 5, "top_logprobs": "x"});
    let response = server.post("/v1/chat/completions", &chat);
    assert_eq!(response.json()["error"]["param"], "logprobs");
    // What is sent is not sent back whole.
    let long = json!({"prompt": "a", "seed": "a".repeat(100_000)});
    let response = server.post("/v1/completions", &long);
    assert_eq!(response.json()["error"]["param"], "seed");
    assert!(response.body.len() < 1000, "{} bytes", response.body.len());
    for (body, said) in [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{\"prompt\": \"a\", \"n\": 1, \"n\": 1}", "duplicate field"),
    ] {
        let response = server.send(
            "POST",
            "/v1/completions",
            "Content-Type: application/json\r\n",
            body.as_bytes(),
        );
        assert_eq!(response.status, 400);
        assert!(response.message().contains(said), "{}", response.message());
    }
}

#[test]
fn tokens_are_returned_one_by_one_where_they_are_asked_for() {
    let server = TestServer::new();
    let body = |stream: bool| {
        json!({"prompt": "Alice", "max_tokens": 12, "temperature": 0.9, "seed": 4, "n": 2, "return_token_ids": true,
            "stream": stream})
    };
    let tokens_of = |choice: &Value| -> Vec<u64> {
        let tokens = choice["token_ids"].as_array().expect("tokens");
        tokens.iter().map(|token| token.as_u64().expect("a number")).collect()
    };
    let whole = server.post("/v1/completions", &body(false)).json();
    let mut streamed = vec![Vec::new(); 2];
    for event in server.post("/v1/completions", &body(true)).events() {
        let choice = &event["choices"][0];
        let tokens = tokens_of(choice);
        assert!(tokens.len() <= 1, "{event}");
        streamed[choice["index"].as_u64().expect("an index") as usize].extend(tokens);
    }
    for (choice, streamed) in whole["choices"].as_array().expect("choices").iter().zip(streamed) {
        assert_eq!((tokens_of(choice), streamed.len()), (streamed, 12));
    }
    let plain = server
        .post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 1}))
        .json();
    assert!(plain["choices"][0].get("token_ids").is_none(), "{plain}");
}

#[test]
fn requests_at_the_same_time_are_not_mixed_up() {
    let mut options = options();
    options.engine.draft_tokens = 2;
    let server = TestServer::with(options);
    let body = |seed: usize| {
        json!({"prompt": format!("Alice and {seed}"), "max_tokens": 10 + seed % 20, "seed": seed,
            "temperature": if seed.is_multiple_of(2) { 0.0 } else { 0.9 }})
    };
    let ask = |seed| server.post("/v1/completions", &body(seed)).json()["choices"].clone();
    let alone: Vec<Value> = (0..24).map(ask).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..24).map(|seed| scope.spawn(move || ask(seed))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert_eq!(alone, together);
}
