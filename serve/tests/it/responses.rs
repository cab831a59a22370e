//! Tests of `/v1/responses`, in the format of OpenAI's Responses API.

use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Response, TestServer, model, options};

/// Returns the events of a stream, and checks that each contains its type.
fn events(response: &Response) -> Vec<Value> {
    let parse = |event: &str| {
        let (kind, data) = event.split_once('\n').expect("two lines");
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("json");
        assert_eq!(kind.strip_prefix("event: "), value["type"].as_str());
        value
    };
    let all = response.body.split("\n\n").filter(|event| event.starts_with("event: "));
    all.map(parse).collect()
}

#[test]
fn texts_are_those_of_chats() {
    let server = TestServer::new();
    let chat = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is Alice?"}],
        "max_tokens": 12, "temperature": 0});
    let chat = server.post("/v1/chat/completions", &chat).json();
    let text = &chat["choices"][0]["message"]["content"];
    let body =
        json!({"instructions": "Be brief.", "input": "Who is Alice?", "max_output_tokens": 12, "temperature": 0});
    let response = server.post("/v1/responses", &body).json();
    assert_eq!(response["object"], "response");
    assert_eq!(&response["output"][0]["content"][0]["text"], text);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let items = json!([{"role": "system", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Who is "}, {"type": "input_text", "text": "Alice?"}]}]);
    let body = json!({"input": items, "max_output_tokens": 12, "temperature": 0, "stream": true});
    let streamed = server.post("/v1/responses", &body);
    let events = events(&streamed);
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(kinds.last(), Some(&"response.incomplete"));
    assert!(!streamed.body.contains("[DONE]"));
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let deltas: String = events.iter().filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(Some(deltas.as_str()), text.as_str());
    assert_eq!(
        &events.last().expect("an event")["response"]["output"][0]["content"][0]["text"],
        text
    );
}

fn weather() -> Value {
    json!({"type": "function", "name": "weather", "description": "The weather of a city", "strict": true,
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}})
}

#[test]
fn tools_are_called_and_answered() {
    let template = "{% for t in tools %}{{ t|tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
        {% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}\n{% endfor %}";
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(model("llama")).expect("a fixture") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).expect("written");
    let mut options = ServerOptions {
        model: folder.path().to_owned(),
        ..options()
    };
    options.engine.context = Some(128);
    let server = TestServer::with(options);
    let mut body = json!({"input": "Rome?", "tools": [weather()], "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 40, "temperature": 0});
    let response = server.post("/v1/responses", &body);
    assert_eq!(response.status, 400, "{}", response.body);
    // The tool does not fit into the context of the fixture; without its description it does.
    body["tools"][0]["description"] = Value::Null;
    body["tools"][0]["parameters"] = json!({"properties": {"city": {"const": "Rome"}}, "required": ["city"]});
    let response = server.post("/v1/responses", &body);
    if response.status == 200 {
        let call = &response.json()["output"][0];
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("function_call"), &json!("weather"))
        );
    }
    // The result of a call is part of the next conversation.
    let input = json!([{"role": "user", "content": "R?"},
        {"type": "function_call", "call_id": "c1", "name": "w", "arguments": "{\"city\": \"Rome\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"}]);
    let response = server.post("/v1/responses", &json!({"input": input, "max_output_tokens": 1}));
    assert_eq!(response.status, 200, "{}", response.body);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let server = TestServer::new();
    for (more, said) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"background": true}), "background"),
        (json!({"input": [{"type": "item_reference"}]}), "'item_reference'"),
        (
            json!({"input": [{"type": 5, "role": "user", "content": "a"}]}),
            "type that is not a text",
        ),
        (
            json!({"input": [{"type": "reasoning", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            "no list of parts",
        ),
        (json!({"tool_choice": {"type": "function", "name": "f", "x": 1}}), "'x'"),
        (json!({"tools": [{"type": "web_search"}]}), "'web_search'"),
        (json!({"n": 2}), "n of 1"),
        (json!({"text": {"verbosity": "low"}}), "verbosity"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
    ] {
        let mut body = json!({"input": "a", "max_output_tokens": 1});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let response = server.post("/v1/responses", &body);
        assert_eq!(response.status, 400, "{more}: {}", response.body);
        assert!(response.message().contains(said), "{more}: {}", response.message());
    }
    let schema = json!({"type": "json_schema", "name": "x", "schema": {"const": 7}});
    let body = json!({"input": "a", "text": {"format": schema}});
    let json = server.post("/v1/responses", &body).json();
    assert_eq!(
        json["output"][0]["content"][0]["text"].as_str().map(str::trim),
        Some("7"),
        "{json}"
    );
    assert_eq!(json["status"], "completed");
}
