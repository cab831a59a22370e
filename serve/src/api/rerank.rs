//! `/v1/rerank`: documents ordered by their similarity to a query, in the format of the APIs of Jina AI and Cohere.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::JsonBody;
use super::embeddings::{EmbeddingApp, MAX_TEXTS};
use super::error::ApiError;
use super::request::parse;

#[derive(Deserialize)]
struct Body {
    query: String,
    documents: Vec<Document>,
    model: Option<String>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a text, or an object whose only field is text"
)]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(&self) -> &str {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// Request whose texts are tokenized and whose fields are checked.
struct PreparedRequest {
    /// Tokens of the query, followed by the tokens of each document.
    texts: Vec<Vec<u32>>,
    documents: Vec<Document>,
    top_n: usize,
    returns_documents: bool,
}

pub(crate) async fn handle(
    State(app): State<Arc<EmbeddingApp>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let prepared = app
        .site
        .prepare(deadline, body.len(), move || prepare(&of_request, &body))
        .await?;
    let tokens: usize = prepared.texts.iter().map(Vec::len).sum();
    let (vectors, counted) = app.embed(prepared.texts, deadline).await?;
    let (documents, top_n) = (prepared.documents, prepared.top_n);
    let bytes = documents.iter().map(|document| document.text().len()).sum();
    let (returns_documents, model) = (prepared.returns_documents, app.site.model.clone());
    let make = move || {
        let (query, others) = vectors.split_first().unwrap_or((const { &Vec::new() }, &[]));
        let scores = others.iter().map(|document| cosine(query, document));
        let mut order: Vec<(usize, f32)> = scores.enumerate().collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let results = order.iter().take(top_n).map(|&(index, score)| {
            let mut result = json!({"index": index, "relevance_score": score});
            if returns_documents {
                result["document"] = json!({"text": documents[index].text()});
            }
            result
        });
        let results: Vec<Value> = results.collect();
        json!({
            "id": super::chat::id("rerank"),
            "model": model,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })
    };
    app.site.answer(counted, bytes, make).await
}

fn prepare(app: &EmbeddingApp, body: &[u8]) -> Result<PreparedRequest, ApiError> {
    let body: Body = parse(body, "query")?;
    app.site.check_encoder_request(body.model.as_deref(), &body.others)?;
    let count = body.documents.len();
    if !(1..MAX_TEXTS).contains(&count) {
        let message = format!("expected 1 to {} documents, found {count}", MAX_TEXTS - 1);
        return Err(ApiError::field("documents", message));
    }
    let tokens = |field: &'static str, text: &str| app.tokens(text).map_err(|e| ApiError::field(field, e));
    let mut texts = vec![tokens("query", &body.query)?];
    for document in &body.documents {
        texts.push(tokens("documents", document.text())?);
    }
    Ok(PreparedRequest {
        texts,
        documents: body.documents,
        top_n: body.top_n.unwrap_or(count),
        returns_documents: body.return_documents.unwrap_or(true),
    })
}

/// Returns the cosine similarity of two vectors, or 0 if one of them is zero.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let lengths = (product(a, a) * product(b, b)).sqrt();
    if lengths > 0.0 {
        (product(a, b) / lengths) as f32
    } else {
        0.0
    }
}
