//! Tests of `serve`: from the command line to a generated text, and its shutdown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{meganeura, run};

fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama")
}

fn command(args: &[&str]) -> Command {
    let mut command = meganeura(&["serve", "--device", "cpu", "--port", "0", "--no-plan-cache", "--model"]);
    command.arg(model()).args(args).env_remove("MEGANEURA_API_KEY");
    command
}

/// A server process that is killed at the end of the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and returns it with its address.
fn start(args: &[&str]) -> (Server, String) {
    let child = command(args).stderr(Stdio::piped()).spawn();
    let mut child = Server(child.expect("the command starts"));
    let mut lines = BufReader::new(child.0.stderr.take().expect("a pipe")).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("serving")));
    let line = line.expect("it says where it listens");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
    (child, address.expect("an address").to_owned())
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Sends a signal to a server.
fn send(signal: &str, child: &Server) {
    let status = Command::new("kill").args([signal, &child.0.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn a_server_answers_until_it_is_told_to_end() {
    for (signal, key) in [("-TERM", None), ("-INT", Some("secret"))] {
        let args: Vec<&str> = key.iter().flat_map(|key| ["--api-key", key]).collect();
        let (mut child, address) = start(&args);
        let body = r#"{"prompt": "Alice", "max_tokens": 3, "temperature": 0}"#;
        let head = |more: &str| {
            format!(
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let answer = ask(
            &address,
            &head(&key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"))),
        );
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":3"),
            "{answer}"
        );
        if key.is_some() {
            assert!(ask(&address, &head("")).starts_with("HTTP/1.1 401"));
        }
        send(signal, &child);
        assert!(child.0.wait().expect("it ends").success(), "{signal}");
    }
}

#[test]
fn a_second_signal_ends_the_shutdown_at_once() {
    let (mut child, address) = start(&["--shutdown-timeout", "60", "--read-timeout", "60"]);
    // The rest of the body never comes.
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(500));
    send("-INT", &child);
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        child.0.try_wait().expect("a child").is_none(),
        "it waits for the request"
    );
    let second = Instant::now();
    send("-INT", &child);
    assert_eq!(child.0.wait().expect("it ends").code(), Some(1));
    assert!(second.elapsed() < Duration::from_secs(20), "{:?}", second.elapsed());
}

#[test]
fn a_draft_model_guesses_and_the_text_is_the_same() {
    let body = r#"{"prompt": "Alice", "max_tokens": 24, "temperature": 0}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let text = |answer: &str| {
        let start = answer.find("\"text\":").expect("a text");
        answer[start..].split("\"usage\"").next().map(str::to_owned)
    };
    let (_plain, address) = start(&[]);
    let plain = text(&ask(&address, &request));
    let draft = model();
    let (_drafted, address) = start(&["--draft-model", draft.to_str().expect("a path")]);
    assert_eq!(text(&ask(&address, &request)), plain);
    let metrics = ask(
        &address,
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let count = |name: &str| {
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split(' ').next_back()).expect("a metric");
        number.parse::<f64>().expect("a number")
    };
    // The model drafts for itself, so every draft token is accepted.
    assert!(count("meganeura_drafted_tokens_total") > 10.0, "{metrics}");
    assert_eq!(
        count("meganeura_drafted_tokens_total"),
        count("meganeura_accepted_tokens_total")
    );
}

#[test]
fn what_cannot_be_served_is_an_error() {
    let draft = model();
    let draft = draft.to_str().expect("a path");
    for (args, said) in [
        (&["--host", "0.0.0.0"][..], "--no-auth"),
        (&["--context", "1000"], "found 1000"),
        (&["--sequences", "0"], "at least 1 sequence"),
        (
            &["--draft-tokens", "0", "--draft-model", draft],
            "at least 1 draft token",
        ),
        (&["--draft-model", "nowhere/at/all"], "nowhere"),
        (&["--device", "nothing"], "nothing"),
    ] {
        let mut command = match args {
            ["--device", device] => {
                let mut command = meganeura(&["serve", "--device", device, "--port", "0", "--model"]);
                command.arg(model());
                command
            }
            _ => command(args),
        };
        let (output, _, err) = run(&mut command);
        assert!(!output.status.success() && err.contains(said), "{args:?}: {err}");
    }
}

/// Sends a chat request with a constraint, and returns the answer and its time.
fn constrained(address: &str, constraint: &str) -> (String, Duration) {
    let body = format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], "max_tokens": 4, {constraint}}}"#);
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    let begun = Instant::now();
    let answer = ask(
        address,
        &format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
    );
    (answer, begun.elapsed())
}

/// A grammar that takes days to compile ends only the process that tries it.
#[test]
fn grammars_that_never_end_are_refused() {
    let (_server, address) = start(&[]);
    let rule = |bit: u32| format!(r#"perm::set_bit({bit}) \"a\" %if bit_clear({bit})"#);
    let rules: Vec<String> = (0..20).map(rule).collect();
    let endless = format!(
        r#""grammar": "start: perm::0x0\nperm::_: {} | \"x\"\n""#,
        rules.join(" | ")
    );
    for _ in 0..2 {
        let (answer, time) = constrained(&address, &endless);
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("more than 10 s"),
            "{answer}"
        );
        // Three trials, of 13.5 s of processor time, and at most three times as long on a busy machine.
        assert!(time < Duration::from_secs(60), "{time:?}");
        let (answer, _) = constrained(&address, r#""guided_choice": ["ab", "cd"]"#);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
