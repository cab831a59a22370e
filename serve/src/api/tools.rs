//! Tool calls: the tools that a request offers, and the parser of the calls that a model writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use super::{fields, raw_json};
use crate::grammar::Grammar;

/// Requirement of a request (`tool_choice`) on the tools that the answer calls.
#[derive(Debug, PartialEq)]
pub(crate) enum ToolChoice {
    None,
    Auto,
    Any,
    Named(String),
}

pub(crate) fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

/// Checks an offered tool: `{"type": "function", "function": {"name": "f", "parameters": {...}}}`.
fn check_tool(tool: &Value) -> Result<(), String> {
    if let Some(kind) = fields::text_of(tool, "type")?.filter(|kind| *kind != "function") {
        return Err(format!("has the type {}, expected 'function'", quoted(kind)));
    }
    if name_of(tool).is_none() {
        return Err("has no function with a name".into());
    }
    match tool["function"].get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err("has parameters that are not a JSON schema: expected an object".into()),
    }
}

/// Reads the name from `{"type": "function", "function": {"name": "f"}}`.
fn named(choice: &Value) -> Result<String, String> {
    fields::only(choice, &["type", "function"])?;
    fields::only(&choice["function"], &["name"])?;
    Ok(name_of(choice).ok_or("has no function with a name")?.to_owned())
}

/// Reads `{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}`. Returns the mode and the names.
fn allowed_tools(choice: &Value) -> Result<(String, Vec<String>), String> {
    fields::only(choice, &["type", "allowed_tools"])?;
    let allowed = &choice["allowed_tools"];
    fields::only(allowed, &["mode", "tools"])?;
    let mode = allowed["mode"].as_str().filter(|mode| *mode != "none");
    let mode = mode.ok_or("expects allowed_tools with the mode auto or required")?;
    let tools = allowed["tools"]
        .as_array()
        .ok_or("expects a list of tools in allowed_tools")?;
    Ok((mode.to_owned(), tools.iter().map(named).collect::<Result<_, _>>()?))
}

/// Returns true if a tool has this name.
fn has_tool(tools: &[Value], name: &str) -> bool {
    tools.iter().any(|tool| name_of(tool) == Some(name))
}

impl ToolChoice {
    /// Reads the fields `tool_choice` and `tools` of a request. The choice `allowed_tools` removes all other tools.
    ///
    /// # Errors
    /// A tool or a choice that is malformed or not supported; a choice of a tool that is not offered.
    pub(crate) fn read(choice: Option<&Value>, tools: &mut Vec<Value>) -> Result<Self, ApiError> {
        for (number, tool) in tools.iter().enumerate() {
            check_tool(tool).map_err(|e| ApiError::field("tools", format!("tool {number} {e}")))?;
        }
        let wrong = |message: String| ApiError::field("tool_choice", message);
        let choice = match choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(Value::String(word)) => ToolChoice::of_word(word, "none, auto or required")?,
            Some(object) => match object["type"].as_str() {
                Some("function") => ToolChoice::Named(named(object).map_err(|e| wrong(format!("tool_choice {e}")))?),
                Some("allowed_tools") => {
                    let (mode, names) = allowed_tools(object).map_err(|e| wrong(format!("tool_choice {e}")))?;
                    let offered: HashSet<&str> = tools.iter().filter_map(name_of).collect();
                    if let Some(name) = names.iter().find(|name| !offered.contains(name.as_str())) {
                        return Err(wrong(format!("the tool {} is not offered", quoted(name))));
                    }
                    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
                    tools.retain(|tool| name_of(tool).is_some_and(|name| names.contains(name)));
                    ToolChoice::of_word(&mode, "auto or required in allowed_tools")?
                }
                kind => {
                    let found = kind.map_or("none".into(), quoted);
                    let message =
                        format!("expected a tool_choice of the type function or allowed_tools, found {found}");
                    return Err(wrong(message));
                }
            },
        };
        match &choice {
            ToolChoice::Any if tools.is_empty() => Err(wrong("a tool has to be called, but none is offered".into())),
            ToolChoice::Named(name) if !has_tool(tools, name) => {
                Err(wrong(format!("the tool {} is not offered", quoted(name))))
            }
            _ => Ok(choice),
        }
    }

    fn of_word(word: &str, expected: &str) -> Result<Self, ApiError> {
        match word {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Any),
            other => {
                let message = format!("expected the tool_choice {expected}, found {}", quoted(other));
                Err(ApiError::field("tool_choice", message))
            }
        }
    }

    /// Returns the grammar of an answer that has to call a tool: an object with the tool's name and arguments. Returns
    /// `None` if no call is required.
    pub(crate) fn grammar(&self, tools: &[Value]) -> Option<Grammar> {
        let allowed = |tool: &&Value| match self {
            ToolChoice::Any => true,
            ToolChoice::Named(name) => name_of(tool) == Some(name),
            ToolChoice::None | ToolChoice::Auto => false,
        };
        let call = |(number, tool): (usize, &Value)| {
            let function = &tool["function"];
            let mut arguments = match function.get("parameters") {
                Some(schema) if schema.is_object() => schema.clone(),
                _ => json!({}),
            };
            // Arguments are an object, also if the schema allows everything.
            if let Some(fields) = arguments.as_object_mut()
                && !fields.contains_key("$ref")
            {
                fields.entry("type").or_insert_with(|| "object".into());
            }
            move_references(&mut arguments, &format!("#/anyOf/{number}/properties/arguments"));
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = tools.iter().filter(allowed).enumerate().map(call).collect();
        match calls.len() {
            0 => None,
            _ => Some(Grammar::Schema(json!({"anyOf": calls}))),
        }
    }
}

