//! `/v1/chat/completions`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::response::Response;
use meganeura_llm::ChatInput;
use meganeura_llm::engine::ChosenToken;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use super::generation::{Piece, Usage};
use super::request::{Common, TextOptions, parse};
use super::stream::{self, ChatLogprobs, Format, StreamEvent};
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
/// Maximum number of earlier tool calls of a conversation. Some templates join them one by one, and each join copies the list.
const MAX_TOOL_CALLS: usize = 2_000;

/// Request whose prompt is tokenized and whose fields are checked.
pub(crate) struct PreparedRequest {
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: TextOptions,
    pub(crate) tools: OfferedTools,
}

/// Tools that a request offers, and how the answer may call them.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools {
    /// Names of the tools; empty if the answer may not call any.
    pub(crate) names: Vec<String>,
    /// True if the answer has to be a tool call.
    pub(crate) is_required: bool,
    /// True if the answer may contain only one tool call.
    pub(crate) is_single: bool,
}

impl OfferedTools {
    /// Splits the text of an answer into content and tool calls.
    pub(crate) fn answer(&self, text: &str) -> Answer {
        tools::answer(text, &self.names, self.is_required, self.is_single)
    }

    /// Returns the number of bytes of the names in memory.
    pub(crate) fn bytes(&self) -> usize {
        let of_name = |name: &String| size_of::<String>() + name.len() + 2 * size_of::<usize>();
        self.names.iter().map(of_name).sum()
    }
}

/// Conversation to answer, independent of the API's request format.
pub(crate) struct Conversation {
    /// Name of the request field with the messages, for error messages.
    pub(crate) field: &'static str,
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
    let prepared = app
        .site
        .prepare(deadline, body.len(), move || prepare(&of_request, &body))
        .await?;
    let PreparedRequest { prompt, options, tools } = prepared;
    let (stream, include_usage, choices) = (options.stream, options.include_usage, options.count);
    let held = (false, tools.bytes());
    let generation = app.clone().generate(vec![prompt], options, held, deadline).await?;
    let format = Chat {
        id: id("chatcmpl"),
        created: now(),
        app,
        tools,
        answers: std::iter::repeat_with(PartialAnswer::default).take(choices).collect(),
        rest: None,
    };
    if stream {
        Ok(stream::events(generation, choices, include_usage, format))
    } else {
        stream::whole(generation, format).await
    }
}

