//! `/v1/responses`: OpenAI's Responses API, without stored state.
//!
//! A request holds the whole conversation. Items of the conversation become messages of the chat template.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::chat::{Conversation, OfferedTools, PreparedRequest, content_text, id};
use super::error::{ApiError, quoted};
use super::generation::{Piece, Usage};
use super::request::{Common, parse};
use super::stream::{self, Format, StreamEvent};
use super::structured::ResponseFormat;
use super::tools::{Answer, call_id};
use super::{App, JsonBody, fields, now};

#[derive(Deserialize)]
struct Body {
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextSettings>,
    reasoning: Option<Reasoning>,
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextSettings {
    format: Option<ResponseFormat>,
    /// Verbosity of the answer; only the default `medium` is supported.
    verbosity: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    /// Requested summary of the reasoning. The server writes no summaries.
    summary: Option<String>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let prepared = app
        .site
        .prepare(deadline, body.len(), move || prepare(&of_request, &body))
        .await?;
    let (PreparedRequest { prompt, options, tools }, settings) = prepared;
    let stream = options.stream;
    let held = (false, settings.bytes() + tools.bytes());
    let generation = app.clone().generate(vec![prompt], options, held, deadline).await?;
    // The first two events of a stream repeat the settings, and a client may read nothing. A complete answer repeats them once.
    generation.keep(settings.bytes() * if stream { 3 } else { 2 })?;
    let format = Responses {
        id: id("resp"),
        item: id("msg"),
        created: now(),
        app,
        tools,
        settings,
        text: String::new(),
        finish: None,
        sequence: 0,
    };
    if stream {
        Ok(stream::events(generation, 1, false, format))
    } else {
        stream::whole(generation, format).await
    }
}

/// Request fields that the response repeats. Fields that may be large are kept as JSON text.
struct Settings {
    instructions: Box<RawValue>,
    max_output_tokens: Option<i64>,
    parallel_tool_calls: bool,
    temperature: f32,
    tool_choice: Box<RawValue>,
    tools: Box<RawValue>,
    top_p: f32,
}

impl Settings {
    fn bytes(&self) -> usize {
        self.instructions.get().len() + self.tool_choice.get().len() + self.tools.get().len()
    }
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, ApiError> {
    to_raw_value(value).map_err(|e| ApiError::bad(e.to_string()))
}

/// Parses and tokenizes a request. Also returns the settings that the response repeats.
fn prepare(app: &App, body: &[u8]) -> Result<(PreparedRequest, Settings), ApiError> {
    let body: Body = parse(body, "input")?;
    let text = body.text.unwrap_or(TextSettings {
        format: None,
        verbosity: None,
    });
    if let Some(verbosity) = text.verbosity.filter(|verbosity| verbosity != "medium") {
        let message = format!("verbosity is supported only as medium, found {}", quoted(&verbosity));
        return Err(ApiError::field("text", message));
    }
    let reasoning = body.reasoning.unwrap_or(Reasoning {
        effort: None,
        summary: None,
    });
    if reasoning.summary.is_some_and(|summary| summary != "auto") {
        return Err(ApiError::field(
            "reasoning",
            "summaries of reasoning are not supported; leave them out",
        ));
    }
    let tools = body.tools.unwrap_or_default();
    let common = body.common.with(body.max_output_tokens, text.format)?;
    let options = common.options(app, None, "top_logprobs", false)?;
    let settings = Settings {
        instructions: raw(&body.instructions)?,
        max_output_tokens: body.max_output_tokens,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        temperature: options.sampling.temperature,
        tool_choice: raw(&body.tool_choice.as_ref().unwrap_or(&"auto".into()))?,
        tools: raw(&tools)?,
        top_p: options.sampling.top_p.unwrap_or(1.0),
    };
    if options.count != 1 {
        return Err(ApiError::field("n", "expected n of 1: a response has one answer"));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = body.instructions {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match body.input {
        Input::Text(text) => messages.push(json!({"role": "user", "content": text})),
        Input::Items(items) => {
            let mut thoughts = String::new();
            for (number, item) in items.into_iter().enumerate() {
                add_item(&mut messages, &mut thoughts, item)
                    .map_err(|e| ApiError::field("input", format!("item {number} {e}")))?;
            }
            if !thoughts.is_empty() {
                let message = "the input ends with an item of type reasoning, expected the answer that follows it";
                return Err(ApiError::field("input", message));
            }
        }
    }
    let conversation = Conversation {
        field: "input",
        messages,
        tools: tools.into_iter().map(nested).collect::<Result<_, _>>()?,
        tool_choice: body.tool_choice.map(nested_choice),
        parallel_tool_calls: body.parallel_tool_calls,
        kwargs: body.chat_template_kwargs.unwrap_or_default(),
        reasoning_effort: reasoning.effort,
        add_generation_prompt: true,
    };
    Ok((conversation.prepare(app, options)?, settings))
}

/// Converts an item of the conversation to chat messages. `thoughts` collects reasoning until the answer that it
/// belongs to.
fn add_item(messages: &mut Vec<Value>, thoughts: &mut String, item: Value) -> Result<(), String> {
    let text = |name: &str| item[name].as_str().map(str::to_owned);
    let kind = fields::text_of(&item, "type")?.unwrap_or("message");
    let mut answer = match kind {
        "message" => {
            fields::only(&item, &["type", "role", "content", "id", "status", "cache_control"])?;
            let role = text("role").ok_or("has no role, such as \"user\"")?;
            json!({"role": role, "content": content_text(&item["content"])?})
        }
        "function_call" => {
            fields::only(&item, &["type", "call_id", "name", "arguments", "id", "status"])?;
            let call = json!({
                "id": text("call_id").ok_or("has no call_id")?,
                "type": "function",
                "function": {
                    "name": text("name").ok_or("has no name")?,
                    "arguments": text("arguments").ok_or("has no arguments")?,
                },
            });
            // Calls of one answer belong to one message.
            if let Some(last) = messages
                .last_mut()
                .filter(|last| last["role"] == "assistant" && thoughts.is_empty())
            {
                match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                }
                return Ok(());
            }
            json!({"role": "assistant", "content": "", "tool_calls": [call]})
        }
        "function_call_output" => {
            fields::only(&item, &["type", "call_id", "output", "id", "status", "cache_control"])?;
            let id = text("call_id").ok_or("has no call_id")?;
            json!({"role": "tool", "tool_call_id": id, "content": content_text(&item["output"])?})
        }
        "reasoning" => {
            // Summaries are written for people.
            fields::only(&item, &["type", "id", "status", "summary", "content"])?;
            let parts = match &item["content"] {
                Value::Null => [].as_slice(),
                Value::Array(parts) => parts,
                _ => return Err("has content that is no list of parts of type reasoning_text".into()),
            };
            for part in parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("reasoning_text"), Some(text)) => thoughts.push_str(text),
                    _ => return Err("has content that is not of type reasoning_text".into()),
                }
            }
            return Ok(());
        }
        other => return Err(format!("has the type {}, which is not supported", quoted(other))),
    };
    if !thoughts.is_empty() {
        if answer["role"] != "assistant" {
            return Err("follows an item of type reasoning, expected an answer or a function_call".into());
        }
        // Templates of reasoning models read this name.
        answer["reasoning_content"] = std::mem::take(thoughts).into();
    }
    messages.push(answer);
    Ok(())
}