/// Adjusts the references of a schema that is inserted into another schema at the path `place`: `#/$defs/a` becomes
/// `PLACE/$defs/a`.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| move_references(schema, place)),
        Value::Object(fields) => {
            for (keyword, value) in fields {
                match (keyword.as_str(), value) {
                    ("$ref", Value::String(reference)) if reference == "#" || reference.starts_with("#/") => {
                        reference.replace_range(..1, place);
                    }
                    // Data, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    // Their keys are names, not keywords.
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                        Value::Object(schemas),
                    ) => schemas.values_mut().for_each(|schema| move_references(schema, place)),
                    (_, value) => move_references(value, place),
                }
            }
        }
        _ => {}
    }
}

/// Tool call.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// Arguments as JSON text.
    pub(crate) arguments: String,
}

impl Call {
    /// Returns the call in the format of chat responses. Calls in a stream have an index.
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

    /// Reads a call from the text of a JSON object. Arguments keep the text that the model wrote.
    fn read(text: &str) -> Option<Self> {
        let fields = raw_json::object(text)?;
        let field = |name: &str| fields.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
        let arguments = field("arguments").or_else(|| field("parameters"))?;
        Some(Call {
            name: serde_json::from_str(field("name")?).ok()?,
            // Some models write an object as a text.
            arguments: serde_json::from_str(arguments).unwrap_or_else(|_| arguments.to_owned()),
        })
    }
}

impl Call {
    /// Reads a required call that the token limit cut off: `{"name": "f", "arguments": {"a`. Its arguments are the
    /// incomplete text, as in OpenAI's API.
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

/// Parsed answer of a model that may call tools.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Text outside of the tool calls.
    pub(crate) content: String,
    /// Calls of offered tools.
    pub(crate) calls: Vec<Call>,
}

/// Markers that models write before and after a call.
const OPENINGS: [(&str, &str); 3] = [
    // Hermes, Qwen, SmolLM.
    ("<tool_call>", "</tool_call>"),
    // Mistral.
    ("[TOOL_CALLS]", ""),
    // Llama 3.
    ("<|python_tag|>", ""),
];

