//! Routes of the server, and the checks that apply to all requests.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_http::timeout::RequestBodyTimeoutLayer;

use super::embeddings::EmbeddingApp;
use super::error::{ApiError, quoted};
use super::{App, Bounds, Site, body, chat, completions, embeddings, request, rerank, responses};
use crate::connections::Activity;

/// Returns the routes of a model that generates text.
pub(crate) fn text_router(app: Arc<App>, bounds: Bounds) -> Router {
    let site = app.site.clone();
    let embeds_nothing = || async { other_kind("generates text and does not compute embeddings") };
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

/// Returns the routes of an encoder, which embeds texts.
pub(crate) fn embedding_router(app: Arc<EmbeddingApp>, bounds: Bounds) -> Router {
    let site = app.site.clone();
    let generates_none = || async { other_kind("is an encoder and does not generate text; use /v1/embeddings") };
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

/// Adds the routes and checks that all models have. The routes in `open` need no API key.
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
        .layer(middleware::from_fn(require_host))
        .layer(middleware::from_fn(keep_reserved))
        .layer(middleware::from_fn_with_state(site, count))
}

/// Counts responses by path and status for the metrics.
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

/// Refuses all requests except `/health` and `/metrics` on connections in reserved slots.
async fn keep_reserved(request: Request, next: Next) -> Response {
    let is_reserved = request
        .extensions()
        .get::<Activity>()
        .is_some_and(|activity| activity.is_reserved);
    if is_reserved && !matches!(request.uri().path(), "/health" | "/metrics") {
        let message = "the server has reached its maximum number of connections; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("too_many_connections");
        // The next connection may get an ordinary slot.
        return ([(header::CONNECTION, "close")], error).into_response();
    }
    next.run(request).await
}

/// Refuses requests of HTTP/1.1 without the header `Host` (RFC 9112, section 3.2).
async fn require_host(request: Request, next: Next) -> Result<Response, ApiError> {
    let names_host = request.headers().contains_key(header::HOST) || request.uri().host().is_some();
    if request.version() == Version::HTTP_11 && !names_host {
        return Err(ApiError::bad("the header Host is missing"));
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

/// Returns true if the `Host` header is localhost or an IP address. A web page with any other host name could otherwise
/// send requests to this server (DNS rebinding).
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => return true,
        (Some(host), None) => host,
        // A proxy may have checked the other header.
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

/// Returns the entry of an adapter for the list of models.
fn described_adapter(site: &Site, adapter: &str) -> Value {
    let mut value = described(site);
    value["id"] = format!("{}:{adapter}", site.model).into();
    value["parent"] = site.model.as_str().into();
    value
}

async fn models(State(site): State<Arc<Site>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&site)]}))
}

/// The name of a model in a path, or why it is none.
type NameInPath = Result<Path<String>, PathRejection>;

/// Returns the name of a model in a path.
fn name_in(path: NameInPath) -> Result<String, ApiError> {
    let Path(name) = path.map_err(|e| ApiError::bad(format!("the path has no name of a model: {e}")))?;
    Ok(name)
}

async fn model(State(site): State<Arc<Site>>, path: NameInPath) -> Result<Json<Value>, ApiError> {
    let id = name_in(path)?;
    request::check_name(&id, &site.model, true)?;
    Ok(Json(described(&site)))
}

async fn models_with_adapters(State(app): State<Arc<App>>) -> Json<Value> {
    let mut data = vec![described(&app.site)];
    data.extend(app.adapters.iter().map(|adapter| described_adapter(&app.site, adapter)));
    Json(json!({"object": "list", "data": data}))
}

async fn model_or_adapter(State(app): State<Arc<App>>, path: NameInPath) -> Result<Json<Value>, ApiError> {
    let id = name_in(path)?;
    let site = &app.site;
    if let Some(adapter) = app.adapters.iter().find(|name| format!("{}:{name}", site.model) == id) {
        return Ok(Json(described_adapter(site, adapter)));
    }
    if id != site.model {
        return Err(request::unknown_model(&id, &site.model, &app.adapters));
    }
    Ok(Json(described(site)))
}

/// Returns the error for an endpoint that the served kind of model does not support.
fn other_kind(what: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("the served model {what}"))
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
