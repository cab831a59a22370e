//! Soak test with many requests of many clients, some of which disconnect. No answer may be lost or mixed up, and
//! memory, handles and threads must not grow.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura_core::random::SplitMix64;
use serde_json::{Value, json};

use crate::client::TestServer;
use crate::held::ProcessResources;

/// Number of different requests. Each is repeated.
const KINDS: usize = 60;
/// Number of concurrent clients.
const CLIENTS: usize = 8;

/// Returns the request with number `kind`. They differ in shared prefixes, sampling and streaming.
fn body(kind: usize) -> Value {
    let mut rng = SplitMix64::new(kind as u64);
    let words = [
        "Alice", "the", "rabbit", "hole", "went", "down", "again", "and", "again", "?",
    ];
    let mut prompt = match kind % 3 {
        0 => "Alice was beginning to get very tired of sitting by her sister on the bank".to_owned(),
        _ => String::new(),
    };
    for _ in 0..1 + rng.below(20) {
        prompt += words[rng.below(words.len())];
        prompt.push(' ');
    }
    json!({"prompt": prompt, "max_tokens": 1 + rng.below(24), "seed": kind, "stream": kind.is_multiple_of(2),
        "temperature": if kind.is_multiple_of(4) { 0.0 } else { 0.9 }})
}

/// Sends the request with number `kind` and returns the text of its answer.
fn ask(server: &TestServer, kind: usize) -> String {
    let body = body(kind);
    let response = server.post("/v1/completions", &body);
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    let text = |value: &Value| value["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    if body["stream"] == true {
        response.events().iter().map(text).collect()
    } else {
        text(&response.json())
    }
}

/// Sends a request and disconnects after `bytes` bytes of the answer.
fn leave(server: &TestServer, kind: usize, bytes: usize) {
    let body = body(kind).to_string();
    let mut stream = server.connect();
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let _ = stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let _ = stream.read_exact(&mut vec![0; bytes]);
}

/// Sends this number of requests. Returns how many were answered and aborted, and the resources of the process after a
/// fifth of them and at the end.
fn soak(requests: usize) -> ([usize; 2], [ProcessResources; 2]) {
    let server = TestServer::new();
    let expected: Vec<String> = (0..KINDS).map(|kind| ask(&server, kind)).collect();
    let [answered, left] = [(); 2].map(|()| AtomicUsize::new(0));
    let round = |range: std::ops::Range<usize>| {
        let next = AtomicUsize::new(range.start);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, expected, answered, left, next, end) =
                    (&server, &expected, &answered, &left, &next, range.end);
                scope.spawn(move || {
                    let mut rng = SplitMix64::new(client as u64 + end as u64);
                    while next.fetch_add(1, Ordering::Relaxed) < end {
                        let kind = rng.below(KINDS);
                        if rng.below(5) == 0 {
                            leave(server, kind, rng.below(400));
                            left.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        assert_eq!(ask(server, kind), expected[kind], "request {kind}");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        // Those that left are noticed.
        std::thread::sleep(std::time::Duration::from_millis(300));
        ProcessResources::now()
    };
    let held = [round(0..requests / 5), round(requests / 5..requests)];
    server.end().expect("it ends well");
    ([answered, left].map(AtomicUsize::into_inner), held)
}

/// The server's resources do not grow during 10,000 requests, or `SOAK_REQUESTS`: `cargo test --release -p
/// meganeura-serve --test it soak:: -- --ignored --nocapture --test-threads 1`
#[test]
#[ignore = "takes minutes"]
fn thousands_of_requests_leave_nothing_behind() {
    let requests = std::env::var("SOAK_REQUESTS").map_or(10_000, |text| text.parse().expect("a number"));
    let ([answered, left], [early, late]) = soak(requests);
    let what = format!("{answered} answered as alone, {left} left");
    early.assert_kept(late, &what, 4, 2);
}

#[test]
fn requests_together_are_answered_as_alone() {
    let ([answered, left], _) = soak(150);
    assert!(answered > 50 && left > 5, "{answered} answered, {left} left");
}
