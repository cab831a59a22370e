//! Responses of text-generating endpoints: complete, or as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use meganeura_llm::engine::ChosenToken;
use meganeura_llm::tokenizer::TokenBytes;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::generation::{Generation, Piece, Usage};
use super::{App, answer};

/// Server-sent event with JSON data.
pub(crate) struct StreamEvent {
    /// Value of the `event:` line, for streams that have one.
    pub(crate) kind: Option<String>,
    pub(crate) json: String,
}

impl From<Value> for StreamEvent {
    fn from(value: Value) -> Self {
        StreamEvent {
            kind: None,
            json: value.to_string(),
        }
    }
}

/// Format of the responses of an endpoint, complete or streamed.
pub(crate) trait Format: Send + 'static {
    /// Returns the events that begin a choice, before its first piece.
    fn begin(&mut self, choice: usize) -> Vec<StreamEvent>;

    /// Returns the events of a piece; none if the piece is kept until the choice is complete.
    fn piece(&mut self, piece: Piece) -> Vec<StreamEvent>;

    /// Returns the next event with a part of a long list, before the next piece; `None` if nothing is left.
    fn next_part(&mut self) -> Option<StreamEvent> {
        None
    }

    /// Returns the data of the event with the numbers of tokens, for streams that ask for it.
    fn usage(&self, usage: Usage) -> Value;

    /// Returns the events after the last piece.
    fn end(&mut self, _usage: Usage) -> Vec<StreamEvent> {
        Vec::new()
    }

    /// Stores a piece of a response that is not streamed.
    fn keep(&mut self, piece: Piece);

    /// Returns the complete response as JSON text, from the stored pieces.
    fn whole(&mut self, usage: Usage) -> serde_json::Result<String>;

    /// Returns the event for an error that occurs after the HTTP status was sent.
    fn error(&mut self, error: &ApiError) -> StreamEvent {
        error.body().into()
    }

    /// Returns true if the stream ends with `[DONE]`. Streams of `/v1/responses` do not.
    fn ends_with_done(&self) -> bool {
        true
    }
}

/// Returns the field `usage` of chats and completions.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

/// Complete response object of chats and completions.
#[derive(Serialize)]
pub(crate) struct CompleteResponse<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<C>,
    pub(crate) usage: Value,
}

/// Generates all choices, and returns the complete response.
pub(crate) async fn whole(mut generation: Generation, mut format: impl Format) -> Result<Response, ApiError> {
    while let Some(piece) = generation.next().await? {
        generation.keep_written(&piece)?;
        format.keep(piece);
    }
    // A large answer takes long to write.
    let (usage, counted) = (generation.usage, generation.counted());
    let written = tokio::task::spawn_blocking(move || format.whole(usage)).await;
    let internal = |message: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    let json = written
        .map_err(|e| internal(e.to_string()))?
        .map_err(|e| internal(e.to_string()))?;
    Ok(answer::json(json, counted))
}

/// Position in a stream.
enum StreamProgress {
    /// Sends the first events of the choice with this index.
    Begin(usize),
    Pieces,
    Done,
    Ended,
}

struct State<F> {
    generation: Generation,
    format: F,
    place: StreamProgress,
    /// Events that are ready to be sent.
    due: std::collections::VecDeque<StreamEvent>,
    choices: usize,
    include_usage: bool,
    /// Counted bytes of the scored prompt whose parts are being sent.
    parts_bytes: usize,
}

/// Maximum number of tokens with log-probabilities in an event. Longer lists are sent in parts, so that they need little
/// memory, and other requests do not wait.
pub(crate) const PART_TOKENS: usize = 32;

