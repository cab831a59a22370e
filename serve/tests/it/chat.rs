//! Tests of `/v1/chat/completions`.

use meganeura_serve::Server;
use serde_json::{Value, json};

use crate::client::{TestServer, model, options};

fn ask(server: &TestServer, body: Value) -> Value {
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

#[test]
fn the_template_makes_the_prompt() {
    let server = TestServer::new();
    let text = std::fs::read_to_string(model("llama").join("expected_chat.txt")).expect("a fixture");
    let tokenizer = meganeura_llm::Tokenizer::open(&model("llama")).expect("a tokenizer");
    let tokens = tokenizer.encode_plain(&text).expect("tokens");
    let plain = server.post(
        "/v1/completions",
        &json!({"prompt": tokens, "max_tokens": 12, "temperature": 0}),
    );
    for content in [
        json!("Do cats eat bats? "),
        json!([{"type": "text", "text": "Do cats "}, {"type": "text", "text": "eat bats? "}]),
    ] {
        let messages = json!([{"role": "user", "content": content}]);
        let mut body = json!({"model": "llama", "messages": messages, "max_completion_tokens": 12, "temperature": 0});
        let value = ask(&server, body.clone());
        assert_eq!(value["object"], "chat.completion");
        assert_eq!(value["usage"]["prompt_tokens"], tokens.len());
        let choice = &value["choices"][0];
        assert_eq!(choice["message"]["role"], "assistant");
        assert_eq!(choice["message"]["content"], plain.json()["choices"][0]["text"]);
        assert_eq!(choice["finish_reason"], "length");
        body["stream"] = json!(true);
        let events = server.post("/v1/chat/completions", &body).events();
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let streamed: String = events
            .iter()
            .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(choice["message"]["content"], streamed);
        assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn probabilities_of_tokens() {
    let server = TestServer::new();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0,
        "logprobs": true, "top_logprobs": 2});
    let value = ask(&server, body);
    let content = value["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), 3);
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().expect("a list").len(), 2);
        // Greedy decoding takes the most likely one.
        assert_eq!(token["logprob"], token["top_logprobs"][0]["logprob"]);
        assert!(token["bytes"].is_array());
    }
}

/// Copies a small model without its chat template to a temporary folder.
fn without_template() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "generation_config.json",
    ] {
        std::fs::copy(model("llama").join(file), folder.path().join(file)).expect("copied");
    }
    folder
}

/// Creates a temporary folder with a small model whose chat template supports tools.
pub(crate) fn with_tools() -> tempfile::TempDir {
    let folder = without_template();
    let config = std::fs::read_to_string(model("llama").join("config.json")).expect("a configuration");
    // Descriptions of tools are long; positions are no weights.
    let longer = config.replace("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 2048");
    assert_ne!(config, longer);
    std::fs::write(folder.path().join("config.json"), longer).expect("written");
    let template = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for message in messages %}\
        {{ message.role + ': ' + message.content }}{% for call in message.tool_calls or [] %}\
        {{ call.function.name + '(' + call.function.arguments.city + ')' }}{% endfor %}\n{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).expect("written");
    folder
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": false}}})
}

#[test]
fn parameters_of_a_required_tool_may_have_definitions() {
    let folder = with_tools();
    let mut options = options();
    options.model = folder.path().to_owned();
    let server = TestServer::with(options);
    let place = |name: &str, city: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
            "$defs": {"City": {"enum": [city]}}, "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"], "additionalProperties": false}}})
    };
    let tools = [place("first", "Paris"), place("second", "Rome")];
    let messages = json!([{"role": "user", "content": "Weather?"}]);
    for (name, city) in [("first", "Paris"), ("second", "Rome")] {
        let choice = json!({"type": "function", "function": {"name": name}});
        let body = json!({"messages": messages, "tools": tools, "tool_choice": choice});
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        let call = &response.json()["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], name, "{}", response.body);
        let arguments = call["function"]["arguments"].as_str().expect("text");
        let read: Value = serde_json::from_str(arguments).expect("json");
        assert_eq!(read["city"], city, "{}", response.body);
    }
    let body = json!({"messages": messages, "tools": tools, "tool_choice": "required"});
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
    // Fields that would end the call elsewhere are refused by name.
    for (field, value) in [
        ("stop", json!("a")),
        ("stop_token_ids", json!([5])),
        ("min_tokens", json!(5)),
        ("ignore_eos", json!(true)),
    ] {
        let mut body = body.clone();
        body[field] = value;
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 400, "{field}: {}", response.body);
        assert!(response.message().contains(field), "{}", response.message());
    }
}