fn prepare(app: &App, body: &[u8]) -> Result<PreparedRequest, ApiError> {
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
        set_once(&mut kwargs, "documents", "documents", documents)?;
    }
    let options = body.common.options(app, top_logprobs, "top_logprobs", false)?;
    let conversation = Conversation {
        field: "messages",
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
    /// Renders the conversation with the chat template and tokenizes the result.
    pub(crate) fn prepare(mut self, app: &App, mut options: TextOptions) -> Result<PreparedRequest, ApiError> {
        if self.messages.is_empty() || self.messages.len() > MAX_MESSAGES {
            let message = format!("expected 1 to {MAX_MESSAGES} messages, found {}", self.messages.len());
            return Err(ApiError::field(self.field, message));
        }
        let messages = self.messages.into_iter().enumerate();
        let messages = messages.map(|(number, value)| {
            message(value).map_err(|e| ApiError::field(self.field, format!("message {number} {e}")))
        });
        let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        let calls: usize = messages.iter().map(calls).sum();
        if calls > MAX_TOOL_CALLS {
            let message = format!("expected at most {MAX_TOOL_CALLS} tool calls in all messages, found {calls}");
            return Err(ApiError::field(self.field, message));
        }
        let Some(template) = &app.template else {
            let message = "the served model has no chat template; use /v1/completions";
            return Err(ApiError::field(self.field, message));
        };
        let choice = ToolChoice::read(self.tool_choice.as_ref(), &mut self.tools)?;
        if let Some(grammar) = choice.grammar(&self.tools)
            && options.grammar.replace(grammar).is_some()
        {
            return Err(ApiError::field(
                "tool_choice",
                "a required tool call cannot be combined with response_format or grammar",
            ));
        }
        options.check_ends()?;
        let is_required = matches!(choice, ToolChoice::Any | ToolChoice::Named(_));
        let stops = [
            ("stop", options.stop.is_empty()),
            ("stop_token_ids", options.stop_tokens.is_empty()),
        ];
        if let Some((field, _)) = stops.into_iter().find(|(_, is_empty)| is_required && !is_empty) {
            let message = format!("a required tool call cannot be combined with {field}, which could truncate it");
            return Err(ApiError::field(field, message));
        }
        if choice == ToolChoice::None {
            self.tools.clear();
        }
        if !self.tools.is_empty() && !template.takes_tools() {
            return Err(ApiError::field(
                "tools",
                "the chat template of the served model does not support tools",
            ));
        }
        const OWN: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
        if let Some(name) = OWN.into_iter().find(|name| self.kwargs.contains_key(*name)) {
            let message = format!("{name} cannot be set in chat_template_kwargs; leave it out");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        if let Some(effort) = self.reasoning_effort {
            let (name, value) = reasoning(&effort, |variable| template.uses(variable))?;
            set_once(&mut self.kwargs, "reasoning_effort", &name, value)?;
        }
        let render = |kwargs: &Map<String, Value>| {
            template.render_chat(&ChatInput {
                messages: &messages,
                tools: &self.tools,
                kwargs: Some(kwargs),
                add_generation_prompt: self.add_generation_prompt,
                special_tokens: app.special_tokens.as_ref(),
            })
        };
        let chat = render(&self.kwargs).map_err(|e| {
            if matches!(e, meganeura_core::Error::HostMemory { .. }) {
                return ApiError::of_request(&e);
            }
            let is_of_kwargs = !self.kwargs.is_empty() && render(&Map::new()).is_ok();
            let field = if is_of_kwargs {
                "chat_template_kwargs"
            } else {
                self.field
            };
            ApiError::field(field, app.site.without_paths(&e))
        })?;
        app.check_length(&chat.text)?;
        let prompt = app.tokenizer.encode_chat(&chat).map_err(|e| ApiError::of_request(&e))?;
        if prompt.is_empty() {
            return Err(ApiError::field(self.field, "the conversation has no tokens"));
        }
        let names = self.tools.iter().filter_map(tools::name_of);
        let tools = OfferedTools {
            is_required,
            is_single: self.parallel_tool_calls == Some(false),
            names: names.map(str::to_owned).collect(),
        };
        Ok(PreparedRequest { prompt, options, tools })
    }
}

/// Sets a variable of the template from a field of the request.
///
/// # Errors
/// A variable with another value in `chat_template_kwargs`.
fn set_once(kwargs: &mut Map<String, Value>, field: &'static str, name: &str, value: Value) -> Result<(), ApiError> {
    match kwargs.get(name) {
        Some(other) if *other != value => {
            let message = format!("{field} and chat_template_kwargs.{name} differ; leave one of them out");
            Err(ApiError::field(field, message))
        }
        _ => {
            kwargs.insert(name.to_owned(), value);
            Ok(())
        }
    }
}

/// Returns the chat-template variable, and its value, that select a reasoning effort. `uses` reports the template's
/// variables.
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
            "the chat template of the served model does not support reasoning effort; leave it out",
        ))
    }
}

/// Converts a message to the format of chat templates, whose content is a single text. Other fields are kept.
fn message(mut message: Value) -> Result<Value, String> {
    let Some(object) = message.as_object_mut() else {
        return Err("is not an object".into());
    };
    if !object.get("role").is_some_and(Value::is_string) {
        return Err("has no role, such as \"user\"".into());
    }
    if object
        .get("tool_calls")
        .is_some_and(|calls| !calls.is_array() && !calls.is_null())
    {
        return Err("has tool_calls that are not a list".into());
    }
    let text = match object.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(content) => content_text(content)?,
    };
    object.insert("content".into(), Value::String(text));
    tools::open_arguments(object);
    Ok(message)
}

/// Returns the text of a message's `content`.
///
/// # Errors
/// A content that is neither a text nor a list of parts; a part that is no text, or has a field that would be ignored.
pub(crate) fn content_text(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => content_parts(parts),
        _ => Err("has content that is neither text nor a list of parts".into()),
    }
}