/// Finds the tool calls in an answer. A marker of the model is followed by an object, or a list of objects, with `name`
/// and `arguments` or `parameters`. JSON without a marker is a call only if `is_call`, which is set if the request
/// requires a call. Calls of tools that were not offered, and all other text, become content. With `is_single`, only
/// the first call is kept.
pub(crate) fn answer(text: &str, offered: &[String], is_call: bool, is_single: bool) -> Answer {
    let is_offered = |call: &Call| offered.contains(&call.name);
    let read = |text: &str| -> Option<Vec<Call>> {
        let texts = raw_json::list(text).unwrap_or_else(|| vec![text]);
        let calls: Option<Vec<Call>> = texts.into_iter().map(Call::read).collect();
        calls.filter(|calls| !calls.is_empty() && calls.iter().all(is_offered))
    };
    let mut answer = Answer::default();
    let mut rest = text;
    if is_call {
        let calls = read(text);
        if let Some(calls) = calls.or_else(|| Some(vec![Call::cut_off(text).filter(is_offered)?])) {
            answer.calls = calls;
            rest = "";
        }
    }
    let mut openings = Openings::new(text);
    while let Some((at, opening, closing)) = openings.next(text.len() - rest.len()) {
        let before = &rest[..at - (text.len() - rest.len())];
        let after = &text[at + opening.len()..];
        answer.content += before;
        // The end of the JSON value delimits the call: its texts may contain the mark.
        let value = raw_json::value(after).and_then(|(value, left)| Some((read(value)?, left)));
        let Some((calls, left)) = value else {
            answer.content += opening;
            rest = after;
            continue;
        };
        answer.calls.extend(calls);
        rest = left;
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

/// Search for the markers before calls. Text without a marker is searched once, so the time is linear.
struct Openings<'t> {
    text: &'t str,
    /// Next offset of each marker; `None` if there is none.
    next: [Option<usize>; OPENINGS.len()],
}

impl<'t> Openings<'t> {
    fn new(text: &'t str) -> Self {
        Openings {
            text,
            next: OPENINGS.map(|(opening, _)| text.find(opening)),
        }
    }

    /// Returns the first marker from an offset on: its offset, its text, and the marker that ends the call.
    fn next(&mut self, from: usize) -> Option<(usize, &'static str, &'static str)> {
        for (next, (opening, _)) in self.next.iter_mut().zip(OPENINGS) {
            if next.is_some_and(|at| at < from) {
                *next = self.text[from..].find(opening).map(|at| from + at);
            }
        }
        let places = self.next.iter().zip(OPENINGS);
        let places = places.filter_map(|(next, (opening, closing))| Some(((*next)?, opening, closing)));
        places.min_by_key(|(at, ..)| *at)
    }
}

/// Returns a new id of a call: nine letters and digits, which Mistral's templates require.
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

/// Parses the arguments of earlier tool calls. Messages contain them as JSON text, but templates expect objects.
pub(crate) fn open_arguments(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
        return;
    };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let opened = arguments
            .as_str()
            .filter(|text| !raw_json::has_reserved_name(text.as_bytes()))
            .and_then(|text| serde_json::from_str(text).ok());
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

    fn offered() -> Vec<String> {
        ["add", "f", "g"].map(str::to_owned).into()
    }

    fn found(text: &str) -> (String, Vec<Call>) {
        let Answer { content, calls } = answer(text, &offered(), false, false);
        (content, calls)
    }

    #[test]
    fn calls_in_the_formats_of_models() {
        let one = || vec![call("add", r#"{"a": 1}"#)];
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
        assert_eq!(answer(bare, &offered(), true, true).calls, [call("add", r#"{"a": 1}"#)]);
        let two = r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]"#;
        assert_eq!(answer(two, &offered(), false, true).calls, [call("f", "{}")]);
        assert_eq!(answer(two, &offered(), false, false).calls.len(), 2);
    }

    #[test]
    fn arguments_stay_as_they_are_written() {
        let offered = ["add".to_owned()];
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        for arguments in [r#"{"a":44E307}"#, r#"{"a": 888829473588882593307, "b":-0}"#, &deep] {
            let text = format!(r#"{{"name": "add", "arguments": {arguments}}}"#);
            for text in [text.clone(), format!("<tool_call>\n{text}\n</tool_call>")] {
                let is_call = text.starts_with('{');
                assert_eq!(answer(&text, &offered, is_call, false).calls, [call("add", arguments)]);
            }
        }
    }

    #[test]
    fn arguments_are_an_object_even_if_the_schema_allows_everything() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let Some(Grammar::Schema(schema)) = ToolChoice::Any.grammar(&[tool]) else {
            panic!("no schema")
        };
        assert_eq!(schema["anyOf"][0]["properties"]["arguments"], json!({"type": "object"}));
    }

    #[test]
    fn many_allowed_tools_are_found_at_once() {
        let tool = |i: usize| json!({"type": "function", "function": {"name": format!("tool{i}")}});
        let mut tools: Vec<Value> = (0..20_001).map(tool).collect();
        let allowed: Vec<Value> = (1..20_001).rev().map(tool).collect();
        let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}});
        let started = std::time::Instant::now();
        assert_eq!(
            ToolChoice::read(Some(&choice), &mut tools).expect("a choice"),
            ToolChoice::Auto
        );
        assert_eq!(tools.len(), 20_000);
        // Comparing each with each takes many seconds.
        assert!(started.elapsed().as_secs_f64() < 3.0);
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
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let tools = || vec![tool("f"), tool("g")];
        let read = |choice: Value| ToolChoice::read(Some(&choice), &mut tools());
        assert_eq!(read(json!("required")).expect("a choice"), ToolChoice::Any);
        assert!(read(json!("required")).expect("a choice").grammar(&tools()).is_some());
        assert!(read(json!("auto")).expect("a choice").grammar(&tools()).is_none());
        assert_eq!(read(tool("f")).expect("a choice"), ToolChoice::Named("f".into()));
        for wrong in [
            json!("some"),
            json!(1),
            json!({"function": {"name": "f"}}),
            json!({"type": "custom", "custom": {"name": "f"}}),
            json!({"type": "function", "function": {"name": "h"}}),
            json!({"type": "function", "function": {"name": "f", "arguments": {}}}),
            json!({"type": "function", "function": {"name": "f"}, "mode": "auto"}),
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("h")]}}),
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [tool("f")]}}),
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(ToolChoice::read(Some(&json!("required")), &mut Vec::new()).is_err());
        for wrong in [
            json!({}),
            json!({"type": "web_search"}),
            json!({"type": "function", "function": {"name": "f", "parameters": [1]}}),
        ] {
            assert!(ToolChoice::read(None, &mut vec![wrong.clone()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn references_of_parameters_stay_valid() {
        let parameters = json!({
            "$defs": {"item": {"properties": {"next": {"$ref": "#/$defs/item"}, "all": {"$ref": "#"}}}},
            "properties": {
                "$ref": {"type": "string"},
                "const": {"$ref": "#/$defs/item"},
                "a": {"const": {"$ref": "#/$defs/item"}},
                "b": {"anyOf": [{"$ref": "#named"}, {"$ref": "https://example.org/s"}]},
            },
        });
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        let Some(Grammar::Schema(schema)) = ToolChoice::Any.grammar(&[tool("f"), tool("g")]) else {
            panic!("expected a schema");
        };
        let place = "#/anyOf/1/properties/arguments";
        let moved = &schema["anyOf"][1]["properties"]["arguments"];
        let item = json!({"$ref": format!("{place}/$defs/item")});
        assert_eq!(moved["$defs"]["item"]["properties"]["next"], item);
        assert_eq!(moved["$defs"]["item"]["properties"]["all"], json!({"$ref": place}));
        assert_eq!(moved["properties"]["$ref"], json!({"type": "string"}));
        assert_eq!(moved["properties"]["const"], item);
        assert_eq!(moved["properties"]["a"], parameters["properties"]["a"]);
        assert_eq!(moved["properties"]["b"], parameters["properties"]["b"]);
    }

    #[test]
    fn allowed_tools_remove_the_others() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (mode, choice) in [("auto", ToolChoice::Auto), ("required", ToolChoice::Any)] {
            let mut tools = vec![tool("f"), tool("g"), tool("h")];
            let allowed = json!({"mode": mode, "tools": [tool("h"), tool("f")]});
            let allowed = json!({"type": "allowed_tools", "allowed_tools": allowed});
            assert_eq!(ToolChoice::read(Some(&allowed), &mut tools).expect("a choice"), choice);
            assert_eq!(tools, [tool("f"), tool("h")]);
        }
    }
}
