//! Tables as JSON lines: one object per line, with the cells by the names of their columns.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::data::DataError;

/// Rows of cells, with the names of the columns.
#[derive(Default)]
pub(super) struct JsonRows {
    /// Names in the order of their first occurrence.
    pub(super) columns: Vec<String>,
    /// Line of each row, from 1, and its cells: index of the column and text.
    pub(super) rows: Vec<(usize, Vec<(usize, String)>)>,
}

/// Reads JSON lines. Empty lines are skipped; keys that an object lacks, and `null`, are missing cells.
pub(super) fn read_json_lines(reader: impl Read, name: &str) -> Result<JsonRows, DataError> {
    let mut found = JsonRows::default();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut reader = BufReader::new(reader);
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        let io = |source| DataError::Io {
            name: name.into(),
            source,
        };
        if reader.read_line(&mut text).map_err(io)? == 0 {
            break;
        }
        let row = text.trim_start_matches('\u{feff}').trim();
        if row.is_empty() {
            continue;
        }
        let refuse = |column: usize, reason: String| DataError::Csv {
            name: name.into(),
            line,
            column,
            reason,
        };
        let object: Object =
            serde_json::from_str(row).map_err(|e| refuse(e.column(), format!("no JSON object: {e}")))?;
        let mut cells = Vec::with_capacity(object.0.len());
        for (key, value) in object.0 {
            let next = found.columns.len();
            let column = *places.entry(key.clone()).or_insert(next);
            if column == next {
                found.columns.push(key.clone());
            }
            let text = cell(value).map_err(|kind| {
                let reason = format!("'{key}': expected a string, number, boolean or null, found {kind}");
                refuse(column + 1, reason)
            })?;
            if cells.iter().any(|(other, _)| *other == column) {
                return Err(refuse(column + 1, format!("'{key}' occurs twice")));
            }
            cells.push((column, text));
        }
        found.rows.push((line, cells));
    }
    Ok(found)
}

/// Returns the text of a cell, or the kind of a value that is none.
fn cell(value: Value) -> Result<String, &'static str> {
    Ok(match value {
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => text.trim().to_owned(),
        Value::Array(_) => return Err("an array"),
        Value::Object(_) => return Err("an object"),
    })
}

/// An object with its keys in the order of the text.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with the cells of a row")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Object(all))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}
