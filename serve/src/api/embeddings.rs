//! `/v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use meganeura_llm::TextEncoder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::{OneOrMore, check_model, parse};
use super::{JsonBody, Site, off_thread};
use crate::embeddings::EmbeddingWorker;

/// What requests for embeddings share.
pub(crate) struct EmbeddingApp {
    pub(crate) site: Arc<Site>,
    pub(crate) worker: EmbeddingWorker,
    pub(crate) encoder: TextEncoder,
    /// Numbers of an embedding.
    pub(crate) dim: usize,
    /// Tokens that there are.
    pub(crate) vocab: usize,
    /// Whether embeddings have the length 1.
    pub(crate) normalized: bool,
}

/// Texts of a request at most, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

#[derive(Deserialize)]
struct Body {
    input: Input,
    model: Option<String>,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
}

/// Text or tokens, one or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, tokens, or a list of either")]
enum Input {
    Texts(OneOrMore<String>),
    Tokens(Vec<u32>),
    SeveralTokens(Vec<Vec<u32>>),
}

/// How vectors are written.
#[derive(Clone, Copy)]
struct Form {
    /// The first so many numbers.
    dimensions: usize,
    base64: bool,
}

pub(crate) async fn handle(
    State(app): State<Arc<EmbeddingApp>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let place = app.worker.reserve().map_err(|_| {
        app.site.metrics.refused.inc();
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "there is no room in the queue; try again later",
        )
        .code("queue_full")
    })?;
    let of_request = app.clone();
    let (texts, form) = off_thread(move || prepare(&of_request, &body)).await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    app.site.metrics.prompt_tokens.inc_by(tokens as u64);
    let limit = app.site.request_timeout;
    let answer = tokio::time::timeout(limit.saturating_sub(started.elapsed()), app.worker.submit(place, texts)).await;
    let vectors = match answer {
        Ok(Ok(Ok(vectors))) => vectors,
        Ok(Ok(Err(message))) => return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)),
        Ok(Err(_)) => return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is ending")),
        Err(_) => {
            let message = format!("the request took longer than {} s", limit.as_secs());
            return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, message));
        }
    };
    app.site
        .metrics
        .request_seconds
        .observe(started.elapsed().as_secs_f64());
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": app.written(vector, form)}))
        .collect();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": app.site.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// The tokens of a request's texts, and how their vectors are written.
fn prepare(app: &EmbeddingApp, body: &[u8]) -> Result<(Vec<Vec<u32>>, Form), ApiError> {
    let body: Body = parse(body, "input")?;
    check_model(body.model.as_deref(), &app.site.model)?;
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("there is no format '{other}'; use float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let dimensions = body.dimensions.unwrap_or(app.dim);
    if dimensions == 0 || dimensions > app.dim {
        let message = format!("dimensions is {dimensions}, and has to be from 1 to {}", app.dim);
        return Err(ApiError::field("dimensions", message));
    }
    let wrong = |message: String| ApiError::field("input", message);
    let texts: Vec<Vec<u32>> = match body.input {
        Input::Texts(texts) => {
            let texts = texts.list();
            check_count(texts.len())?;
            let tokens = texts.iter().map(|text| app.encoder.tokens(text));
            tokens
                .collect::<meganeura_core::Result<_>>()
                .map_err(|e| wrong(e.to_string()))?
        }
        Input::Tokens(tokens) => vec![tokens],
        Input::SeveralTokens(several) => several,
    };
    check_count(texts.len())?;
    let most = app.site.context;
    for tokens in &texts {
        if tokens.is_empty() || tokens.len() > most {
            let message = format!("a text has {} tokens, and may have from 1 to {most}", tokens.len());
            return Err(wrong(message));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= app.vocab) {
            let message = format!("token {token} is not in the model's vocabulary of {}", app.vocab);
            return Err(wrong(message));
        }
    }
    Ok((texts, Form { dimensions, base64 }))
}

fn check_count(texts: usize) -> Result<(), ApiError> {
    match (1..=MAX_TEXTS).contains(&texts) {
        true => Ok(()),
        false => {
            let message = format!("there are {texts} texts, and have to be from 1 to {MAX_TEXTS}");
            Err(ApiError::field("input", message))
        }
    }
}

impl EmbeddingApp {
    /// A vector in the form that was asked for. Fewer numbers than there are get the length of all of them again.
    fn written(&self, vector: &[f32], form: Form) -> Value {
        let mut numbers = vector[..form.dimensions].to_vec();
        if self.normalized && form.dimensions < vector.len() {
            let length = numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
            if length > 0.0 {
                numbers.iter_mut().for_each(|x| *x /= length);
            }
        }
        match form.base64 {
            true => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            }
            false => json!(numbers),
        }
    }
}
