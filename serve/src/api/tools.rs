//! Calls of tools: the offered tools, and the text that a model writes to call one.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use crate::grammar::Grammar;

/// Tool that the answer has to call.
#[derive(Debug, PartialEq)]
pub(crate) enum ToolChoice {
    None,
    Auto,
    Any,
    Named(String),
}

fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

impl ToolChoice {
    /// Reads the fields `tool_choice` and `tools` of a request.
    pub(crate) fn read(choice: Option<&Value>, tools: &[Value]) -> Result<Self, ApiError> {
        let other = tools
            .iter()
            .filter_map(|tool| tool["type"].as_str())
            .find(|kind| *kind != "function");
        if let Some(kind) = other {
            let message = format!("expected tools of the type 'function', found {}", quoted(kind));
            return Err(ApiError::field("tools", message));
        }
        if let Some(number) = tools.iter().position(|tool| name_of(tool).is_none()) {
            let message = format!("tool {number} has no function with a name");
            return Err(ApiError::field("tools", message));
        }
        let choice = match choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => ToolChoice::None,
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Any,
                other => {
                    let message = format!(
                        "expected the tool_choice none, auto or required, found {}",
                        quoted(other)
                    );
                    return Err(ApiError::field("tool_choice", message));
                }
            },
            Some(object) => match name_of(object) {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => {
                    return Err(ApiError::field(
                        "tool_choice",
                        "tool_choice has no function with a name",
                    ));
                }
            },
        };
        let is_offered = |name: &str| tools.iter().any(|tool| name_of(tool) == Some(name));
        match &choice {
            ToolChoice::Any if tools.is_empty() => Err(ApiError::field(
                "tool_choice",
                "a tool has to be called, but none is offered",
            )),
            ToolChoice::Named(name) if !is_offered(name) => Err(ApiError::field(
                "tool_choice",
                format!("the tool {} is not offered", quoted(name)),
            )),
            _ => Ok(choice),
        }
    }

    /// Grammar of an answer that has to call a tool: an object with its name and arguments.
    pub(crate) fn grammar(&self, tools: &[Value]) -> Option<Grammar> {
        let allowed = |tool: &&Value| match self {
            ToolChoice::Any => true,
            ToolChoice::Named(name) => name_of(tool) == Some(name),
            ToolChoice::None | ToolChoice::Auto => false,
        };
        let call = |tool: &Value| {
            let function = &tool["function"];
            let arguments = match function.get("parameters") {
                Some(schema) if schema.is_object() => schema.clone(),
                _ => json!({"type": "object"}),
            };
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = tools.iter().filter(allowed).map(call).collect();
        match calls.len() {
            0 => None,
            _ => Some(Grammar::Schema(json!({"anyOf": calls}))),
        }
    }
}

/// Call of a tool.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

impl Call {
    /// The call in the format of responses; parts of a stream have an index.
    pub(crate) fn json(&self, index: Option<usize>) -> Value {
        let mut value = json!({
            "id": call_id(),
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        });
        if let Some(index) = index {
            value["index"] = json!(index);
        }
        value
    }

    fn read(value: &Value) -> Option<Self> {
        let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
        Some(Call {
            name: value["name"].as_str()?.to_owned(),
            arguments: match arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        })
    }
}

impl Call {
    /// Reads a required call that was cut off at the limit of tokens: `{"name": "f", "arguments": {"a`. Its arguments are the text
    /// that is there, as in OpenAI's API.
    fn cut_off(text: &str) -> Option<Self> {
        let mut rest = text.trim_start();
        let mut name = String::new();
        for part in ["{", "\"name\"", ":", "", ",", "\"arguments\"", ":"] {
            if part.is_empty() {
                let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                name = values.next()?.ok()?;
                rest = rest[values.byte_offset()..].trim_start();
            } else {
                rest = rest.strip_prefix(part)?.trim_start();
            }
        }
        Some(Call {
            name,
            arguments: rest.to_owned(),
        })
    }
}

/// An answer of a model that may call tools.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Text outside of the calls.
    pub(crate) content: String,
    /// Calls of offered tools.
    pub(crate) calls: Vec<Call>,
}

/// Marks that models write before a call, and the one that they write after it.
const OPENINGS: [(&str, &str); 3] = [
    // Hermes, Qwen, SmolLM.
    ("<tool_call>", "</tool_call>"),
    // Mistral.
    ("[TOOL_CALLS]", ""),
    // Llama 3.
    ("<|python_tag|>", ""),
];

/// Finds the calls in an answer. After a mark of the model there is an object or a list of objects with `name` and `arguments`
/// or `parameters`. JSON without a mark is a call only if `is_call`, because the request requires one. Calls of tools that were
/// not offered, and everything else, stay text. With `is_single`, the first call counts and further ones are dropped.
pub(crate) fn answer(text: &str, offered: &[Value], is_call: bool, is_single: bool) -> Answer {
    let is_offered = |call: &Call| offered.iter().any(|tool| name_of(tool) == Some(&*call.name));
    let read = |value: Value| -> Option<Vec<Call>> {
        let values = match value {
            Value::Array(values) if !values.is_empty() => values,
            value => vec![value],
        };
        let calls: Option<Vec<Call>> = values.iter().map(Call::read).collect();
        calls.filter(|calls| calls.iter().all(is_offered))
    };
    let mut answer = Answer::default();
    let mut rest = text;
    if is_call {
        let calls = serde_json::from_str(text.trim()).ok().and_then(read);
        if let Some(calls) = calls.or_else(|| Some(vec![Call::cut_off(text).filter(is_offered)?])) {
            answer.calls = calls;
            rest = "";
        }
    }
    while let Some((at, opening, closing)) = first_opening(rest) {
        let after = &rest[at + opening.len()..];
        // The JSON itself says where it ends: its texts may contain the mark.
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let calls = values.next().and_then(Result::ok).and_then(read);
        let Some(calls) = calls else {
            answer.content += &rest[..at + opening.len()];
            rest = after;
            continue;
        };
        answer.content += &rest[..at];
        answer.calls.extend(calls);
        rest = &after[values.byte_offset()..];
        if !closing.is_empty() {
            rest = rest.trim_start().strip_prefix(closing).unwrap_or(rest);
        }
    }
    answer.content += rest;
    if !answer.calls.is_empty() {
        answer.content = answer.content.trim().to_owned();
    }
    if is_single {
        answer.calls.truncate(1);
    }
    answer
}

