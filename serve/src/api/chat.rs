//! `/v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::response::Response;
use meganeura_llm::ChatInput;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use super::generation::{Piece, Usage};
use super::request::{Common, TextOptions, parse};
use super::stream::{self, Format};
use super::tools::{self, Answer, Call, ToolChoice};
use super::{App, JsonBody, now};

#[derive(Deserialize)]
struct Body {
    messages: Vec<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    documents: Option<Value>,
    reasoning_effort: Option<String>,
    add_generation_prompt: Option<bool>,
    #[serde(flatten)]
    common: Common,
}

/// Maximum number of messages of a conversation.
const MAX_MESSAGES: usize = 10_000;

/// A prepared request.
pub(crate) struct Prepared {
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: TextOptions,
    pub(crate) tools: OfferedTools,
}

/// Tools of a request, and how answers may call them.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools {
    /// Empty if the answer calls none.
    pub(crate) tools: Vec<Value>,
    /// Set if the answer has to be a call.
    pub(crate) is_required: bool,
    /// Set if an answer may contain only one call.
    pub(crate) is_single: bool,
}

impl OfferedTools {
    /// Parses an answer.
    pub(crate) fn answer(&self, text: &str) -> Answer {
        tools::answer(text, &self.tools, self.is_required, self.is_single)
    }
}

/// Conversation to answer, independent of the format of the request.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) kwargs: Map<String, Value>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) add_generation_prompt: bool,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let prepared = app.site.prepare(deadline, move || prepare(&of_request, &body)).await?;
    let Prepared { prompt, options, tools } = prepared;
    let (stream, include_usage, choices) = (options.stream, options.include_usage, options.count);
    let generation = app.clone().generate(vec![prompt], options, false, deadline).await?;
    let format = Chat {
        id: id("chatcmpl"),
        created: now(),
        app,
        tools,
        texts: BTreeMap::new(),
    };
    if stream {
        Ok(stream::events(generation, choices, include_usage, format))
    } else {
        stream::whole(generation, choices, format).await
    }
}

