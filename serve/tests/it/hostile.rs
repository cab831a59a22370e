//! Tests of invalid requests: each gets a 4xx status, and the server continues.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use meganeura_core::random::SplitMix64;
use serde_json::{Value, json};

use crate::client::{TestServer, options};

const JSON: &str = "Content-Type: application/json\r\n";

fn works(server: &TestServer) {
    let response = server.post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 2}));
    assert_eq!(response.status, 200, "{}", response.body);
}

#[test]
fn bodies_that_are_wrong() {
    let server = TestServer::new();
    let nested = "[".repeat(100_000);
    let deep = format!("{{\"prompt\": {nested}");
    let long = json!({"prompt": "a".repeat(500_000)}).to_string();
    let many = json!({"messages": vec![json!({"role": "user", "content": "a"}); 20_000]}).to_string();
    let conditions = format!("start: \"a\" %if {}true{}", "not(".repeat(10_000), ")".repeat(10_000));
    let conditions = json!({"prompt": "a", "grammar": conditions}).to_string();
    let choices = json!({"prompt": vec!["a"; 200], "n": 128, "grammar": "start: \"a\""}).to_string();
    assert_eq!(
        server.send("POST", "/v1/completions", JSON, choices.as_bytes()).status,
        400
    );
    for (path, body) in [
        ("/v1/completions", conditions.as_bytes()),
        ("/v1/completions", &b""[..]),
        ("/v1/completions", b"{"),
        ("/v1/completions", b"\xff\xfe{\"prompt\": \"a\"}"),
        ("/v1/completions", b"{\"prompt\": \"\xc3\x28\"}"),
        ("/v1/completions", b"{\"prompt\": \"\\ud800\"}"),
        ("/v1/completions", b"{\"prompt\": {\"a\": 1}}"),
        ("/v1/completions", b"{\"prompt\": \"a\", \"max_tokens\": -5}"),
        ("/v1/completions", b"{\"prompt\": \"a\", \"temperature\": 1e999}"),
        ("/v1/completions", b"[1,2,3]"),
        ("/v1/completions", deep.as_bytes()),
        ("/v1/completions", long.as_bytes()),
        ("/v1/chat/completions", many.as_bytes()),
        ("/v1/chat/completions", b"{\"messages\": 1}"),
    ] {
        let response = server.send("POST", path, JSON, body);
        assert_eq!(
            response.status,
            400,
            "{:?}: {}",
            &body[..body.len().min(60)],
            response.body
        );
        assert!(!response.message().is_empty());
    }
    // What web pages may send anywhere without being asked for permission.
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    ] {
        let response = server.send("POST", "/v1/completions", kind, b"{\"prompt\": \"a\"}");
        assert_eq!(response.status, 415, "{kind}");
    }
    // A page with another name that resolves to this machine.
    for (host, status) in [
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("localhost\r\nHost: evil.example", 403),
        ("LOCALHOST:1", 200),
        ("[::1]:5", 200),
    ] {
        let request = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = server.raw(request.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
    works(&server);
}

#[test]
fn bodies_that_are_too_large() {
    let mut options = options();
    options.max_body_bytes = 10_000;
    let server = TestServer::with(options);
    let body = json!({"prompt": "a".repeat(20_000)}).to_string();
    assert_eq!(
        server.send("POST", "/v1/completions", JSON, body.as_bytes()).status,
        413
    );
    // One that is announced is not waited for.
    let begun = Instant::now();
    let head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n";
    let answer = server.raw(head);
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 413"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    works(&server);
}

#[test]
fn heads_that_are_wrong() {
    let server = TestServer::new();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        &[
            b"GET / HTTP/1.1\r\nA: "[..].to_vec(),
            vec![b'a'; 1 << 20],
            b"\r\n\r\n".to_vec(),
        ]
        .concat(),
    ] {
        let answer = server.raw(bytes);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    works(&server);
}

#[test]
fn a_sender_that_never_ends_does_not_keep_others_waiting() {
    let server = TestServer::new();
    let mut slow: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for (number, client) in slow.iter_mut().enumerate() {
        let head: &[u8] = match number % 2 {
            0 => b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
            _ => b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        };
        client.write_all(head).expect("sent");
    }
    works(&server);
    // They are closed in the end.
    let start = Instant::now();
    for client in &mut slow {
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("the connection is closed");
    }
    assert!(start.elapsed() < Duration::from_secs(40));
    works(&server);
}

#[test]
fn mutated_bodies_never_panic() {
    let server = TestServer::new();
    mutate(
        &server,
        &[
            (
                "/v1/completions",
                json!({"prompt": "Alice", "max_tokens": 1, "temperature": 0.5, "n": 1, "stop": ["a"], "seed": 3, "logprobs": 1}),
            ),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 1, "logprobs": true,
                    "tools": [], "response_format": {"type": "json_object"}, "stream": false}),
            ),
        ],
    );
    works(&server);
}

#[test]
fn mutated_bodies_of_embeddings_never_panic() {
    let server = TestServer::with(crate::embeddings::of("bert"));
    let path = "/v1/embeddings";
    let texts = json!({"input": ["Alice", "Rabbit"], "model": "bert", "encoding_format": "base64", "dimensions": 8});
    let tokens = json!({"input": [[2, 40, 3], [2, 3]], "encoding_format": "float", "user": "a"});
    mutate(&server, &[(path, texts), (path, tokens)]);
    let response = server.post(path, &json!({"input": "Alice"}));
    assert_eq!(response.status, 200, "{}", response.body);
}

/// Sends randomly changed bodies. Each must get a result or a client error.
fn mutate(server: &TestServer, bodies: &[(&str, Value)]) {
    let mut rng = SplitMix64::new(11);
    // A million by the variable; a few in every run.
    let count: usize = std::env::var("MEGANEURA_MUTATIONS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(300);
    for number in 0..count {
        let (path, body) = &bodies[number % bodies.len()];
        let mut body = body.to_string().into_bytes();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(body.len());
            match rng.below(4) {
                0 => body[at] = rng.below(256) as u8,
                1 => {
                    body.remove(at);
                }
                2 => body.insert(at, b"\"{}[],:0-e\\"[rng.below(11)]),
                _ => {
                    let end = body.len().min(at + rng.below(9));
                    let part = body[at..end].to_vec();
                    let to = rng.below(body.len());
                    body.splice(to..to, part);
                }
            }
        }
        let response = server.send("POST", path, JSON, &body);
        let is_expected = response.status == 200 || (400..500).contains(&response.status);
        assert!(
            is_expected,
            "{}: {:?}\n{}",
            response.status,
            String::from_utf8_lossy(&body),
            response.body
        );
    }
}
