//! Tests of `pull` from a local server that acts as the Hub.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::models::on;
use super::run;

/// The commit of all files.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server with a model that acts as the Hub.
struct Hub {
    address: String,
    files: HashMap<String, Vec<u8>>,
    /// Requests: paths, and first bytes.
    asked: Mutex<Vec<(String, usize)>>,
}

impl Hub {
    fn start(change: impl FnOnce(&mut HashMap<String, Vec<u8>>)) -> Arc<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
        let mut files = HashMap::from([("README.md".to_owned(), b"read me".to_vec())]);
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            files.insert(name.to_owned(), fs::read(folder.join(name)).expect("a fixture"));
        }
        change(&mut files);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let hub = Arc::new(Hub {
            address: format!("http://{}", listener.local_addr().expect("an address")),
            files,
            asked: Mutex::default(),
        });
        let served = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = served.clone();
                std::thread::spawn(move || hub.answer(&stream));
            }
        });
        hub
    }

    /// Answers one request, and closes the connection.
    fn answer(&self, mut stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut from = 0;
        let mut to = usize::MAX;
        for line in lines.take_while(|line| !line.is_empty()) {
            let line = line.to_ascii_lowercase();
            if let Some((start, end)) = line
                .strip_prefix("range: bytes=")
                .and_then(|range| range.split_once('-'))
            {
                from = start.parse().expect("a number");
                to = end.parse().unwrap_or(usize::MAX);
            }
        }
        self.asked.lock().expect("no panic").push((path.clone(), from));
        let (status, headers, body) = self.response(&path, from, to);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }

    fn response(&self, path: &str, from: usize, to: usize) -> (&'static str, String, Vec<u8>) {
        let nothing = |status| (status, String::new(), Vec::new());
        if path.starts_with("/api/models/org/tiny") || path.starts_with("/api/models/org/gated") {
            let siblings: Vec<_> = self
                .files
                .keys()
                .map(|name| serde_json::json!({"rfilename": name}))
                .collect();
            let info = serde_json::json!({"sha": COMMIT, "siblings": siblings});
            return (
                "200 OK",
                "Content-Type: application/json\r\n".into(),
                info.to_string().into_bytes(),
            );
        }
        if path.starts_with("/org/gated/") {
            return nothing("403 Forbidden");
        }
        let name = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
        let Some(file) = name.and_then(|name| self.files.get(name)) else {
            return nothing("404 Not Found");
        };
        let end = file.len().min(to.saturating_add(1));
        if from >= end {
            return nothing("416 Range Not Satisfiable");
        }
        let mut headers = format!(
            "etag: \"{:08x}\"\r\nx-repo-commit: {COMMIT}\r\naccept-ranges: bytes\r\n",
            sum(file)
        );
        write!(headers, "Content-Range: bytes {from}-{}/{}\r\n", end - 1, file.len()).expect("a text");
        ("206 Partial Content", headers, file[from..end].to_vec())
    }

    fn pull(&self, home: &Path, args: &[&str]) -> Command {
        let mut command = on(home, &[&["pull"], args].concat());
        command.env("HF_ENDPOINT", &self.address);
        command
    }

    fn asked_for(&self, end: &str) -> Vec<usize> {
        let asked = self.asked.lock().expect("no panic");
        asked
            .iter()
            .filter(|(path, _)| path.ends_with(end))
            .map(|(_, from)| *from)
            .collect()
    }
}

/// Returns a checksum that distinguishes the files.
fn sum(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(7, |sum, &byte| sum.wrapping_mul(31) ^ u32::from(byte))
}

#[test]
fn a_model_is_downloaded_once_and_then_found_by_its_name() {
    let home = tempfile::tempdir().expect("a folder");
    let hub = Hub::start(|_| {});
    let (output, out, err) = run(&mut hub.pull(home.path(), &["org/tiny"]));
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("downloading model.safetensors") && err.contains("'org/tiny'"),
        "{err}"
    );
    let folder = PathBuf::from(out.trim());
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert_eq!(fs::read(folder.join(name)).expect("a file"), hub.files[name], "{name}");
    }
    assert!(!folder.join("README.md").exists());
    // Nothing is downloaded again.
    let before = hub.asked_for("model.safetensors").len();
    let (output, again, err) = run(&mut hub.pull(home.path(), &["org/tiny"]));
    assert!(output.status.success() && again == out, "{err}");
    assert_eq!(hub.asked_for("model.safetensors").len(), before);
    // The model is available without the Hub.
    let args = [
        "generate",
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--prompt-ids",
        "1,2",
        "--max-tokens",
        "2",
        "--no-plan-cache",
    ];
    let (output, _, err) = run(&mut on(home.path(), &args));
    assert!(output.status.success(), "{err}");
}

#[test]
fn a_download_that_was_interrupted_is_continued() {
    let home = tempfile::tempdir().expect("a folder");
    let hub = Hub::start(|_| {});
    let weights = &hub.files["model.safetensors"];
    let blobs = home.path().join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    let half = weights.len() / 2;
    fs::write(blobs.join(format!("{:08x}.part", sum(weights))), &weights[..half]).expect("written");
    let (output, out, err) = run(&mut hub.pull(home.path(), &["org/tiny"]));
    assert!(output.status.success(), "{err}");
    let file = PathBuf::from(out.trim()).join("model.safetensors");
    assert!(&fs::read(file).expect("a file") == weights, "the file is another one");
    let asked = hub.asked_for("model.safetensors");
    assert!(asked.contains(&half), "bytes from {asked:?} on were asked for");
}

#[test]
fn what_the_hub_refuses_is_one_clear_error() {
    let home = tempfile::tempdir().expect("a folder");
    let hub = Hub::start(|files| {
        files.remove("model.safetensors");
    });
    for (args, said) in [
        (&["org/absent"][..], "org/absent"),
        (&["org/tiny"], "neither safetensors"),
        (&["org/gated"], "neither safetensors"),
        (&["org/tiny", "--file", "x.gguf"], "x.gguf"),
    ] {
        let (output, _, err) = run(&mut hub.pull(home.path(), args));
        assert!(!output.status.success() && err.contains(said), "{args:?}: {err}");
    }
    let hub = Hub::start(|_| {});
    let (output, _, err) = run(&mut hub.pull(home.path(), &["org/gated"]));
    assert!(!output.status.success() && err.contains("HF_TOKEN"), "{err}");
}
