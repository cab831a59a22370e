//! Requests and connections that try to end, block or fill the server. Others are answered meanwhile.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Running, options};

/// Maximum time of a request of one token during an attack. Debug builds on busy machines are slow.
const PATIENCE: Duration = Duration::from_secs(10);

fn one_token(server: &Running) -> Duration {
    let start = Instant::now();
    let response = server.post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 1}));
    assert_eq!(response.status, 200, "{}", response.body);
    start.elapsed()
}

/// Sends a request and leaves the connection open.
fn send(server: &Running, body: &Value) -> std::net::TcpStream {
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

/// Definitions each of which refers to the next one.
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
    let server = Running::new();
    let names: Vec<String> = (0..60_000).map(|i| format!("n{i:05}")).collect();
    for (schema, said) in [
        (chain("allOf", 3_000), "names"),
        (json!({"type": "object", "required": names}), "names"),
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

#[test]
fn an_ambiguous_grammar_delays_nobody_else() {
    let server = Running::new();
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
fn slow_connections_give_their_places() {
    let server = Running::with(ServerOptions {
        max_connections: 8,
        api_key: Some("secret".into()),
        ..options()
    });
    let key = "Authorization: Bearer secret\r\n";
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    // Heads that never end, and bodies that hardly come on.
    let mut open = Vec::new();
    for number in 0..40 {
        let mut stream = server.connect();
        let more = match number % 2 {
            0 => String::new(),
            _ => format!("{key}Content-Length: 1000000\r\n\r\n{{"),
        };
        stream.write_all(format!("{head}{more}").as_bytes()).expect("sent");
        open.push(stream);
    }
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(server.get("/health").status, 200);
        assert_eq!(server.send("GET", "/v1/models", key, b"").status, 200);
        assert!(start.elapsed() < PATIENCE);
    }
    drop(open);
}

#[test]
fn busy_connections_leave_room_for_health() {
    let mut options = options();
    options.max_connections = 2;
    options.engine.sequences = 2;
    let server = Running::with(options);
    let long = json!({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "stream": true});
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = send(&server, &long);
            // The answer has begun.
            let mut first = [0; 12];
            stream.read_exact(&mut first).expect("an answer");
            stream
        })
        .collect();
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    drop(busy);
}

#[test]
fn a_whole_body_has_a_time_limit() {
    let server = Running::with(ServerOptions {
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
fn a_half_closed_client_gets_its_answer() {
    let server = Running::new();
    let mut stream = send(
        &server,
        &json!({"prompt": "Alice", "max_tokens": 60, "ignore_eos": true}),
    );
    stream.shutdown(Shutdown::Write).expect("closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"completion_tokens\":60"), "{answer}");
}

#[test]
fn a_body_that_is_cut_off_is_refused_at_once() {
    let server = Running::new();
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
    let server = Running::with(ServerOptions {
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
    let server = Running::with(ServerOptions {
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

#[test]
fn work_of_clients_that_left_is_dropped() {
    let mut options = options();
    options.engine.sequences = 1;
    let server = Running::with(options);
    let long = json!({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "n": 128});
    drop(send(&server, &long));
    // 15,000 tokens would take longer.
    let time = one_token(&server);
    assert!(time < PATIENCE, "{time:?}");
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
fn errors_quote_no_long_values() {
    let server = Running::with(ServerOptions {
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
    let server = Running::new();
    let long: Vec<String> = (b'a'..=b'p').map(|c| (c as char).to_string().repeat(60_000)).collect();
    let response = server.post("/v1/completions", &json!({"prompt": "a", "stop": long}));
    assert_eq!(response.status, 400);
    assert!(response.message().contains("1000 bytes"), "{}", response.message());
}
