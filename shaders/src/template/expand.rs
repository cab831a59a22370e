//! Expansion of the directives of a kernel file.

use std::collections::HashMap;

use super::expression::evaluate;
use super::items::words;

/// Maximum number of lines after the expansion.
const MAX_LINES: usize = 200_000;

/// Expands constants and directives line by line.
pub(super) struct Expander<'a> {
    given: &'a HashMap<&'static str, String>,
    /// Statements to insert, by the name of the insertion point.
    inserts: &'a HashMap<String, String>,
    /// Names of the insertion points of the file.
    inserted: Vec<String>,
    /// Values of the `u32` and `bool` constants so far, and of the indices of repeats.
    values: HashMap<String, u64>,
    /// Names of all constants.
    known: Vec<String>,
    out: String,
    lines: usize,
}

impl<'a> Expander<'a> {
    pub(super) fn new(given: &'a HashMap<&'static str, String>, inserts: &'a HashMap<String, String>) -> Self {
        Expander {
            given,
            inserts,
            inserted: Vec::new(),
            values: HashMap::new(),
            known: Vec::new(),
            out: String::new(),
            lines: 0,
        }
    }

    /// Returns true if the expanded text has a constant.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.iter().any(|known| known == name)
    }

    /// Returns true if the expanded text has an insertion point.
    pub(super) fn has_place(&self, name: &str) -> bool {
        self.inserted.iter().any(|known| known == name)
    }

    /// Returns the expanded text of a file.
    ///
    /// # Errors
    /// A directive is unknown or not closed, or an expression has no value.
    pub(super) fn expand(&mut self, text: &str) -> Result<String, String> {
        let lines: Vec<&str> = text.lines().collect();
        self.lines(&lines, &[])?;
        Ok(std::mem::take(&mut self.out))
    }

    fn lines(&mut self, lines: &[&str], indices: &[(&str, u64)]) -> Result<(), String> {
        let mut at = 0;
        while at < lines.len() {
            let Some((word, rest)) = directive(lines[at]) else {
                self.line(lines[at], indices)?;
                at += 1;
                continue;
            };
            if word == "insert" {
                let statements = self.inserted_at(rest, indices);
                self.out.push_str(statements.unwrap_or_default());
                at += 1;
                continue;
            }
            let (middle, end) = block(lines, at)?;
            let inner = |from: usize, to: usize| &lines[from + 1..to];
            match word {
                "replace" => match self.inserted_at(rest, indices) {
                    Some(statements) => self.out.push_str(statements),
                    None => self.lines(inner(at, end), indices)?,
                },
                "repeat" => self.repeat(rest, inner(at, end), indices)?,
                "if" => {
                    let chosen = match (self.evaluate(rest)? != 0, middle) {
                        (true, middle) => inner(at, middle.unwrap_or(end)),
                        (false, Some(middle)) => inner(middle, end),
                        (false, None) => &[],
                    };
                    self.lines(chosen, indices)?;
                }
                _ => return Err(format!("'@{word}' stands alone")),
            }
            at = end + 1;
        }
        Ok(())
    }

    /// Returns the statements for an insertion point. The name of the insertion point may contain indices.
    fn inserted_at(&mut self, location: &str, indices: &[(&str, u64)]) -> Option<&'a str> {
        let location = substituted(location, indices);
        let statements = self.inserts.get(&location).map(|text| &**text);
        self.inserted.push(location);
        statements
    }

    /// Writes lines once for each value of the first of some indices, such as `i < ROWS, j in FIRST..END`. Recurses
    /// for the other indices.
    fn repeat(&mut self, bounds: &str, lines: &[&str], indices: &[(&str, u64)]) -> Result<(), String> {
        let (first, others) = match comma(bounds) {
            Some(at) => (&bounds[..at], Some(bounds[at + 1..].trim_start())),
            None => (bounds, None),
        };
        let range = first
            .split_once(" in ")
            .and_then(|(index, range)| Some((index, range.split_once("..")?)));
        let below = first.split_once('<').map(|(index, end)| (index, ("0", end)));
        let (index, (start, end)) = range
            .or(below)
            .ok_or_else(|| format!("'{first}' is no range of an index"))?;
        let index = index.trim();
        let before = self.values.get(index).copied();
        for value in self.evaluate(start)?..self.evaluate(end)? {
            self.values.insert(index.to_owned(), value);
            let inner = [indices, &[(index, value)]].concat();
            match others {
                Some(others) => self.repeat(others, lines, &inner)?,
                None => self.lines(lines, &inner)?,
            }
        }
        match before {
            Some(value) => self.values.insert(index.to_owned(), value),
            None => self.values.remove(index),
        };
        Ok(())
    }

    fn evaluate(&self, text: &str) -> Result<u64, String> {
        evaluate(text, &self.values)
    }

    fn line(&mut self, line: &str, indices: &[(&str, u64)]) -> Result<(), String> {
        self.lines += 1;
        // Text after `//#` is a comment only in the unexpanded file.
        let uncommented = line.trim_start().strip_prefix("//# ");
        let line = uncommented.unwrap_or(line);
        if self.lines > MAX_LINES {
            return Err("it becomes too long".into());
        }
        if line.starts_with("const ") {
            let code = line.split("//").next().unwrap_or_default();
            return code.split_inclusive(';').try_for_each(|one| self.constant(one.trim()));
        }
        match indices {
            [] => self.push(&[line]),
            _ => self.push(&[&substituted(line, indices)]),
        }
        Ok(())
    }

    /// Writes a constant of the module with its default or replaced value.
    fn constant(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let (name, ty, value) = constant(text).ok_or_else(|| format!("'{text}' is no constant"))?;
        self.known.push(name.to_owned());
        let value = self.given.get(name).map_or(value, |given| given);
        let text = match ty {
            "u32" | "bool" => {
                let number = self.evaluate(value)?;
                self.values.insert(name.to_owned(), number);
                match ty {
                    "bool" => (number != 0).to_string(),
                    _ => format!("{number}u"),
                }
            }
            _ => value.to_owned(),
        };
        self.push(&["const ", name, ": ", ty, " = ", &text, ";"]);
        Ok(())
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.out.push_str(part));
        self.out.push('\n');
    }
}

