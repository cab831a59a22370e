//! Conversations as text, by the template of a checkpoint.

mod guard;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use meganeura_core::{Error, Result};
use minijinja::value::Value;
use serde::Deserialize;
use serde_json::Value as Json;

use self::guard::{Guard, removed_texts};
use crate::files::{damaged, read_text};
use crate::gguf::{self, Gguf};
use crate::special::SpecialTokens;
use crate::template::Template;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Author of the message: `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

impl Message {
    /// Creates a message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// Conversation for a [`ChatTemplate`], in the format of OpenAI's API.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// Messages with `role`, `content` and, for example, `tool_calls`.
    pub messages: &'a [Json],
    /// Tools that the model may call.
    pub tools: &'a [Json],
    /// Further variables of the template, such as `enable_thinking`.
    pub kwargs: Option<&'a serde_json::Map<String, Json>>,
    /// Ends the text where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Special tokens whose spellings are plain text in messages ([`Tokenizer::special_tokens`]). With `None`, such
    /// spellings become special tokens.
    ///
    /// [`Tokenizer::special_tokens`]: crate::Tokenizer::special_tokens
    pub special_tokens: Option<&'a SpecialTokens>,
}

impl<'a> ChatInput<'a> {
    /// Creates a conversation that ends where the model's answer begins.
    pub fn new(messages: &'a [Json]) -> Self {
        ChatInput {
            messages,
            tools: &[],
            kwargs: None,
            add_generation_prompt: true,
            special_tokens: None,
        }
    }
}

/// Text of a conversation, for [`Tokenizer::encode_chat`](crate::Tokenizer::encode_chat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    /// The text.
    pub text: String,
    /// Byte offsets in `text`, ascending. Spellings of special tokens that span one of them are encoded as text.
    pub(crate) guards: Vec<usize>,
}

/// The template of a checkpoint (Jinja).
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    template: Template,
    /// Template for conversations with tools, if the checkpoint has a separate one.
    with_tools: Option<Template>,
    /// Sources of both templates, to search them for the names of roles.
    sources: [String; 2],
    /// Texts that the templates remove from messages.
    removed: Vec<String>,
    /// Roles whose messages appeared in a rendered text: of the template, or of the one for tools.
    written: Mutex<Vec<(String, bool)>>,
    bos: String,
    eos: String,
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
    Several(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    /// Returns the source of the template for conversations, and of the one for conversations with tools.
    fn sources(self) -> Option<Sources> {
        match self {
            Templates::One(source) => Some(Sources {
                default: source,
                with_tools: None,
            }),
            Templates::Several(all) => {
                let mut all: BTreeMap<String, String> = all.into_iter().map(|t| (t.name, t.template)).collect();
                Some(Sources {
                    default: all.remove("default")?,
                    with_tools: all.remove(TOOL_USE),
                })
            }
        }
    }
}

/// Texts of the templates of a checkpoint.
struct Sources {
    default: String,
    with_tools: Option<String>,
}

/// Name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// A special token: its spelling, or an object that contains it.
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

/// Roles that a template may support although its source does not contain their names, as in ChatML.
const COMMON_ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// Checks the type of tool call ids: text or number. A comparison of two lists takes long, and some templates compare all pairs of ids.
///
/// # Errors
/// [`Error::InvalidUse`] with the name of the field.
fn check_ids(messages: &[Json]) -> Result<()> {
    for message in messages {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let ids = calls.map(|call| ("id", &call["id"]));
        for (field, id) in ids.chain([("tool_call_id", &message["tool_call_id"])]) {
            if !matches!(id, Json::Null | Json::String(_) | Json::Number(_)) {
                return Err(Error::misuse(
                    format!("'{field}' of a message is neither a text nor a number"),
                    "use the id of the tool call",
                ));
            }
        }
    }
    Ok(())
}

/// Roles that a template supports if its source contains their names.
const PROVEN_ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

fn none(path: &Path) -> Error {
    let remedy = "use an instruction-tuned model with a chat template, or use `generate`";
    Error::file(path, "has no chat template", remedy)
}

impl ChatTemplate {
    /// Reads the template of a folder, or of a GGUF file. In a folder, it is in `chat_template.jinja`, `chat_template.json` or
    /// `tokenizer_config.json`; a template for conversations with tools is in the list of templates in `tokenizer_config.json`, or in
    /// `additional_chat_templates/tool_use.jinja`.
    ///
    /// # Errors
    /// [`Error::File`]: a missing template, one that is not valid Jinja, or one that is too large.
    pub fn open(folder: &Path) -> Result<Self> {
        ChatTemplate::find(folder)?.ok_or_else(|| none(folder))
    }

    /// Opens a template like [`ChatTemplate::open`]; returns `None` for a checkpoint without a
    /// template.
    ///
    /// # Errors
    /// [`Error::File`]: a template that is not valid Jinja, or a file that cannot be read.
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        if gguf::is_one(folder) {
            let file = Gguf::open(folder)?;
            let Some(source) = file.chat_template()? else {
                return Ok(None);
            };
            let mark = |name| Ok::<_, Error>(file.mark(name)?.map(|mark| mark.text).unwrap_or_default());
            let marks = [mark("bos")?, mark("eos")?];
            let sources = Sources {
                default: source.to_owned(),
                with_tools: file.named_chat_template(TOOL_USE)?.map(str::to_owned),
            };
            return ChatTemplate::of(folder.to_owned(), sources, marks).map(Some);
        }
        let config = folder.join("tokenizer_config.json");
        let read = |path: &Path| -> Result<Raw> {
            if path.exists() {
                serde_json::from_str(&read_text(path)?).map_err(|e| damaged(path, e))
            } else {
                Ok(Raw::default())
            }
        };
        let raw = read(&config)?;
        let marks = [raw.bos_token, raw.eos_token].map(Mark::text);
        let file = folder.join("chat_template.jinja");
        if file.exists() {
            let with_tools = folder
                .join("additional_chat_templates")
                .join(format!("{TOOL_USE}.jinja"));
            let sources = Sources {
                default: read_text(&file)?,
                with_tools: with_tools.exists().then(|| read_text(&with_tools)).transpose()?,
            };
            return ChatTemplate::of(file, sources, marks).map(Some);
        }
        let of_processor = folder.join("chat_template.json");
        let found = match raw.chat_template {
            Some(templates) => Some((config, templates)),
            None => read(&of_processor)?
                .chat_template
                .map(|templates| (of_processor, templates)),
        };
        let Some((path, templates)) = found else {
            return Ok(None);
        };
        let sources = templates
            .sources()
            .ok_or_else(|| damaged(&path, "none of its chat templates is named 'default'"))?;
        ChatTemplate::of(path, sources, marks).map(Some)
    }

    fn of(path: PathBuf, sources: Sources, [bos, eos]: [String; 2]) -> Result<Self> {
        let compile = |source: &str| Template::new(source.to_owned()).map_err(|e| e.convert(|e| damaged(&path, e)));
        Ok(ChatTemplate {
            template: compile(&sources.default)?,
            with_tools: sources.with_tools.as_deref().map(compile).transpose()?,
            removed: [Some(&sources.default), sources.with_tools.as_ref()]
                .into_iter()
                .flatten()
                .flat_map(|source| removed_texts(source))
                .collect(),
            sources: [sources.default, sources.with_tools.unwrap_or_default()],
            written: Mutex::default(),
            path,
            bos,
            eos,
        })
    }

    /// Sets the date that templates write, in seconds since 1970 in UTC, instead of the current one in the local time zone.
    ///
    /// # Errors
    /// [`Error::InvalidUse`]: a number of seconds that is outside of the range of dates.
    pub fn set_date(&mut self, seconds: i64) -> Result<()> {
        let date = jiff::Timestamp::from_second(seconds);
        let date = date.map_err(|e| Error::misuse(format!("{seconds} s since 1970 is not a date: {e}"), ""))?;
        let date = date.to_zoned(jiff::tz::TimeZone::UTC);
        for template in std::iter::once(&mut self.template).chain(&mut self.with_tools) {
            template.set_date(date.clone());
        }
        Ok(())
    }

    /// Renders a conversation as text that ends where the model's answer begins, with special
    /// tokens of `special_tokens` only if the template writes them.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render_chat`].
    pub fn render(&self, messages: &[Message], special_tokens: Option<&SpecialTokens>) -> Result<RenderedChat> {
        let message = |m: &Message| serde_json::json!({"role": m.role, "content": m.content});
        let messages: Vec<Json> = messages.iter().map(message).collect();
        self.render_chat(&ChatInput {
            special_tokens,
            ..ChatInput::new(&messages)
        })
    }

    /// Renders a conversation.
    ///
    /// The role `developer` becomes `system` in templates that do not name it.
    ///
    /// # Errors
    /// [`Error::InvalidUse`]: a role that the template does not support, a variable that it does not read.
    /// [`Error::File`] with the template's own error for messages that it rejects, or the exceeded limit: a million
    /// instructions, 64 MiB of text.
    pub fn render_chat(&self, input: &ChatInput) -> Result<RenderedChat> {
        let has_tools = !input.tools.is_empty();
        let template = self.with_tools.as_ref().filter(|_| has_tools).unwrap_or(&self.template);
        if let Some(name) = input
            .kwargs
            .and_then(|kwargs| kwargs.keys().find(|name| !template.uses(name)))
        {
            return Err(Error::misuse(
                format!("the chat template does not read the variable '{name}'"),
                "leave it out of chat_template_kwargs",
            ));
        }
        let mut messages = input.messages.to_vec();
        // Templates test whether a field is defined; transformers drops fields without a value, too.
        for message in messages.iter_mut().filter_map(Json::as_object_mut) {
            message.retain(|_, value| !value.is_null());
        }
        let unproven = self.check_roles(&mut messages, has_tools)?;
        check_ids(&messages)?;
        let input = ChatInput {
            messages: &messages,
            ..*input
        };
        let rendered = self.render_with(template, &input)?;
        let uses_second = has_tools && self.with_tools.is_some();
        for role in unproven {
            let known = (role, uses_second);
            if self.written.lock().is_ok_and(|written| written.contains(&known)) {
                continue;
            }
            let role = known.0.as_str();
            // A template without names of roles writes every role; a template with other names may drop the message. The name may also
            // occur in the template for another purpose.
            let mut changed = messages.clone();
            let has_text = |message: &Json| message["content"].as_str().is_some_and(|text| !text.trim().is_empty());
            let Some(message) = changed
                .iter_mut()
                .find(|message| message["role"] == role && has_text(message))
            else {
                continue;
            };
            let text = message["content"].as_str().unwrap_or_default();
            message["content"] = Json::from(format!("{}.", text.trim_end()));
            let changed = ChatInput {
                messages: &changed,
                ..input
            };
            if self.render_with(template, &changed)?.text == rendered.text {
                return Err(Error::misuse(
                    format!("the chat template ignores messages of the role '{role}'"),
                    "use the roles that the model was trained with",
                ));
            }
            if let Ok(mut written) = self.written.lock()
                && !written.contains(&known)
            {
                written.push(known);
            }
        }
        Ok(rendered)
    }

    /// Maps `developer` to `system`. Returns the roles that the template may drop: common roles that it does not name, and other roles
    /// that it names.
    fn check_roles(&self, messages: &mut [Json], has_tools: bool) -> Result<Vec<String>> {
        let source = match (has_tools, self.sources[1].as_str()) {
            (true, source) if !source.is_empty() => source,
            _ => &self.sources[0],
        };
        let names = |role: &str| source.contains(&format!("'{role}'")) || source.contains(&format!("\"{role}\""));
        let mut unproven: Vec<String> = Vec::new();
        for message in messages {
            let Some(role) = message["role"].as_str() else { continue };
            // An empty role would match any empty string in the template.
            if !role.is_empty() && names(role) {
                if !PROVEN_ROLES.contains(&role) && !unproven.iter().any(|other| other == role) {
                    unproven.push(role.to_owned());
                }
                continue;
            }
            if role == "developer" {
                message["role"] = "system".into();
                continue;
            }
            let Some(&common) = COMMON_ROLES.iter().find(|common| **common == role) else {
                let role: String = role.chars().take(40).collect();
                return Err(Error::misuse(
                    format!("expected a role that the chat template writes, found '{role}'"),
                    format!("use {}", COMMON_ROLES.join(", ")),
                ));
            };
            if !unproven.iter().any(|other| other == common) {
                unproven.push(common.to_owned());
            }
        }
        Ok(unproven)
    }

    /// Returns true if a template reads the list of tools.
    pub fn takes_tools(&self) -> bool {
        self.with_tools.is_some() || self.template.uses("tools")
    }

    /// Returns true if the template reads a variable, such as `enable_thinking`.
    pub fn uses(&self, variable: &str) -> bool {
        self.template.uses(variable) || self.with_tools.as_ref().is_some_and(|template| template.uses(variable))
    }

    fn render_with(&self, template: &Template, input: &ChatInput) -> Result<RenderedChat> {
        let guard = Guard::new(input, &self.removed);
        let list = |items: &[Json]| items.iter().map(|item| guard.value(item)).collect::<Value>();
        // As in transformers, the value is `none` without tools, because some templates compare with it.
        let tools = match input.tools {
            [] => Value::from(()),
            tools => list(tools),
        };
        let usual = std::iter::once(("documents", Value::from(())));
        let own = [
            ("messages", list(input.messages)),
            ("tools", tools),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("bos_token", self.bos.as_str().into()),
            ("eos_token", self.eos.as_str().into()),
        ];
        let kwargs = input.kwargs.into_iter().flatten();
        let kwargs = kwargs.map(|(name, value)| (name.as_str(), guard.value(value)));
        // The conversation itself cannot be replaced.
        let values = Value::from_pairs(usual.chain(kwargs).chain(own));
        let text = template.render(values);
        let refused = |e| Error::file(&self.path, format!("cannot render the conversation: {e}"), "");
        let text = text.map_err(|e| e.convert(refused))?;
        Ok(guard.take_out(text))
    }
}

#[cfg(test)]
mod tests;
