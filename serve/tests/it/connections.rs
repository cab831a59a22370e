//! Connections of clients that are slow, busy, half-closed or gone.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use meganeura_serve::ServerOptions;
use serde_json::json;

use crate::attacks::{PATIENCE, send, until_idle};
use crate::client::{TestServer, options};

#[test]
fn slow_connections_give_their_places() {
    let server = TestServer::with(ServerOptions {
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
    let server = TestServer::with(options);
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
    // The reserved connection is closed, so that the client may get an ordinary one.
    let refused = server.get("/v1/models");
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(
        refused.head.to_lowercase().contains("connection: close"),
        "{}",
        refused.head
    );
    drop(busy);
}

#[test]
fn a_half_closed_client_gets_its_answer() {
    let server = TestServer::new();
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
fn a_half_closed_client_that_leaves_later_is_noticed() {
    let mut options = options();
    options.engine.sequences = 1;
    let server = TestServer::with(options);
    let mut stream = send(
        &server,
        &json!({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "n": 100}),
    );
    stream.shutdown(Shutdown::Write).expect("closed");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("an interim response");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    drop(stream);
    until_idle(&server);
}

#[test]
fn a_client_of_http10_that_closes_its_side_is_soon_gone() {
    let mut options = options();
    options.engine.sequences = 1;
    let server = TestServer::with(options);
    let request = |max_tokens: usize, n: usize| {
        let body = json!({"prompt": "a", "max_tokens": max_tokens, "ignore_eos": true, "n": n}).to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        head + &body
    };
    // A quick answer arrives.
    let answer = String::from_utf8(server.raw(request(1, 1).as_bytes())).expect("text");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    for further in ["", "GET /health HTTP/1.0\r\n\r\n"] {
        let mut stream = server.connect();
        stream
            .write_all((request(120, 100) + further).as_bytes())
            .expect("sent");
        while server.get("/health").json()["running"] == 0 {}
        let start = Instant::now();
        drop(stream);
        until_idle(&server);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn a_client_that_leaves_behind_further_bytes_is_noticed() {
    let mut options = options();
    options.engine.sequences = 1;
    let server = TestServer::with(options);
    let long = json!({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "n": 100});
    for further in ["\r\n", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = send(&server, &long);
        stream.write_all(further.as_bytes()).expect("sent");
        // The request is running.
        while server.get("/health").json()["running"] == 0 {}
        drop(stream);
        until_idle(&server);
    }
    // A client that only sends no more gets both answers.
    let mut stream = send(&server, &json!({"prompt": "a", "max_tokens": 60, "ignore_eos": true}));
    let last = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(last.as_bytes()).expect("sent");
    stream.shutdown(Shutdown::Write).expect("closed");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}

#[test]
fn clients_that_read_pages_slowly_lock_nobody_out() {
    let server = TestServer::with(ServerOptions {
        max_connections: 4,
        api_key: Some("secret".into()),
        ..options()
    });
    let pages = "GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(pages.as_bytes()).expect("sent");
            stream
        })
        .collect();
    let key = "Authorization: Bearer secret\r\n";
    let start = Instant::now();
    while server.send("GET", "/v1/models", key, b"").status != 200 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(slow);
}

#[test]
fn requests_without_a_host_are_refused() {
    let server = TestServer::new();
    for (head, status) in [
        ("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"),
        ("GET /health HTTP/1.0\r\n\r\n", "HTTP/1.0 200"),
        (
            "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200",
        ),
    ] {
        let answer = String::from_utf8(server.raw(head.as_bytes())).expect("text");
        assert!(answer.starts_with(status), "{head}: {answer}");
    }
}
