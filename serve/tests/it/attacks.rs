//! Attacks that try to crash, block or fill the server. It answers other requests meanwhile.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{TestServer, options};

/// Maximum time of a request of one token during an attack. Debug builds on busy machines are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

fn one_token(server: &TestServer) -> Duration {
    let start = Instant::now();
    let response = server.post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 1}));
    assert_eq!(response.status, 200, "{}", response.body);
    start.elapsed()
}

/// Sends a request and leaves the connection open.
pub(crate) fn send(server: &TestServer, body: &Value) -> std::net::TcpStream {
    let body = body.to_string();
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    stream
}

fn with_schema(schema: Value) -> Value {
    json!({"prompt": "a", "max_tokens": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

/// Returns a schema with `len` definitions, each of which refers to the next one.
fn chain(keyword: &str, len: usize) -> Value {
    let link = |i: usize| json!({"$ref": format!("#/$defs/a{i}")});
    let step = |i: usize| match keyword {
        "items" => json!({"type": "array", "items": link(i)}),
        "$ref" => link(i),
        keyword => json!({keyword: [link(i)]}),
    };
    let mut definitions: serde_json::Map<String, Value> = (0..len).map(|i| (format!("a{i}"), step(i + 1))).collect();
    definitions.insert(format!("a{len}"), json!({}));
    json!({"$defs": definitions, "$ref": "#/$defs/a0"})
}

#[test]
fn deep_and_large_schemas_are_errors() {
    let server = TestServer::new();
    let names: Vec<String> = (0..60_000).map(|i| format!("n{i:05}")).collect();
    for (schema, said) in [
        (chain("allOf", 3_000), "names"),
        (json!({"type": "object", "required": names}), "names"),
        (json!({"type": "integer", "multipleOf": 9_999_991}), "multipleOf"),
    ] {
        let response = server.post("/v1/completions", &with_schema(schema));
        assert_eq!(response.status, 400, "{}", response.body);
        assert!(response.message().contains(said), "{}", response.message());
        one_token(&server);
    }
    // Within the limits each chain is compiled, or refused by the compiler.
    for keyword in ["$ref", "allOf", "anyOf", "oneOf", "items"] {
        let response = server.post("/v1/completions", &with_schema(chain(keyword, 900)));
        assert!([200, 400].contains(&response.status), "{keyword}: {}", response.body);
        one_token(&server);
    }
    let rules: String = (0..1_900).map(|i| format!("a{i}: a{}\n", i + 1)).collect();
    let grammar = json!({"prompt": "a", "max_tokens": 1, "grammar": format!("start: a0\n{rules}a1900: \"b\"")});
    let response = server.post("/v1/completions", &grammar);
    assert!([200, 400].contains(&response.status), "{}", response.body);
    one_token(&server);
}

/// Each of these patterns took gigabytes and tens of seconds, because the lexer's expressions grow with the square of
/// the optional parts.
#[test]
fn patterns_whose_derivatives_are_large_are_refused_at_once() {
    let server = TestServer::new();
    let doubling: String = (0..14).map(|i| format!("T-{i}: T-{0} T-{0}\n", i + 1)).collect();
    let part = r"[^a]?\W?";
    let grammar = |text: String| json!({"prompt": "a", "max_tokens": 1, "grammar": text});
    for request in [
        json!({"prompt": "a", "max_tokens": 1, "guided_regex": part.repeat(4_990)}),
        json!({"prompt": "a", "max_tokens": 1, "guided_regex": "a?b?c?d?".repeat(2_000)}),
        grammar(format!("start: T-0\n{doubling}T-14: /\\w?\\d?/")),
        grammar(format!("start: T\nT: /a\n#{}/", part.repeat(3_000))),
        grammar(format!("start: %lark {{ T: /{}/\nstart: T\n}}", part.repeat(3_000))),
        with_schema(json!({"type": "object", "x-guidance": {"key_separator": part.repeat(450)}})),
    ] {
        let started = Instant::now();
        let response = server.post("/v1/completions", &request);
        assert_eq!(response.status, 400, "{}", response.body);
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    }
    // Patterns that people use are compiled.
    for pattern in [
        r"\w{1,64}@\w{1,64}\.(com|org)",
        r"(\d{1,3}\.){3}\d{1,3}",
        "[^\"]{0,500}",
        r"(\w+\s?){1,50}",
    ] {
        let response = server.post(
            "/v1/completions",
            &json!({"prompt": "a", "max_tokens": 1, "guided_regex": pattern}),
        );
        assert_eq!(response.status, 200, "{pattern}: {}", response.body);
    }
}

#[test]
fn an_ambiguous_grammar_delays_nobody_else() {
    let server = TestServer::new();
    let grammar = "start: s\ns: s s | s s s | /[a-z ]/";
    let attack = json!({"prompt": "a", "max_tokens": 100, "n": 4, "grammar": grammar});
    let open: Vec<_> = (0..2).map(|_| send(&server, &attack)).collect();
    for _ in 0..5 {
        let time = one_token(&server);
        assert!(time < PATIENCE, "{time:?}");
    }
    drop(open);
    one_token(&server);
}

#[test]
fn a_whole_body_has_a_time_limit() {
    let server = TestServer::with(ServerOptions {
        read_timeout: Duration::from_secs(1),
        ..options()
    });
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let start = Instant::now();
    let mut answer = Vec::new();
    // A byte from time to time.
    let mut sender = stream.try_clone().expect("a handle");
    let trickle = std::thread::spawn(move || {
        while sender.write_all(b" ").is_ok() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let _ = stream.read_to_end(&mut answer);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(
        String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 408"),
        "{answer:?}"
    );
    trickle.join().expect("no panic");
}

#[test]
fn a_client_that_pauses_within_a_body_gets_the_same_status() {
    let server = TestServer::with(ServerOptions {
        read_timeout: Duration::from_secs(1),
        ..options()
    });
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn a_body_that_is_cut_off_is_refused_at_once() {
    let server = TestServer::new();
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("sent");
    stream.shutdown(Shutdown::Write).expect("closed");
    let start = Instant::now();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    // The time limit of bodies is 30 s.
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(answer.contains("HTTP/1.1 400"), "{answer}");
}

#[test]
fn refused_bodies_are_received_so_that_the_answer_arrives() {
    let server = TestServer::with(ServerOptions {
        api_key: Some("secret".into()),
        ..options()
    });
    let body = vec![b' '; 8 << 20];
    let small = body.len() / 10;
    for (path, headers, len, status) in [
        (
            "/v1/completions",
            "Authorization: Bearer secret\r\nContent-Type: application/json\r\n",
            body.len(),
            "413",
        ),
        ("/v1/completions", "Content-Type: application/json\r\n", small, "401"),
        (
            "/v1/completions",
            "Authorization: Bearer secret\r\nContent-Type: text/plain\r\n",
            small,
            "415",
        ),
        (
            "/v1/embeddings",
            "Authorization: Bearer secret\r\nContent-Type: application/json\r\n",
            small,
            "501",
        ),
        ("/nothing", "", small, "404"),
    ] {
        let mut stream = server.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        for part in body[..len].chunks(1 << 16) {
            stream
                .write_all(part)
                .unwrap_or_else(|e| panic!("{path}, {status}: {e}"));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}

#[test]
fn text_that_is_not_sent_is_limited() {
    let server = TestServer::with(ServerOptions {
        max_unsent_bytes: 40_000,
        ..options()
    });
    let with = |n: usize, more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Alice"}], "max_tokens": 20, "ignore_eos": true, "n": n,
            "logprobs": true, "top_logprobs": 5});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        server.post("/v1/chat/completions", &body)
    };
    let small = with(1, json!({}));
    assert_eq!(small.status, 200, "{}", small.body);
    let large = with(16, json!({}));
    assert_eq!(large.status, 400, "{}", large.body);
    assert_eq!(large.json()["error"]["code"], "answer_too_large");
    // The parts of a stream that is read need no memory.
    let streamed = with(16, json!({"stream": true}));
    assert!(
        streamed.body.contains("[DONE]") && !streamed.body.contains("error"),
        "{}",
        streamed.body
    );
    assert_eq!(with(1, json!({})).status, 200);
}

/// Waits until no sequence runs or waits.
pub(crate) fn until_idle(server: &TestServer) {
    let start = Instant::now();
    loop {
        let health = server.get("/health").json();
        if (&health["running"], &health["waiting"]) == (&json!(0), &json!(0)) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{health}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn repeated_prompts_are_counted() {
    let limited = || ServerOptions {
        max_unsent_bytes: 40_000,
        ..options()
    };
    let server = TestServer::with(limited());
    let prompt = "Alice was beginning to get very tired. ".repeat(3);
    let with = |n: usize, stream: bool| {
        let body =
            json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true, "n": n, "echo": true, "stream": stream});
        server.post("/v1/completions", &body)
    };
    let small = with(2, false);
    assert_eq!(small.status, 200, "{}", small.body);
    for choice in small.json()["choices"].as_array().expect("choices") {
        assert!(
            choice["text"].as_str().expect("a text").starts_with(&prompt),
            "{choice}"
        );
    }
    let large = with(100, false);
    assert_eq!(large.json()["error"]["code"], "answer_too_large");
    // A stream sends one copy after the other.
    let echoes = with(16, true).events();
    let echoes = echoes
        .iter()
        .filter(|event| event["choices"][0]["text"] == prompt.as_str());
    assert_eq!(echoes.count(), 16);
    until_idle(&server);
    // The copies of a prompt's tokens and of biases.
    let biases: serde_json::Map<String, Value> = (0..300).map(|id| (id.to_string(), json!(1))).collect();
    let body = json!({"prompt": "a", "max_tokens": 1, "n": 100, "logit_bias": biases});
    let response = server.post("/v1/completions", &body);
    assert_eq!(
        response.json()["error"]["code"],
        "answer_too_large",
        "{}",
        response.body
    );
}

#[test]
fn repeated_settings_of_unread_streams_are_counted() {
    let server = TestServer::with(ServerOptions {
        max_unsent_bytes: 40_000,
        ..options()
    });
    // Numbers are written in their longest form.
    let with = |numbers: usize| {
        let parameters = json!({"type": "object", "enum": vec![json!(9e15); numbers]});
        let tools = json!([{"type": "function", "name": "f", "parameters": parameters}]);
        let body = json!({"input": "a", "tools": tools, "tool_choice": "none", "stream": true, "max_output_tokens": 1});
        server.post("/v1/responses", &body)
    };
    let (small, large) = (with(500), with(1000));
    assert_eq!(small.status, 200, "{}", small.body);
    assert_eq!(large.json()["error"]["code"], "answer_too_large", "{}", large.body);
}

#[test]
fn codings_and_expectations_that_are_unknown_are_refused() {
    let server = TestServer::new();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let json = "Content-Type: application/json\r\n";
    for (headers, status) in [
        ("Content-Encoding: gzip\r\n", 415),
        ("Expect: miracles\r\n", 417),
        ("Content-Encoding: identity\r\n", 200),
        ("Content-Type: text/plain\r\n", 400), // a second one
        ("Expect: 100-Continue\r\n", 200),
    ] {
        let answer = server.send("POST", "/v1/completions", &format!("{json}{headers}"), body.as_bytes());
        let found = if answer.status == 100 {
            answer.body.split(' ').nth(1).and_then(|status| status.parse().ok())
        } else {
            Some(answer.status)
        };
        assert_eq!(found, Some(status), "{headers}: {}", answer.head);
    }
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for (coding, status) in [("chunked", "200"), ("gzip, chunked", "501")] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{json}Transfer-Encoding: {coding}\r\n\r\n"
        );
        let answer = String::from_utf8(server.raw(format!("{head}{chunked}").as_bytes())).expect("text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{coding}: {answer}");
    }
}

#[test]
fn the_end_of_the_server_waits_for_no_refused_body() {
    let server = TestServer::new();
    let mut stream = server.connect();
    let head = "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut sender = stream.try_clone().expect("a handle");
    let sending = std::thread::spawn(move || {
        while sender.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 404");
    let start = Instant::now();
    server.end().expect("nothing is left to complete");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    drop(stream);
    sending.join().expect("no panic");
}

#[test]
fn one_large_request_leaves_slots_to_others() {
    let mut options = options();
    options.engine.sequences = 2;
    let server = TestServer::with(options);
    let large = json!({"prompt": "a", "max_tokens": 100, "ignore_eos": true, "n": 60});
    let open: Vec<_> = (0..2).map(|_| send(&server, &large)).collect();
    // 12,000 tokens would take longer.
    for _ in 0..3 {
        let time = one_token(&server);
        assert!(time < PATIENCE, "{time:?}");
    }
    drop(open);
    until_idle(&server);
}

#[test]
fn large_lists_of_tools_delay_nobody() {
    let server = TestServer::new();
    let properties: serde_json::Map<String, Value> = (0..20_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object", "properties": properties}});
    // The response repeats the tools, but the prompt does not contain them.
    let body = json!({"input": "a", "tools": [tool], "tool_choice": "none", "max_output_tokens": 2, "stream": true});
    let response = server.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{}", &response.body[..300]);
    assert_eq!(response.body.matches("p19999").count(), 3);
    one_token(&server);
}

/// Templates such as that of Granite join the calls of all messages one by one.
#[test]
fn conversations_with_thousands_of_tool_calls_are_refused() {
    let server = TestServer::new();
    let body = |calls: usize| {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": "{}"}});
        let half = json!({"role": "assistant", "content": "", "tool_calls": vec![call; calls / 2]});
        json!({"messages": [{"role": "user", "content": "a"}, half, half], "max_tokens": 1})
    };
    let response = server.post("/v1/chat/completions", &body(2_002));
    assert_eq!(response.status, 400);
    let answer = &response.body;
    assert!(
        answer.contains("at most 2000 tool calls in all messages, found 2002"),
        "{answer}"
    );
    let response = server.post("/v1/chat/completions", &body(20));
    assert_eq!(response.status, 200, "{}", response.body);
}

#[test]
fn work_of_clients_that_left_is_dropped() {
    let mut options = options();
    options.engine.sequences = 1;
    let server = TestServer::with(options);
    let long = json!({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "n": 128});
    drop(send(&server, &long));
    // 15,000 tokens would take longer.
    let time = one_token(&server);
    assert!(time < PATIENCE, "{time:?}");
    until_idle(&server);
}

/// A body with names that serde_json reserves is refused, because the parser would parse their text again.
#[test]
fn reserved_names_are_refused() {
    let server = TestServer::new();
    let name = "$serde_json::private::RawValue";
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "f", "arguments": json!({name: "1"}).to_string()}});
    for (path, body, status) in [
        (
            "/v1/completions",
            json!({"prompt": {name: "\"a\""}, "max_tokens": 1}),
            400,
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "metadata": {"a": {name: "{}"}}, "max_tokens": 1}),
            400,
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "guided_json": json!({name: "{}"}).to_string(), "max_tokens": 1}),
            400,
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": name}], "max_tokens": 1}),
            200,
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}],
                "max_tokens": 1}),
            200,
        ),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
    }
}

