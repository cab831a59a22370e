//! Tests of API keys, queues, disconnecting clients, and the shutdown of a server.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use meganeura_serve::Server;
use serde_json::json;

use crate::client::{TestServer, options};

#[test]
fn paths_that_need_no_key() {
    let server = TestServer::new();
    let health = server.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "llama");
    assert_eq!(models["data"][0]["max_model_len"], 128);
    // Not by chance, which may choose the end.
    server.post(
        "/v1/completions",
        &json!({"prompt": "Alice", "max_tokens": 4, "temperature": 0}),
    );
    let metrics = server.get("/metrics");
    for line in [
        "meganeura_generated_tokens_total 4",
        "meganeura_responses_total{path=\"/v1/completions\",status=\"200\"} 1",
        "meganeura_first_token_seconds_count 1",
        "meganeura_cache_blocks ",
    ] {
        assert!(metrics.body.contains(line), "{line} in {}", metrics.body);
    }
    assert_eq!(server.get("/v1/nothing").status, 404);
    assert_eq!(server.get("/v1/completions").status, 405);
    assert_eq!(server.post("/v1/embeddings", &json!({"input": "a"})).status, 501);
}

#[test]
fn the_chat_page_loads_its_own_files_alone() {
    let mut options = options();
    options.api_key = Some("secret".into());
    let server = TestServer::with(options);
    for (path, kind, begins) in [
        ("/", "text/html", "<!doctype html>"),
        ("/page.css", "text/css", ":root {"),
        ("/page.js", "text/javascript", "\"use strict\";"),
    ] {
        let response = server.get(path);
        assert_eq!(response.status, 200, "{path}");
        assert!(response.body.starts_with(begins), "{path}: {}", response.body);
        let head = response.head.to_ascii_lowercase();
        for line in [
            &format!("content-type: {kind}; charset=utf-8"),
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';",
            "x-content-type-options: nosniff",
        ] {
            assert!(head.contains(line), "{path}: {line} in {head}");
        }
        assert!(
            !response.body.contains("http:") && !response.body.contains("https:"),
            "{path}"
        );
    }
    assert_eq!(server.post("/", &json!({})).status, 405);
}

#[test]
fn a_key_is_asked_for() {
    let mut options = options();
    options.api_key = Some("secret".into());
    let server = TestServer::with(options);
    for headers in [
        "",
        "Authorization: Bearer other!\r\n",
        "Authorization: Bearer secret2\r\n",
        "Authorization: secret\r\n",
    ] {
        let response = server.send("GET", "/v1/models", headers, b"");
        assert_eq!(response.status, 401, "{headers}");
        assert!(response.message().contains("API key"));
    }
    let response = server.send("GET", "/v1/models", "Authorization: Bearer secret\r\n", b"");
    assert_eq!(response.status, 200);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn other_machines_need_a_key_or_a_word() {
    for (key, no_auth, said) in [
        (None, false, "--no-auth"),
        (Some(""), false, "printable"),
        (Some("a\nb"), false, "printable"),
    ] {
        let mut options = options();
        options.address = [0, 0, 0, 0].into();
        options.api_key = key.map(str::to_owned);
        options.no_auth = no_auth;
        let error = Server::bind(options).err().expect(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    let mut options = options();
    options.address = [0, 0, 0, 0].into();
    options.no_auth = true;
    Server::bind(options).expect("a server");
}

#[test]
fn a_port_that_is_in_use_is_an_error() {
    let server = TestServer::new();
    let mut options = options();
    options.port = server.address.port();
    let error = Server::bind(options).err().expect("it is in use").to_string();
    assert!(error.contains("--port"), "{error}");
}

/// Returns the head and body of a request for a long text.
fn long(stream: bool) -> String {
    let body = json!({"prompt": "Alice", "max_tokens": 120, "temperature": 1.0, "stream": stream}).to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Waits until the metrics contain a line.
fn until(server: &TestServer, line: &str) {
    let start = Instant::now();
    while !server.get("/metrics").body.lines().any(|l| l == line) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{line}: {}",
            server.get("/metrics").body
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_leave_are_not_waited_for() {
    let server = TestServer::new();
    for stream in [true, false] {
        let mut clients: Vec<_> = (0..8).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(long(stream).as_bytes()).expect("sent");
        }
        if stream {
            // It has begun.
            let mut some = [0; 16];
            clients[0].read_exact(&mut some).expect("a beginning");
        }
        drop(clients);
        until(&server, "meganeura_sequences_running 0");
        until(&server, "meganeura_cache_blocks_used 0");
    }
    let response = server.post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 4}));
    assert_eq!(response.status, 200);
}

#[test]
fn what_finds_no_place_in_the_queue_is_told_to_come_again() {
    let mut options = options();
    options.engine.sequences = 1;
    options.queue = 1;
    let server = TestServer::with(options);
    let two = json!({"prompt": "a", "n": 2, "max_tokens": 2});
    // One sequence is computed, one waits, and the third is refused. On a busy machine, the first may have ended by then.
    let refused = (0..20).find_map(|_| {
        let mut client = server.connect();
        client.write_all(long(true).as_bytes()).expect("sent");
        client.read_exact(&mut [0; 16]).expect("a beginning");
        let response = server.post("/v1/completions", &two);
        (response.status != 200).then_some(response)
    });
    let response = refused.expect("the queue was never full");
    assert_eq!(response.status, 429, "{}", response.body);
    assert!(
        response.head.to_ascii_lowercase().contains("retry-after: 1"),
        "{}",
        response.head
    );
    assert_eq!(response.json()["error"]["type"], "rate_limit_error");
    until(&server, "meganeura_sequences_running 0");
    let response = server.post("/v1/completions", &two);
    assert_eq!(response.status, 200, "{}", response.body);
    // A request that can never fit gets 400, not a request to retry.
    for (body, field) in [
        (json!({"prompt": "a", "n": 3, "max_tokens": 2}), "n"),
        (json!({"prompt": ["a", "b", "c"], "max_tokens": 2}), "prompt"),
    ] {
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(response.json()["error"]["param"], field);
    }
}

#[test]
fn a_request_has_its_time() {
    let mut options = options();
    options.request_timeout = Duration::ZERO;
    let server = TestServer::with(options);
    let response = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 100}));
    assert_eq!(response.status, 504, "{}", response.body);
    let response = server.post(
        "/v1/completions",
        &json!({"prompt": "a", "max_tokens": 100, "stream": true}),
    );
    assert!(response.body.contains("\"timeout\""), "{}", response.body);
    until(&server, "meganeura_sequences_running 0");
}

