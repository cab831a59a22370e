//! Training examples for language models, from files with JSON objects.
//!
//! A file contains one object per line (JSON Lines) or a list of objects. All of them have one of these formats:
//!
//! | Fields | Contents |
//! |---|---|
//! | `messages`, optionally `tools` | a conversation in the format of OpenAI's API |
//! | `conversations` with `from` and `value` | a conversation in the format of ShareGPT |
//! | `prompt` and `completion` | texts, or lists of messages |
//! | `instruction`, optionally `input`, and `output` | a question and its answer, in the format of Alpaca |
//! | `text` | a document |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};
use serde_json::{Map, Value, json};

use crate::special::SpecialTokens;
use crate::{ChatInput, ChatTemplate, Tokenizer};

const REMEDY: &str = "the guide on language models describes the formats of training data";

/// Format of the objects of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleFormat {
    /// Conversations with `messages`.
    Messages,
    /// Conversations with `conversations`, as of ShareGPT.
    Conversations,
    /// `prompt` and `completion`.
    PromptCompletion,
    /// `instruction`, `input` and `output`, as of Alpaca.
    Instruction,
    /// Documents with `text`.
    Text,
}

impl ExampleFormat {
    const ALL: [Self; 5] = [
        ExampleFormat::Messages,
        ExampleFormat::Conversations,
        ExampleFormat::PromptCompletion,
        ExampleFormat::Instruction,
        ExampleFormat::Text,
    ];

    /// Returns the fields that every object has.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            ExampleFormat::Messages => &["messages"],
            ExampleFormat::Conversations => &["conversations"],
            ExampleFormat::PromptCompletion => &["prompt", "completion"],
            ExampleFormat::Instruction => &["instruction", "output"],
            ExampleFormat::Text => &["text"],
        }
    }

    /// Returns the fields that an object may have in addition.
    fn optional(self) -> &'static [&'static str] {
        match self {
            ExampleFormat::Messages | ExampleFormat::Conversations => &["tools"],
            ExampleFormat::Instruction => &["input"],
            ExampleFormat::PromptCompletion | ExampleFormat::Text => &[],
        }
    }

    fn matches(self, record: &Map<String, Value>) -> bool {
        self.fields().iter().all(|field| record.contains_key(*field))
    }
}

/// Tokens that the loss counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossOn {
    /// The answers: messages of the assistant, completions and outputs, each with the token that ends it. All tokens of
    /// documents.
    #[default]
    Answers,
    /// All tokens.
    All,
}

/// A sequence of tokens for training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingExample {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// True for each token whose prediction the loss counts.
    pub is_scored: Vec<bool>,
}

/// Joins examples to sequences of at most `rows` inputs and a last label, so that there is less padding. An example that is
/// longer is not joined. The longest examples are placed first, each in the sequence with the least sufficient room.
///
/// The tokens of an example see the examples before it in its sequence. The loss does not count the first token of an example, which
/// an earlier example cannot predict.
pub fn pack(examples: impl IntoIterator<Item = TrainingExample>, rows: usize) -> Vec<TrainingExample> {
    let mut examples: Vec<TrainingExample> = examples.into_iter().collect();
    // Stable, so that equal data give equal sequences.
    examples.sort_by_key(|example| std::cmp::Reverse(example.tokens.len()));
    let mut sequences: Vec<TrainingExample> = Vec::new();
    // Sequences by their remaining room.
    let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
    for mut example in examples {
        if let Some(first) = example.is_scored.first_mut() {
            *first = false;
        }
        let length = example.tokens.len();
        let best = open.range((length, 0)..).next().copied();
        let (room, at) = match best {
            Some((room, at)) => {
                open.remove(&(room, at));
                let sequence = &mut sequences[at];
                sequence.tokens.extend(example.tokens);
                sequence.is_scored.extend(example.is_scored);
                (room - length, at)
            }
            None => {
                sequences.push(example);
                ((rows + 1).saturating_sub(length), sequences.len() - 1)
            }
        };
        if room > 0 {
            open.insert((room, at));
        }
    }
    sequences
}

