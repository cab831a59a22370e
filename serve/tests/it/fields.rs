//! Tests that each request field is either implemented or refused by name.

use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{TestServer, model, options};

fn text(server: &TestServer, body: &Value) -> String {
    let response = server.post("/v1/completions", body);
    assert_eq!(response.status, 200, "{}", response.body);
    let json = response.json();
    json["choices"][0]["text"].as_str().expect("text").to_owned()
}

fn with(more: Value) -> Value {
    let mut body = json!({"prompt": "Alice was", "max_tokens": 8, "temperature": 0});
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn penalties_and_biases_change_texts() {
    let server = TestServer::new();
    let plain = text(&server, &with(json!({})));
    for more in [
        json!({"frequency_penalty": 2}),
        json!({"presence_penalty": 2}),
        json!({"repeat_penalty": 5}),
    ] {
        let repeated = |text: &str| text.chars().filter(|c| text.matches(*c).count() > 3).count();
        let penalised = text(&server, &with(more.clone()));
        assert!(penalised != plain || repeated(&plain) == 0, "{more}: {plain}");
    }
    let body = with(json!({"logit_bias": {"40": 100}, "return_token_ids": true}));
    let response = server.post("/v1/completions", &body).json();
    assert_eq!(response["choices"][0]["token_ids"], json!(vec![40; 8]));
}

#[test]
fn ends_of_texts_are_those_that_are_asked_for() {
    let server = TestServer::new();
    let ids = |more: Value| {
        let mut more = more;
        more["return_token_ids"] = json!(true);
        let json = server.post("/v1/completions", &with(more)).json();
        let choice = json["choices"][0].clone();
        (
            choice["token_ids"].as_array().expect("tokens").clone(),
            choice["finish_reason"].clone(),
        )
    };
    let (all, _) = ids(json!({}));
    let third = &all[2];
    let until = all.iter().position(|token| token == third).expect("a place");
    let (tokens, finish) = ids(json!({"stop_token_ids": [third]}));
    assert_eq!((tokens.len(), finish), (until, json!("stop")));
    let (tokens, _) = ids(json!({"stop_token_ids": [all[0]], "min_tokens": 4}));
    assert!(tokens.len() >= 4, "{tokens:?}");
    // Without a limit the text fills the context.
    let response = server
        .post("/v1/completions", &with(json!({"max_tokens": -1, "ignore_eos": true})))
        .json();
    assert_eq!(response["usage"]["total_tokens"], 128);
}

#[test]
fn prompts_are_echoed_with_their_log_probabilities() {
    let server = TestServer::new();
    let prompt = [5, 40, 77, 12, 200];
    // As evaluation programs send it.
    for max_tokens in [0, 1] {
        let body = json!({"prompt": [prompt, prompt], "max_tokens": max_tokens, "temperature": 0, "logprobs": 2, "echo": true,
            "seed": 1234});
        let json = server.post("/v1/completions", &body).json();
        assert_eq!(json["choices"].as_array().expect("choices").len(), 2, "{json}");
        for choice in json["choices"].as_array().expect("choices") {
            let logprobs = &choice["logprobs"];
            let own = logprobs["token_logprobs"].as_array().expect("a list");
            assert_eq!(own.len(), prompt.len() + max_tokens, "{choice}");
            assert_eq!(own[0], Value::Null);
            assert!(own[1..].iter().all(|p| p.as_f64().expect("a number") <= 0.0));
            let lists =
                ["tokens", "top_logprobs", "text_offset"].map(|name| logprobs[name].as_array().expect("a list").len());
            assert_eq!(lists, [own.len(); 3]);
        }
    }
    // Nothing is left to generate after the only token of a prompt, so no draft token is computed, either.
    let body = json!({"prompt": [5], "max_tokens": 0, "temperature": 0, "logprobs": 2, "echo": true});
    let json = server.post("/v1/completions", &body).json();
    assert_eq!(json["usage"]["completion_tokens"], 0, "{json}");
    // A generated token has the same log-probability when it is part of a prompt.
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0, "return_token_ids": true});
    let json = server.post("/v1/completions", &body).json();
    let (token, wanted) = (
        &json["choices"][0]["token_ids"][0],
        &json["choices"][0]["logprobs"]["token_logprobs"][0],
    );
    let mut longer: Vec<Value> = prompt.iter().map(|&token| json!(token)).collect();
    longer.push(token.clone());
    let body = json!({"prompt": longer, "max_tokens": 0, "logprobs": 0, "echo": true});
    let json = server.post("/v1/completions", &body).json();
    let found = &json["choices"][0]["logprobs"]["token_logprobs"][prompt.len()];
    assert!((found.as_f64().expect("a number") - wanted.as_f64().expect("a number")).abs() < 1e-4);
    // The text of the prompt comes first, also in streams.
    let body = with(json!({"echo": true}));
    assert!(text(&server, &body).starts_with("Alice was"));
    let mut body = body;
    body["stream"] = json!(true);
    let events = server.post("/v1/completions", &body).events();
    let streamed: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert!(streamed.starts_with("Alice was"), "{streamed}");
}

