//! Tests that templates of many families render the same text as transformers (scripts/verify-external/make_chat_templates.py).

use std::path::{Path, PathBuf};

use meganeura_llm::{ChatInput, ChatTemplate};
use serde_json::{Map, Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/chat_templates")
}

/// Opens a template in the layout of a checkpoint, with the date of the expectations. `source` replaces the file of that name.
fn open(name: &str, source: Option<&str>, expected: &Value) -> ChatTemplate {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = json!({"bos_token": expected["bos_token"], "eos_token": expected["eos_token"]});
    let list = fixtures().join(format!("{name}.json"));
    if let Some(source) = source {
        std::fs::write(folder.path().join("chat_template.jinja"), source).expect("written");
    } else if list.exists() {
        let list: Value = serde_json::from_str(&std::fs::read_to_string(list).expect("a fixture")).expect("json");
        config["chat_template"] = list.get("chat_template").cloned().unwrap_or(list);
    } else {
        let source = std::fs::read(fixtures().join(format!("{name}.jinja"))).expect("a fixture");
        std::fs::write(folder.path().join("chat_template.jinja"), source).expect("written");
    }
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("written");
    let mut template = ChatTemplate::open(folder.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
    // 2025-07-06 14:03:09 UTC.
    assert_eq!(expected["now"], "2025-07-06T14:03:09");
    template.set_date(1_751_810_589).expect("a date");
    template
}

/// Expressions of Jinja that our engine does not support or escapes differently. No published template is known to use them.
const MISSING: [&str; 3] = [" % ('a', 2", "| truncate(", "| e "];

/// Returns true for errors of rules that only this crate has; transformers accepts such conversations.
fn is_rule(error: &str) -> bool {
    [
        "ignores messages of the role",
        "does not read the variable",
        "expected a role that the chat template writes",
    ]
    .iter()
    .any(|rule| error.contains(rule))
}

#[test]
fn templates_render_what_transformers_renders() {
    let text = std::fs::read_to_string(fixtures().join("expected.json")).expect("a fixture");
    let expected: Value = serde_json::from_str(&text).expect("json");
    let cases = expected["cases"].as_array().expect("cases");
    let (mut compared, mut refused, mut wrong) = (0, 0, Vec::new());
    let mut opened: Option<((&str, Option<&str>), ChatTemplate)> = None;
    for case in cases {
        let name = case["template"].as_str().expect("a name");
        let source = case["source"].as_str();
        if opened.as_ref().is_none_or(|(open, _)| *open != (name, source)) {
            opened = Some(((name, source), open(name, source, &expected)));
        }
        let Some((_, template)) = &opened else { continue };
        let messages = case["messages"].as_array().expect("messages");
        let tools = case["tools"].as_array().cloned().unwrap_or_default();
        let mut kwargs: Map<String, Value> = case["kwargs"].as_object().cloned().unwrap_or_default();
        let add_generation_prompt = kwargs.remove("add_generation_prompt").is_none_or(|value| value == true);
        let rendered = template.render_chat(&ChatInput {
            tools: &tools,
            kwargs: Some(&kwargs),
            add_generation_prompt,
            ..ChatInput::new(messages)
        });
        let rendered = rendered.map(|chat| chat.text).map_err(|e| e.to_string());
        let wanted = case["text"].as_str();
        match (&rendered, wanted) {
            (Ok(found), Some(wanted)) if found == wanted => compared += 1,
            (Err(error), _) if is_rule(error) => refused += 1,
            (Err(_), None) => compared += 1,
            _ if source.is_some_and(|source| MISSING.iter().any(|missing| source.contains(missing))) => refused += 1,
            // `developer` is `system` if the template does not mention it.
            _ if messages.iter().any(|message| message["role"] == "developer") => refused += 1,
            _ => wrong.push(format!(
                "{name}, {}:\n{rendered:?}\n{wanted:?} {}",
                case["conversation"], case["error"]
            )),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n\n")
    );
    assert!(compared > 250, "{compared} compared, {refused} refused");
}