/// Objects of a file, before they are tokenized.
#[derive(Clone, Debug)]
pub struct ExampleRecords {
    format: ExampleFormat,
    /// Line of each object in the file, or its number in a list, from 1 on.
    places: Vec<usize>,
    /// What the places count: `line` or `object`.
    kind: &'static str,
    records: Vec<Map<String, Value>>,
    path: PathBuf,
}

impl ExampleRecords {
    /// Parses the text of a file. `path` appears in errors.
    ///
    /// # Errors
    /// [`Error::File`] with the line of an object that is malformed or has other fields than the first one; a file without
    /// objects.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let kind = if is_list(text) { "object" } else { "line" };
        let wrong = |place: usize, message: String| Error::file(path, format!("{kind} {place}: {message}"), REMEDY);
        let values: Vec<(usize, Value)> = if is_list(text) {
            let values: Vec<Value> = serde_json::from_str(text)
                .map_err(|e| Error::file(path, format!("is not a JSON list of examples: {e}"), REMEDY))?;
            (1..).zip(values).collect()
        } else {
            let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
            let parse = |(place, line): (usize, &str)| match serde_json::from_str(line) {
                Ok(value) => Ok((place, value)),
                Err(error) => Err(wrong(place, format!("expected a JSON object: {error}"))),
            };
            lines.map(parse).collect::<Result<_>>()?
        };
        let mut format = None;
        let (mut places, mut records) = (Vec::new(), Vec::new());
        for (place, value) in values {
            let Value::Object(record) = value else {
                return Err(wrong(place, "expected a JSON object".into()));
            };
            let expected = match format {
                Some(format) => format,
                None => {
                    let found = ExampleFormat::ALL.into_iter().find(|format| format.matches(&record));
                    *format.insert(found.ok_or_else(|| wrong(place, unknown_format(&record)))?)
                }
            };
            if !expected.matches(&record) {
                let message = format!(
                    "expected the fields {} as in the first object, found {}",
                    quoted(expected.fields().iter()),
                    quoted(record.keys())
                );
                return Err(wrong(place, message));
            }
            places.push(place);
            records.push(record);
        }
        let Some(format) = format else {
            return Err(Error::file(path, "has no examples", REMEDY));
        };
        Ok(ExampleRecords {
            format,
            places,
            kind,
            records,
            path: path.to_owned(),
        })
    }

    /// Returns the format of the objects.
    pub fn format(&self) -> ExampleFormat {
        self.format
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the names of the fields that are not used, in alphabetical order.
    pub fn unused_fields(&self) -> Vec<&str> {
        let (fields, optional) = (self.format.fields(), self.format.optional());
        let names = self.records.iter().flat_map(Map::keys).map(String::as_str);
        let unused = names.filter(|name| !fields.contains(name) && !optional.contains(name));
        unused.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns all texts of the objects, for the training of a tokenizer.
    pub fn texts(&self) -> String {
        fn add(value: &Value, text: &mut String) {
            match value {
                Value::String(more) => {
                    text.push_str(more);
                    text.push('\n');
                }
                Value::Array(values) => values.iter().for_each(|value| add(value, text)),
                Value::Object(fields) => fields.values().for_each(|value| add(value, text)),
                _ => {}
            }
        }
        let mut text = String::new();
        let fields = self.format.fields().iter().chain(self.format.optional());
        for record in &self.records {
            fields
                .clone()
                .filter_map(|field| record.get(*field))
                .for_each(|value| add(value, &mut text));
        }
        text
    }

    /// Tokenizes the objects: the examples of each object, in the order of the file.
    ///
    /// Conversations need a chat template. A conversation is one example, unless the template writes earlier answers
    /// differently from the last one, for example without their reasoning. Then each answer is an example of its own.
    /// `stop` are the tokens that end an answer; documents and completions without a template end with the first one.
    ///
    /// # Errors
    /// [`Error::File`] with the line of an object whose fields have wrong types, or that the template rejects; a conversation
    /// without a template or without an answer.
    pub fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
        stop: &[u32],
        loss_on: LossOn,
    ) -> Result<Vec<Vec<TrainingExample>>> {
        let encoder = Encoder {
            tokenizer,
            template,
            special_tokens: tokenizer.special_tokens(),
            stop,
            loss_on,
        };
        let examples = self.records.iter().zip(&self.places).map(|(record, place)| {
            let examples = encoder.examples(self.format, record);
            examples.map_err(|message| Error::file(&self.path, format!("{} {place}: {message}", self.kind), REMEDY))
        });
        examples.collect()
    }
}

