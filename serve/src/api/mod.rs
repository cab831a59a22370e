//! The server's paths.

mod body;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod generation;
mod request;
mod rerank;
mod responses;
mod stream;
mod tools;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use meganeura_llm::engine::EngineCounts;
use meganeura_llm::tokenizer::TokenBytes;
use meganeura_llm::{ChatTemplate, Sampling, SpecialTokens, Tokenizer};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::connections::Activity;
use crate::grammar::{Compiled, Grammars};
use crate::metrics::Metrics;
use crate::preparation::{GRAMMAR_TIMEOUT, NotPrepared, Preparation};
use crate::unsent::UnsentBytes;
use crate::worker::Worker;
use body::JsonBody;
pub(crate) use embeddings::EmbeddingApp;
use error::{ApiError, quoted};
use generation::Generation;
use request::TextOptions;

/// Thread that runs the steps of a model.
pub(crate) trait Steps: Send + Sync {
    /// Counts since the start.
    fn counts(&self) -> EngineCounts;

    /// Returns true for a short time after a failed step.
    fn is_failing(&self) -> bool;
}

/// State that requests to all models share.
pub(crate) struct Site {
    pub(crate) steps: Box<dyn Steps>,
    pub(crate) metrics: Metrics,
    /// Name of the model.
    pub(crate) model: String,
    /// Its folder or file.
    pub(crate) path: PathBuf,
    /// Refuses requests that name another model.
    pub(crate) strict_model: bool,
    /// Set if only this machine may send requests, without a key. The `Host` header then reveals requests of web pages.
    pub(crate) local_only: bool,
    /// Seconds since 1970 when the server started.
    pub(crate) started: u64,
    /// Maximum number of tokens of a sequence.
    pub(crate) context: usize,
    pub(crate) api_key: Option<String>,
    pub(crate) request_timeout: Duration,
    pub(crate) preparation: Preparation,
    pub(crate) unsent: UnsentBytes,
}

/// State that requests for text share.
pub(crate) struct App {
    pub(crate) site: Arc<Site>,
    pub(crate) worker: Worker,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Grammars,
    /// Bytes of the tokens; made for the first request that needs them.
    pub(crate) spelled: OnceLock<Vec<TokenBytes>>,
    /// Number of tokens of the vocabulary.
    pub(crate) vocab: usize,
    /// Tokens that end texts.
    pub(crate) stop: Vec<u32>,
    /// Values of fields that requests leave out.
    pub(crate) sampling: Sampling,
    /// Names of the adapters that requests select.
    pub(crate) adapters: Vec<String>,
    /// Special tokens that text of messages must not become; `None` allows it.
    pub(crate) special_tokens: Option<SpecialTokens>,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of bytes of a body.
    pub(crate) body_bytes: usize,
    /// Maximum time for a whole body, and between two parts of it.
    pub(crate) body_timeout: Duration,
    pub(crate) part_timeout: Duration,
}

/// Number of last tokens that may differ when a text is cut.
pub(crate) const UNCERTAIN_TOKENS: usize = 16;

