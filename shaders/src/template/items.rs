//! Parser that splits a WGSL module into items. An item ends with a top-level semicolon or brace.

use std::fmt;
use std::sync::OnceLock;

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Enable,
    Alias,
    Constant,
    /// A variable in storage or a uniform.
    Buffer,
    /// A variable of a workgroup or a thread.
    Variable,
    Function,
    Struct,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Enable => "extension",
            Kind::Alias => "alias",
            Kind::Constant => "constant",
            Kind::Buffer => "buffer",
            Kind::Variable => "variable",
            Kind::Function => "function",
            Kind::Struct => "structure",
        })
    }
}

/// An item with its preceding comments.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) text: String,
    /// Names that the item uses, computed on first use.
    needs: OnceLock<Vec<String>>,
}

impl Item {
    /// Returns the names in the item that may refer to other items.
    pub(crate) fn needs(&self) -> &[String] {
        let find = || free_names(&self.text).into_iter().map(str::to_owned).collect();
        self.needs.get_or_init(find)
    }

    /// Returns the text of the item without the preceding comments.
    pub(crate) fn code(&self) -> &str {
        &self.text[code_start(&self.text, 0).unwrap_or(0)..]
    }

    /// Returns the names of a function's parameters.
    pub(super) fn parameters(&self) -> Vec<&str> {
        parameters(self.code())
    }

    /// Replaces the type of an alias, or the body of a function.
    pub(super) fn replace(&mut self, by: &str) {
        self.needs = OnceLock::new();
        let end = match self.kind {
            Kind::Function => code_find(&self.text, '{').unwrap_or(self.text.len()),
            _ => code_find(&self.text, '=').unwrap_or(self.text.len()),
        };
        let head = &self.text[..end];
        self.text = match self.kind {
            Kind::Function => [head, "{\n", by, "}"].concat(),
            _ => [head, "= ", by, ";"].concat(),
        };
    }

    /// Returns the value of a constant, as WGSL.
    pub(super) fn value(&self) -> Option<String> {
        let (_, value) = self.text.split_once('=')?;
        Some(value.trim_end().trim_end_matches(';').trim().to_owned())
    }

    /// Returns the element type of a buffer's array, and true if the kernel may write the buffer.
    pub(super) fn buffer(&self) -> Option<(String, bool)> {
        let declared = &self.text[self.text.find("var<storage")?..];
        let (space, rest) = declared.split_once('>')?;
        let array = rest.split_once("array<")?.1;
        let element = array.trim_end().strip_suffix(';')?.trim_end().strip_suffix('>')?;
        Some((element.to_owned(), space.contains("read_write")))
    }
}

/// Parses the items of a module.
///
/// # Errors
/// The text is not an item, or an item does not end.
pub(crate) fn parse(text: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut start = 0;
    while let Some(begin) = code_start(text, start) {
        let rest = &text[begin..];
        let keyword: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let kind = match &*keyword {
            "enable" => Kind::Enable,
            "alias" => Kind::Alias,
            "const" => Kind::Constant,
            "var" if rest.starts_with("var<storage") || rest.starts_with("var<uniform") => Kind::Buffer,
            "var" => Kind::Variable,
            "struct" => Kind::Struct,
            "fn" => Kind::Function,
            "" if rest.starts_with('@') => Kind::Function,
            _ => return Err(format!("'{}' begins no item", rest.lines().next().unwrap_or_default())),
        };
        let end = match kind {
            Kind::Function | Kind::Struct => block_end(text, begin),
            _ => code_find(rest, ';').map(|at| begin + at + 1),
        };
        let end = end.ok_or_else(|| format!("'{}' does not end", rest.lines().next().unwrap_or_default()))?;
        let name = name_of(&text[begin..end], kind).ok_or("an item has no name")?;
        items.push(Item {
            kind,
            name,
            text: text[start..end].trim_start().to_owned(),
            needs: OnceLock::new(),
        });
        start = end;
    }
    Ok(items)
}

fn name_of(text: &str, kind: Kind) -> Option<String> {
    let rest = match kind {
        Kind::Function => text.split("fn ").nth(1)?,
        Kind::Buffer | Kind::Variable => text.split_once('>')?.1,
        _ => text.split_once(' ')?.1,
    };
    let name: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Returns the parts of a text that are code: everything except line comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let start = at;
        at += line.len();
        (start, &line[..line.find("//").unwrap_or(line.len())])
    })
}

/// Returns the position of the first occurrence of a character in code.
pub(super) fn code_find(text: &str, wanted: char) -> Option<usize> {
    code(text).find_map(|(start, line)| line.find(wanted).map(|at| start + at))
}

/// Returns the position of the next code from a position on.
fn code_start(text: &str, from: usize) -> Option<usize> {
    let rest = &text[from..];
    code(rest).find_map(|(start, line)| line.find(|c: char| !c.is_whitespace()).map(|at| from + start + at))
}

/// Returns the end of the first block after a position.
fn block_end(text: &str, from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (start, line) in code(&text[from..]) {
        for (at, c) in line.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(from + start + at + 1);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

/// Returns the identifiers in an item that may refer to other items. Excludes members and local declarations.
fn free_names(text: &str) -> Vec<&str> {
    let names = names(text);
    let declares = |before: &str| matches!(before, "let" | "var" | "const");
    let mut own: Vec<&str> = names
        .windows(2)
        .filter(|pair| declares(pair[0]))
        .map(|pair| pair[1])
        .collect();
    if code(text).any(|(_, line)| line.contains("fn ")) {
        own.extend(parameters(text));
    }
    names.into_iter().filter(|name| !own.contains(name)).collect()
}

/// Returns the names before colons in the head of a function.
fn parameters(text: &str) -> Vec<&str> {
    let head = &text[..code_find(text, '{').unwrap_or(text.len())];
    let names = head.split(':');
    let mut names: Vec<&str> = names
        .filter_map(|part| part.split(|c: char| !is_word(c)).next_back())
        .collect();
    // The text after the last colon is a type.
    names.pop();
    names.retain(|name| !name.is_empty());
    names
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Splits a text at word boundaries.
pub(super) fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        words.push(word);
        rest = behind;
    }
    words
}

/// Returns the identifiers in code, except members.
pub(crate) fn names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (_, line) in code(text) {
        let mut before = ' ';
        let mut rest = line;
        while let Some(begin) = rest.find(is_word) {
            before = rest[..begin].chars().next_back().unwrap_or(before);
            let word = &rest[begin..];
            let (word, behind) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
            if before != '.' && !word.starts_with(|c: char| c.is_ascii_digit()) {
                names.push(word);
            }
            (before, rest) = (' ', behind);
        }
    }
    names
}
