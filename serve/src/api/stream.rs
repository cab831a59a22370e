//! Responses: complete, or as events while text is generated.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use meganeura_llm::engine::Chosen;
use meganeura_llm::tokenizer::TokenBytes;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

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

    /// Keeps a piece of a complete response.
    fn keep(&mut self, piece: Piece);

    /// The complete response, as JSON.
    fn whole(&mut self, usage: Usage) -> serde_json::Result<String>;

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

/// The complete response of chats and completions.
#[derive(Serialize)]
pub(crate) struct Whole<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<C>,
    pub(crate) usage: Value,
}

/// The response when everything is generated.
pub(crate) async fn whole(mut generation: Generation, mut format: impl Format) -> Result<Response, ApiError> {
    while let Some(piece) = generation.next().await? {
        generation.keep(piece.bytes(TEXT_BYTES))?;
        format.keep(piece);
    }
    // A large answer takes long to write.
    let usage = generation.usage;
    let written = tokio::task::spawn_blocking(move || format.whole(usage)).await;
    let internal = |message: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    let json = written
        .map_err(|e| internal(e.to_string()))?
        .map_err(|e| internal(e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
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

/// Bytes of a log-probability as JSON text, and as a value in memory.
const TEXT_BYTES: usize = 100;
const VALUE_BYTES: usize = 600;

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
                    Ok(Some(piece)) => {
                        let bytes = piece.bytes(VALUE_BYTES);
                        let events = self.format.piece(piece);
                        // A piece that is kept back.
                        if events.is_empty()
                            && let Err(error) = self.generation.keep(bytes)
                        {
                            self.due.push_back(self.format.error(&error));
                            self.place = Place::Done;
                        }
                        self.due.extend(events);
                    }
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

/// Tokens with their log-probabilities in the format of chats.
pub(crate) struct ChatLogprobs<'a>(pub(crate) &'a App, pub(crate) &'a [Chosen]);

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ChatLogprobs(app, chosen) = self;
        if chosen.is_empty() {
            return serializer.serialize_none();
        }
        let content = Listed(|| chosen.iter().filter_map(|chosen| chat_logprob(app, chosen)));
        serializer.collect_map([("content", content)])
    }
}

/// The items of an iterator, which are made while they are written.
struct Listed<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Listed<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Log-probabilities of completions.
#[derive(Debug, Default)]
pub(crate) struct Logprobs {
    tokens: Vec<Scored>,
    /// Number of characters of earlier tokens.
    offset: usize,
}

/// A token; the first one of a prompt has no log-probability.
#[derive(Debug)]
struct Scored {
    token: u32,
    own: Option<f32>,
    top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Adds a token, if its probability is known.
    pub(crate) fn push(&mut self, chosen: &Chosen) {
        let Some((own, top)) = &chosen.logprobs else { return };
        self.tokens.push(Scored {
            token: chosen.token,
            own: Some(*own),
            top: top.clone(),
        });
    }

    /// Adds the first token of a prompt.
    pub(crate) fn push_first(&mut self, token: u32) {
        let (own, top) = (None, Vec::new());
        self.tokens.push(Scored { token, own, top });
    }

    /// The lists of the tokens since the last time.
    pub(crate) fn lists<'a>(&'a self, app: &'a App) -> LogprobLists<'a> {
        LogprobLists { app, logprobs: self }
    }

    /// Drops the tokens whose lists were written.
    pub(crate) fn clear(&mut self, app: &App) {
        let lengths = self
            .tokens
            .iter()
            .map(|scored| spelled(app, scored.token).0.chars().count());
        self.offset += lengths.sum::<usize>();
        self.tokens.clear();
    }
}

/// The lists of log-probabilities of completions; `null` if there are none.
pub(crate) struct LogprobLists<'a> {
    app: &'a App,
    logprobs: &'a Logprobs,
}

impl Serialize for LogprobLists<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokens = &self.logprobs.tokens;
        if tokens.is_empty() {
            return serializer.serialize_none();
        }
        let text = |token: u32| spelled(self.app, token).0;
        let top = |scored: &Scored| {
            scored.own.map(|_| {
                let top = scored.top.iter();
                top.map(|&(token, logprob)| (text(token), json!(logprob)))
                    .collect::<Map<String, Value>>()
            })
        };
        let offsets = || {
            tokens.iter().scan(self.logprobs.offset, |offset, scored| {
                let own = *offset;
                *offset += text(scored.token).chars().count();
                Some(own)
            })
        };
        let mut lists = serializer.serialize_struct("logprobs", 4)?;
        lists.serialize_field("tokens", &Listed(|| tokens.iter().map(|scored| text(scored.token))))?;
        lists.serialize_field("token_logprobs", &Listed(|| tokens.iter().map(|scored| scored.own)))?;
        lists.serialize_field("top_logprobs", &Listed(|| tokens.iter().map(top)))?;
        lists.serialize_field("text_offset", &Listed(offsets))?;
        lists.end()
    }
}
