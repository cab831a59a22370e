//! Calls of tools: which are offered, and what a model writes when it calls one.

use serde_json::{Map, Value, json};

use super::chat::id;
use super::error::ApiError;
use crate::grammar::Grammar;

/// Which tool the answer has to call.
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
    /// What a request says.
    pub(crate) fn read(choice: Option<&Value>, tools: &[Value]) -> Result<Self, ApiError> {
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
                    let message = format!("tool_choice is '{other}'; there are none, auto and required");
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
                format!("the tool '{name}' is not offered"),
            )),
            _ => Ok(choice),
        }
    }

    /// What the answer has to keep to, where a tool has to be called: an object with its name and arguments.
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

/// A call that a model wrote.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    name: String,
    /// JSON.
    arguments: String,
}

impl Call {
    /// As responses have it; parts of a stream number their calls.
    pub(crate) fn json(&self, index: Option<usize>) -> Value {
        let mut value = json!({
            "id": id("call"),
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

/// The calls in an answer, and the text before them; `None` if there are none. Models write `<tool_call>{...}</tool_call>`
/// (Hermes, Qwen), `[TOOL_CALLS][...]` (Mistral), or an object or a list of such alone (Llama 3), each with `name` and
/// `arguments` or `parameters`.
pub(crate) fn calls(text: &str) -> Option<(String, Vec<Call>)> {
    const BEGIN: &str = "<tool_call>";
    if let Some((before, rest)) = text.split_once(BEGIN) {
        let parts = rest
            .split(BEGIN)
            .map(|part| part.split("</tool_call>").next().unwrap_or_default());
        let calls: Option<Vec<Call>> = parts
            .map(|part| Call::read(&serde_json::from_str(part).ok()?))
            .collect();
        return Some((before.trim().to_owned(), calls?));
    }
    let bare = text.trim();
    let bare = bare.strip_prefix("<|python_tag|>").unwrap_or(bare);
    let bare = bare.strip_prefix("[TOOL_CALLS]").unwrap_or(bare);
    let calls: Option<Vec<Call>> = match serde_json::from_str(bare).ok()? {
        Value::Array(all) if !all.is_empty() => all.iter().map(Call::read).collect(),
        one => Some(vec![Call::read(&one)?]),
    };
    Some((String::new(), calls?))
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

    #[test]
    fn calls_in_the_spellings_of_models() {
        let one = || vec![call("add", r#"{"a":1}"#)];
        for text in [
            r#"{"name": "add", "arguments": {"a": 1}}"#,
            r#"<|python_tag|>{"name": "add", "parameters": {"a": 1}}"#,
            r#" [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]"#,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        ] {
            assert_eq!(calls(text), Some((String::new(), one())), "{text}");
        }
        let text = "Well.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}";
        assert_eq!(
            calls(text),
            Some(("Well.".into(), vec![call("f", "{}"), call("g", "{}")]))
        );
        for text in [
            "",
            "hello",
            "[]",
            "{}",
            r#"{"name": "add"}"#,
            "<tool_call>no</tool_call>",
            "[1]",
        ] {
            assert_eq!(calls(text), None, "{text}");
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
