//! Guards: characters that separate spellings of special tokens in messages from special tokens of the template.

use aho_corasick::AhoCorasick;
use minijinja::value::Value;
use serde_json::Value as Json;

use super::{ChatInput, RenderedChat};
use crate::special::SpecialTokens;

/// Words that templates compare with, or concatenate with special tokens, as in `'<|' + message.role + '|>'`. They are
/// not user text, so they get no guards at their start and end.
pub(super) const STRUCTURE: [&str; 56] = [
    "arguments",
    "array",
    "assistant",
    "audio",
    "boolean",
    "citations",
    "content",
    "default",
    "description",
    "developer",
    "documents",
    "enum",
    "false",
    "file",
    "format",
    "function",
    "functions",
    "id",
    "image",
    "image_url",
    "index",
    "input_audio",
    "integer",
    "items",
    "model",
    "name",
    "null",
    "number",
    "object",
    "parameters",
    "properties",
    "query",
    "reasoning",
    "reasoning_content",
    "refusal",
    "required",
    "return",
    "role",
    "snippet",
    "strict",
    "string",
    "system",
    "text",
    "thinking",
    "title",
    "tool",
    "tool_call_id",
    "tool_calls",
    "tool_plan",
    "tool_response",
    "true",
    "type",
    "url",
    "user",
    "value",
    "video",
];

/// Candidates for the guard, for private use in Unicode. The last one is used if texts contain all of the rest.
const FIRST: char = '\u{f5a00}';
const LAST: char = '\u{f5a64}';

/// Inserts guards (a character that occurs nowhere else) into spellings of special tokens in messages.
pub(super) struct Guard<'a> {
    tokens: Option<(&'a SpecialTokens, &'a AhoCorasick)>,
    /// Texts that the template removes.
    removed: &'a [String],
    character: char,
}

impl<'a> Guard<'a> {
    pub(super) fn new(input: &ChatInput<'a>, removed: &'a [String]) -> Self {
        let tokens = input
            .special_tokens
            .and_then(|tokens| Some((tokens, tokens.automaton()?)));
        let kwargs = input.kwargs.into_iter().flat_map(|kwargs| kwargs.values());
        let texts = input.messages.iter().chain(input.tools).chain(kwargs);
        let character = match tokens {
            Some(_) => {
                let mut used = 0;
                texts.for_each(|json| add_used(json, &mut used));
                (FIRST..LAST)
                    .zip(0..)
                    .find(|(_, bit)| used >> bit & 1_u128 == 0)
                    .map_or(LAST, |(c, _)| c)
            }
            None => LAST,
        };
        Guard {
            tokens,
            removed,
            character,
        }
    }

    /// Converts JSON to a template value.
    pub(super) fn value(&self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(truth) => Value::from(*truth),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Value::from(whole),
                (None, float) => Value::from(float.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::from(self.mark(text)),
            Json::Array(all) => all.iter().map(|item| self.value(item)).collect(),
            Json::Object(fields) => {
                let value = |name: &str, field: &Json| match field {
                    // Roles that the template does not name are errors.
                    Json::String(role) if name == "role" => Value::from(self.mark_within(role)),
                    field => self.value(field),
                };
                let pairs = fields.iter().map(|(name, field)| (self.mark(name), value(name, field)));
                Value::from_pairs(pairs)
            }
        }
    }

    /// Returns the text with guards in each spelling, and at its start or end if adjacent text could complete a
    /// spelling.
    fn mark(&self, text: &str) -> String {
        let mut marked = self.mark_within(text);
        if let Some((tokens, _)) = self.tokens
            && STRUCTURE.binary_search(&text).is_err()
        {
            // Templates often trim texts.
            let (at_start, at_end) = tokens.edges(text.trim());
            if at_end {
                marked.insert(marked.trim_end().len(), self.character);
            }
            if at_start {
                let start = marked.len() - marked.trim_start().len();
                marked.insert(start, self.character);
            }
        }
        marked
    }

    /// Returns the text with a guard after the first character of each spelling, also of spellings that appear once the template
    /// removes texts.
    fn mark_within(&self, text: &str) -> String {
        let Some((_, spellings)) = self.tokens else {
            return text.to_owned();
        };
        let mut marked = String::with_capacity(text.len());
        let mut copied = 0;
        let mut starts: Vec<usize> = spellings.find_overlapping_iter(text).map(|m| m.start()).collect();
        starts.extend(self.starts_after_removal(text, spellings));
        starts.sort_unstable();
        starts.dedup();
        for start in starts {
            let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
            marked += &text[copied..end];
            marked.push(self.character);
            copied = end;
        }
        marked + &text[copied..]
    }

