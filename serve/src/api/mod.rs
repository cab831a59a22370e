//! HTTP endpoints: one file for each kind of request, and the state that they share.

mod answer;
mod app;
mod body;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod generation;
mod raw_json;
mod request;
mod rerank;
mod responses;
mod router;
mod site;
mod stream;
mod structured;
mod tools;

pub(crate) use app::App;
use body::JsonBody;
pub(crate) use embeddings::EmbeddingApp;
pub(crate) use router::{embedding_router, text_router};
pub(crate) use site::{Bounds, Site, now};