/// Converts a tool to the format of chat requests, which nests its fields in `function`.
fn nested(tool: Value) -> Result<Value, ApiError> {
    match tool["type"].as_str() {
        Some("function") if tool.get("function").is_none() => {
            let mut function = tool;
            if let Some(fields) = function.as_object_mut() {
                // The order of the other fields is part of the prompt.
                fields.shift_remove("type");
                fields.shift_remove("strict");
            }
            Ok(json!({"type": "function", "function": function}))
        }
        Some("function") => Ok(tool),
        kind => {
            let message = format!("tools of type {} are not supported", kind.map_or("?".into(), quoted));
            Err(ApiError::field("tools", message))
        }
    }
}

/// Converts a `tool_choice` to the format of chat requests, which nests names in `function` and allowed tools in
/// `allowed_tools`.
fn nested_choice(mut choice: Value) -> Value {
    let Some(object) = choice.as_object_mut() else {
        return choice;
    };
    if object.get("type").is_some_and(|kind| kind == "allowed_tools") && !object.contains_key("allowed_tools") {
        object.shift_remove("type");
        if let Some(Value::Array(tools)) = object.get_mut("tools") {
            tools.iter_mut().for_each(|tool| *tool = nested_choice(tool.take()));
        }
        return json!({"type": "allowed_tools", "allowed_tools": choice});
    }
    if let Some(name) = object.shift_remove("name") {
        object.insert("function".into(), json!({"name": name}));
    }
    choice
}

