//! Conversations as text, by the template of a checkpoint.

use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::Deserialize;

use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};

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
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

#[derive(Default, Deserialize)]
struct Raw {
    chat_template: Option<Template>,
    bos_token: Option<Mark>,
    eos_token: Option<Mark>,
}

/// One template, or several by name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Template {
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

/// Name of the template within its environment.
const NAME: &str = "chat";

impl ChatTemplate {
    /// Reads `chat_template.jinja` of a folder, or the template in `tokenizer_config.json`; or the template of a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`]: no template, or one that is no Jinja.
    pub fn open(folder: &Path) -> Result<Self> {
        if gguf::is_one(folder) {
            let file = Gguf::open(folder)?;
            let source = file.chat_template()?.ok_or_else(|| none(folder))?.to_owned();
            let mark = |name| Ok::<_, Error>(file.mark(name)?.map(|mark| mark.text).unwrap_or_default());
            return ChatTemplate::of(folder.to_owned(), source, [mark("bos")?, mark("eos")?]);
        }
        let config = folder.join("tokenizer_config.json");
        let raw: Raw = match config.exists() {
            true => serde_json::from_str(&read_text(&config)?).map_err(|e| damaged(&config, e))?,
            false => Raw::default(),
        };
        let file = folder.join("chat_template.jinja");
        let (path, source) = match raw.chat_template {
            _ if file.exists() => (file.clone(), read_text(&file)?),
            Some(Template::One(source)) => (config, source),
            Some(Template::Several(all)) => {
                let default = all.into_iter().find(|t| t.name == "default");
                let default =
                    default.ok_or_else(|| damaged(&config, "none of its chat templates is named 'default'"))?;
                (config, default.template)
            }
            None => return Err(none(folder)),
        };
        ChatTemplate::of(path, source, [raw.bos_token, raw.eos_token].map(Mark::text))
    }

    fn of(path: PathBuf, source: String, [bos, eos]: [String; 2]) -> Result<Self> {
        let mut environment = Environment::new();
        // As templates are written for.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| damaged(&path, e))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| damaged(&path, e))?;
        Ok(ChatTemplate {
            path,
            environment,
            bos,
            eos,
        })
    }

    /// A conversation as text that ends where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::File`] with what the template says of messages that it cannot take.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let message = |m: &Message| context! { role => m.role.as_str(), content => m.content.as_str() };
        let values = context! {
            messages => messages.iter().map(message).collect::<Value>(),
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let template = self.environment.get_template(NAME);
        let text = template.and_then(|template| template.render(values));
        text.map_err(|e| Error::file(&self.path, format!("cannot render the conversation: {e}"), ""))
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