#[test]
fn cached_tokens_are_reported() {
    let server = TestServer::new();
    let prompt: Vec<u32> = (0..50).map(|i| i * 3 % 320).collect();
    let cached = || {
        let json = server
            .post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1}))
            .json();
        json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!((cached(), cached()), (Some(0), Some(48)));
}

#[test]
fn grammars_of_vllm_and_llama_cpp_are_followed() {
    let server = TestServer::new();
    for (more, check) in [
        (
            json!({"guided_choice": ["yes", "no"]}),
            (|t: &str| t == "yes" || t == "no") as fn(&str) -> bool,
        ),
        (json!({"guided_regex": "[ab]{3}"}), |t| {
            t.len() == 3 && t.bytes().all(|b| b"ab".contains(&b))
        }),
        (json!({"structured_outputs": {"choice": ["left"]}}), |t| t == "left"),
        // A choice is text, also if it is a grammar.
        (json!({"guided_choice": ["%json".to_owned() + &"&(".repeat(9)]}), |t| {
            t.starts_with("%json&(&")
        }),
        (json!({"json_schema": {"const": 12}}), |t| t.trim() == "12"),
        (json!({"guided_json": "{\"const\": true}"}), |t| t.trim() == "true"),
    ] {
        let mut more = more;
        more["max_tokens"] = json!(40);
        let found = text(&server, &with(more.clone()));
        assert!(check(&found), "{more}: {found:?}");
        let json = server.post("/v1/completions", &with(more.clone())).json();
        assert_eq!(json["choices"][0]["finish_reason"], "stop", "{more}");
    }
    let both = with(json!({"guided_regex": "a", "guided_choice": ["a"]}));
    assert_eq!(server.post("/v1/completions", &both).status, 400);
}

/// Copies the model to a temporary folder, and replaces the given files.
fn changed(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(model("llama")).expect("a fixture") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    for (name, value) in files {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn sampling_values_of_the_model_are_the_defaults() {
    let folder = changed(&[("generation_config.json", json!({"top_k": 1, "temperature": 0.7}))]);
    let serve = |ignore_generation_config| {
        TestServer::with(ServerOptions {
            model: folder.path().to_owned(),
            ignore_generation_config,
            ..options()
        })
    };
    let texts = |server: &TestServer| -> std::collections::BTreeSet<String> {
        let texts = (0..6).map(|seed| text(server, &json!({"prompt": "Alice", "max_tokens": 12, "seed": seed})));
        texts.collect()
    };
    let server = serve(false);
    assert_eq!(texts(&server).len(), 1);
    // The request decides.
    let hot = (0..6).map(|seed| {
        text(
            &server,
            &json!({"prompt": "Alice", "max_tokens": 12, "seed": seed, "top_k": -1}),
        )
    });
    assert!(hot.collect::<std::collections::BTreeSet<_>>().len() > 1);
    drop(server);
    assert!(texts(&serve(true)).len() > 1);
}

#[test]
fn variables_reach_the_template() {
    let template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}<no thoughts at all>{% endif %}";
    let folder = changed(&[("chat_template.jinja", json!(template))]);
    let server = TestServer::with(ServerOptions {
        model: folder.path().to_owned(),
        ..options()
    });
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        server.post("/v1/chat/completions", &body)
    };
    let tokens = |more: Value| ask(more).json()["usage"]["prompt_tokens"].as_u64().expect("a number");
    let plain = tokens(json!({}));
    assert!(tokens(json!({"chat_template_kwargs": {"enable_thinking": false}})) > plain);
    assert!(tokens(json!({"reasoning_effort": "none"})) > plain);
    assert_eq!(tokens(json!({"reasoning_effort": "high"})), plain);
    for more in [
        json!({"chat_template_kwargs": {"budget": 5}}),
        json!({"documents": [{"text": "a"}]}),
        json!({"reasoning_effort": "huge"}),
        json!({"continue_final_message": true}),
    ] {
        assert_eq!(ask(more.clone()).status, 400, "{more}");
    }
    let server = TestServer::new();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "low"});
    assert_eq!(server.post("/v1/chat/completions", &body).status, 400);
}

