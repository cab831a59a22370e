//! Responses: whole, or as events while text is generated.

use std::convert::Infallible;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use meganeura_llm::engine::Chosen;
use meganeura_llm::tokenizer::TokenBytes;
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;
use super::generation::{Generation, Piece, Usage};

/// How a kind of response is written.
pub(crate) trait Format: Send + 'static {
    /// What comes before the first piece of a stream.
    fn begin(&mut self, choices: usize) -> Vec<Value>;

    /// A piece of a stream; none if there is nothing to say yet.
    fn piece(&mut self, piece: Piece) -> Vec<Value>;

    /// The last part of a stream, if it was asked for.
    fn usage(&self, usage: Usage) -> Value;

    /// The whole response.
    fn whole(&mut self, pieces: Vec<Piece>, choices: usize, usage: Usage) -> Value;
}

/// Numbers of tokens, as responses have them.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
    })
}

/// The response when everything is generated.
pub(crate) async fn whole(
    mut generation: Generation,
    choices: usize,
    mut format: impl Format,
) -> Result<Response, ApiError> {
    let mut pieces = Vec::new();
    while let Some(piece) = generation.next().await? {
        pieces.push(piece);
    }
    Ok(Json(format.whole(pieces, choices, generation.usage)).into_response())
}

/// Where a stream is.
enum Place {
    Begin,
    Pieces,
    Done,
    Ended,
}

struct State<F> {
    generation: Generation,
    format: F,
    place: Place,
    /// Values that are still to be sent.
    due: std::collections::VecDeque<Value>,
    choices: usize,
    include_usage: bool,
}

/// The response as server-sent events; the last one is `[DONE]`.
pub(crate) fn events(generation: Generation, choices: usize, include_usage: bool, format: impl Format) -> Response {
    let state = State {
        generation,
        format,
        place: Place::Begin,
        due: Default::default(),
        choices,
        include_usage,
    };
    let events = unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl<F: Format> State<F> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(value) = self.due.pop_front() {
                return Some(Event::default().data(value.to_string()));
            }
            match self.place {
                Place::Begin => {
                    self.due.extend(self.format.begin(self.choices));
                    self.place = Place::Pieces;
                }
                Place::Pieces => match self.generation.next().await {
                    Ok(Some(piece)) => self.due.extend(self.format.piece(piece)),
                    Ok(None) => {
                        if self.include_usage {
                            self.due.push_back(self.format.usage(self.generation.usage));
                        }
                        self.place = Place::Done;
                    }
                    Err(error) => {
                        // The status is sent already.
                        self.due.push_back(error.body());
                        self.place = Place::Done;
                    }
                },
                Place::Done => {
                    self.place = Place::Ended;
                    return Some(Event::default().data("[DONE]"));
                }
                Place::Ended => return None,
            }
        }
    }
}

/// The text of one token, as lists of probabilities have it, and its bytes, which may be a part of a character.
fn spelled(app: &App, token: u32) -> (String, &[u8]) {
    let bytes = match app.token_bytes().get(token as usize) {
        Some(TokenBytes::Text(bytes)) => bytes,
        Some(TokenBytes::Special(name)) => name.as_bytes(),
        Some(TokenBytes::None) | None => &[],
    };
    (String::from_utf8_lossy(bytes).into_owned(), bytes)
}

/// A token with the logarithm of its probability, as chats have it.
pub(crate) fn chat_logprob(app: &App, chosen: &Chosen) -> Option<Value> {
    let (own, top) = chosen.logprobs.as_ref()?;
    let entry = |token: u32, logprob: f32| {
        let (text, bytes) = spelled(app, token);
        json!({"token": text, "logprob": logprob, "bytes": bytes})
    };
    let mut value = entry(chosen.token, *own);
    value["top_logprobs"] = top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
    Some(value)
}

/// The lists of logarithms of probabilities of completions.
#[derive(Debug, Default)]
pub(crate) struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    offset: usize,
}

impl Logprobs {
    /// Adds a token, if its probability is known.
    pub(crate) fn push(&mut self, app: &App, chosen: &Chosen) {
        let Some((own, top)) = &chosen.logprobs else { return };
        let (text, _) = spelled(app, chosen.token);
        self.text_offset.push(self.offset);
        self.offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(*own);
        let top = top
            .iter()
            .map(|&(token, logprob)| (spelled(app, token).0, json!(logprob)));
        self.top_logprobs.push(Value::Object(top.collect()));
    }

    /// As a response has them; `null` if there are none. The next ones follow these.
    pub(crate) fn take(&mut self) -> Value {
        if self.tokens.is_empty() {
            return Value::Null;
        }
        let taken = std::mem::take(self);
        self.offset = taken.offset;
        json!({
            "tokens": taken.tokens,
            "token_logprobs": taken.token_logprobs,
            "top_logprobs": taken.top_logprobs,
            "text_offset": taken.text_offset,
        })
    }
}