/// Time after which an idle stream sends a comment, to detect clients that have left.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Returns a response that streams server-sent events. If the format requires it, the last event is `[DONE]`.
pub(crate) fn events(generation: Generation, choices: usize, include_usage: bool, format: impl Format) -> Response {
    let state = State {
        generation,
        format,
        place: StreamProgress::Begin(0),
        due: Default::default(),
        choices,
        include_usage,
        parts_bytes: 0,
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
            if let Some(StreamEvent { kind, json }) = self.due.pop_front() {
                let event = match kind {
                    Some(kind) => Event::default().event(kind),
                    None => Event::default(),
                };
                return Some(event.data(json));
            }
            // After an error, no further parts are sent.
            if matches!(self.place, StreamProgress::Pieces)
                && let Some(event) = self.format.next_part()
            {
                self.due.push_back(event);
                tokio::task::yield_now().await;
                continue;
            }
            self.generation.release(std::mem::take(&mut self.parts_bytes));
            match self.place {
                StreamProgress::Begin(choice) if choice < self.choices => {
                    self.due.extend(self.format.begin(choice));
                    self.place = StreamProgress::Begin(choice + 1);
                }
                StreamProgress::Begin(_) => self.place = StreamProgress::Pieces,
                StreamProgress::Pieces => match self.generation.next().await {
                    Ok(Some(piece)) => {
                        let bytes = piece.kept_bytes();
                        let has_parts = piece.scored.is_some();
                        let events = self.format.piece(piece);
                        // A piece that is kept back, at least in part.
                        if (events.is_empty() || has_parts)
                            && let Err(error) = self.generation.keep(bytes)
                        {
                            self.due.push_back(self.format.error(&error));
                            self.place = StreamProgress::Done;
                            continue;
                        }
                        if has_parts {
                            self.parts_bytes = bytes;
                        }
                        self.due.extend(events);
                    }
                    Ok(None) => {
                        self.due.extend(self.format.end(self.generation.usage));
                        if self.include_usage {
                            self.due.push_back(self.format.usage(self.generation.usage).into());
                        }
                        self.place = StreamProgress::Done;
                    }
                    Err(error) => {
                        // The status was sent already.
                        self.due.push_back(self.format.error(&error));
                        self.place = StreamProgress::Done;
                    }
                },
                StreamProgress::Done => {
                    self.place = StreamProgress::Ended;
                    return self.format.ends_with_done().then(|| Event::default().data("[DONE]"));
                }
                StreamProgress::Ended => return None,
            }
        }
    }
}

/// Returns the bytes of one token, or of its name if it is special. The bytes may be a part of a character.
fn bytes_of(app: &App, token: u32) -> &[u8] {
    match app.token_bytes().get(token as usize) {
        Some(TokenBytes::Text(bytes)) => bytes,
        Some(TokenBytes::Special(name)) => name.as_bytes(),
        Some(TokenBytes::None) | None => &[],
    }
}

/// Returns the text and the bytes of one token, for lists of log-probabilities.
pub(crate) fn spelled(app: &App, token: u32) -> (String, &[u8]) {
    let bytes = bytes_of(app, token);
    (String::from_utf8_lossy(bytes).into_owned(), bytes)
}

/// Returns the estimated bytes of a log-probability as JSON text: numbers and names of fields, the characters of the token,
/// of which some are escaped, and its bytes as numbers.
pub(crate) fn logprob_bytes(app: &App, token: u32) -> usize {
    64 + 6 * bytes_of(app, token).len()
}

/// Returns the name of a token in the log-probabilities of completions: its text, or `bytes:\xf0\x9f` if its bytes are
/// not valid UTF-8, as in OpenAI's API. Different parts of characters therefore have different names.
fn token_name(app: &App, token: u32) -> String {
    use std::fmt::Write;
    let (text, bytes) = spelled(app, token);
    if !bytes.is_empty() && std::str::from_utf8(bytes).is_err() {
        return bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
            let _ = write!(name, "\\x{byte:02x}");
            name
        });
    }
    text
}