/// The beginning of a text that has more than `tokens` tokens, unless its tokens are unusually long.
pub(crate) fn beginning(text: &str, tokens: usize) -> &str {
    /// Bytes of a token of ordinary text, generously.
    const BYTES: usize = 16;
    let mut end = tokens.saturating_mul(BYTES).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl App {
    /// Bytes of the tokens of the model.
    pub(crate) fn token_bytes(&self) -> &[TokenBytes] {
        self.spelled.get_or_init(|| self.tokenizer.token_bytes())
    }

    /// Refuses a text that certainly has too many tokens, by tokenizing only its beginning: tokens of a megabyte take much
    /// memory.
    pub(crate) fn check_length(&self, text: &str) -> Result<(), ApiError> {
        let most = self.site.context;
        let beginning = beginning(text, most);
        if beginning.len() == text.len() {
            return Ok(());
        }
        let tokens = self
            .tokenizer
            .encode_plain(beginning)
            .map_err(|e| ApiError::of_request(&e))?;
        if tokens.len() <= most + UNCERTAIN_TOKENS {
            return Ok(());
        }
        let message = format!("the prompt has more than {most} tokens, the maximum of a sequence");
        Err(ApiError::bad(message).code("context_length_exceeded"))
    }

    /// Compiles the grammar of a request and starts to generate its texts.
    pub(crate) async fn generate(
        self: Arc<Self>,
        prompts: Vec<Vec<u32>>,
        mut options: TextOptions,
        are_completions: bool,
        deadline: Instant,
    ) -> Result<Generation, ApiError> {
        let compiled: Option<Compiled> = match options.grammar.take() {
            None => None,
            Some(grammar) => {
                let app = self.clone();
                let until = deadline.min(Instant::now() + GRAMMAR_TIMEOUT);
                let compiled = self
                    .site
                    .preparation
                    .grammar(until, move || app.grammars.compile(&grammar));
                let compiled = compiled.await.map_err(|e| match e {
                    NotPrepared::TimedOut if Instant::now() < deadline => ApiError::bad(format!(
                        "the schema or grammar was not compiled within {} s; use a simpler one, or try again later",
                        GRAMMAR_TIMEOUT.as_secs()
                    )),
                    other => self.site.not_prepared(other),
                });
                Some(compiled?.map_err(|e| ApiError::of_request(&e))?)
            }
        };
        Generation::start(self, prompts, &options, compiled.as_ref(), are_completions, deadline)
    }
}

impl Site {
    /// The text of an error, without the path of the model on this machine.
    pub(crate) fn without_paths(&self, error: &meganeura_core::Error) -> String {
        error.to_string().replace(&*self.path.to_string_lossy(), &self.model)
    }

    /// Checks the model and the remaining fields of a request to an encoder.
    pub(crate) fn check_encoder_request(
        &self,
        model: Option<&str>,
        others: &serde_json::Map<String, Value>,
    ) -> Result<(), ApiError> {
        fields::check(others)?;
        model.map_or(Ok(()), |model| {
            request::check_name(model, &self.model, self.strict_model)
        })
    }

    /// The end of the time of a request that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// Parses and tokenizes a request on another thread.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let prepared = self.preparation.text(deadline, work).await;
        prepared.map_err(|e| self.not_prepared(e))?
    }

    fn not_prepared(&self, error: NotPrepared) -> ApiError {
        match error {
            NotPrepared::QueueFull => {
                self.metrics.refused.inc();
                ApiError::queue_full("too many requests wait to be prepared; try again later")
            }
            NotPrepared::TimedOut => ApiError::timeout(self.request_timeout),
            NotPrepared::Panicked => ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request could not be prepared: its thread panicked, see the log",
            ),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// The paths of a model that generates text.
pub(crate) fn text_router(app: Arc<App>, bounds: Bounds) -> Router {
    let site = app.site.clone();
    let embeds_nothing = || async { other_kind("generates text and has no embeddings") };
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/responses", post(responses::handle))
        .route("/v1/models", get(models_with_adapters))
        .route("/v1/models/{*id}", get(model_or_adapter))
        .route("/v1/embeddings", post(embeds_nothing))
        .route("/v1/rerank", post(embeds_nothing))
        .with_state(app);
    router(api, crate::page::router(), site, bounds)
}

/// The paths of a model that embeds texts.
pub(crate) fn embedding_router(app: Arc<EmbeddingApp>, bounds: Bounds) -> Router {
    let site = app.site.clone();
    let generates_none = || async { other_kind("embeds texts and generates none; ask /v1/embeddings") };
    let api = Router::new()
        .route("/v1/embeddings", post(embeddings::handle))
        .route("/v1/rerank", post(rerank::handle))
        .route("/v1/chat/completions", post(generates_none))
        .route("/v1/completions", post(generates_none))
        .route("/v1/responses", post(generates_none))
        .with_state(app.clone());
    let models = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .with_state(site.clone());
    let api = api.merge(models);
    router(api, Router::new(), site, bounds)
}

/// Adds the paths that all models have. Those of `open` need no key.
fn router(api: Router, open: Router, site: Arc<Site>, bounds: Bounds) -> Router {
    let common = Router::new().route("/metrics", get(metrics)).with_state(site.clone());
    let health = Router::new().route("/health", get(health)).with_state(site.clone());
    api.merge(common)
        .layer(middleware::from_fn_with_state(site.clone(), authenticate))
        .merge(health)
        .merge(open)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(bounds.body_bytes))
        .layer(middleware::from_fn_with_state(bounds, body::check_announced))
        .layer(middleware::from_fn_with_state(bounds, body::receive_rest))
        .layer(RequestBodyTimeoutLayer::new(bounds.part_timeout))
        .layer(middleware::from_fn(keep_reserved))
        .layer(middleware::from_fn_with_state(site, count))
}

/// Counts responses.
async fn count(State(site): State<Arc<Site>>, path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let path = path.map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let labels = vec![
        ("path".to_owned(), path),
        ("status".to_owned(), response.status().as_str().to_owned()),
    ];
    site.metrics.responses.get_or_create(&labels).inc();
    response
}

/// Refuses requests on reserved connections, which are for `/health` and `/metrics` only.
async fn keep_reserved(request: Request, next: Next) -> Result<Response, ApiError> {
    let is_reserved = request
        .extensions()
        .get::<Activity>()
        .is_some_and(|activity| activity.is_reserved);
    if is_reserved && !matches!(request.uri().path(), "/health" | "/metrics") {
        let message = "the server has as many connections as it may have; try again later";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("too_many_connections"));
    }
    Ok(next.run(request).await)
}