fn prepare(app: &App, body: &[u8]) -> Result<Prepared, ApiError> {
    let body: Body = parse(body, "messages")?;
    let top_logprobs = match (body.logprobs.unwrap_or(false), body.top_logprobs) {
        (false, Some(top)) if top > 0 => {
            return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        (false, _) => None,
        (true, top) => Some(top.unwrap_or(0)),
    };
    let mut kwargs = body.chat_template_kwargs.unwrap_or_default();
    if let Some(documents) = body.documents {
        kwargs.insert("documents".into(), documents);
    }
    let options = body.common.options(app, top_logprobs, "top_logprobs", false)?;
    let conversation = Conversation {
        messages: body.messages,
        tools: body.tools.unwrap_or_default(),
        tool_choice: body.tool_choice,
        parallel_tool_calls: body.parallel_tool_calls,
        kwargs,
        reasoning_effort: body.reasoning_effort,
        add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
    };
    conversation.prepare(app, options)
}

impl Conversation {
    /// Renders the conversation and makes its tokens.
    pub(crate) fn prepare(mut self, app: &App, mut options: TextOptions) -> Result<Prepared, ApiError> {
        if self.messages.is_empty() || self.messages.len() > MAX_MESSAGES {
            let message = format!("expected 1 to {MAX_MESSAGES} messages, found {}", self.messages.len());
            return Err(ApiError::field("messages", message));
        }
        let messages = self.messages.into_iter().enumerate().map(message);
        let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
        let Some(template) = &app.template else {
            let message = "the model that is served has no chat template; use /v1/completions";
            return Err(ApiError::field("messages", message));
        };
        let choice = ToolChoice::read(self.tool_choice.as_ref(), &self.tools)?;
        if let Some(grammar) = choice.grammar(&self.tools)
            && options.grammar.replace(grammar).is_some()
        {
            return Err(ApiError::field(
                "tool_choice",
                "a required call of a tool cannot follow response_format or grammar",
            ));
        }
        let tools = OfferedTools {
            is_required: matches!(choice, ToolChoice::Any | ToolChoice::Named(_)),
            is_single: self.parallel_tool_calls == Some(false),
            tools: if choice == ToolChoice::None {
                Vec::new()
            } else {
                self.tools
            },
        };
        if !tools.tools.is_empty() && !template.takes_tools() {
            return Err(ApiError::field(
                "tools",
                "the chat template of the model that is served takes no tools",
            ));
        }
        if let Some(effort) = self.reasoning_effort {
            let (name, value) = reasoning(&effort, |variable| template.uses(variable))?;
            self.kwargs.entry(name).or_insert(value);
        }
        let chat = template.render_chat(&ChatInput {
            messages: &messages,
            tools: &tools.tools,
            kwargs: Some(&self.kwargs),
            add_generation_prompt: self.add_generation_prompt,
            special_tokens: app.special_tokens.as_ref(),
        });
        let chat = chat.map_err(|e| ApiError::field("messages", app.site.without_paths(&e)))?;
        app.check_length(&chat.text)?;
        let prompt = app.tokenizer.encode_chat(&chat).map_err(|e| ApiError::of_request(&e))?;
        if prompt.is_empty() {
            return Err(ApiError::field("messages", "the conversation has no tokens"));
        }
        Ok(Prepared { prompt, options, tools })
    }
}

/// The variable of the template that a reasoning effort sets.
fn reasoning(effort: &str, uses: impl Fn(&str) -> bool) -> Result<(String, Value), ApiError> {
    const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
    if !EFFORTS.contains(&effort) {
        let message = format!(
            "expected the reasoning_effort {}, found {}",
            EFFORTS.join(", "),
            quoted(effort)
        );
        return Err(ApiError::field("reasoning_effort", message));
    }
    if uses("reasoning_effort") {
        Ok(("reasoning_effort".into(), effort.into()))
    } else if uses("enable_thinking") {
        Ok(("enable_thinking".into(), (effort != "none").into()))
    } else {
        Err(ApiError::field(
            "reasoning_effort",
            "the chat template of the model that is served has no reasoning effort; leave it out",
        ))
    }
}

/// A message in the format of templates: its content is one text.
fn message((number, mut message): (usize, Value)) -> Result<Value, ApiError> {
    let wrong = |what: String| ApiError::field("messages", format!("message {number} {what}"));
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong("is not an object".into()));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role, such as \"user\"".into()));
    }
    if fields
        .get("tool_calls")
        .is_some_and(|calls| !calls.is_array() && !calls.is_null())
    {
        return Err(wrong("has tool_calls that are not a list".into()));
    }
    let text = match fields.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (Some("text"), None) => Err(wrong("has a part of type 'text' without text".into())),
                (kind, _) => Err(wrong(format!(
                    "has content of type {}; only text is supported",
                    kind.map_or("?".into(), quoted)
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
    /// With tools, answers are sent when they are complete: they may be calls.
    tools: OfferedTools,
    /// Texts that are kept back, with log-probabilities.
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

    /// The events of a choice whose text was kept back.
    fn parsed(&mut self, choice: usize, finish: &'static str) -> Vec<Value> {
        let (text, logprobs) = self.texts.remove(&choice).unwrap_or_default();
        let Answer { content, calls } = self.tools.answer(&text);
        if calls.is_empty() {
            return vec![
                self.chunk(choice, json!({"content": content}), None, logprobs),
                self.chunk(choice, json!({}), Some(finish), Vec::new()),
            ];
        }
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
        if !self.tools.tools.is_empty() {
            let (text, logprobs) = self.texts.entry(piece.choice).or_default();
            text.push_str(&piece.text);
            logprobs.extend(logprob);
            return match piece.finish {
                Some(finish) => self.parsed(piece.choice, finish),
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
        #[derive(Default)]
        struct Whole {
            text: String,
            finish: Option<&'static str>,
            logprobs: Vec<Value>,
        }
        let mut answers: Vec<Whole> = Vec::new();
        answers.resize_with(choices, Whole::default);
        for piece in pieces {
            let answer = &mut answers[piece.choice];
            answer.text.push_str(&piece.text);
            answer.finish = piece.finish;
            let chosen = piece.chosen.as_ref();
            answer
                .logprobs
                .extend(chosen.and_then(|chosen| stream::chat_logprob(&self.app, chosen)));
        }
        let all = answers.into_iter().enumerate().map(|(index, whole)| {
            let Answer { content, calls } = self.tools.answer(&whole.text);
            let (message, finish) = if calls.is_empty() {
                (json!({"role": "assistant", "content": content}), whole.finish)
            } else {
                let listed: Vec<Value> = calls.iter().map(|call| Call::json(call, None)).collect();
                let content = if content.is_empty() {
                    Value::Null
                } else {
                    content.into()
                };
                let message = json!({"role": "assistant", "content": content, "tool_calls": listed});
                (message, Some("tool_calls"))
            };
            let logprobs = if whole.logprobs.is_empty() {
                Value::Null
            } else {
                json!({"content": whole.logprobs})
            };
            json!({"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs})
        });
        let all = all.collect();
        let mut value = self.with("chat.completion", all);
        value["usage"] = stream::usage(usage);
        value
    }
}
