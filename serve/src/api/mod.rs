//! The server's paths.

mod chat;
mod completions;
mod embeddings;
mod error;
mod generation;
mod request;
mod stream;
mod tools;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use meganeura_llm::engine::EngineCounts;
use meganeura_llm::tokenizer::TokenBytes;
use meganeura_llm::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::worker::Worker;
pub(crate) use embeddings::EmbeddingApp;
use error::ApiError;

/// What makes the steps of a model.
pub(crate) trait Steps: Send + Sync {
    /// What has been done.
    fn counts(&self) -> EngineCounts;

    /// Whether the last step failed, a short time ago.
    fn is_failing(&self) -> bool;
}

/// What requests to all models share.
pub(crate) struct Site {
    pub(crate) steps: Box<dyn Steps>,
    pub(crate) metrics: Metrics,
    /// Name of the model.
    pub(crate) model: String,
    /// Its folder or file.
    pub(crate) path: PathBuf,
    /// Whether anybody on this machine may ask, and nobody else: browsers then show who asks by the name of the host.
    pub(crate) local_only: bool,
    /// Seconds since 1970 when the server began.
    pub(crate) started: u64,
    /// Tokens of a sequence at most.
    pub(crate) context: usize,
    pub(crate) api_key: Option<String>,
    pub(crate) request_timeout: Duration,
}

/// What requests for text share.
pub(crate) struct App {
    pub(crate) site: Arc<Site>,
    pub(crate) worker: Worker,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Grammars,
    /// What its tokens stand for, from the first request on that asks.
    pub(crate) spelled: OnceLock<Vec<TokenBytes>>,
    /// Tokens that there are.
    pub(crate) vocab: usize,
    /// Tokens that end texts.
    pub(crate) stop: Vec<u32>,
}

/// Sizes and times that requests have to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes of a body.
    pub(crate) body_bytes: usize,
    /// Time in which a body has to come on.
    pub(crate) body_timeout: Duration,
}

impl App {
    /// What the model's tokens stand for.
    pub(crate) fn token_bytes(&self) -> &[TokenBytes] {
        self.spelled.get_or_init(|| self.tokenizer.token_bytes())
    }
}

impl Site {
    /// An error, without where the model is on this machine.
    pub(crate) fn without_paths(&self, error: &meganeura_core::Error) -> String {
        error.to_string().replace(&*self.path.to_string_lossy(), &self.model)
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
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route(
            "/v1/embeddings",
            post(|| async { other_kind("generates text and has no embeddings") }),
        )
        .with_state(app);
    router(api, crate::page::router(), site, bounds)
}

/// The paths of a model that embeds texts.
pub(crate) fn embedding_router(app: Arc<EmbeddingApp>, bounds: Bounds) -> Router {
    let site = app.site.clone();
    let generates_none = || async { other_kind("embeds texts and generates none; ask /v1/embeddings") };
    let api = Router::new()
        .route("/v1/embeddings", post(embeddings::handle))
        .route("/v1/chat/completions", post(generates_none))
        .route("/v1/completions", post(generates_none))
        .with_state(app);
    router(api, Router::new(), site, bounds)
}

/// What all models have beside their own paths. Those of `open` need no key.
fn router(api: Router, open: Router, site: Arc<Site>, bounds: Bounds) -> Router {
    let common = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/metrics", get(metrics))
        .with_state(site.clone());
    let health = Router::new().route("/health", get(health)).with_state(site.clone());
    api.merge(common)
        .layer(middleware::from_fn_with_state(site.clone(), authenticate))
        .merge(health)
        .merge(open)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(bounds.body_bytes))
        .layer(middleware::from_fn_with_state(bounds.body_bytes, check_announced))
        .layer(RequestBodyTimeoutLayer::new(bounds.body_timeout))
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

/// Refuses a body that its head says is too large, instead of waiting for the bytes.
async fn check_announced(State(limit): State<usize>, request: Request, next: Next) -> Result<Response, ApiError> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let bytes: Option<u64> = announced.and_then(|text| text.to_str().ok()?.parse().ok());
    match bytes.filter(|&bytes| bytes > limit as u64) {
        Some(bytes) => {
            let message = format!("a body of {bytes} bytes is too large; it may have {limit}");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        None => Ok(next.run(request).await),
    }
}

async fn authenticate(State(site): State<Arc<Site>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if site.local_only && !names_this_machine(request.headers()) {
        let message =
            "without an API key the host of a request has to be localhost or an address such as 127.0.0.1, not a name";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
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
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    // The time that it takes does not tell how much of it is right.
    given.len() == key.len() && given.iter().zip(key.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// The bytes of a body that says it is JSON. Other types are those that web pages may send to any address without being asked
/// for permission.
struct JsonBody(Vec<u8>);

impl<S: Send + Sync> axum::extract::FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if !kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("application/json")) {
            let message = "send JSON with the header `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        match axum::body::Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(JsonBody(bytes.into())),
            Err(rejection) => Err(ApiError::new(rejection.status(), rejection.body_text())),
        }
    }
}

/// Runs what takes the processor a while, such as making tokens of a long text.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the request could not be prepared; the log says where it panicked",
        ))
    })
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

async fn models(State(site): State<Arc<Site>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&site)]}))
}

async fn model(State(site): State<Arc<Site>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    request::check_model(Some(&id), &site.model)?;
    Ok(Json(described(&site)))
}

/// What a path says that is for models of another kind.
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
            "there is nothing at {}; there are /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, /health and /metrics",
            request.uri().path()
        ),
    )
}

async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} is not possible at {path}"),
    )
}
