//! `/v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::generation::{Generation, Piece, Usage};
use super::request::{Common, Wanted, check_model, parse};
use super::stream::{self, Format};
use super::tools::{self, Call, ToolChoice};
use super::{App, JsonBody, now, off_thread};

#[derive(Deserialize)]
struct Body {
    messages: Vec<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    #[serde(flatten)]
    common: Common,
}

/// Messages of a conversation at most.
const MAX_MESSAGES: usize = 10_000;

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let of_request = app.clone();
    let (generation, wanted, with_tools) = off_thread(move || {
        let (prompt, wanted, with_tools) = prepare(&of_request, &body)?;
        let generation = Generation::start(of_request, vec![prompt], &wanted, false)?;
        Ok((generation, wanted, with_tools))
    })
    .await?;
    let choices = wanted.count;
    let format = Chat {
        id: id("chatcmpl"),
        created: now(),
        app,
        with_tools,
        texts: BTreeMap::new(),
    };
    match wanted.stream {
        true => Ok(stream::events(generation, choices, wanted.include_usage, format)),
        false => stream::whole(generation, choices, format).await,
    }
}

/// The prompt's tokens, how it is answered, and whether the answer may be calls of tools.
fn prepare(app: &App, body: &[u8]) -> Result<(Vec<u32>, Wanted, bool), ApiError> {
    let body: Body = parse(body, "messages")?;
    check_model(body.common.model.as_deref(), &app.site.model)?;
    if body.messages.is_empty() || body.messages.len() > MAX_MESSAGES {
        let message = format!(
            "there are {} messages, and have to be from 1 to {MAX_MESSAGES}",
            body.messages.len()
        );
        return Err(ApiError::field("messages", message));
    }
    let messages: Vec<Value> = body
        .messages
        .into_iter()
        .enumerate()
        .map(message)
        .collect::<Result<_, _>>()?;
    let Some(template) = &app.template else {
        let message = "the model that is served has no chat template; use /v1/completions";
        return Err(ApiError::field("messages", message));
    };
    let top_logprobs = match (body.logprobs.unwrap_or(false), body.top_logprobs) {
        (false, Some(top)) if top > 0 => {
            return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        (false, _) => None,
        (true, top) => Some(top.unwrap_or(0)),
    };
    let offered = body.tools.unwrap_or_default();
    let choice = ToolChoice::read(body.tool_choice.as_ref(), &offered)?;
    let shown = if choice == ToolChoice::None { &[][..] } else { &offered };
    if !shown.is_empty() && !template.takes_tools() {
        return Err(ApiError::field(
            "tools",
            "the chat template of the model that is served takes no tools",
        ));
    }
    let mut wanted = body.common.wanted(top_logprobs, "top_logprobs")?;
    if let Some(grammar) = choice.grammar(&offered)
        && wanted.grammar.replace(grammar).is_some()
    {
        return Err(ApiError::field(
            "tool_choice",
            "a call of a tool cannot keep to response_format or grammar",
        ));
    }
    let text = template
        .render_json(&messages, shown)
        .map_err(|e| ApiError::field("messages", app.site.without_paths(&e)))?;
    let prompt = app
        .tokenizer
        .encode_plain(&text)
        .map_err(|e| ApiError::of_request(&e))?;
    if prompt.is_empty() {
        return Err(ApiError::field("messages", "the conversation has no tokens"));
    }
    Ok((prompt, wanted, !shown.is_empty()))
}

/// A message as templates take it: its content is one text.
fn message((number, mut message): (usize, Value)) -> Result<Value, ApiError> {
    let wrong = |what: String| ApiError::field("messages", format!("message {number} {what}"));
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong("is no object".into()));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role, such as \"user\"".into()));
    }
    let text = match fields.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (kind, _) => Err(wrong(format!(
                    "has content of type {}; only text is supported",
                    kind.map_or("?".into(), |kind| format!("'{kind}'"))
                ))),
            };
            parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.concat()
        }
        Some(_) => return Err(wrong("has content that is neither text nor a list of parts".into())),
    };
    fields.insert("content".into(), Value::String(text));
    tools::open_arguments(fields);
    Ok(message)
}

/// A name for a response.
pub(crate) fn id(kind: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{kind}-{:x}{number:08x}", time.map_or(0, |t| t.as_secs()))
}

struct Chat {
    id: String,
    created: u64,
    app: Arc<App>,
    /// Whether answers may be calls of tools: then they are looked at before they are sent.
    with_tools: bool,
    /// What is not sent yet of choices that may be calls, with logarithms of probabilities.
    texts: BTreeMap<usize, (String, Vec<Value>)>,
}