/// Returns the position of the first comma outside of brackets.
fn comma(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (c == ',' && depth == 0).then_some(at)
    })
}

/// Returns the word of a directive, and the rest of its line.
fn directive(line: &str) -> Option<(&str, &str)> {
    let text = line.trim_start().strip_prefix("// @")?;
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some((word.trim_end(), rest.trim()))
}

/// Returns the line of the `@else`, if any, and the line of the `@end` of the block that begins at a line.
fn block(lines: &[&str], begin: usize) -> Result<(Option<usize>, usize), String> {
    let (mut depth, mut middle) = (0_usize, None);
    for (at, line) in lines.iter().enumerate().skip(begin) {
        match directive(line).map(|(word, _)| word) {
            Some("repeat" | "if" | "replace") => depth += 1,
            Some("else") if depth == 1 => middle = Some(at),
            Some("else") if depth > 1 => {}
            Some("insert") => {}
            Some("end") if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return Ok((middle, at));
                }
            }
            Some(word) => return Err(format!("'@{word}' stands alone, or is no directive")),
            None => {}
        }
    }
    Err(format!("'{}' has no '@end'", lines[begin].trim()))
}

/// Returns the name, type and value of a constant.
fn constant(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.strip_prefix("const ")?.split_once(':')?;
    let (ty, value) = rest.split_once('=')?;
    Some((name.trim(), ty.trim(), value.trim().strip_suffix(';')?))
}

/// Replaces indices in a line by numbers, both as identifiers and as parts of identifiers.
fn substituted(line: &str, indices: &[(&str, u64)]) -> String {
    let value_of = |name: &str| {
        indices
            .iter()
            .rev()
            .find(|(index, _)| *index == name)
            .map(|(_, value)| value)
    };
    let mut out = String::with_capacity(line.len() + 8);
    for word in words(line) {
        if let Some(value) = value_of(word) {
            out.extend([&*value.to_string(), "u"]);
            continue;
        }
        for (number, part) in word.split('_').enumerate() {
            if number > 0 {
                out.push('_');
            }
            match value_of(part).filter(|_| number > 0) {
                Some(value) => out.push_str(&value.to_string()),
                None => out.push_str(part),
            }
        }
    }
    out
}
