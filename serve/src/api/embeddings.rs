//! `/v1/embeddings`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use meganeura_llm::TextEncoder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::error::{ApiError, quoted};
use super::generation::too_much;
use super::request::{OneOrMore, parse};
use super::{JsonBody, Site};
use crate::embeddings::EmbeddingWorker;
use crate::unsent::RequestBytes;

/// State that all requests to an encoder share.
pub(crate) struct EmbeddingApp {
    pub(crate) site: Arc<Site>,
    pub(crate) worker: EmbeddingWorker,
    pub(crate) encoder: TextEncoder,
    /// Number of components of an embedding.
    pub(crate) dim: usize,
    /// Number of tokens of the vocabulary.
    pub(crate) vocab: usize,
    /// True if embeddings are normalized to length 1.
    pub(crate) normalized: bool,
}

/// Maximum number of texts of a request, as in OpenAI's API.
pub(crate) const MAX_TEXTS: usize = 2048;

#[derive(Deserialize)]
struct Body {
    input: Input,
    model: Option<String>,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

/// Text or tokens, one or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, tokens, or a list of either")]
enum Input {
    Texts(OneOrMore<String>),
    Tokens(Vec<u32>),
    SeveralTokens(Vec<Vec<u32>>),
}

/// Response of the endpoint. It is serialized directly, as JSON values in between take ten times the memory of the
/// vectors.
#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: EncodedVector,
}

/// Vector in the format that the request asks for.
#[derive(Serialize)]
#[serde(untagged)]
enum EncodedVector {
    Numbers(Vec<f32>),
    Base64(String),
}

/// Usual number of bytes of a number in an answer.
const WRITTEN_NUMBER: usize = 13;

/// Format of the vectors that a request asks for.
#[derive(Clone, Copy)]
struct VectorFormat {
    /// Number of leading components to return.
    dimensions: usize,
    base64: bool,
}

pub(crate) async fn handle(
    State(app): State<Arc<EmbeddingApp>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let (texts, form) = app
        .site
        .prepare(deadline, body.len(), move || prepare(&of_request, &body))
        .await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let (vectors, counted) = app.embed(texts, deadline).await?;
    let numbers: usize = vectors.iter().map(Vec::len).sum();
    let of_answer = app.clone();
    let make = move || {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| Entry {
            object: "embedding",
            index,
            embedding: of_answer.written(vector, form),
        });
        List {
            object: "list",
            data: data.collect(),
            model: of_answer.site.model.clone(),
            usage: json!({"prompt_tokens": tokens, "total_tokens": tokens}),
        }
    };
    app.site.answer(counted, numbers * WRITTEN_NUMBER, make).await
}

/// Parses a request. Returns the tokens of its texts, and the format of the vectors.
fn prepare(app: &EmbeddingApp, body: &[u8]) -> Result<(Vec<Vec<u32>>, VectorFormat), ApiError> {
    let body: Body = parse(body, "input")?;
    app.site.check_encoder_request(body.model.as_deref(), &body.others)?;
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("expected the format float or base64, found {}", quoted(other));
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let dimensions = body.dimensions.unwrap_or(app.dim);
    if dimensions == 0 || dimensions > app.dim {
        let message = format!("expected dimensions from 1 to {}, found {dimensions}", app.dim);
        return Err(ApiError::field("dimensions", message));
    }
    let wrong = |message: String| ApiError::field("input", message);
    let texts: Vec<Vec<u32>> = match body.input {
        Input::Texts(texts) => {
            let texts = texts.list();
            check_count(texts.len())?;
            texts
                .iter()
                .map(|text| app.tokens(text))
                .collect::<Result<_, _>>()
                .map_err(wrong)?
        }
        Input::Tokens(tokens) => vec![tokens],
        Input::SeveralTokens(several) => several,
    };
    check_count(texts.len())?;
    for tokens in &texts {
        app.check_text(tokens).map_err(wrong)?;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= app.vocab) {
            let message = format!("expected token ids below {}, found {token}", app.vocab);
            return Err(wrong(message));
        }
    }
    Ok((texts, VectorFormat { dimensions, base64 }))
}

fn check_count(texts: usize) -> Result<(), ApiError> {
    if (1..=MAX_TEXTS).contains(&texts) {
        Ok(())
    } else {
        let message = format!("expected 1 to {MAX_TEXTS} texts, found {texts}");
        Err(ApiError::field("input", message))
    }
}

impl EmbeddingApp {
    /// Tokenizes a text and checks its number of tokens.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let tokens = self.encoder.tokens(text).map_err(|e| e.to_string())?;
        self.check_text(&tokens)?;
        Ok(tokens)
    }

    /// Checks the number of tokens of a text.
    pub(crate) fn check_text(&self, tokens: &[u32]) -> Result<(), String> {
        let most = self.site.context;
        if (1..=most).contains(&tokens.len()) {
            Ok(())
        } else {
            Err(format!("expected texts of 1 to {most} tokens, found {}", tokens.len()))
        }
    }

    /// Embeds texts. Also returns the counter of the request's memory, which includes the vectors.
    pub(crate) async fn embed(
        &self,
        texts: Vec<Vec<u32>>,
        deadline: Instant,
    ) -> Result<(Vec<Vec<f32>>, Arc<RequestBytes>), ApiError> {
        let started = Instant::now();
        let place = self.worker.reserve().map_err(|_| {
            self.site.metrics.refused.inc();
            ApiError::queue_full("the queue is full; try again later")
        })?;
        // The vectors are kept until the answer is written.
        let kept = self.site.unsent.of_request();
        let bytes = texts.len().saturating_mul(self.dim * size_of::<f32>());
        kept.add(bytes).map_err(too_much)?;
        let tokens: usize = texts.iter().map(Vec::len).sum();
        self.site.metrics.prompt_tokens.inc_by(tokens as u64);
        let answer = tokio::time::timeout_at(deadline, self.worker.submit(place, texts)).await;
        let vectors = match answer {
            Ok(Ok(Ok(vectors))) => vectors,
            Ok(Ok(Err(message))) => return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)),
            Ok(Err(_)) => {
                return Err(ApiError::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the server is shutting down",
                ));
            }
            Err(_) => return Err(ApiError::timeout(self.site.request_timeout)),
        };
        let elapsed = started.elapsed().as_secs_f64();
        self.site.metrics.request_seconds.observe(elapsed);
        Ok((vectors, kept))
    }

    /// Converts a vector to the requested format. A truncated vector is normalized again if the model normalizes.
    fn written(&self, mut numbers: Vec<f32>, form: VectorFormat) -> EncodedVector {
        let is_shorter = form.dimensions < numbers.len();
        numbers.truncate(form.dimensions);
        if self.normalized && is_shorter {
            let length = numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
            if length > 0.0 {
                numbers.iter_mut().for_each(|x| *x /= length);
            }
        }
        if form.base64 {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            EncodedVector::Base64(STANDARD.encode(bytes))
        } else {
            EncodedVector::Numbers(numbers)
        }
    }
}