async fn authenticate(State(site): State<Arc<Site>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if site.local_only && !names_this_machine(request.headers()) {
        let message =
            "without an API key the host of a request has to be localhost or an address such as 127.0.0.1, not a name";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    if request.headers().get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Err(ApiError::bad("expected one Authorization header, found several"));
    }
    if let Some(key) = &site.api_key
        && !has_key(request.headers(), key)
    {
        let message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"));
    }
    Ok(next.run(request).await)
}

/// Whether the host of a request is an address or localhost. A name that somebody else has made stand for this machine would let
/// the pages of that name ask (DNS rebinding).
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => return true,
        (Some(host), None) => host,
        // Whoever is between may have looked at the other one.
        (Some(_), Some(_)) => return false,
    };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
}

fn has_key(headers: &HeaderMap, key: &str) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .map_or(&[][..], |value| value.as_bytes());
    // The scheme is case-insensitive (RFC 9110, section 11.1).
    let is_bearer = given.len() > 7 && given[..7].eq_ignore_ascii_case(b"Bearer ");
    let given = if is_bearer { given[7..].trim_ascii_start() } else { &[] };
    // The comparison takes the same time, however much is right.
    given.len() == key.len() && given.iter().zip(key.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn described(site: &Site) -> Value {
    json!({
        "id": site.model,
        "object": "model",
        "created": site.started,
        "owned_by": "meganeura",
        "max_model_len": site.context,
    })
}

/// An adapter in the list of models.
fn described_adapter(site: &Site, adapter: &str) -> Value {
    let mut value = described(site);
    value["id"] = format!("{}:{adapter}", site.model).into();
    value["parent"] = site.model.as_str().into();
    value
}

async fn models(State(site): State<Arc<Site>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&site)]}))
}

async fn model(State(site): State<Arc<Site>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    request::check_name(&id, &site.model, true)?;
    Ok(Json(described(&site)))
}

async fn models_with_adapters(State(app): State<Arc<App>>) -> Json<Value> {
    let mut data = vec![described(&app.site)];
    data.extend(app.adapters.iter().map(|adapter| described_adapter(&app.site, adapter)));
    Json(json!({"object": "list", "data": data}))
}

async fn model_or_adapter(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let site = &app.site;
    if let Some(adapter) = app.adapters.iter().find(|name| format!("{}:{name}", site.model) == id) {
        return Ok(Json(described_adapter(site, adapter)));
    }
    if id != site.model {
        return Err(request::unknown_model(&id, &site.model, &app.adapters));
    }
    Ok(Json(described(site)))
}

/// The error of a path that only models of another kind have.
fn other_kind(what: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("the model that is served {what}"))
}

async fn health(State(site): State<Arc<Site>>) -> Response {
    let counts = site.steps.counts();
    let failing = site.steps.is_failing();
    let status = if failing {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    let state = if failing { "failing" } else { "ok" };
    let body = json!({"status": state, "running": counts.running, "waiting": counts.waiting});
    (status, Json(body)).into_response()
}

async fn metrics(State(site): State<Arc<Site>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], site.metrics.text(&site.steps.counts())).into_response()
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!(
            "unknown path {}; known are /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/rerank, /v1/models, \
             /health and /metrics",
            quoted(request.uri().path())
        ),
    )
}

async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("the method {method} is not allowed at {}", quoted(path)),
    )
}