/// Returns a token with its log-probability in the format of chats.
pub(crate) fn chat_logprob(app: &App, chosen: &ChosenToken) -> Option<Value> {
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
pub(crate) struct ChatLogprobs<'a>(pub(crate) &'a App, pub(crate) &'a [ChosenToken]);

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ChatLogprobs(app, chosen) = self;
        if chosen.is_empty() {
            return serializer.serialize_none();
        }
        let content = LazyList(|| chosen.iter().filter_map(|chosen| chat_logprob(app, chosen)));
        serializer.collect_map([("content", content)])
    }
}

/// Iterator that is serialized as a list. Its items are created one by one during serialization, to save memory.
struct LazyList<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for LazyList<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Log-probabilities of a choice in the format of completions.
#[derive(Debug, Default)]
pub(crate) struct Logprobs {
    tokens: Vec<ScoredToken>,
    /// Number of characters of the tokens that were already sent, for `text_offset`.
    offset: usize,
}

/// Token with its log-probability. The first token of a prompt has none.
#[derive(Debug)]
struct ScoredToken {
    token: u32,
    own: Option<f32>,
    top: Vec<(u32, f32)>,
    /// True if the text contains the name of a special token.
    shows_special: bool,
}

impl ScoredToken {
    /// Returns the number of characters that begin in the token.
    fn len(&self, app: &App) -> usize {
        let bytes = match app.token_bytes().get(self.token as usize) {
            Some(TokenBytes::Text(bytes)) => bytes,
            Some(TokenBytes::Special(name)) if self.shows_special => name.as_bytes(),
            _ => &[],
        };
        // The other bytes of a character begin with the bits 10.
        bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
    }
}

impl Logprobs {
    /// Adds a token, if it has a log-probability. `shows_special` is true if the text contains the names of special tokens.
    pub(crate) fn push(&mut self, chosen: &ChosenToken, shows_special: bool) {
        let Some((own, top)) = &chosen.logprobs else { return };
        self.tokens.push(ScoredToken {
            token: chosen.token,
            own: Some(*own),
            top: top.clone(),
            shows_special,
        });
    }

    /// Adds the first token of a prompt, which has no log-probability.
    pub(crate) fn push_first(&mut self, token: u32, shows_special: bool) {
        self.tokens.push(ScoredToken {
            token,
            own: None,
            top: Vec::new(),
            shows_special,
        });
    }

    /// Returns the lists for the tokens added since the last call of [`clear`](Self::clear).
    pub(crate) fn lists<'a>(&'a self, app: &'a App) -> LogprobLists<'a> {
        LogprobLists { app, logprobs: self }
    }

    /// Removes the tokens whose lists were sent.
    pub(crate) fn clear(&mut self, app: &App) {
        let lengths = self.tokens.iter().map(|scored| scored.len(app));
        self.offset += lengths.sum::<usize>();
        self.tokens.clear();
    }
}

/// Lists of log-probabilities in the format of completions; `null` if there are no tokens.
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
        let name = |token: u32| token_name(self.app, token);
        let top = |scored: &ScoredToken| {
            scored.own.map(|_| {
                let mut names = Map::new();
                for &(token, logprob) in &scored.top {
                    // Of tokens with equal names, the most likely one counts; it is the first.
                    names.entry(name(token)).or_insert(json!(logprob));
                }
                names
            })
        };
        let own = |scored: &ScoredToken| scored.own.map(f64::from);
        let offsets = || {
            tokens.iter().scan(self.logprobs.offset, |offset, scored| {
                let own = *offset;
                *offset += scored.len(self.app);
                Some(own)
            })
        };
        let mut lists = serializer.serialize_struct("logprobs", 4)?;
        lists.serialize_field("tokens", &LazyList(|| tokens.iter().map(|scored| name(scored.token))))?;
        lists.serialize_field("token_logprobs", &LazyList(|| tokens.iter().map(own)))?;
        lists.serialize_field("top_logprobs", &LazyList(|| tokens.iter().map(top)))?;
        lists.serialize_field("text_offset", &LazyList(offsets))?;
        lists.end()
    }
}