/// The first mark of a call: its place, itself, and the mark after the call.
fn first_opening(text: &str) -> Option<(usize, &'static str, &'static str)> {
    let places = OPENINGS
        .iter()
        .filter_map(|&(opening, closing)| Some((text.find(opening)?, opening, closing)));
    places.min_by_key(|(at, ..)| *at)
}

/// An id of a call: nine letters and digits, which templates of Mistral require.
pub(crate) fn call_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut number = RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
    let digit = |_| {
        let digit = DIGITS[(number % 36) as usize];
        number /= 36;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

/// Calls of earlier messages have their arguments as text; templates take them as objects.
pub(crate) fn open_arguments(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
        return;
    };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let opened = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(opened @ Value::Object(_)) = opened {
            *arguments = opened;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> Call {
        Call {
            name: name.into(),
            arguments: arguments.into(),
        }
    }

    fn offered() -> Vec<Value> {
        ["add", "f", "g"]
            .map(|name| json!({"type": "function", "function": {"name": name}}))
            .into()
    }

    fn found(text: &str) -> (String, Vec<Call>) {
        let Answer { content, calls } = answer(text, &offered(), false, false);
        (content, calls)
    }

    #[test]
    fn calls_in_the_formats_of_models() {
        let one = || vec![call("add", r#"{"a":1}"#)];
        for text in [
            r#"<|python_tag|>{"name": "add", "parameters": {"a": 1}}"#,
            r#" [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]"#,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        ] {
            assert_eq!(found(text), (String::new(), one()), "{text}");
        }
        let text = "Well.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}";
        assert_eq!(found(text), ("Well.".into(), vec![call("f", "{}"), call("g", "{}")]));
    }

    #[test]
    fn json_delimits_a_call_and_text_after_it_is_kept() {
        let argument = r#"<tool_call>{"name":"add","arguments":{"a":"</tool_call>"}}</tool_call> and after"#;
        let wanted = call("add", r#"{"a":"</tool_call>"}"#);
        assert_eq!(found(argument), ("and after".into(), vec![wanted]));
        let between = r#"a <tool_call>{"name":"f","arguments":{}}</tool_call> b <tool_call>{"name":"g","arguments":{}}</tool_call> c"#;
        assert_eq!(
            found(between),
            ("a  b  c".into(), vec![call("f", "{}"), call("g", "{}")])
        );
    }

    #[test]
    fn everything_else_is_text() {
        for text in [
            "",
            "hello",
            "[]",
            r#"{"name": "add", "arguments": {"a": 1}}"#,
            r#"{"name": "Bob", "parameters": {}}"#,
            r#"<tool_call>{"name": "nope", "arguments": {}}</tool_call>"#,
            r#"<tool_call>{"name": "add"}</tool_call>"#,
            "<tool_call>no</tool_call>",
            "[TOOL_CALLS][1]",
            " <tool_call>{\"name\": ",
        ] {
            assert_eq!(found(text), (text.to_owned(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn requests_decide_about_bare_json_and_the_number_of_calls() {
        let bare = r#"{"name": "add", "arguments": {"a": 1}}"#;
        assert_eq!(answer(bare, &offered(), true, true).calls, [call("add", r#"{"a":1}"#)]);
        let two = r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]"#;
        assert_eq!(answer(two, &offered(), false, true).calls, [call("f", "{}")]);
        assert_eq!(answer(two, &offered(), false, false).calls.len(), 2);
    }

    #[test]
    fn required_calls_may_be_cut_off() {
        for (text, arguments) in [
            (r#"{"name": "add", "arguments": {"a": 1, "b"#, r#"{"a": 1, "b"#),
            (" {\"name\":\"add\" ,\n\"arguments\":", ""),
        ] {
            assert_eq!(
                answer(text, &offered(), true, false).calls,
                [call("add", arguments)],
                "{text}"
            );
            assert_eq!(answer(text, &offered(), false, false).content, text);
        }
        for text in [
            "",
            "{",
            r#"{"name": "ad"#,
            r#"{"name": "other", "arguments": {"a"#,
            r#"{"name": "add", "x"#,
        ] {
            assert_eq!(answer(text, &offered(), true, false).content, text, "{text}");
        }
    }

    #[test]
    fn choices_of_tools() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let read = |choice: Value| ToolChoice::read(Some(&choice), &tools);
        assert_eq!(read(json!("required")).expect("a choice"), ToolChoice::Any);
        assert!(read(json!("required")).expect("a choice").grammar(&tools).is_some());
        assert!(read(json!("auto")).expect("a choice").grammar(&tools).is_none());
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(read(named).expect("a choice"), ToolChoice::Named("f".into()));
        for wrong in [json!("some"), json!({"function": {"name": "g"}}), json!(1)] {
            assert!(read(wrong).is_err());
        }
        assert!(ToolChoice::read(Some(&json!("required")), &[]).is_err());
        assert!(ToolChoice::read(None, &[json!({})]).is_err());
    }
}