#[test]
fn a_tool_that_has_to_be_called_is_called() {
    let folder = with_tools();
    let mut options = options();
    options.model = folder.path().to_owned();
    let server = TestServer::with(options);
    let messages = json!([{"role": "user", "content": "Weather?"}]);
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "weather"}}),
    ] {
        let mut body =
            json!({"messages": messages, "tools": [weather()], "tool_choice": choice, "temperature": 0.8, "seed": 1});
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        let value = response.json();
        let answer = &value["choices"][0];
        assert_eq!(answer["finish_reason"], "tool_calls", "{value}");
        assert_eq!(answer["message"]["content"], Value::Null);
        let call = &answer["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "weather");
        let arguments = call["function"]["arguments"].as_str().expect("text");
        let read: Value = serde_json::from_str(arguments).expect("json");
        assert!(["Paris", "Rome"].contains(&read["city"].as_str().expect("text")));
        body["stream"] = json!(true);
        let events = server.post("/v1/chat/completions", &body).events();
        let calls: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0]["delta"]["tool_calls"])
            .filter(|calls| calls.is_array())
            .collect();
        assert_eq!(calls.len(), 1, "{events:?}");
        assert_eq!(calls[0][0]["index"], 0);
        assert_eq!(calls[0][0]["function"], call["function"]);
        let last = events.last().expect("an event");
        assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    }
    let both = json!({"messages": messages, "tools": [weather()], "tool_choice": "required", "response_format": {"type": "json_object"}});
    assert_eq!(server.post("/v1/chat/completions", &both).status, 400);
    // Results of calls are messages, and templates get arguments as values.
    let call = |arguments: &str| {
        json!({"max_tokens": 1, "tools": [weather()], "messages": [messages[0], {"role": "assistant", "content": null, "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"}]})
    };
    let response = server.post("/v1/chat/completions", &call("{\"city\": \"Rome\"}"));
    let tokens = &response.json()["usage"]["prompt_tokens"];
    assert!(tokens.as_u64().is_some_and(|tokens| tokens > 100), "{}", response.body);
}

#[test]
fn a_template_without_tools_is_given_none() {
    let server = TestServer::new();
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "tools": [weather()], "max_tokens": 1});
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 400);
    assert!(
        response.message().contains("does not support tools"),
        "{}",
        response.message()
    );
    body["tool_choice"] = json!("none");
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
}

#[test]
fn messages_that_make_no_sense_are_named() {
    let server = TestServer::new();
    for (messages, said) in [
        (json!([]), "messages"),
        (json!(["hello"]), "message 0 is not an object"),
        (json!([{"content": "hello"}]), "no role"),
        (json!([{"role": "user", "content": 5}]), "neither text"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "'image_url'",
        ),
    ] {
        let response = server.post("/v1/chat/completions", &json!({"messages": messages}));
        assert_eq!(response.status, 400, "{}", response.body);
        assert!(response.message().contains(said), "{}", response.message());
    }
    let body = json!({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"});
    assert!(
        server
            .post("/v1/chat/completions", &body)
            .message()
            .contains("none is offered")
    );
}

#[test]
fn a_model_without_a_template_has_completions_only() {
    let folder = without_template();
    let mut options = options();
    options.model = folder.path().to_owned();
    options.name = Some("own/name".into());
    assert!(!Server::bind(options.clone()).expect("a server").chats());
    let server = TestServer::with(options);
    let response = server.post(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    );
    assert!(
        response.message().contains("no chat template"),
        "{}",
        response.message()
    );
    let response = server.post(
        "/v1/completions",
        &json!({"model": "own/name", "prompt": "a", "max_tokens": 1}),
    );
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(server.get("/v1/models/own/name").json()["id"], "own/name");
}