struct Responses {
    id: String,
    /// Id of the message.
    item: String,
    created: u64,
    app: Arc<App>,
    /// Offered tools. If there are any, the answer is sent when it is complete, as it may be a call.
    tools: OfferedTools,
    settings: Settings,
    text: String,
    finish: Option<&'static str>,
    /// `sequence_number` of the next event.
    sequence: u64,
}

/// Object that a request returns, and that the first and last events of a stream contain.
#[derive(Serialize)]
struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: &'a str,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    model: &'a str,
    output: &'a [Value],
    previous_response_id: Option<&'a str>,
    store: bool,
    truncation: &'static str,
    metadata: Map<String, Value>,
    usage: Option<Value>,
    instructions: &'a RawValue,
    max_output_tokens: Option<i64>,
    parallel_tool_calls: bool,
    temperature: f32,
    tool_choice: &'a RawValue,
    tools: &'a RawValue,
    top_p: f32,
}

impl Responses {
    fn event(&mut self, kind: &str, mut fields: Value) -> StreamEvent {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        StreamEvent {
            kind: Some(kind.to_owned()),
            json: fields.to_string(),
        }
    }

    fn message(&self, status: &str, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.map(part).into_iter().collect();
        json!({"type": "message", "id": self.item, "status": status, "role": "assistant", "content": content})
    }

    /// Returns the output items of the complete answer: a message, tool calls, or both.
    fn output(&self) -> Vec<Value> {
        let Answer { content, calls } = self.tools.answer(&self.text);
        let mut items = Vec::new();
        if !content.is_empty() || calls.is_empty() {
            items.push(self.message(self.status(), Some(&content)));
        }
        items.extend(calls.iter().map(|call| {
            json!({"type": "function_call", "id": id("fc"), "call_id": call_id(), "name": call.name,
                "arguments": call.arguments, "status": self.status()})
        }));
        items
    }

