//! A server for language models with OpenAI's API.
//!
//! [`Server::bind`] opens a model and a port, [`Server::run`] answers requests until it is stopped. One thread runs the steps
//! of an [`Engine`]; requests wait for their tokens asynchronously.
//!
//! | Path | Response |
//! |---|---|
//! | `POST /v1/chat/completions` | the next message of a conversation, by the model's chat template |
//! | `POST /v1/responses` | the same in the format of OpenAI's Responses API, without stored state |
//! | `POST /v1/completions` | the continuation of a text, or log-probabilities of its tokens |
//! | `POST /v1/embeddings` | vectors of texts; encoders of the BERT family have this path and the next instead of those above |
//! | `POST /v1/rerank` | documents ordered by their similarity to a query |
//! | `GET /v1/models` | the served model and its adapters |
//! | `GET /health` | 200 if steps succeed, 503 if not |
//! | `GET /metrics` | counts and times in the format of Prometheus |
//! | `GET /` | a page to chat with the model |

mod api;
mod connections;
mod embeddings;
mod grammar;
mod half_closed;
mod lock;
mod metrics;
mod pace;
mod page;
mod preparation;
mod startup;
mod steps;
mod text;
mod unsent;
mod worker;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::{
    ChatTemplate, Embedder, EmbedderOptions, EncoderConfig, Engine, EngineOptions, SamplingDefaults, Tokenizer,
};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;

use api::{App, Bounds, EmbeddingApp, Site};
use axum::Router;
use embeddings::EmbeddingWorker;
pub use grammar::{CHECK_GRAMMARS, check_grammars};
use grammar::{Grammars, MaskPool};
use metrics::Metrics;
use preparation::Preparation;
use startup::{STACK, check_address_space, check_threads};
use steps::Steps;
use unsent::UnsentBytes;
use worker::Worker;

/// Options of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Folder of a checkpoint in Hugging Face's layout, or a GGUF file.
    pub model: PathBuf,
    /// Name of the model in requests; the name of the folder or file if `None`.
    pub name: Option<String>,
    /// True to refuse requests that name another model, with HTTP 404. Otherwise the model name of a request is
    /// ignored.
    pub strict_model: bool,
    /// Names and folders of LoRA adapters. Requests select one by the model name `NAME:ADAPTER`.
    pub adapters: Vec<(String, PathBuf)>,
    /// True to parse the text of special tokens such as `<|im_end|>` in messages as special tokens.
    pub special_tokens_in_messages: bool,
    /// True to ignore the sampling values of `generation_config.json`.
    pub ignore_generation_config: bool,
    /// Address to listen on.
    pub address: IpAddr,
    /// Port to listen on; 0 for a free one.
    pub port: u16,
    /// API key that requests have to send; `None` requires no key.
    pub api_key: Option<String>,
    /// True to allow requests from other machines without a key.
    pub no_auth: bool,
    /// Maximum number of texts that wait to be generated, or of requests to an encoder; further ones get HTTP 429.
    pub queue: usize,
    /// Maximum time of a request.
    pub request_timeout: Duration,
    /// Maximum time to receive the head of a request, and each part of its body. A whole body may take twice as long.
    pub read_timeout: Duration,
    /// Maximum number of bytes of a request body.
    pub max_body_bytes: usize,
    /// Maximum number of bytes of generated text that one request keeps in memory until they are sent: of a complete
    /// answer, or of a stream that the client does not read.
    pub max_unsent_bytes: usize,
    /// Maximum number of connections. At this limit, a new connection replaces one that waits for data from its client.
    pub max_connections: usize,
    /// Maximum number of connections per client address.
    pub max_connections_per_address: usize,
    /// Maximum time to complete running requests after the server is stopped.
    pub shutdown_timeout: Duration,
    /// Program that compiles schemas and grammars before this process does, within limits of memory and time, so that no request
    /// can end the server by its grammar. With the argument [`CHECK_GRAMMARS`], it has to call [`check_grammars`], as
    /// `meganeura` does. `None` compiles them only in this process.
    pub grammar_checker: Option<PathBuf>,
    /// Options of the engine, for a model that generates text.
    pub engine: EngineOptions,
    /// Options of the encoder, for a model that embeds texts.
    pub embedder: EmbedderOptions,
}

