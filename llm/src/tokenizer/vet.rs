//! Checks of a `tokenizer.json` before the library reads it, for contents that would cause a panic
//! or unbounded work.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

/// Maximum steps of a normalizer, pre-tokenizer, post-processor or decoder; published ones have at
/// most about ten.
const MAX_STEPS: usize = 64;
/// Maximum nesting of sequences of steps.
const MAX_DEPTH: usize = 4;
/// Maximum growth of a text by all steps together, in bytes per byte.
const MAX_GROWTH: usize = 4096;
/// Maximum bytes that a step may insert before, after or in place of something.
const MAX_CONTENT: usize = 1024;
/// Maximum pieces of a template, and tokens of one of its special tokens.
const MAX_PIECES: usize = 64;
/// Maximum bytes that a precompiled map may insert in place of a character.
const MAX_ENTRY: usize = 256;

/// The checked fields; the rest is ignored.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Model,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

#[derive(Deserialize)]
struct WithMerges {
    model: Merges,
}

#[derive(Deserialize)]
struct Merges {
    #[serde(default)]
    merges: Vec<Value>,
}

type CheckResult = Result<(), String>;

/// Returns the text without padding and truncation, if nothing in it exceeds the limits.
pub(super) fn vet(text: &str) -> Result<Cow<'_, str>, String> {
    let file: File = serde_json::from_str(text).map_err(|e| e.to_string())?;
    for (name, part) in [
        ("normalizer", &file.normalizer),
        ("pre_tokenizer", &file.pre_tokenizer),
        ("post_processor", &file.post_processor),
        ("decoder", &file.decoder),
    ] {
        let mut sums = Sums { steps: 0, growth: 1 };
        sums.step(part, 0).map_err(|e| format!("its {name} {e}"))?;
    }
    if let Some(prefix) = file.model.continuing_subword_prefix.filter(|p| !p.is_empty()) {
        let rest: WithMerges = serde_json::from_str(text).map_err(|e| e.to_string())?;
        rest.model
            .merges
            .iter()
            .try_for_each(|merge| check_merge(merge, &prefix))?;
    }
    if file.truncation.is_null() && file.padding.is_null() {
        return Ok(Cow::Borrowed(text));
    }
    // These settings belong to training batches. Padding tokens would become part of a text, and truncation would cut
    // long texts.
    let mut all: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    for name in ["truncation", "padding"] {
        if let Some(value) = all.get_mut(name) {
            *value = Value::Null;
        }
    }
    Ok(Cow::Owned(all.to_string()))
}

/// Checks that the second part of a merge begins with the prefix, whose bytes the library removes.
fn check_merge(merge: &Value, prefix: &str) -> CheckResult {
    let second = match merge {
        Value::String(both) => both.split_once(' ').map(|(_, second)| second),
        Value::Array(parts) => parts.get(1).and_then(Value::as_str),
        _ => None,
    };
    match second {
        Some(second) if !second.starts_with(prefix) => Err(format!(
            "its merge {merge} does not continue with continuing_subword_prefix '{prefix}'"
        )),
        _ => Ok(()),
    }
}

/// Total number of steps, and the growth of a text by all steps together.
struct Sums {
    steps: usize,
    growth: usize,
}