#[test]
fn fields_that_would_be_ignored_are_refused() {
    let server = TestServer::new();
    let user = json!([{"role": "user", "content": "a"}]);
    for (path, body, said) in [
        (
            "chat/completions",
            json!({"messages": user, "stream_options": {"include_usage": true}}),
            "stream_options needs stream",
        ),
        (
            "chat/completions",
            json!({"messages": user, "max_tokens": 1, "max_completion_tokens": 2}),
            "found 2 and 1",
        ),
        (
            "chat/completions",
            json!({"messages": user, "logit_bias": {"5": 1, "05": 2}}),
            "several for 5",
        ),
        (
            "chat/completions",
            json!({"messages": user, "guided_choice": []}),
            "at least one choice",
        ),
        (
            "chat/completions",
            json!({"messages": user, "guided_json": {}, "min_tokens": 3}),
            "min_tokens cannot be used",
        ),
        (
            "chat/completions",
            json!({"messages": user, "response_format": {"type": "json_object", "x": 1}}),
            "x",
        ),
        (
            "chat/completions",
            json!({"messages": user, "response_format": {"type": "json_schema", "json_schema": {"schema": {}, "y": 1}}}),
            "y",
        ),
        (
            "chat/completions",
            json!({"messages": user, "chat_template_kwargs": {"messages": []}}),
            "messages cannot be set",
        ),
        (
            "chat/completions",
            json!({"messages": user, "chat_template_kwargs": {"add_generation_prompt": false}}),
            "cannot be set",
        ),
        (
            "chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "bold": true}]}]}),
            "bold",
        ),
        (
            "chat/completions",
            json!({"messages": user, "guided_json": {"x-guidance": {"lenient": true}}}),
            "lenient",
        ),
        (
            "responses",
            json!({"input": [{"role": "user", "content": "a", "mood": "good"}]}),
            "mood",
        ),
        (
            "responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "bold": true}]}]}),
            "bold",
        ),
        (
            "chat/completions",
            json!({"messages": user, "min_tokens": 5, "max_tokens": 3}),
            "found 5 and 3",
        ),
        (
            "chat/completions",
            json!({"messages": user, "min_tokens": 1_u64 << 40}),
            "the tokens of a sequence",
        ),
        (
            "chat/completions",
            json!({"messages": user, "min_tokens": 2, "stop_token_ids": (0..320).collect::<Vec<u32>>()}),
            "fewer tokens than the vocabulary",
        ),
        (
            "chat/completions",
            json!({"messages": user, "response_format": {"type": "text", "schema": {}}}),
            "does not use",
        ),
        (
            "chat/completions",
            json!({"messages": user, "response_format": {"type": "json_object", "json_schema": {"schema": {}}}}),
            "does not use",
        ),
        (
            "chat/completions",
            json!({"messages": user, "documents": [1], "chat_template_kwargs": {"documents": [2]}}),
            "documents differ",
        ),
        (
            "chat/completions",
            json!({"messages": user, "tool_choice": {"type": "custom", "custom": {"name": "f"}}}),
            "found 'custom'",
        ),
        (
            "chat/completions",
            json!({"messages": user, "tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}),
            "expected an object",
        ),
        (
            "responses",
            json!({"input": "a", "text": {"format": {"type": "text"}}, "response_format": {"type": "text"}}),
            "found both",
        ),
        (
            "responses",
            json!({"input": "a", "max_output_tokens": 3, "max_tokens": 4}),
            "found 3 and 4",
        ),
        (
            "responses",
            json!({"input": [{"type": "reasoning", "summary": []}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}]}),
            "ends with an item of type reasoning",
        ),
    ] {
        let response = server.post(&format!("/v1/{path}"), &body);
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert!(response.message().contains(said), "{body}: {}", response.message());
    }
    // The error names the field.
    for (path, body, field) in [
        ("responses", r#"{"input": []}"#, "input"),
        ("responses", r#"{"input": [{"role": "king", "content": "a"}]}"#, "input"),
        (
            "completions",
            r#"{"prompt": "a", "max_tokens": 1, "max_tokens": 2}"#,
            "max_tokens",
        ),
    ] {
        let kind = "Content-Type: application/json\r\n";
        let response = server.send("POST", &format!("/v1/{path}"), kind, body.as_bytes());
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{}", response.body);
    }
    // What clients send along, and what changes nothing.
    let answer = json!({"role": "assistant", "content": "b", "refusal": null, "annotations": [], "audio": null, "tool_calls": null});
    let text =
        json!({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"const": 1}}});
    let body = json!({"messages": [text, answer, user[0]], "max_tokens": 2, "max_completion_tokens": 2, "response_format": format});
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    // As OpenAI's Agents SDK sends it.
    let body = json!({"input": "a", "include": [], "max_output_tokens": 3, "text": {"format": {"type": "text"}}});
    let response = server.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let json = response.json();
    assert_eq!(json["output"][0]["status"], json["status"]);
    // Answers of other servers that clients send back, and fields that change nothing with these values.
    for (path, body) in [
        (
            "chat/completions",
            json!({"messages": [user[0], {"role": "assistant", "content": [{"type": "text", "text": "b", "annotations": [], "id": "1",
                "index": 0}, {"type": "refusal", "refusal": "no"}]}, user[0]], "store": true, "best_of": 1}),
        ),
        (
            "responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": null,
                    "content": [{"type": "reasoning_text", "text": "long"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
                {"role": "user", "content": "c"}], "store": true, "top_logprobs": 0}),
        ),
    ] {
        let mut body = body;
        body["max_tokens"] = json!(1);
        let response = server.post(&format!("/v1/{path}"), &body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
    }
}

#[test]
fn special_tokens_in_messages_stay_text() {
    let count = |server: &TestServer, content: &str| {
        let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    let tokenizer = meganeura_llm::Tokenizer::open(&model("llama")).expect("a tokenizer");
    let special_tokens = tokenizer.special_tokens();
    let special = special_tokens
        .iter()
        .max_by_key(|token| token.len())
        .expect("a special token");
    let server = TestServer::new();
    let text = format!("a{special}b");
    let as_text = count(&server, &text);
    let plain = count(&server, "ab");
    assert!(as_text > plain + 1, "{special}: {as_text} and {plain}");
    let server = TestServer::with(ServerOptions {
        special_tokens_in_messages: true,
        ..options()
    });
    assert_eq!(count(&server, &text), plain + 1);
}

#[test]
fn stop_strings_that_are_special_tokens_end_by_their_id() {
    let tokenizer = meganeura_llm::Tokenizer::open(&model("llama")).expect("a tokenizer");
    let config = meganeura_llm::ModelConfig::open(&model("llama")).expect("a configuration");
    let special = tokenizer.special_tokens();
    let other = special
        .iter()
        .find(|name| !config.stop.contains(&tokenizer.token(name).expect("an id")));
    let Some(other) = other else { panic!("{special:?}") };
    let id = tokenizer.token(other).expect("an id").to_string();
    let server = TestServer::new();
    let body = with(json!({"logit_bias": {id.as_str(): 100}, "stop": [other]}));
    let json = server.post("/v1/completions", &body).json();
    assert_eq!(
        (
            &json["choices"][0]["finish_reason"],
            &json["usage"]["completion_tokens"]
        ),
        (&json!("stop"), &json!(0))
    );
}

#[test]
fn authorization_follows_the_standard() {
    let server = TestServer::with(ServerOptions {
        api_key: Some("secret".into()),
        ..options()
    });
    for (headers, status) in [
        ("Authorization: bearer secret\r\n", 200),
        ("authorization: BEARER  secret\r\n", 200),
        ("Authorization: Basic secret\r\n", 401),
        ("Authorization: Bearer secret\r\nAuthorization: Bearer other\r\n", 400),
        ("Authorization: Bearer other\r\nAuthorization: Bearer secret\r\n", 400),
    ] {
        assert_eq!(
            server.send("GET", "/v1/models", headers, b"").status,
            status,
            "{headers}"
        );
    }
}

#[test]
fn adapters_are_selected_by_the_model_of_a_request() {
    let adapter = model("llama").join("../../finetuning/lora");
    let mut options = ServerOptions {
        adapters: vec![("tales".into(), adapter)],
        ..options()
    };
    options.engine.weights = Some(meganeura_llm::WeightStorage::Q8);
    let server = TestServer::with(options);
    let of = |model: &str| {
        text(
            &server,
            &json!({"prompt": "Alice was", "max_tokens": 12, "temperature": 0, "model": model}),
        )
    };
    let (base, tales) = (of("llama"), of("llama:tales"));
    assert_ne!(base, tales);
    assert_eq!((of("tales"), of("gpt-4o")), (tales, base));
    let unknown = json!({"prompt": "a", "model": "llama:none"});
    assert_eq!(server.post("/v1/completions", &unknown).status, 404);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][1]["id"], "llama:tales");
    assert_eq!(models["data"][1]["parent"], "llama");
    assert_eq!(server.get("/v1/models/llama:tales").status, 200);
    assert_eq!(server.get("/v1/models/llama:none").status, 404);
}

#[test]
fn a_gguf_file_is_served_with_a_draft_model() {
    let file = model("llama").join("../../gguf/llama_q4_k.gguf");
    let texts = [false, true].map(|drafts| {
        let mut options = ServerOptions {
            model: file.clone(),
            ..options()
        };
        if drafts {
            options.engine.draft_tokens = 3;
            options.engine.draft_model = Some(meganeura_llm::engine::DraftOptions {
                model: file.clone(),
                plans: None,
            });
        }
        text(&TestServer::with(options), &with(json!({"max_tokens": 12})))
    });
    assert_eq!(texts[0], texts[1]);
}
