//! A server for language models with the paths of OpenAI's API.
//!
//! [`Server::bind`] opens a model and a port, [`Server::run`] answers until it is told to end. One thread makes the steps of an
//! [`Engine`]; requests wait for their tokens without one.
//!
//! | Path | What it gives |
//! |---|---|
//! | `POST /v1/chat/completions` | the next message of a conversation, by the model's chat template |
//! | `POST /v1/completions` | what follows a text |
//! | `POST /v1/embeddings` | vectors of texts, by an encoder of the BERT family, which has this path instead of the two above |
//! | `GET /v1/models` | the model that is served |
//! | `GET /health` | whether steps succeed; 503 if not |
//! | `GET /metrics` | counts and times in the format of Prometheus |
//! | `GET /` | a page to chat with the model |

mod api;
mod connections;
mod embeddings;
mod grammar;
mod metrics;
mod page;
mod text;
mod worker;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use meganeura_core::{Error, Result};
use meganeura_llm::{ChatTemplate, Embedder, EmbedderOptions, EncoderConfig, Engine, EngineOptions, Tokenizer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use api::{App, Bounds, EmbeddingApp, Site, Steps};
use axum::Router;
use embeddings::EmbeddingWorker;
use grammar::Grammars;
use metrics::Metrics;
use worker::Worker;

/// Choices of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Folder of a checkpoint in Hugging Face's layout, or a GGUF file.
    pub model: PathBuf,
    /// Name that requests give the model; that of the folder or file if `None`.
    pub name: Option<String>,
    /// Address to listen at.
    pub address: IpAddr,
    /// Port to listen at; 0 for any that is free.
    pub port: u16,
    /// Key that requests have to send.
    pub api_key: Option<String>,
    /// Whether another address than the machine's own may be listened at without a key.
    pub no_auth: bool,
    /// Sequences that may wait beside those that are computed; requests beyond get the status 429.
    pub queue: usize,
    /// Longest time of a request.
    pub request_timeout: Duration,
    /// Bytes of a body at most.
    pub max_body_bytes: usize,
    /// Connections at the same time at most; others wait to be accepted.
    pub max_connections: usize,
    /// How long requests may go on after the server was told to end.
    pub shutdown_timeout: Duration,
    /// The engine of a model that generates text.
    pub engine: EngineOptions,
    /// The encoder of a model that embeds texts.
    pub embedder: EmbedderOptions,
}

impl ServerOptions {
    /// The usual choices for a model: port 8080 of the machine's own address.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        ServerOptions {
            model: model.into(),
            name: None,
            address: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_key: None,
            no_auth: false,
            queue: 256,
            request_timeout: Duration::from_secs(600),
            max_body_bytes: 1 << 20,
            max_connections: 256,
            shutdown_timeout: Duration::from_secs(30),
            engine: EngineOptions::default(),
            embedder: EmbedderOptions::default(),
        }
    }

    fn check(&self) -> Result<()> {
        if !self.address.is_loopback() && self.api_key.is_none() && !self.no_auth {
            return Err(Error::misuse(
                format!(
                    "the address {} is open to other machines, and no API key is set",
                    self.address
                ),
                "set one with --api-key, or say with --no-auth that everybody may use the model",
            ));
        }
        if self
            .api_key
            .as_ref()
            .is_some_and(|key| key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(Error::misuse(
                "the API key is empty, or has other characters than printable ASCII without spaces",
                "use letters and digits",
            ));
        }
        if self.model_name().is_empty() {
            return Err(Error::misuse("the model has an empty name", "give another --name"));
        }
        if self.max_connections == 0 || self.max_body_bytes == 0 {
            return Err(Error::misuse(
                "a server that takes no request",
                "allow one connection and some bytes at least",
            ));
        }
        Ok(())
    }
}

