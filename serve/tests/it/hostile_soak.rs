//! Sends a random mixture of attacks: the server survives, answers other requests, and its memory stays flat.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use meganeura_core::random::SplitMix64;
use meganeura_serve::ServerOptions;
use serde_json::{Value, json};

use crate::client::{TestServer, options};
use crate::held::ProcessResources;

/// Number of concurrent attackers.
const ATTACKERS: usize = 6;
/// Maximum time of a request of one token during the attacks.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends the head and the first `len` bytes of a body.
fn begin(server: &TestServer, path: &str, body: &str, len: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(server.address).ok()?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body.as_bytes()[..len.min(body.len())]).ok()?;
    Some(stream)
}

fn schema(schema: Value) -> Value {
    json!({"prompt": "a", "max_tokens": 20,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

/// Returns a random request that is as expensive as the limits allow.
fn request(rng: &mut SplitMix64) -> (&'static str, Value) {
    let len = 1 + rng.below(1_200);
    let names: Vec<String> = (0..len).map(|i| format!("n{i:04}")).collect();
    let keyword = ["allOf", "anyOf", "oneOf"][rng.below(3)];
    let chain: serde_json::Map<String, Value> = (0..len)
        .map(|i| {
            (
                format!("a{i}"),
                json!({keyword: [{"$ref": format!("#/$defs/a{}", i + 1)}]}),
            )
        })
        .chain([(format!("a{len}"), json!({}))])
        .collect();
    let grammars = [
        "start: s\ns: s s | s s s | /[a-z ]/",
        "start: a*\na: a a | \"x\" | \"y\" a | ",
        "start: /(a|b|ab|ba|aab)*c/",
        "start: /(.{1,400}){1,400}/",
    ];
    let text = "<|im_end|>".repeat(rng.below(2_000));
    let completions = "/v1/completions";
    match rng.below(17) {
        0 => (completions, schema(json!({"$defs": chain, "$ref": "#/$defs/a0"}))),
        1 => (completions, schema(json!({"type": "object", "required": names}))),
        2 => (completions, schema(json!({"enum": names}))),
        3 => {
            let properties: serde_json::Map<String, Value> = names
                .into_iter()
                .map(|name| (name, json!({"type": "string"})))
                .collect();
            (completions, schema(json!({"type": "object", "properties": properties})))
        }
        4 => (
            completions,
            schema(json!({"type": "string", "pattern": "(a{1,100}){1,100}b"})),
        ),
        5 => (
            completions,
            schema(json!({"type": "array", "minItems": rng.below(12_000), "items": {"type": "integer"}})),
        ),
        6 => {
            let grammar = grammars[rng.below(grammars.len())];
            (
                completions,
                json!({"prompt": "a", "max_tokens": 60, "n": 1 + rng.below(8), "grammar": grammar}),
            )
        }
        7 => (
            completions,
            json!({"prompt": "a ".repeat(rng.below(400_000)), "max_tokens": 1}),
        ),
        8 => (
            completions,
            json!({"prompt": vec!["a"; 1 + rng.below(300)], "n": 1 + rng.below(128), "max_tokens": 50}),
        ),
        9 => {
            let stop: Vec<String> = (0..16).map(|_| "ab".repeat(rng.below(600))).collect();
            (
                completions,
                json!({"prompt": "a", "max_tokens": 60, "n": 8, "temperature": 2, "stop": stop}),
            )
        }
        10 => (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        ),
        11 => (
            "/v1/responses",
            json!({"input": vec![json!({"role": "user", "content": "a"}); rng.below(3_000)]}),
        ),
        12 => {
            let multiple = |rng: &mut SplitMix64| {
                let bits = 1 + rng.below(30);
                json!({"multipleOf": 1 + rng.below(1 << bits)})
            };
            let (one, other) = (multiple(rng), multiple(rng));
            (completions, schema(json!({"type": "integer", "allOf": [one, other]})))
        }
        13 => (
            completions,
            json!({"prompt": "a", "max_tokens": 20, "guided_choice": vec!["%json & ((".repeat(20); 1 + rng.below(1_500)]}),
        ),
        14 => (
            completions,
            json!({"prompt": vec![vec![1]; rng.below(200_000)], "max_tokens": 1}),
        ),
        15 => (
            completions,
            json!({"prompt": "a", "max_tokens": 20, "min_tokens": rng.below(30), "ignore_eos": true,
                "stop_token_ids": (0..rng.below(330)).collect::<Vec<_>>()}),
        ),
        _ => (
            completions,
            json!({"prompt": vec![5; 100], "echo": true, "logprobs": 20, "max_tokens": 20, "n": 4}),
        ),
    }
}

/// Runs one random attack. Connections that stay open are added to `open`, which keeps the last ones.
fn attack(server: &TestServer, rng: &mut SplitMix64, open: &mut Vec<TcpStream>) {
    let (path, body) = request(rng);
    let body = body.to_string();
    match rng.below(6) {
        // A complete request whose client leaves, at once or after a while.
        0 => drop(begin(server, path, &body, usize::MAX)),
        1 => {
            let stream = begin(server, path, &body, usize::MAX);
            std::thread::sleep(Duration::from_millis(rng.below(300) as u64));
            drop(stream);
        }
        // A body or head that never ends.
        2 => open.extend(begin(server, path, &body, rng.below(body.len() + 1))),
        3 => {
            if let Ok(mut stream) = TcpStream::connect(server.address) {
                let _ = stream.write_all(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n");
                open.push(stream);
            }
        }
        // A client that reads nothing.
        4 => open.extend(begin(server, path, &body, usize::MAX)),
        _ => {
            let response = server.send("POST", path, "Content-Type: application/json\r\n", body.as_bytes());
            let expected = [0, 200, 400, 408, 413, 429, 503, 504];
            assert!(
                expected.contains(&response.status),
                "{}: {}",
                response.status,
                response.body
            );
        }
    }
    if open.len() > 100 {
        open.drain(..50);
    }
}

/// Attacks for some seconds. Returns the number of attacks, the maximum time of a request of one token, and the
/// resources of the process early and at the end.
fn soak(seconds: u64) -> (usize, Duration, [ProcessResources; 2]) {
    let server = TestServer::with(ServerOptions {
        read_timeout: Duration::from_secs(3),
        request_timeout: Duration::from_secs(30),
        max_connections: 64,
        ..options()
    });
    let attacks = AtomicUsize::new(0);
    let mut longest = Duration::ZERO;
    let mut round = |seed: u64, seconds: u64| {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for attacker in 0..ATTACKERS {
                let (server, attacks, ends) = (&server, &attacks, &ends);
                scope.spawn(move || {
                    let mut rng = SplitMix64::new(seed + attacker as u64);
                    let mut open = Vec::new();
                    while !ends.load(Ordering::Relaxed) {
                        attack(server, &mut rng, &mut open);
                        attacks.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(seconds) {
                let asked = Instant::now();
                assert_eq!(server.get("/health").status, 200);
                let response = server.post("/v1/completions", &json!({"prompt": "Alice", "max_tokens": 1}));
                // A full queue is an answer, too.
                assert!(
                    [200, 429].contains(&response.status),
                    "{}: {}",
                    response.status,
                    response.body
                );
                longest = longest.max(asked.elapsed());
                std::thread::sleep(Duration::from_millis(50));
            }
            ends.store(true, Ordering::Relaxed);
        });
        // Everything of the attackers is dropped.
        let start = Instant::now();
        loop {
            let health = server.get("/health").json();
            if health["running"] == 0 && health["waiting"] == 0 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{health}");
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_millis(500));
        ProcessResources::now()
    };
    let held = [round(1, seconds.div_ceil(4)), round(100, seconds - seconds.div_ceil(4))];
    server.end().expect("it ends well");
    (attacks.into_inner(), longest, held)
}

/// The server's memory stays flat during a minute of attacks, or `SOAK_SECONDS`.
#[test]
#[ignore = "takes minutes"]
fn a_mixture_of_attacks_leaves_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(60, |text| text.parse().expect("a number"));
    let (attacks, longest, [early, late]) = soak(seconds);
    let what = format!("{attacks} attacks, longest request of one token {longest:?}");
    assert!(longest < PATIENCE, "{what}");
    // The allocator keeps parts of the largest bodies and grammars; what leaks with each attack would be more.
    early.assert_kept_within(late, &what, 64 << 20, 4, 4);
}

#[test]
fn a_few_attacks_leave_the_server_working() {
    let (attacks, longest, _) = soak(4);
    assert!(attacks > 5 && longest < PATIENCE, "{attacks} attacks, {longest:?}");
}