/// Returns true if a text is a JSON list rather than JSON Lines.
fn is_list(text: &str) -> bool {
    text.trim_start().starts_with('[')
}

fn quoted<T: AsRef<str>>(names: impl Iterator<Item = T>) -> String {
    let names: Vec<String> = names.take(8).map(|name| format!("'{}'", name.as_ref())).collect();
    if names.is_empty() {
        return "none".into();
    }
    names.join(", ")
}

fn unknown_format(record: &Map<String, Value>) -> String {
    format!(
        "expected the fields 'messages', 'conversations', 'prompt' and 'completion', 'instruction' and 'output', or 'text', \
         found {}",
        quoted(record.keys())
    )
}

/// Converter of objects to tokens.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    special_tokens: SpecialTokens,
    stop: &'a [u32],
    loss_on: LossOn,
}

impl Encoder<'_> {
    fn examples(&self, format: ExampleFormat, record: &Map<String, Value>) -> Result<Vec<TrainingExample>, String> {
        let text = |name: &str| match record.get(name) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(format!("expected a text in '{name}'")),
        };
        match format {
            ExampleFormat::Text => Ok(vec![self.document(text("text")?)?]),
            ExampleFormat::Messages => {
                let messages = list(record.get("messages"), "messages")?;
                self.conversation(messages.clone(), record)
            }
            ExampleFormat::Conversations => {
                let turns = list(record.get("conversations"), "conversations")?;
                let messages = turns.iter().map(message_of_turn).collect::<Result<_, _>>()?;
                self.conversation(messages, record)
            }
            ExampleFormat::PromptCompletion if record["prompt"].is_array() => {
                let [prompt, completion] = ["prompt", "completion"].map(|name| list(record.get(name), name));
                self.conversation([prompt?.clone(), completion?.clone()].concat(), record)
            }
            ExampleFormat::PromptCompletion => Ok(vec![self.completion(text("prompt")?, text("completion")?)?]),
            ExampleFormat::Instruction => {
                let more = match record.get("input") {
                    None | Some(Value::Null) => "",
                    Some(_) => text("input")?,
                };
                let (instruction, output) = (text("instruction")?, text("output")?);
                let separator = if more.is_empty() { "" } else { "\n\n" };
                let question = format!("{instruction}{separator}{more}");
                if self.template.is_none() {
                    return Ok(vec![self.completion(&format!("{question}\n\n"), output)?]);
                }
                let messages = vec![
                    json!({"role": "user", "content": question}),
                    json!({"role": "assistant", "content": output}),
                ];
                self.conversation(messages, record)
            }
        }
    }

    /// Returns the example of a text, which ends with a stop token.
    fn document(&self, text: &str) -> Result<TrainingExample, String> {
        let mut tokens = self.tokenizer.encode(text).map_err(|e| e.to_string())?;
        self.end(&mut tokens);
        let is_scored = vec![true; tokens.len()];
        Ok(TrainingExample { tokens, is_scored })
    }

    fn completion(&self, prompt: &str, completion: &str) -> Result<TrainingExample, String> {
        let mut tokens = self.tokenizer.encode(prompt).map_err(|e| e.to_string())?;
        let answer = tokens.len();
        tokens.extend(self.tokenizer.encode_plain(completion).map_err(|e| e.to_string())?);
        self.end(&mut tokens);
        let is_scored = (0..tokens.len()).map(|at| at >= answer || self.loss_on == LossOn::All);
        let is_scored = is_scored.collect();
        Ok(TrainingExample { tokens, is_scored })
    }

    /// Appends a stop token, unless the tokens end with one.
    fn end(&self, tokens: &mut Vec<u32>) {
        if let Some(&stop) = self.stop.first()
            && !tokens.last().is_some_and(|last| self.stop.contains(last))
        {
            tokens.push(stop);
        }
    }

    fn conversation(
        &self,
        mut messages: Vec<Value>,
        record: &Map<String, Value>,
    ) -> Result<Vec<TrainingExample>, String> {
        let Some(template) = self.template else {
            return Err(
                "a conversation needs a chat template, which the model does not have; use 'prompt' and \
                        'completion'"
                    .into(),
            );
        };
        let none = Vec::new();
        let tools = match record.get("tools") {
            None | Some(Value::Null) => &none,
            tools => list(tools, "tools")?,
        };
        let encode = |messages: &[Value], add_generation_prompt: bool| {
            let input = ChatInput {
                messages,
                tools,
                kwargs: None,
                add_generation_prompt,
                special_tokens: Some(&self.special_tokens),
            };
            let chat = template.render_chat(&input).map_err(|e| e.to_string())?;
            self.tokenizer.encode_chat(&chat).map_err(|e| e.to_string())
        };
        messages.iter_mut().for_each(open_arguments);
        let whole = encode(&messages, false)?;
        if self.loss_on == LossOn::All {
            let is_scored = vec![true; whole.len()];
            return Ok(vec![TrainingExample {
                tokens: whole,
                is_scored,
            }]);
        }
        let mut apart = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            if message["role"] != "assistant" {
                continue;
            }
            let before = match encode(&messages[..at], true) {
                // Templates may refuse a conversation without messages.
                Err(_) if at == 0 => Vec::new(),
                before => before?,
            };
            let tokens = encode(&messages[..=at], false)?;
            let start = before.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            // Templates may write more after the token that ends the answer. The model never generates it.
            let last = tokens[start..].iter().rposition(|token| self.stop.contains(token));
            let end = last.map_or(tokens.len(), |last| start + last + 1);
            let is_scored = (0..tokens.len()).map(|at| (start..end).contains(&at)).collect();
            apart.push(TrainingExample { tokens, is_scored });
        }
        if apart.is_empty() {
            return Err("the conversation has no message of the role 'assistant'".into());
        }
        if !apart.iter().all(|example| whole.starts_with(&example.tokens)) {
            return Ok(apart);
        }
        let mut is_scored = vec![false; whole.len()];
        for example in apart {
            for (all, own) in is_scored.iter_mut().zip(example.is_scored) {
                *all |= own;
            }
        }
        Ok(vec![TrainingExample {
            tokens: whole,
            is_scored,
        }])
    }
}

fn list<'a>(value: Option<&'a Value>, name: &str) -> Result<&'a Vec<Value>, String> {
    match value {
        Some(Value::Array(values)) if !values.is_empty() => Ok(values),
        _ => Err(format!("expected a list in '{name}'")),
    }
}

/// Parses the arguments of tool calls. OpenAI's API has them as JSON text, but templates expect objects.
fn open_arguments(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let opened = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(opened @ Value::Object(_)) = opened {
            *arguments = opened;
        }
    }
}

/// Converts a turn of ShareGPT to a message.
fn message_of_turn(turn: &Value) -> Result<Value, String> {
    let role = match turn["from"].as_str() {
        Some("human" | "user") => "user",
        Some("gpt" | "assistant" | "model" | "chatgpt") => "assistant",
        Some("system") => "system",
        Some("tool" | "observation") => "tool",
        _ => return Err("expected 'from' with human, gpt, system or tool in each turn of 'conversations'".into()),
    };
    match &turn["value"] {
        Value::String(text) => Ok(json!({"role": role, "content": text})),
        _ => Err("expected a text in 'value' of each turn of 'conversations'".into()),
    }
}
