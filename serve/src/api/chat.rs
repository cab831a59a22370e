//! `/v1/chat/completions`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::response::Response;
use meganeura_llm::ChatInput;
use meganeura_llm::engine::Chosen;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use super::generation::{Piece, Usage};
use super::request::{Common, TextOptions, parse};
use super::stream::{self, ChatLogprobs, Format};
use super::tools::{self, Answer, Call, ToolChoice};
use super::{App, JsonBody, fields, now};

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
        answers: std::iter::repeat_with(Kept::default).take(choices).collect(),
    };
    if stream {
        Ok(stream::events(generation, choices, include_usage, format))
    } else {
        stream::whole(generation, format).await
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
        let is_required = matches!(choice, ToolChoice::Any | ToolChoice::Named(_));
        if is_required && !options.stop.is_empty() {
            let message = "a required call of a tool cannot be used with stop, which would cut it off";
            return Err(ApiError::field("stop", message));
        }
        let tools = OfferedTools {
            is_required,
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
        const OWN: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
        if let Some(name) = OWN.into_iter().find(|name| self.kwargs.contains_key(*name)) {
            let message = format!("{name} cannot be set in chat_template_kwargs; leave it out");
            return Err(ApiError::field("chat_template_kwargs", message));
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

/// A message in the format of templates: its content is one text. All other fields are passed to the template.
fn message((number, mut message): (usize, Value)) -> Result<Value, ApiError> {
    let wrong = |what: String| ApiError::field("messages", format!("message {number} {what}"));
    let Some(object) = message.as_object_mut() else {
        return Err(wrong("is not an object".into()));
    };
    if !object.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role, such as \"user\"".into()));
    }
    if object
        .get("tool_calls")
        .is_some_and(|calls| !calls.is_array() && !calls.is_null())
    {
        return Err(wrong("has tool_calls that are not a list".into()));
    }
    let text = match object.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => {
                    // Other servers cache up to here, as this one does everywhere.
                    fields::only(part, &["type", "text", "cache_control"])
                        .map_err(|e| wrong(format!("has content that {e}")))?;
                    Ok(text.to_owned())
                }
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
    object.insert("content".into(), Value::String(text));
    tools::open_arguments(object);
    Ok(message)
}

/// The reason for the end of an answer with calls. Calls may be cut off at the limit of tokens.
fn finish_of_calls(finish: &'static str) -> &'static str {
    match finish {
        "length" => "length",
        _ => "tool_calls",
    }
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
    /// Answers that are kept until they are complete.
    answers: Vec<Kept>,
}

/// What is known of an answer.
#[derive(Default)]
struct Kept {
    text: String,
    /// Tokens with log-probabilities, if they are asked for.
    chosen: Vec<Chosen>,
    finish: Option<&'static str>,
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
        let Kept { text, chosen, .. } = std::mem::take(&mut self.answers[choice]);
        let logprobs: Vec<Value> = chosen
            .iter()
            .filter_map(|chosen| stream::chat_logprob(&self.app, chosen))
            .collect();
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
            self.chunk(choice, json!({}), Some(finish_of_calls(finish)), Vec::new()),
        ]
    }
}

impl Format for Chat {
    fn begin(&mut self, choices: usize) -> Vec<Value> {
        let first = |choice| self.chunk(choice, json!({"role": "assistant", "content": ""}), None, Vec::new());
        (0..choices).map(first).collect()
    }

    fn piece(&mut self, piece: Piece) -> Vec<Value> {
        if !self.tools.tools.is_empty() {
            let (choice, finish) = (piece.choice, piece.finish);
            self.keep(piece);
            return finish.map_or(Vec::new(), |finish| self.parsed(choice, finish));
        }
        let logprob = piece
            .chosen
            .as_ref()
            .and_then(|chosen| stream::chat_logprob(&self.app, chosen));
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

    fn keep(&mut self, piece: Piece) {
        let answer = &mut self.answers[piece.choice];
        answer.text += &piece.text;
        answer.finish = piece.finish.or(answer.finish);
        answer
            .chosen
            .extend(piece.chosen.filter(|chosen| chosen.logprobs.is_some()));
    }

    fn whole(&mut self, usage: Usage) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Choice<'a> {
            index: usize,
            message: Value,
            finish_reason: Option<&'static str>,
            logprobs: ChatLogprobs<'a>,
        }
        let message = |kept: &Kept| {
            let Answer { content, calls } = self.tools.answer(&kept.text);
            if calls.is_empty() {
                return (json!({"role": "assistant", "content": content}), kept.finish);
            }
            let listed: Vec<Value> = calls.iter().map(|call| Call::json(call, None)).collect();
            let content = if content.is_empty() {
                Value::Null
            } else {
                content.into()
            };
            let message = json!({"role": "assistant", "content": content, "tool_calls": listed});
            (message, kept.finish.map(finish_of_calls))
        };
        let choices = self.answers.iter().enumerate().map(|(index, kept)| {
            let (message, finish_reason) = message(kept);
            Choice {
                index,
                message,
                finish_reason,
                logprobs: ChatLogprobs(&self.app, &kept.chosen),
            }
        });
        serde_json::to_string(&stream::Whole {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.app.site.model,
            choices: choices.collect::<Vec<_>>(),
            usage: stream::usage(usage),
        })
    }
}