impl ServerOptions {
    /// Returns the default options for a model. The address is port 8080 of localhost.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        ServerOptions {
            model: model.into(),
            name: None,
            strict_model: false,
            adapters: Vec::new(),
            special_tokens_in_messages: false,
            ignore_generation_config: false,
            address: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_key: None,
            no_auth: false,
            queue: 256,
            request_timeout: Duration::from_secs(600),
            read_timeout: Duration::from_secs(15),
            max_body_bytes: 1 << 20,
            max_unsent_bytes: 64 << 20,
            max_connections: 256,
            max_connections_per_address: usize::MAX,
            shutdown_timeout: Duration::from_secs(30),
            grammar_checker: None,
            engine: EngineOptions::default(),
            embedder: EmbedderOptions::default(),
        }
    }

    fn check(&self) -> Result<()> {
        if !self.address.is_loopback() && self.api_key.is_none() && !self.no_auth {
            return Err(Error::misuse(
                format!(
                    "other machines can reach the address {}, but no API key is set",
                    self.address
                ),
                "set a key with --api-key, or allow everybody to use the model with --no-auth",
            ));
        }
        if self
            .api_key
            .as_ref()
            .is_some_and(|key| key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(Error::misuse(
                "expected an API key of printable ASCII characters without spaces",
                "use letters and digits",
            ));
        }
        if self.model_name().is_empty() {
            return Err(Error::misuse("the model has an empty name", "give another --name"));
        }
        for (number, (name, _)) in self.adapters.iter().enumerate() {
            let is_used = self.adapters[..number].iter().any(|(other, _)| other == name);
            if name.is_empty() || is_used {
                return Err(Error::misuse(
                    format!(
                        "expected adapters with different names, found '{name}' {}",
                        if is_used { "twice" } else { "" }
                    ),
                    "give each adapter a unique name, as in --lora NAME=DIR",
                ));
            }
        }
        let is_zero = |limit: usize| limit == 0;
        if [
            self.max_connections,
            self.max_connections_per_address,
            self.max_body_bytes,
            self.max_unsent_bytes,
        ]
        .into_iter()
        .any(is_zero)
        {
            return Err(Error::misuse(
                "expected limits of at least 1 for connections and bytes, found 0",
                "allow at least one connection and some bytes",
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
            body_timeout: self.read_timeout * 2,
            part_timeout: self.read_timeout,
        }
    }

    /// Creates the state that requests to all kinds of models share.
    fn site(&self, steps: Box<dyn Steps>, context: usize) -> Arc<Site> {
        Arc::new(Site {
            steps,
            metrics: Metrics::new(),
            model: self.model_name(),
            path: self.model.clone(),
            strict_model: self.strict_model,
            preparation: Preparation::new(self.queue.max(1), self.engine.sequences),
            local_only: self.address.is_loopback() && self.api_key.is_none() && !self.no_auth,
            started: api::now(),
            context,
            api_key: self.api_key.clone(),
            request_timeout: self.request_timeout,
            unsent: UnsentBytes::new(self.max_unsent_bytes),
        })
    }

    /// Opens a model that generates text.
    fn open_engine(&self) -> Result<OpenModel> {
        let own = &self.embedder;
        if own.pooling.is_some() || own.normalize.is_some() || own.truncate {
            return Err(Error::misuse(
                "models that generate text do not support the options of encoders: pooling, normalization and \
                 truncation",
                "leave these options out, or serve an encoder of the BERT family",
            ));
        }
        let tokenizer = Arc::new(Tokenizer::open(&self.model)?);
        let mut options = self.engine.clone();
        options
            .named_adapters
            .extend(self.adapters.iter().map(|(_, folder)| folder.clone()));
        let engine = Engine::open(&self.model, options)?;
        tokenizer.check(engine.config())?;
        let template = ChatTemplate::find(&self.model)?;
        let chats = template.is_some();
        let config = engine.config();
        let (vocab, stop) = (config.network.vocab, config.stop.clone());
        let sampling = if self.ignore_generation_config {
            SamplingDefaults::default()
        } else {
            config.sampling
        };
        let (context, device) = (engine.context(), engine.device().to_owned());
        let limit = self.engine.sequences.saturating_add(self.queue);
        let (worker, steps) = Worker::start(engine, limit)?;
        let masks = MaskPool::start(self.engine.sequences, worker.waker())?;
        let app = App {
            site: self.site(Box::new(worker.clone()), context),
            grammars: Grammars::new(tokenizer.clone(), vocab, &stop, masks, self.grammar_checker.clone()),
            sampling: sampling.sampling(),
            adapters: self.adapters.iter().map(|(name, _)| name.clone()).collect(),
            special_tokens: (!self.special_tokens_in_messages).then(|| tokenizer.special_tokens()),
            spelled: Default::default(),
            vocab,
            worker,
            tokenizer,
            template,
            stop,
        };
        Ok(OpenModel {
            router: api::text_router(Arc::new(app), self.bounds()),
            steps,
            device,
            chats,
        })
    }

    /// Opens an encoder. Its plans are compiled now, so that no request waits for them.
    fn open_encoder(&self) -> Result<OpenModel> {
        let (usual, own) = (EngineOptions::default(), &self.engine);
        if own.adapters.is_some()
            || !self.adapters.is_empty()
            || own.weights.is_some()
            || own.cache_type != usual.cache_type
            || own.draft_model.is_some()
            || own.draft_tokens > 0
            || own.context.is_some()
            || own.cache_tokens.is_some()
            || !own.prefix_cache
        {
            return Err(Error::misuse(
                "encoders take no adapters, no draft tokens, no options of caches and contexts, and no weights in fewer bits",
                "leave these options out: encoders read whole texts without a cache, and their weights are f32",
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
        Ok(OpenModel {
            router: api::embedding_router(Arc::new(app), self.bounds()),
            steps,
            device,
            chats: false,
        })
    }
}

/// Maximum time without progress while a response is written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time to wait for the engine's thread at shutdown.
const ENGINE_WAIT: Duration = Duration::from_secs(5);

/// A server that listens on its port.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    router: Router,
    /// Thread that runs the model's steps.
    steps: JoinHandle<()>,
    options: ServerOptions,
    model: String,
    device: String,
    embeds: bool,
    chats: bool,
}

/// Time after which an idle thread that prepares requests ends: never, in effect. While one of them exists, it takes the work even
/// if no further thread can be started.
const KEEP_ALIVE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Opened model.
struct OpenModel {
    router: Router,
    steps: JoinHandle<()>,
    device: String,
    /// True if the model has a chat template.
    chats: bool,
}

/// Number of threads that serve connections.
const RUNTIME_THREADS: usize = 2;

impl Server {
    /// Opens the model and listens on the port.
    ///
    /// # Errors
    /// An address that other machines can reach without a key; a port that is in use; errors of [`Engine::open`],
    /// [`Embedder::open`] and [`Tokenizer::open`].
    pub fn bind(options: ServerOptions) -> Result<Self> {
        options.check()?;
        // The runtime's own threads, the first that prepares requests, and the one that runs the model's steps.
        check_threads(RUNTIME_THREADS + 2)?;
        // It panics if the system refuses a file.
        let runtime = std::panic::catch_unwind(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(RUNTIME_THREADS)
                .max_blocking_threads(Preparation::threads())
                .thread_stack_size(STACK)
                .thread_keep_alive(KEEP_ALIVE)
                .enable_all()
                .build()
        });
        let not_started = |e: &dyn std::fmt::Display| {
            let message = format!("the server's threads cannot be started: {e}");
            Error::misuse(
                message,
                "raise the limits of processes (ulimit -u) and of open files (ulimit -n)",
            )
        };
        let runtime = runtime.map_err(|_| not_started(&"the system refuses files or threads"))?;
        let runtime = runtime.map_err(|e| not_started(&e))?;
        // The first thread that prepares requests.
        let started = runtime.block_on(async { tokio::task::spawn_blocking(|| {}).await });
        started.map_err(|e| Error::misuse(format!("the server's threads cannot be started: {e}"), ""))?;
        // The port first: opening a model takes longer.
        let address = SocketAddr::new(options.address, options.port);
        let listener = runtime.block_on(async { listen(address) }).map_err(|e| {
            let remedy = "stop the program that uses the port, or select another port with --port (0 for a free one)";
            Error::misuse(format!("cannot listen on {address}: {e}"), remedy)
        })?;
        let embeds = EncoderConfig::is_one(&options.model);
        let OpenModel {
            router,
            steps,
            device,
            chats,
        } = if embeds {
            options.open_encoder()?
        } else {
            options.open_engine()?
        };
        check_address_space()?;
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

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn address(&self) -> Result<SocketAddr> {
        let address = self.listener.local_addr();
        address.map_err(|e| Error::misuse(format!("the server's address is unknown: {e}"), ""))
    }

    /// Returns the name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns true for a model that embeds texts instead of generating them.
    pub fn embeds(&self) -> bool {
        self.embeds
    }

    /// Returns true if the model has a chat template. Without one, `/v1/chat/completions` and `/v1/responses` return
    /// errors.
    pub fn chats(&self) -> bool {
        self.chats
    }

    /// Returns the string that selects the model's device, as in `--device`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Answers requests until `stop` completes. Then accepts no new connections, and gives running requests the time
    /// [`shutdown_timeout`](ServerOptions::shutdown_timeout) to finish.
    ///
    /// # Errors
    /// Requests that were not completed in that time.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        self.run_or_kill(stop, std::future::pending())
    }

    /// Runs the server like [`Server::run`], but drops the remaining requests when `kill` completes.
    fn run_or_kill(self, stop: impl Future<Output = ()>, kill: impl Future<Output = ()>) -> Result<()> {
        let limits = connections::Limits {
            connections: self.options.max_connections,
            connections_per_address: self.options.max_connections_per_address,
            head_timeout: self.options.read_timeout,
            write_timeout: WRITE_TIMEOUT,
            shutdown_timeout: self.options.shutdown_timeout,
        };
        let all_done = self
            .runtime
            .block_on(connections::serve(self.listener, self.router, limits, stop, kill));
        // The runtime drops the tasks of connections, and with them the last handles of the engine.
        // A grammar that is still being compiled holds a handle of the engine: the shutdown does not wait for it. If time is over,
        // it waits for nothing.
        let (of_tasks, of_engine) = if all_done {
            (Duration::from_secs(1), ENGINE_WAIT)
        } else {
            (Duration::ZERO, Duration::from_millis(100))
        };
        self.runtime.shutdown_timeout(of_tasks);
        let waited = Instant::now();
        while !self.steps.is_finished() && waited.elapsed() < of_engine {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.steps.is_finished() && self.steps.join().is_err() {
            return Err(Error::misuse("the model's thread panicked; see the log", ""));
        }
        if all_done {
            Ok(())
        } else {
            Err(Error::misuse(
                format!(
                    "requests were not completed: the shutdown timed out after {} s, or a second signal ended it",
                    self.options.shutdown_timeout.as_secs()
                ),
                "set a longer time with --shutdown-timeout",
            ))
        }
    }

    /// Runs the server until the process receives SIGINT (Ctrl-C) or SIGTERM. A second signal ends the shutdown at
    /// once.
    ///
    /// # Errors
    /// Those of [`Server::run`].
    pub fn run_until_signal(self) -> Result<()> {
        let first = connections::signal();
        let second = async {
            connections::signal().await;
        };
        self.run_or_kill(first, second)
    }
}

/// Returns the name of the model's folder or GGUF file, without the extension `.gguf`.
fn name_of(model: &Path) -> String {
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let name = if whole.extension().is_some_and(|e| e == "gguf") {
        whole.file_stem()
    } else {
        whole.file_name()
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Maximum number of connections that the system keeps until they are accepted. Others try again after a second. The system may
/// have a lower limit.
const BACKLOG: u32 = 4096;

/// Listens on an address.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted server uses the port at once. On Windows, the option would allow two servers.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
