//! A server for tests, and a client that sends raw bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use meganeura_llm::EngineOptions;
use meganeura_serve::{Server, ServerOptions};
use serde_json::Value;
use tokio::sync::oneshot;

/// A server that runs until it is dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<meganeura_core::Result<()>>>,
}

pub(crate) fn model(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/fixtures/transformers").join(name)
}

/// Options of a small model on the CPU, at any port.
pub(crate) fn options() -> ServerOptions {
    // Using this name links the CPU backend.
    let _ = meganeura_cpu::CpuBackend;
    ServerOptions {
        port: 0,
        engine: EngineOptions {
            device: Some("cpu".into()),
            sequences: 4,
            ..EngineOptions::default()
        },
        ..ServerOptions::new(model("llama"))
    }
}

impl TestServer {
    pub(crate) fn new() -> Self {
        TestServer::with(options())
    }

    pub(crate) fn with(options: ServerOptions) -> Self {
        let server = Server::bind(options).expect("a server");
        let address = server.address().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            server.run(async {
                let _ = stopped.await;
            })
        });
        TestServer {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Stops the server and returns the result of its run.
    pub(crate) fn end(mut self) -> meganeura_core::Result<()> {
        self.stop_now();
        self.thread.take().expect("it runs").join().expect("no panic")
    }

    fn stop_now(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream
    }

    /// Sends bytes and reads until the server closes the connection.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may answer before it has read everything.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        Response::read(&self.raw(&[head.as_bytes(), body].concat()))
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send(
            "POST",
            path,
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        )
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop_now();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Response {
            status,
            head: head.to_owned(),
            body: if chunked { unchunked(body) } else { body.to_owned() },
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {}\n{}", self.head, self.body))
    }

    /// Returns the message of an error.
    pub(crate) fn message(&self) -> String {
        let json = self.json();
        let message = json["error"]["message"].as_str();
        message.unwrap_or_else(|| panic!("no error: {json}")).to_owned()
    }

    /// Returns the data of the server-sent events. The stream must end with `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut all: Vec<&str> = self
            .body
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        assert_eq!(all.pop(), Some("[DONE]"), "{}", self.body);
        all.iter()
            .map(|data| serde_json::from_str(data).expect("json"))
            .collect()
    }
}

fn unchunked(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((len, rest)) = body.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).expect("a length");
        if len == 0 {
            break;
        }
        all += &rest[..len];
        body = &rest[len + 2..];
    }
    all
}