    /// Returns the starts of spellings that appear when the template removes parts of a text. The template may remove one kind of part,
    /// or all kinds in order.
    fn starts_after_removal(&self, text: &str, spellings: &AhoCorasick) -> Vec<usize> {
        let mut starts = Vec::new();
        if !self.removed.iter().any(|removed| text.contains(removed)) {
            return starts;
        }
        let whole = Rest::of(text);
        let mut without_all = whole.clone();
        for removed in self.removed {
            for rest in [&mut whole.clone(), &mut without_all] {
                rest.remove(removed);
                starts.extend(
                    spellings
                        .find_overlapping_iter(&rest.text)
                        .map(|m| rest.places[m.start()]),
                );
            }
        }
        starts
    }

    /// Removes the guards from the text, and records their positions. The guard character may be escaped as JSON.
    pub(super) fn take_out(&self, text: String) -> RenderedChat {
        if self.tokens.is_none() {
            return RenderedChat {
                text,
                guards: Vec::new(),
            };
        }
        let text = text.replace(&escaped(self.character), &self.character.to_string());
        let (mut plain, mut guards) = (String::with_capacity(text.len()), Vec::new());
        for (number, part) in text.split(self.character).enumerate() {
            if number > 0 && guards.last() != Some(&plain.len()) {
                guards.push(plain.len());
            }
            plain += part;
        }
        RenderedChat { text: plain, guards }
    }
}

/// A text without removed parts.
#[derive(Clone)]
struct Rest {
    text: String,
    /// Offset of each byte in the original text.
    places: Vec<usize>,
}

impl Rest {
    fn of(text: &str) -> Self {
        Rest {
            text: text.to_owned(),
            places: (0..text.len()).collect(),
        }
    }

    fn remove(&mut self, part: &str) {
        let (mut text, mut places, mut from) = (String::with_capacity(self.text.len()), Vec::new(), 0);
        for (at, _) in self.text.match_indices(part) {
            text += &self.text[from..at];
            places.extend_from_slice(&self.places[from..at]);
            from = at + part.len();
        }
        if from > 0 {
            text += &self.text[from..];
            places.extend_from_slice(&self.places[from..]);
            *self = Rest { text, places };
        }
    }
}

/// Returns the escapes of a character in JSON.
fn escaped(character: char) -> String {
    let mut units = [0; 2];
    let units = character.encode_utf16(&mut units);
    units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Returns the literals that a template removes from texts, or replaces, in their order: `text.replace('/think', '')`.
pub(super) fn removed_texts(source: &str) -> Vec<String> {
    let calls = source.split("replace").skip(1);
    let literals = calls.filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix('(')?.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut literal = String::new();
        let mut characters = rest[1..].chars();
        loop {
            match characters.next()? {
                '\\' => literal.push(match characters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                }),
                c if c == quote => break,
                c => literal.push(c),
            }
        }
        Some(literal)
    });
    literals.filter(|literal| !literal.is_empty()).collect()
}

/// Sets the bits of all candidates that texts of the JSON contain, as characters or as escapes.
fn add_used(json: &Json, used: &mut u128) {
    match json {
        Json::String(text) => add_used_of(text, used),
        Json::Array(items) => items.iter().for_each(|item| add_used(item, used)),
        Json::Object(fields) => {
            for (name, field) in fields {
                add_used_of(name, used);
                add_used(field, used);
            }
        }
        _ => {}
    }
}

fn add_used_of(text: &str, used: &mut u128) {
    for c in text.chars().filter(|c| (FIRST..LAST).contains(c)) {
        *used |= 1 << (u32::from(c) - u32::from(FIRST));
    }
    // The escapes of all candidates have the same first half.
    let half = &escaped(FIRST)[..6];
    for (at, _) in text.match_indices(half) {
        let c = (FIRST..LAST)
            .zip(0..)
            .find(|(c, _)| text[at..].starts_with(&escaped(*c)));
        if let Some((_, bit)) = c {
            *used |= 1 << bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_that_templates_remove() {
        let source = r#"{{ a.replace('/think', '') }}{{ b | replace ( "x\n" , 'y') }}{{ c.replace(d, '') }}{{ e.replace('', '!') }}"#;
        assert_eq!(removed_texts(source), ["/think", "x\n"]);
    }
}