    fn response(&self, status: &str, output: &[Value], usage: Option<Usage>) -> serde_json::Result<String> {
        let is_incomplete = status == "incomplete";
        serde_json::to_string(&ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.created,
            status,
            error: None,
            incomplete_details: is_incomplete.then(|| json!({"reason": "max_output_tokens"})),
            model: &self.app.site.model,
            output,
            previous_response_id: None,
            store: false,
            truncation: "disabled",
            metadata: Map::new(),
            usage: usage.map(|usage| {
                json!({
                    "input_tokens": usage.prompt,
                    "input_tokens_details": {"cached_tokens": usage.cached},
                    "output_tokens": usage.generated,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": usage.prompt + usage.generated,
                })
            }),
            instructions: &self.settings.instructions,
            max_output_tokens: self.settings.max_output_tokens,
            parallel_tool_calls: self.settings.parallel_tool_calls,
            temperature: self.settings.temperature,
            tool_choice: &self.settings.tool_choice,
            tools: &self.settings.tools,
            top_p: self.settings.top_p,
        })
    }

    /// Returns an event that contains the whole response object.
    fn response_event(&mut self, kind: &str, status: &str, output: &[Value], usage: Option<Usage>) -> StreamEvent {
        let sequence = self.sequence;
        match self.response(status, output, usage) {
            Ok(response) => {
                self.sequence += 1;
                StreamEvent {
                    kind: Some(kind.to_owned()),
                    json: format!(r#"{{"type":"{kind}","sequence_number":{sequence},"response":{response}}}"#),
                }
            }
            Err(error) => self.error(&ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        }
    }

    fn status(&self) -> &'static str {
        if self.finish == Some("length") {
            "incomplete"
        } else {
            "completed"
        }
    }

    fn streams_text(&self) -> bool {
        self.tools.names.is_empty()
    }

    /// Returns the events that complete a message. `is_sent` is true if its text was already streamed.
    fn message_events(&mut self, index: usize, item: &Value, is_sent: bool) -> Vec<StreamEvent> {
        let place = json!({"item_id": self.item, "output_index": index, "content_index": 0});
        let with = |more: Value| {
            let mut fields = place.clone();
            for (name, value) in more.as_object().into_iter().flatten() {
                fields[name] = value.clone();
            }
            fields
        };
        let text = item["content"][0]["text"].clone();
        let mut events = Vec::new();
        if !is_sent {
            events.extend(self.message_opening(index));
            let delta = with(json!({"delta": text, "logprobs": []}));
            events.push(self.event("response.output_text.delta", delta));
        }
        let done = with(json!({"text": text, "logprobs": []}));
        events.push(self.event("response.output_text.done", done));
        events.push(self.event("response.content_part.done", with(json!({"part": item["content"][0]}))));
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
        events
    }

    fn message_opening(&mut self, index: usize) -> Vec<StreamEvent> {
        let item = self.message("in_progress", None);
        let added = json!({"output_index": index, "item": item});
        let opened = json!({"item_id": self.item, "output_index": index, "content_index": 0, "part": part("")});
        vec![
            self.event("response.output_item.added", added),
            self.event("response.content_part.added", opened),
        ]
    }

    fn call_events(&mut self, index: usize, item: &Value) -> Vec<StreamEvent> {
        let mut opening = item.clone();
        opening["arguments"] = "".into();
        opening["status"] = "in_progress".into();
        let place = |name: &str| json!({"item_id": item["id"], "output_index": index, name: item["arguments"]});
        let mut done = place("arguments");
        done["name"] = item["name"].clone();
        vec![
            self.event(
                "response.output_item.added",
                json!({"output_index": index, "item": opening}),
            ),
            self.event("response.function_call_arguments.delta", place("delta")),
            self.event("response.function_call_arguments.done", done),
            self.event(
                "response.output_item.done",
                json!({"output_index": index, "item": item}),
            ),
        ]
    }
}

/// Returns a text part of a message's content.
fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Format for Responses {
    fn begin(&mut self, _: usize) -> Vec<StreamEvent> {
        let mut events = vec![
            self.response_event("response.created", "in_progress", &[], None),
            self.response_event("response.in_progress", "in_progress", &[], None),
        ];
        if self.streams_text() {
            events.extend(self.message_opening(0));
        }
        events
    }

    fn piece(&mut self, piece: Piece) -> Vec<StreamEvent> {
        let text = piece.text.clone();
        self.keep(piece);
        if !self.streams_text() || text.is_empty() {
            return Vec::new();
        }
        let delta = json!({"item_id": self.item, "output_index": 0, "content_index": 0, "delta": text, "logprobs": []});
        vec![self.event("response.output_text.delta", delta)]
    }

    fn usage(&self, _: Usage) -> Value {
        Value::Null
    }

    fn end(&mut self, usage: Usage) -> Vec<StreamEvent> {
        let output = self.output();
        let mut events = Vec::new();
        for (index, item) in output.iter().enumerate() {
            let is_sent = self.streams_text();
            events.extend(if item["type"] == "message" {
                self.message_events(index, item, is_sent)
            } else {
                self.call_events(index, item)
            });
        }
        let status = self.status();
        events.push(self.response_event(&format!("response.{status}"), status, &output, Some(usage)));
        events
    }

    fn keep(&mut self, piece: Piece) {
        self.text += &piece.text;
        self.finish = piece.finish.or(self.finish);
    }

    fn whole(&mut self, usage: Usage) -> serde_json::Result<String> {
        self.response(self.status(), &self.output(), Some(usage))
    }

    fn error(&mut self, error: &ApiError) -> StreamEvent {
        let body = error.body();
        let fields = json!({"code": body["error"]["code"], "message": body["error"]["message"], "param": body["error"]["param"]});
        self.event("error", fields)
    }

    fn ends_with_done(&self) -> bool {
        false
    }
}