#[test]
fn a_server_completes_its_requests_before_it_ends() {
    let server = TestServer::new();
    let mut client = server.connect();
    client.write_all(long(true).as_bytes()).expect("sent");
    let mut all = vec![0; 16];
    client.read_exact(&mut all).expect("a beginning");
    let address = server.address;
    server.end().expect("all are completed");
    client.read_to_end(&mut all).expect("the rest");
    let text = String::from_utf8_lossy(&all);
    assert!(text.contains("[DONE]"), "{text}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn incomplete_requests_do_not_delay_the_end() {
    let server = TestServer::new();
    let open: Vec<_> = [
        "POST /v1/completions HTT",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        "",
    ]
    .map(|text| {
        let mut client = server.connect();
        client.write_all(text.as_bytes()).expect("sent");
        client
    })
    .into();
    server.get("/health");
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    server.end().expect("nothing is left to complete");
    // Clients get 2 s for the rest of a body.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    drop(open);
}

/// The parser keeps at most 2,000 items for one token. Beyond it, a choice fails, and its request with it.
#[test]
fn an_error_names_the_choice_that_failed() {
    let server = TestServer::new();
    let names: Vec<String> = (0..1_900).map(|i| format!("r{i}")).collect();
    let rules: String = (0..1_900).map(|i| format!("r{i}: \"b\" r{i} | \"c\"\n")).collect();
    let grammar = format!("start: \"a\" x\nx: {}\n{rules}", names.join(" | "));
    let message_of = |count: usize| {
        let body = json!({"prompt": "a", "max_tokens": 8, "n": count, "grammar": grammar});
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 400, "{}", response.body);
        response.message()
    };
    let (one, several) = (message_of(1), message_of(3));
    assert!(one.contains("items") && !one.contains("choice"), "{one}");
    assert!(
        several.contains("items") && several.contains(" of 3 failed"),
        "{several}"
    );
}

/// The last quarter of the queue is reserved for requests of one sequence.
#[test]
fn requests_with_many_choices_leave_space_for_others() {
    let mut options = options();
    options.queue = 4;
    let server = TestServer::with(options);
    let of = |count: usize| {
        json!({"prompt": "Alice", "n": count, "max_tokens": 100, "ignore_eos": true, "stream": count == 6}).to_string()
    };
    // On a busy machine, the texts may have ended before the next request.
    let refused = (0..20).find_map(|_| {
        let mut client = server.connect();
        let body = of(6);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(head.as_bytes()).expect("sent");
        let mut begin = [0; 15];
        client.read_exact(&mut begin).expect("a beginning");
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
        let several = server.post("/v1/completions", &serde_json::from_str(&of(2)).expect("JSON"));
        let one = server.post("/v1/completions", &serde_json::from_str(&of(1)).expect("JSON"));
        assert_eq!(one.status, 200, "{}", one.body);
        (several.status != 200).then_some(several)
    });
    let refused = refused.expect("the queue was never full");
    assert_eq!(refused.status, 429, "{}", refused.body);
    let response = server.post("/v1/completions", &serde_json::from_str(&of(7)).expect("JSON"));
    assert!(
        response.status == 400 && response.message().contains("at most 6"),
        "{}",
        response.body
    );
}
