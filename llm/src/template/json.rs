//! The filter `tojson`, which writes JSON as Python's `json.dumps` does for templates of transformers.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 1000;
/// Maximum number of bytes of a text: more than a prompt holds. Indentation makes deeply nested values much longer.
const MAX_BYTES: usize = 4 << 20;

/// Options of `json.dumps`.
struct Options {
    /// Text of one level of indentation; `None` writes one line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sorts_keys: bool,
    ensures_ascii: bool,
}

/// Implements `tojson(value, indent, ensure_ascii, separators, sort_keys)`. Unlike Jinja's own
/// filter, it does not escape HTML.
pub(super) fn filter(value: &Value, indent: Option<Value>, settings: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => settings.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        None => None,
        Some(indent) => match (indent.as_str(), usize::try_from(indent.clone())) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(columns)) => Some(" ".repeat(columns)),
            (None, Err(_)) => return Err(wrong("expected a number of columns or a text as indent")),
        },
    };
    let (mut between_items, mut after_key) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = settings.get::<Option<Value>>("separators")?.filter(|s| !s.is_none()) {
        let parts: Vec<String> = separators
            .try_iter()?
            .filter_map(|part| part.as_str().map(str::to_owned))
            .collect();
        let [items, keys] = <[String; 2]>::try_from(parts).map_err(|_| wrong("expected two texts as separators"))?;
        (between_items, after_key) = (items, keys);
    }
    let options = Options {
        indent,
        between_items,
        after_key,
        sorts_keys: settings.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensures_ascii: settings.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    settings.assert_all_used()?;
    let mut text = String::new();
    options.write(value, 0, &mut text)?;
    Ok(Value::from_safe_string(text))
}

fn wrong(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"))
}

impl Options {
    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("the value is nested too deeply"));
        }
        if text.len() > MAX_BYTES {
            return Err(wrong("the text has more than 4 MiB"));
        }
        match value.kind() {
            ValueKind::None => *text += "null",
            ValueKind::Bool => *text += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => *text += &number(value),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), text),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(&items, ['[', ']'], depth, text, |item, text| {
                    self.write(item, depth + 1, text)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorts_keys {
                    keys.sort_by_key(Value::to_string);
                }
                self.write_items(&keys, ['{', '}'], depth, text, |key, text| {
                    match key.as_str() {
                        Some(key) => self.write_text(key, text),
                        None => self.write_text(&key.to_string(), text),
                    }
                    *text += &self.after_key;
                    self.write(&value.get_item(key)?, depth + 1, text)
                })?;
            }
            _ => return Err(wrong("the value is undefined or not JSON")),
        }
        Ok(())
    }

    fn write_items(
        &self,
        items: &[Value],
        [open, close]: [char; 2],
        depth: usize,
        text: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                *text += &self.between_items;
            }
            self.new_line(depth + 1, text);
            write(item, text)?;
        }
        if !items.is_empty() {
            self.new_line(depth, text);
        }
        text.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, text: &mut String) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            (0..depth).for_each(|_| *text += indent);
        }
    }

    fn write_text(&self, value: &str, text: &mut String) {
        text.push('"');
        for c in value.chars() {
            match c {
                '"' => *text += "\\\"",
                '\\' => *text += "\\\\",
                '\n' => *text += "\\n",
                '\r' => *text += "\\r",
                '\t' => *text += "\\t",
                '\u{8}' => *text += "\\b",
                '\u{c}' => *text += "\\f",
                c if c < ' ' || (self.ensures_ascii && !(' '..='~').contains(&c)) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        *text += &format!("\\u{unit:04x}");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// Formats a number like Python: `1`, `1.0`, `1e-07`, `NaN`.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}