fn content_parts(parts: &[Value]) -> Result<String, String> {
    /// Fields without effect: `cache_control` is for the prompt caches of other servers, and the rest comes from answers that
    /// clients send back.
    const OTHERS: [&str; 6] = ["type", "cache_control", "annotations", "logprobs", "id", "index"];
    fn text(part: &Value) -> Result<&str, String> {
        let kind = part["type"].as_str();
        let field = match kind {
            Some("text" | "input_text" | "output_text") => "text",
            Some("refusal") => "refusal",
            _ => {
                let found = kind.map_or("?".into(), quoted);
                return Err(format!("has content of type {found}; only text is supported"));
            }
        };
        let Some(text) = part[field].as_str() else {
            return Err(format!(
                "has a part of type {} without {field}",
                kind.map_or("?".into(), quoted)
            ));
        };
        let allowed: Vec<&str> = OTHERS.into_iter().chain([field]).collect();
        fields::only(part, &allowed).map_err(|e| format!("has content that {e}"))?;
        Ok(text)
    }
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.concat())
}

/// Returns the `finish_reason` of an answer with tool calls: `length` if the token limit cut it off.
fn finish_of_calls(finish: &'static str) -> &'static str {
    match finish {
        "length" => "length",
        _ => "tool_calls",
    }
}

/// Returns a new id for a response.
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
    /// Offered tools. If there are any, a stream sends each answer when it is complete, as it may be a call.
    tools: OfferedTools,
    /// Answers that are kept until they are complete.
    answers: Vec<PartialAnswer>,
    /// The rest of a complete answer in a stream.
    rest: Option<AnswerRest>,
}

/// Log-probabilities of a streamed answer that are not sent yet, and the end of the answer.
struct AnswerRest {
    choice: usize,
    chosen: std::vec::IntoIter<ChosenToken>,
    finish: &'static str,
}

/// Part of an answer that was generated so far.
#[derive(Default)]
struct PartialAnswer {
    text: String,
    /// Generated tokens with log-probabilities, if the request asks for them.
    chosen: Vec<ChosenToken>,
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

    fn chunk(&self, choice: usize, delta: Value, finish: Option<&str>, logprobs: Vec<Value>) -> StreamEvent {
        let logprobs = (!logprobs.is_empty()).then(|| json!({"content": logprobs}));
        let choice = json!({"index": choice, "delta": delta, "finish_reason": finish, "logprobs": logprobs});
        self.with("chat.completion.chunk", vec![choice]).into()
    }

    /// Parses the complete text of a choice that was not streamed, and returns its first event.
    fn parsed(&mut self, choice: usize, finish: &'static str) -> Vec<StreamEvent> {
        let PartialAnswer { text, chosen, .. } = std::mem::take(&mut self.answers[choice]);
        let Answer { content, calls } = self.tools.answer(&text);
        let (delta, finish) = if calls.is_empty() {
            (json!({"content": content}), finish)
        } else {
            let listed: Vec<Value> = calls.iter().enumerate().map(|(i, call)| call.json(Some(i))).collect();
            let mut delta = json!({"tool_calls": listed});
            if !content.is_empty() {
                delta["content"] = Value::String(content);
            }
            (delta, finish_of_calls(finish))
        };
        let mut chosen = chosen.into_iter();
        let first = self.chunk(choice, delta, None, self.part(&mut chosen));
        self.rest = Some(AnswerRest { choice, chosen, finish });
        vec![first]
    }

    /// Returns the next log-probabilities for an event.
    fn part(&self, chosen: &mut std::vec::IntoIter<ChosenToken>) -> Vec<Value> {
        let part = chosen.take(stream::PART_TOKENS);
        part.filter_map(|chosen| stream::chat_logprob(&self.app, &chosen))
            .collect()
    }
}

impl Format for Chat {
    fn begin(&mut self, choice: usize) -> Vec<StreamEvent> {
        vec![self.chunk(choice, json!({"role": "assistant", "content": ""}), None, Vec::new())]
    }

    fn piece(&mut self, piece: Piece) -> Vec<StreamEvent> {
        if !self.tools.names.is_empty() {
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

    fn next_part(&mut self) -> Option<StreamEvent> {
        let mut rest = self.rest.take()?;
        let part = self.part(&mut rest.chosen);
        if part.is_empty() {
            return Some(self.chunk(rest.choice, json!({}), Some(rest.finish), Vec::new()));
        }
        let event = self.chunk(rest.choice, json!({}), None, part);
        self.rest = Some(rest);
        Some(event)
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
        let message = |kept: &PartialAnswer| {
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
        serde_json::to_string(&stream::CompleteResponse {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.app.site.model,
            choices: choices.collect::<Vec<_>>(),
            usage: stream::usage(usage),
        })
    }
}
