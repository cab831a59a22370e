//! `/v1/responses`: OpenAI's Responses API, without stored state.
//!
//! A request holds the whole conversation. Items of the conversation become messages of the chat template.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::{Conversation, OfferedTools, Prepared, id};
use super::error::{ApiError, quoted};
use super::generation::{Piece, Usage};
use super::request::{Common, ResponseFormat, parse};
use super::stream::{self, Format};
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
    /// Only its usual value is supported.
    verbosity: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    /// Summaries are not written.
    summary: Option<String>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let prepared = app.site.prepare(deadline, move || prepare(&of_request, &body)).await?;
    let (Prepared { prompt, options, tools }, settings) = prepared;
    let stream = options.stream;
    let generation = app.clone().generate(vec![prompt], options, false, deadline).await?;
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

/// The prepared request, and the settings that the response repeats.
fn prepare(app: &App, body: &[u8]) -> Result<(Prepared, Value), ApiError> {
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
    let settings = json!({
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls.unwrap_or(true),
        "tool_choice": body.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        "tools": tools,
    });
    let common = body.common.with(body.max_output_tokens, text.format);
    let options = common.options(app, None, "top_logprobs", false)?;
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
            for (number, item) in items.into_iter().enumerate() {
                add_item(&mut messages, item).map_err(|e| ApiError::field("input", format!("item {number} {e}")))?;
            }
        }
    }
    let conversation = Conversation {
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

/// Adds an item of the conversation to the messages of a chat.
fn add_item(messages: &mut Vec<Value>, item: Value) -> Result<(), String> {
    let text = |name: &str| item[name].as_str().map(str::to_owned);
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            fields::only(&item, &["type", "role", "content", "id", "status"])?;
            let role = text("role").ok_or("has no role, such as \"user\"")?;
            let content = content(&item["content"])?;
            messages.push(json!({"role": role, "content": content}));
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
            match messages.last_mut() {
                Some(last) if last["role"] == "assistant" => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                _ => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
            }
        }
        "function_call_output" => {
            fields::only(&item, &["type", "call_id", "output", "id", "status"])?;
            let id = text("call_id").ok_or("has no call_id")?;
            let content = content(&item["output"])?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        other => return Err(format!("has the type {}, which is not supported", quoted(other))),
    }
    Ok(())
}

/// The text of a content.
fn content(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("input_text" | "output_text" | "text"), Some(text)) => {
                    // Answers that clients send back have annotations and log-probabilities.
                    fields::only(part, &["type", "text", "annotations", "logprobs"])
                        .map_err(|e| format!("has content that {e}"))?;
                    Ok(text.to_owned())
                }
                (kind, _) => Err(format!(
                    "has content of type {}; only text is supported",
                    kind.map_or("?".into(), quoted)
                )),
            };
            Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.concat())
        }
        _ => Err("has content that is neither text nor a list of parts".into()),
    }
}

/// A tool in the format of chats: its fields are in `function`.
fn nested(tool: Value) -> Result<Value, ApiError> {
    match tool["type"].as_str() {
        Some("function") if tool.get("function").is_none() => {
            let mut function = tool;
            if let Some(fields) = function.as_object_mut() {
                fields.remove("type");
                fields.remove("strict");
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

fn nested_choice(choice: Value) -> Value {
    match choice["name"].as_str() {
        Some(name) => json!({"type": "function", "function": {"name": name}}),
        None => choice,
    }
}

struct Responses {
    id: String,
    /// Id of the message.
    item: String,
    created: u64,
    app: Arc<App>,
    /// With tools, the answer is sent when it is complete: it may be a call.
    tools: OfferedTools,
    settings: Value,
    text: String,
    finish: Option<&'static str>,
    /// Number of the next event.
    sequence: u64,
}

impl Responses {
    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        fields
    }

    fn message(&self, status: &str, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.map(part).into_iter().collect();
        json!({"type": "message", "id": self.item, "status": status, "role": "assistant", "content": content})
    }

    /// The items of the complete answer.
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

    fn response(&self, status: &str, output: Vec<Value>, usage: Option<Usage>) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": (status == "incomplete").then(|| json!({"reason": "max_output_tokens"})),
            "model": self.app.site.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "metadata": {},
            "usage": usage.map(|usage| json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.generated,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.generated,
            })),
        });
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        response
    }

    fn status(&self) -> &'static str {
        if self.finish == Some("length") {
            "incomplete"
        } else {
            "completed"
        }
    }

    fn streams_text(&self) -> bool {
        self.tools.tools.is_empty()
    }

    /// Returns the events that complete a message; `is_sent` if its text was already streamed.
    fn message_events(&mut self, index: usize, item: &Value, is_sent: bool) -> Vec<Value> {
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

    fn message_opening(&mut self, index: usize) -> Vec<Value> {
        let item = self.message("in_progress", None);
        let added = json!({"output_index": index, "item": item});
        let opened = json!({"item_id": self.item, "output_index": index, "content_index": 0, "part": part("")});
        vec![
            self.event("response.output_item.added", added),
            self.event("response.content_part.added", opened),
        ]
    }

    fn call_events(&mut self, index: usize, item: &Value) -> Vec<Value> {
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

/// A part of a message's content.
fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Format for Responses {
    fn begin(&mut self, _: usize) -> Vec<Value> {
        let response = self.response("in_progress", Vec::new(), None);
        let mut events = vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
        ];
        if self.streams_text() {
            events.extend(self.message_opening(0));
        }
        events
    }

    fn piece(&mut self, piece: Piece) -> Vec<Value> {
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

    fn end(&mut self, usage: Usage) -> Vec<Value> {
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
        let response = self.response(status, output, Some(usage));
        events.push(self.event(&format!("response.{status}"), json!({"response": response})));
        events
    }

    fn keep(&mut self, piece: Piece) {
        self.text += &piece.text;
        self.finish = piece.finish.or(self.finish);
    }

    fn whole(&mut self, usage: Usage) -> serde_json::Result<String> {
        serde_json::to_string(&self.response(self.status(), self.output(), Some(usage)))
    }

    fn error(&mut self, error: &ApiError) -> Value {
        let body = error.body();
        let fields = json!({"code": body["error"]["code"], "message": body["error"]["message"], "param": body["error"]["param"]});
        self.event("error", fields)
    }

    fn has_typed_events(&self) -> bool {
        true
    }
}