#[test]
fn errors_quote_no_long_values() {
    let server = TestServer::with(ServerOptions {
        strict_model: true,
        ..options()
    });
    let long = "x".repeat(200_000);
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        ("/v1/chat/completions", body)
    };
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a", "model": long})),
        (
            "/v1/completions",
            json!({"prompt": "a", "response_format": {"type": long}}),
        ),
        (
            "/v1/completions",
            with_schema(json!({"type": "string", "pattern": format!("({}", &long[..3_000])})),
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "grammar": format!("start: {}", &long[..60_000])}),
        ),
        ("/v1/completions", with_schema(json!({"$ref": long}))),
        ("/v1/completions", json!({"prompt": "a", long.as_str(): 1})),
        (
            "/v1/completions",
            json!({"prompt": "a", "stream_options": {long.as_str(): 1}}),
        ),
        chat(json!({"tool_choice": long})),
        chat(json!({"tool_choice": {"function": {"name": long}}})),
        chat(json!({"messages": [{"role": "user", "content": [{"type": long}]}]})),
        chat(json!({"messages": [{"role": long, "content": "a"}]})),
        chat(json!({"reasoning_effort": long})),
        chat(json!({"chat_template_kwargs": {long.as_str(): 1}})),
        ("/v1/responses", json!({"input": [{"type": long}]})),
        ("/v1/responses", json!({"input": "a", "tools": [{"type": long}]})),
    ] {
        let response = server.post(path, &body);
        assert!((400..500).contains(&response.status), "{}", response.status);
        assert!(
            response.body.len() < 2_000,
            "{} bytes: {}",
            response.body.len(),
            &response.body[..300]
        );
    }
    let response = server.get(&format!("/{}", "y".repeat(20_000)));
    assert!(response.body.len() < 2_000);
    let response = server.get(&format!("/v1/models/{}", "y".repeat(20_000)));
    assert!(response.body.len() < 2_000);
}

#[test]
fn stop_strings_have_limits() {
    let server = TestServer::new();
    let long: Vec<String> = (b'a'..=b'p').map(|c| (c as char).to_string().repeat(60_000)).collect();
    let response = server.post("/v1/completions", &json!({"prompt": "a", "stop": long}));
    assert_eq!(response.status, 400);
    assert!(response.message().contains("1000 bytes"), "{}", response.message());
}