impl Chat {
    fn with(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.site.model,
            "choices": choices,
        })
    }

    fn chunk(&self, choice: usize, delta: Value, finish: Option<&str>, logprobs: Vec<Value>) -> Value {
        let logprobs = (!logprobs.is_empty()).then(|| json!({"content": logprobs}));
        let choice = json!({"index": choice, "delta": delta, "finish_reason": finish, "logprobs": logprobs});
        self.with("chat.completion.chunk", vec![choice])
    }

    /// The last parts of a choice whose text was kept back.
    fn looked_at(&mut self, choice: usize, finish: &'static str) -> Vec<Value> {
        let (text, logprobs) = self.texts.remove(&choice).unwrap_or_default();
        match tools::calls(&text) {
            Some((content, calls)) => {
                let listed: Vec<Value> = calls.iter().enumerate().map(|(i, call)| call.json(Some(i))).collect();
                let mut delta = json!({"tool_calls": listed});
                if !content.is_empty() {
                    delta["content"] = Value::String(content);
                }
                vec![
                    self.chunk(choice, delta, None, logprobs),
                    self.chunk(choice, json!({}), Some("tool_calls"), Vec::new()),
                ]
            }
            None => vec![
                self.chunk(choice, json!({"content": text}), None, logprobs),
                self.chunk(choice, json!({}), Some(finish), Vec::new()),
            ],
        }
    }
}

impl Format for Chat {
    fn begin(&mut self, choices: usize) -> Vec<Value> {
        let first = |choice| self.chunk(choice, json!({"role": "assistant", "content": ""}), None, Vec::new());
        (0..choices).map(first).collect()
    }

    fn piece(&mut self, piece: Piece) -> Vec<Value> {
        let logprob = piece
            .chosen
            .as_ref()
            .and_then(|chosen| stream::chat_logprob(&self.app, chosen));
        if self.with_tools {
            let (text, logprobs) = self.texts.entry(piece.choice).or_default();
            text.push_str(&piece.text);
            logprobs.extend(logprob);
            return match piece.finish {
                Some(finish) => self.looked_at(piece.choice, finish),
                None => Vec::new(),
            };
        }
        let mut values = Vec::new();
        if !piece.text.is_empty() || logprob.is_some() {
            values.push(self.chunk(
                piece.choice,
                json!({"content": piece.text}),
                None,
                logprob.into_iter().collect(),
            ));
        }
        if let Some(finish) = piece.finish {
            values.push(self.chunk(piece.choice, json!({}), Some(finish), Vec::new()));
        }
        values
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut value = self.with("chat.completion.chunk", Vec::new());
        value["usage"] = stream::usage(usage);
        value
    }

    fn whole(&mut self, pieces: Vec<Piece>, choices: usize, usage: Usage) -> Value {
        struct Answer {
            text: String,
            finish: Option<&'static str>,
            logprobs: Vec<Value>,
        }
        let mut answers: Vec<Answer> = Vec::new();
        answers.resize_with(choices, || Answer {
            text: String::new(),
            finish: None,
            logprobs: Vec::new(),
        });
        for piece in pieces {
            let answer = &mut answers[piece.choice];
            answer.text.push_str(&piece.text);
            answer.finish = piece.finish;
            let chosen = piece.chosen.as_ref();
            answer
                .logprobs
                .extend(chosen.and_then(|chosen| stream::chat_logprob(&self.app, chosen)));
        }
        let all = answers.into_iter().enumerate().map(|(index, answer)| {
            let calls = self.with_tools.then(|| tools::calls(&answer.text)).flatten();
            let (message, finish) = match calls {
                Some((content, calls)) => {
                    let listed: Vec<Value> = calls.iter().map(|call| Call::json(call, None)).collect();
                    let content = if content.is_empty() {
                        Value::Null
                    } else {
                        content.into()
                    };
                    let message = json!({"role": "assistant", "content": content, "tool_calls": listed});
                    (message, Some("tool_calls"))
                }
                None => (json!({"role": "assistant", "content": answer.text}), answer.finish),
            };
            let logprobs = match answer.logprobs.is_empty() {
                true => Value::Null,
                false => json!({"content": answer.logprobs}),
            };
            json!({"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs})
        });
        let all = all.collect();
        let mut value = self.with("chat.completion", all);
        value["usage"] = stream::usage(usage);
        value
    }
}