impl Sums {
    fn step(&mut self, step: &Value, depth: usize) -> CheckResult {
        let Value::Object(fields) = step else { return Ok(()) };
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH {
            return Err(format!("has more than {MAX_STEPS} steps, or {MAX_DEPTH} nested ones"));
        }
        for list in ["normalizers", "pretokenizers", "processors", "decoders"] {
            let inner = fields.get(list).and_then(Value::as_array);
            inner
                .into_iter()
                .flatten()
                .try_for_each(|inner| self.step(inner, depth + 1))?;
        }
        for name in [
            "content",
            "prepend",
            "prefix",
            "suffix",
            "replacement",
            "pad_token",
            "word_delimiter_token",
        ] {
            let text = fields.get(name).and_then(Value::as_str).unwrap_or_default();
            if text.len() > MAX_CONTENT {
                return Err(format!(
                    "has a '{name}' of {} bytes, more than {MAX_CONTENT}",
                    text.len()
                ));
            }
        }
        match fields.get("type").and_then(Value::as_str) {
            Some("Replace") => self.replace(step),
            Some("Split") => pattern_of(step).map(drop),
            Some("Prepend") => self.grow(fields.get("prepend").and_then(Value::as_str).map_or(0, str::len) / 64 + 1),
            Some("Precompiled") => check_precompiled(step),
            Some("TemplateProcessing") => check_template(step),
            _ => Ok(()),
        }
    }

    fn grow(&mut self, times: usize) -> CheckResult {
        self.growth = self.growth.saturating_mul(times.max(1));
        if self.growth > MAX_GROWTH {
            Err(format!("makes texts more than {MAX_GROWTH} times as long"))
        } else {
            Ok(())
        }
    }

    fn replace(&mut self, step: &Value) -> CheckResult {
        let least = pattern_of(step)?;
        let content = step.get("content").and_then(Value::as_str).map_or(0, str::len);
        self.grow(content.div_ceil(least))
    }
}

/// Returns the minimum length of a pattern's match; an empty pattern is an error.
fn pattern_of(step: &Value) -> Result<usize, String> {
    let of = |kind: &str| step.get("pattern").and_then(|p| p.get(kind)).and_then(Value::as_str);
    match (of("String"), of("Regex")) {
        (Some(""), _) | (_, Some("")) => Err("has an empty pattern".into()),
        (Some(text), _) => Ok(text.len()),
        _ => Ok(1),
    }
}

/// Checks a precompiled character map in base64: `[bytes of the trie, trie, texts that end with zeros]`.
fn check_precompiled(step: &Value) -> CheckResult {
    let text = step.get("precompiled_charsmap").and_then(Value::as_str);
    let bytes = text
        .and_then(decoded)
        .ok_or("has a precompiled_charsmap that is not base64")?;
    let (size, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or("has an empty precompiled_charsmap")?;
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || !size.is_multiple_of(4) || size > rest.len() {
        return Err(format!(
            "has a precompiled_charsmap with a trie of {size} bytes in {} bytes",
            rest.len()
        ));
    }
    // A text replaces a character; the library itself checks paths through the trie.
    match rest[size..]
        .split(|&b| b == 0)
        .map(<[u8]>::len)
        .find(|&n| n > MAX_ENTRY)
    {
        Some(long) => Err(format!(
            "has a precompiled_charsmap that replaces a character by {long} bytes"
        )),
        None => Ok(()),
    }
}

/// Decodes base64 with or without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        word = word << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

/// Checks that a template defines the special tokens that it adds to a text, and that there are only a few.
fn check_template(step: &Value) -> CheckResult {
    let marks = step.get("special_tokens").and_then(Value::as_object);
    for (name, mark) in marks.into_iter().flatten() {
        let ids = mark.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
        if ids > MAX_PIECES {
            return Err(format!("has {ids} tokens for '{name}', more than {MAX_PIECES}"));
        }
    }
    for template in ["single", "pair"] {
        let pieces = step
            .get(template)
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        if pieces.len() > MAX_PIECES {
            return Err(format!(
                "has a template of {} pieces, more than {MAX_PIECES}",
                pieces.len()
            ));
        }
        for piece in pieces {
            let name = piece
                .get("SpecialToken")
                .and_then(|t| t.get("id"))
                .and_then(Value::as_str);
            if let Some(name) = name.filter(|name| !marks.is_some_and(|marks| marks.contains_key(*name))) {
                return Err(format!(
                    "has a template with '{name}', which is not among its special_tokens"
                ));
            }
        }
    }
    Ok(())
}
