//! Load test of a running server, which measures response times.
//!
//! `cargo run --release -p meganeura-serve --example load -- ADDRESS [REQUESTS] [RATE | CLIENTS clients] [MAX_TOKENS]`
//!
//! Requests with prompts of different lengths arrive by a Poisson process of RATE per second, or from a number of clients that
//! each send the next request when the previous one is complete. The output contains tokens per second of all requests together,
//! the time to the first token and the time between tokens (median and 99th percentile, in milliseconds).

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use meganeura_core::random::SplitMix64;
use serde_json::{Value, json};

/// Number of words of the shortest and of the longest prompt.
const WORDS: [usize; 2] = [8, 120];

/// Measured times of requests.
#[derive(Default)]
struct RequestTimes {
    first: Vec<f64>,
    between: Vec<f64>,
    tokens: usize,
    failed: Vec<String>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(address) = args.first() else {
        eprintln!("usage: load ADDRESS [REQUESTS] [RATE | CLIENTS clients] [MAX_TOKENS]");
        std::process::exit(2);
    };
    let number = |at: usize, usual: f64| args.get(at).map_or(usual, |text| text.parse().expect("a number"));
    let by_clients = args.get(3).is_some_and(|word| word == "clients");
    let (requests, pace) = (number(1, 50.0) as usize, number(2, 2.0));
    let max_tokens = number(if by_clients { 4 } else { 3 }, 64.0) as usize;
    let all = Mutex::new(RequestTimes::default());
    let start = Instant::now();
    let one = |number: usize| {
        let measured = ask(address, number, max_tokens);
        let mut all = all.lock().expect("no panic");
        match measured {
            Ok(answer) => {
                all.tokens += answer.tokens;
                all.first.push(answer.first);
                all.between.extend(answer.between);
            }
            Err(message) => all.failed.push(message),
        }
    };
    std::thread::scope(|scope| {
        if by_clients {
            let clients = pace as usize;
            for client in 0..clients {
                let one = &one;
                scope.spawn(move || (client..requests).step_by(clients).for_each(one));
            }
        } else {
            let mut rng = SplitMix64::new(1);
            let mut due = 0.0;
            for number in 0..requests {
                due -= (1.0 - rng.unit()).ln() / pace;
                std::thread::sleep(Duration::from_secs_f64(due).saturating_sub(start.elapsed()));
                let one = &one;
                scope.spawn(move || one(number));
            }
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut all = all.into_inner().expect("no panic");
    let [first, between] = [&mut all.first, &mut all.between].map(|times| {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| {
            times
                .get((part * times.len() as f64) as usize)
                .copied()
                .unwrap_or(f64::NAN)
                * 1e3
        };
        [at(0.5), at(0.99)]
    });
    let row = json!({
        "requests": requests,
        "failed": all.failed.len(),
        "tokens_per_second": all.tokens as f64 / seconds,
        "first_token_ms": {"p50": first[0], "p99": first[1]},
        "between_tokens_ms": {"p50": between[0], "p99": between[1]},
    });
    println!("{row}");
    if let Some(message) = all.failed.first() {
        eprintln!("the first that failed: {message}");
        std::process::exit(1);
    }
}

/// Times of an answer, in seconds.
struct Answer {
    first: f64,
    /// Times between consecutive tokens, in seconds. Tokens that arrive together share the time since the previous
    /// ones.
    between: Vec<f64>,
    tokens: usize,
}

/// Sends a request and reads the answer.
fn ask(address: &str, number: usize, max_tokens: usize) -> Result<Answer, String> {
    let mut rng = SplitMix64::new(number as u64);
    let words = WORDS[0] + rng.below(WORDS[1] - WORDS[0]);
    let prompt: Vec<String> = (0..words).map(|_| format!("word{}", rng.below(1000))).collect();
    let body = json!({"prompt": prompt.join(" "), "max_tokens": max_tokens, "temperature": 0.8, "seed": number,
        "stream": true, "return_token_ids": true})
    .to_string();
    let start = Instant::now();
    let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).map_err(|e| e.to_string())?;
    let (mut first, mut between, mut latest, mut count) = (None, Vec::new(), start, 0);
    let mut reader = BufReader::new(stream);
    let (mut line, mut all) = (String::new(), String::new());
    while reader.read_line(&mut line).map_err(|e| e.to_string())? > 0 {
        if let Some(value) = line
            .trim()
            .strip_prefix("data: ")
            .and_then(|data| serde_json::from_str::<Value>(data).ok())
        {
            let tokens = value["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
            if tokens > 0 {
                let now = Instant::now();
                match first {
                    None => first = Some((now - start).as_secs_f64()),
                    Some(_) => between.extend([(now - latest).as_secs_f64() / tokens as f64].repeat(tokens)),
                }
                (latest, count) = (now, count + tokens);
            }
        }
        all += &line;
        line.clear();
    }
    let answer = |first| Answer {
        first,
        between,
        tokens: count,
    };
    first.map(answer).ok_or(all)
}