impl ServerOptions {
    fn model_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| name_of(&self.model))
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            body_bytes: self.max_body_bytes,
            body_timeout: READ_TIMEOUT,
        }
    }

    /// What requests to all models share.
    fn site(&self, steps: Box<dyn Steps>, context: usize) -> Arc<Site> {
        Arc::new(Site {
            steps,
            metrics: Metrics::new(),
            model: self.model_name(),
            path: self.model.clone(),
            local_only: self.address.is_loopback() && self.api_key.is_none() && !self.no_auth,
            started: api::now(),
            context,
            api_key: self.api_key.clone(),
            request_timeout: self.request_timeout,
        })
    }

    /// A model that generates text.
    fn open_engine(&self) -> Result<Opened> {
        let tokenizer = Arc::new(Tokenizer::open(&self.model)?);
        let engine = Engine::open(&self.model, self.engine.clone())?;
        tokenizer.check(engine.config())?;
        let template = ChatTemplate::find(&self.model)?;
        let chats = template.is_some();
        let config = engine.config();
        let (vocab, stop) = (config.network.vocab, config.stop.clone());
        let (context, device) = (engine.context(), engine.device().to_owned());
        let limit = self.engine.sequences.saturating_add(self.queue);
        let (worker, steps) = Worker::start(engine, limit)?;
        let app = App {
            site: self.site(Box::new(worker.clone()), context),
            grammars: Grammars::new(tokenizer.clone(), vocab, &stop),
            spelled: Default::default(),
            vocab,
            worker,
            tokenizer,
            template,
            stop,
        };
        Ok(Opened {
            router: api::text_router(Arc::new(app), self.bounds()),
            steps,
            device,
            chats,
        })
    }

    /// A model that embeds texts. Its steps are made ready now, so that no request has to wait for that.
    fn open_encoder(&self) -> Result<Opened> {
        let (usual, own) = (EngineOptions::default(), &self.engine);
        if own.adapters.is_some() || own.weights.is_some() || own.cache_type != usual.cache_type {
            return Err(Error::misuse(
                "an encoder with adapters, or weights or caches stored in fewer bits",
                "leave these options out: encoders have their own weights in f32, and no cache",
            ));
        }
        let mut embedder = Embedder::open(&self.model, self.embedder.clone())?;
        embedder.prepare()?;
        let (encoder, config) = (embedder.text_encoder().clone(), embedder.config().clone());
        let device = embedder.device().to_owned();
        let (worker, steps) = EmbeddingWorker::start(embedder, self.queue.max(1))?;
        let app = EmbeddingApp {
            site: self.site(Box::new(worker.clone()), config.max_tokens),
            worker,
            encoder,
            dim: config.network.dim,
            vocab: config.network.vocab,
            normalized: config.normalize,
        };
        Ok(Opened {
            router: api::embedding_router(Arc::new(app), self.bounds()),
            steps,
            device,
            chats: false,
        })
    }
}

/// How long the head of a request, and each part of a body, may take.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a client may leave what is sent to it unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that are prepared at the same time, and bytes of a thread's stack.
const PREPARING: usize = 4;
const STACK: usize = 16 << 20;

/// A server that listens already.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    router: Router,
    /// The thread that makes steps.
    steps: JoinHandle<()>,
    options: ServerOptions,
    model: String,
    device: String,
    embeds: bool,
    chats: bool,
}

/// A model that is open.
struct Opened {
    router: Router,
    steps: JoinHandle<()>,
    device: String,
    /// Whether it has a chat template.
    chats: bool,
}

impl Server {
    /// Opens a model and a port.
    ///
    /// # Errors
    /// An address that others can reach without a key; a port that is in use; what [`Engine::open`], [`Embedder::open`] and [`Tokenizer::open`] find.
    pub fn bind(options: ServerOptions) -> Result<Self> {
        options.check()?;
        // Requests are prepared on few threads, with room for what parsers of templates and grammars need.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(PREPARING)
            .thread_stack_size(STACK)
            .enable_all()
            .build();
        let runtime = runtime.map_err(|e| Error::misuse(format!("the server's threads cannot be started: {e}"), ""))?;
        // The port first: a model takes a while.
        let address = SocketAddr::new(options.address, options.port);
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(|e| {
            let remedy = "end the program that listens there, or choose another port with --port (0 for any)";
            Error::misuse(format!("cannot listen at {address}: {e}"), remedy)
        })?;
        let embeds = EncoderConfig::is_one(&options.model);
        let Opened {
            router,
            steps,
            device,
            chats,
        } = match embeds {
            true => options.open_encoder()?,
            false => options.open_engine()?,
        };
        Ok(Server {
            runtime,
            listener,
            router,
            steps,
            model: options.model_name(),
            options,
            device,
            embeds,
            chats,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn address(&self) -> Result<SocketAddr> {
        let address = self.listener.local_addr();
        address.map_err(|e| Error::misuse(format!("the server's address is unknown: {e}"), ""))
    }

    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Whether the model embeds texts, and generates none.
    pub fn embeds(&self) -> bool {
        self.embeds
    }

    /// Whether the model has a chat template, without which there are completions only.
    pub fn chats(&self) -> bool {
        self.chats
    }

    /// The string that selects the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Answers until `stop` is done. Then no connection is accepted any more, and requests have
    /// [`shutdown_timeout`](ServerOptions::shutdown_timeout) to be completed.
    ///
    /// # Errors
    /// Requests that were not completed in that time.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let limits = connections::Limits {
            connections: self.options.max_connections,
            head_timeout: READ_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            shutdown_timeout: self.options.shutdown_timeout,
        };
        let all_done = self
            .runtime
            .block_on(connections::serve(self.listener, self.router, limits, stop));
        // Tasks of connections that are left are dropped, and with them the last handles of the engine.
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        if self.steps.join().is_err() {
            return Err(Error::misuse("the model's thread panicked; the log says where", ""));
        }
        match all_done {
            true => Ok(()),
            false => Err(Error::misuse(
                format!(
                    "requests were not completed within {} s",
                    self.options.shutdown_timeout.as_secs()
                ),
                "give them more time with --shutdown-timeout",
            )),
        }
    }

    /// [`Server::run`] until the process gets SIGINT (Ctrl-C) or SIGTERM.
    ///
    /// # Errors
    /// As there.
    pub fn run_until_signal(self) -> Result<()> {
        let stop = connections::signal();
        self.run(stop)
    }
}

/// The name of a folder or file without its ending.
fn name_of(model: &Path) -> String {
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let name = match whole.extension().is_some_and(|e| e == "gguf") {
        true => whole.file_stem(),
        false => whole.file_name(),
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
