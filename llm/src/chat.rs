//! Conversations as text, by the template of a checkpoint.

use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};
use minijinja::context;
use minijinja::value::Value;
use serde::Deserialize;

use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};
use crate::template::Template;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// The template of a checkpoint (Jinja).
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    template: Template,
    bos: String,
    eos: String,
    takes_tools: bool,
}

#[derive(Default, Deserialize)]
struct Raw {
    chat_template: Option<Templates>,
    bos_token: Option<Mark>,
    eos_token: Option<Mark>,
}

/// One template, or several by name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Several(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// A mark, or all that there is to say of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Mark {
    Text(String),
    Described { content: String },
}

impl Mark {
    fn text(mark: Option<Self>) -> String {
        match mark {
            Some(Mark::Text(text) | Mark::Described { content: text }) => text,
            None => String::new(),
        }
    }
}

fn none(path: &Path) -> Error {
    let remedy = "chat with a model that was made for it, or use `generate`";
    Error::file(path, "has no chat template", remedy)
}

impl ChatTemplate {
    /// Reads `chat_template.jinja` of a folder, or the template in `tokenizer_config.json`; or the template of a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`]: no template, or one that is no Jinja, or too large.
    pub fn open(folder: &Path) -> Result<Self> {
        ChatTemplate::find(folder)?.ok_or_else(|| none(folder))
    }

    /// [`ChatTemplate::open`], with `None` for a checkpoint that has no template.
    ///
    /// # Errors
    /// [`Error::File`]: a template that is no Jinja, or a file that cannot be read.
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        if gguf::is_one(folder) {
            let file = Gguf::open(folder)?;
            let Some(source) = file.chat_template()? else {
                return Ok(None);
            };
            let mark = |name| Ok::<_, Error>(file.mark(name)?.map(|mark| mark.text).unwrap_or_default());
            let marks = [mark("bos")?, mark("eos")?];
            return ChatTemplate::of(folder.to_owned(), source.to_owned(), marks).map(Some);
        }
        let config = folder.join("tokenizer_config.json");
        let raw: Raw = match config.exists() {
            true => serde_json::from_str(&read_text(&config)?).map_err(|e| damaged(&config, e))?,
            false => Raw::default(),
        };
        let file = folder.join("chat_template.jinja");
        let (path, source) = match raw.chat_template {
            _ if file.exists() => (file.clone(), read_text(&file)?),
            Some(Templates::One(source)) => (config, source),
            Some(Templates::Several(all)) => {
                let default = all.into_iter().find(|t| t.name == "default");
                let default =
                    default.ok_or_else(|| damaged(&config, "none of its chat templates is named 'default'"))?;
                (config, default.template)
            }
            None => return Ok(None),
        };
        ChatTemplate::of(path, source, [raw.bos_token, raw.eos_token].map(Mark::text)).map(Some)
    }

    fn of(path: PathBuf, source: String, [bos, eos]: [String; 2]) -> Result<Self> {
        let template = Template::new(source).map_err(|e| damaged(&path, e))?;
        Ok(ChatTemplate {
            takes_tools: template.uses("tools"),
            path,
            template,
            bos,
            eos,
        })
    }

    /// A conversation as text that ends where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::File`] with what the template says of messages that it cannot take, or the limit that it came to: a million
    /// instructions, 64 MiB of text.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let message = |m: &Message| context! { role => m.role.as_str(), content => m.content.as_str() };
        self.render_values(messages.iter().map(message).collect::<Value>(), Value::UNDEFINED)
    }

    /// [`ChatTemplate::render`] for messages as OpenAI's API has them, with calls of tools among their fields, and the tools
    /// that may be called.
    ///
    /// # Errors
    /// As there.
    pub fn render_json(&self, messages: &[serde_json::Value], tools: &[serde_json::Value]) -> Result<String> {
        let tools = match tools.is_empty() {
            true => Value::UNDEFINED,
            false => tools.iter().map(value).collect(),
        };
        self.render_values(messages.iter().map(value).collect(), tools)
    }

    /// Whether the template does something with tools.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    fn render_values(&self, messages: Value, tools: Value) -> Result<String> {
        let values = context! {
            messages,
            tools,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let text = self.template.render(values);
        text.map_err(|e| Error::file(&self.path, format!("cannot render the conversation: {e}"), ""))
    }
}

/// JSON as templates have it.
fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::from(whole),
            (None, float) => Value::from(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(all) => all.iter().map(value).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(files: &[(&str, &str)]) -> Result<ChatTemplate> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        ChatTemplate::open(folder.path())
    }

    #[test]
    fn templates_in_all_places() {
        let messages = [Message::new("user", " hi ")];
        let jinja = "{% for m in messages %}\n{{ bos_token + m.content.strip() }}{% endfor %}\n";
        let config =
            r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0]['role'] }}"}"#;
        for (files, expected) in [
            (
                &[("chat_template.jinja", jinja), ("tokenizer_config.json", config)][..],
                "<s>hi",
            ),
            (&[("tokenizer_config.json", config)], "<s>user"),
            (
                &[(
                    "tokenizer_config.json",
                    r#"{"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]}"#,
                )],
                "b",
            ),
        ] {
            let template = open(files).expect("a template");
            assert_eq!(template.render(&messages).expect("text"), expected);
        }
    }

    #[test]
    fn what_is_no_template_is_an_error() {
        for (files, said) in [
            (&[][..], "no chat template"),
            (&[("tokenizer_config.json", "{}")], "no chat template"),
            (&[("chat_template.jinja", "{% for %}")], "is not what it should be"),
            (&[("tokenizer_config.json", r#"{"chat_template": []}"#)], "'default'"),
        ] {
            let error = open(files).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let template = open(&[("chat_template.jinja", "{{ raise_exception('roles must alternate') }}")]);
        let error = template
            .expect("a template")
            .render(&[])
            .expect_err("refused")
            .to_string();
        assert!(error.contains("roles must alternate"), "{error}");
    }
}
