//! Responses: complete, or as events while text is generated.

use std::convert::Infallible;
use std::time::Duration;

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

/// Format of a kind of response.
pub(crate) trait Format: Send + 'static {
    /// Events before the first piece of a stream.
    fn begin(&mut self, choices: usize) -> Vec<Value>;

    /// Events of a piece; none if the piece is kept back.
    fn piece(&mut self, piece: Piece) -> Vec<Value>;

    /// Event with the numbers of tokens, if it was asked for.
    fn usage(&self, usage: Usage) -> Value;

    /// Events after the last piece.
    fn end(&mut self, _usage: Usage) -> Vec<Value> {
        Vec::new()
    }

    /// The complete response.
    fn whole(&mut self, pieces: Vec<Piece>, choices: usize, usage: Usage) -> Value;

    /// Event of an error after the status was sent.
    fn error(&mut self, error: &ApiError) -> Value {
        error.body()
    }

    /// Returns true if events carry their type and the stream ends without `[DONE]`, as in `/v1/responses`.
    fn has_typed_events(&self) -> bool {
        false
    }
}

/// The numbers of tokens of a response.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
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

/// Progress of a stream.
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
    /// Events to send.
    due: std::collections::VecDeque<Value>,
    choices: usize,
    include_usage: bool,
}

/// Pause after which an idle stream sends a comment, which shows whether the client is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

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
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

impl<F: Format> State<F> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(value) = self.due.pop_front() {
                let event = Event::default();
                let event = match value["type"].as_str().filter(|_| self.format.has_typed_events()) {
                    Some(kind) => event.event(kind),
                    None => event,
                };
                return Some(event.data(value.to_string()));
            }
            match self.place {
                Place::Begin => {
                    self.due.extend(self.format.begin(self.choices));
                    self.place = Place::Pieces;
                }
                Place::Pieces => match self.generation.next().await {
                    Ok(Some(piece)) => self.due.extend(self.format.piece(piece)),
                    Ok(None) => {
                        self.due.extend(self.format.end(self.generation.usage));
                        if self.include_usage {
                            self.due.push_back(self.format.usage(self.generation.usage));
                        }
                        self.place = Place::Done;
                    }
                    Err(error) => {
                        // The status was sent already.
                        self.due.push_back(self.format.error(&error));
                        self.place = Place::Done;
                    }
                },
                Place::Done => {
                    self.place = Place::Ended;
                    if self.format.has_typed_events() {
                        return None;
                    }
                    return Some(Event::default().data("[DONE]"));
                }
                Place::Ended => return None,
            }
        }
    }
}

/// The text of one token in lists of probabilities, and its bytes, which may be a part of a character.
pub(crate) fn spelled(app: &App, token: u32) -> (String, &[u8]) {
    let bytes = match app.token_bytes().get(token as usize) {
        Some(TokenBytes::Text(bytes)) => bytes,
        Some(TokenBytes::Special(name)) => name.as_bytes(),
        Some(TokenBytes::None) | None => &[],
    };
    (String::from_utf8_lossy(bytes).into_owned(), bytes)
}

/// A token with its log-probability in the format of chats.
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

/// The lists of log-probabilities of completions.
#[derive(Debug, Default)]
pub(crate) struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
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
        self.token_logprobs.push(Some(*own));
        let top = top
            .iter()
            .map(|&(token, logprob)| (spelled(app, token).0, json!(logprob)));
        self.top_logprobs.push(Value::Object(top.collect()));
    }

    /// Adds the first token of a prompt, which has no log-probability.
    pub(crate) fn push_first(&mut self, app: &App, token: u32) {
        let (text, _) = spelled(app, token);
        self.text_offset.push(self.offset);
        self.offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(None);
        self.top_logprobs.push(Value::Null);
    }

    /// Takes the lists since the last time; `null` if they are empty.
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
