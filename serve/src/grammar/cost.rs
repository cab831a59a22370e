//! Sizes of regular expressions and grammars after the compiler has expanded them.
//!
//! The compiler replaces a terminal by its definition, and builds the first state of the lexer from the result: `T0: T1 T1`,
//! `T1: T2 T2` and so on doubles with each line. Its time and memory grow with the square of that size.

use std::collections::HashMap;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, ClassSetItem, RepetitionKind, RepetitionRange};

/// Size that a Unicode character class such as `\w` counts as: the compiler copies hundreds of ranges for it.
const TABLE: u64 = 24;

/// Returns the size of a regular expression in characters and classes, with counted repetitions expanded. A Unicode
/// class counts as [`TABLE`] characters.
pub(super) fn regex(pattern: &str) -> u64 {
    // The syntax tree is small. Its translation, with all ranges of all classes, is not.
    match Parser::new().parse(pattern) {
        Ok(tree) => expanded(&tree),
        // The compiler has syntax of its own, such as `&`. All counts together are an upper bound.
        Err(_) => counts(pattern).fold(TABLE * pattern.len() as u64, u64::saturating_mul),
    }
}

/// Returns the size of a syntax tree. The recursion is safe because the parser limits the depth of the tree.
fn expanded(tree: &Ast) -> u64 {
    match tree {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => 0,
        Ast::Literal(literal) => literal.c.len_utf8() as u64,
        Ast::Dot(_) => 1,
        Ast::ClassUnicode(_) | Ast::ClassPerl(_) => TABLE,
        Ast::ClassBracketed(class) => match &class.kind {
            regex_syntax::ast::ClassSet::Item(item) => class_item(item),
            // Both sides of `&&`, `--` and `~~`.
            regex_syntax::ast::ClassSet::BinaryOp(_) => 2 * TABLE,
        },
        Ast::Group(group) => expanded(&group.ast),
        Ast::Repetition(repetition) => {
            let count = match &repetition.op.kind {
                RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
                RepetitionKind::Range(range) => match *range {
                    RepetitionRange::Exactly(count) | RepetitionRange::Bounded(_, count) => count,
                    RepetitionRange::AtLeast(count) => count.saturating_add(1),
                },
            };
            expanded(&repetition.ast).saturating_mul(u64::from(count.max(1)))
        }
        Ast::Concat(parts) => parts.asts.iter().map(expanded).fold(0, u64::saturating_add),
        Ast::Alternation(parts) => parts.asts.iter().map(expanded).fold(0, u64::saturating_add),
    }
}

/// Returns the size of a class in brackets: 1 for a few characters and ranges, more for Unicode classes.
fn class_item(item: &ClassSetItem) -> u64 {
    match item {
        ClassSetItem::Unicode(_) | ClassSetItem::Perl(_) => TABLE,
        ClassSetItem::Bracketed(_) => 2 * TABLE,
        ClassSetItem::Union(union) => {
            let tables = union.items.iter().map(class_item).filter(|&size| size >= TABLE);
            tables.fold(1 + union.items.len() as u64 / 16, u64::saturating_add)
        }
        _ => 1,
    }
}

/// Returns the larger bound of each counted repetition such as `{2}` and `{1,5}`, at least 1.
fn counts(text: &str) -> impl Iterator<Item = u64> {
    text.split('{').skip(1).filter_map(|rest| {
        let inside = rest.split('}').next()?;
        let numbers = inside.split(',').filter_map(|number| number.trim().parse().ok());
        numbers.max().map(|count: u64| count.max(1))
    })
}

/// Part of a definition in a grammar.
enum Item<'t> {
    /// Literal or regular expression with its size.
    Text(u64),
    Name(&'t str),
    Open,
    Close,
    /// Repetition of the previous item, with the maximum count.
    Times(u64),
}

/// Returns the size of a grammar in llguidance's dialect of Lark: of all definitions, with terminals (names in capital letters)
/// replaced by their definitions.
///
/// The text is split into the same tokens as by the compiler. Every name before a colon begins a definition, wherever it is. The
/// compiler accepts definitions at fewer locations, so the size is an upper bound.
pub(super) fn lark(text: &str) -> u64 {
    let mut definitions: HashMap<&str, Vec<Item>> = HashMap::new();
    let mut defined = "";
    for (token, rest) in tokens(text) {
        let item = match token.as_bytes()[0] {
            // Ranges such as "a".."z" are classes; two characters are more than one.
            b'"' => Item::Text(inside(token).len() as u64),
            b'/' => Item::Text(regex(inside(token))),
            b'(' | b'[' => Item::Open,
            b')' | b']' => Item::Close,
            b'{' | b'~' => {
                let numbers = token[1..].split(|c: char| !c.is_ascii_digit());
                let count = numbers.filter_map(|number| number.parse().ok()).max();
                Item::Times(count.unwrap_or(1).max(1))
            }
            _ if name(token) == 0 => continue,
            _ if is_definition(rest) => {
                defined = token;
                continue;
            }
            _ => Item::Name(token),
        };
        definitions.entry(defined).or_default().push(item);
    }
    let mut sizes = HashMap::new();
    let names: Vec<&str> = definitions.keys().copied().collect();
    names
        .into_iter()
        .map(|name| size_of(name, &definitions, &mut sizes, 0))
        .fold(0, u64::saturating_add)
}

/// Returns true if any rule of a grammar has the given attribute, as in `a[temperature=0.5]: …`.
pub(super) fn has_attribute(text: &str, attribute: &str) -> bool {
    tokens(text).any(|(token, rest)| token == attribute && rest.trim_start().starts_with('='))
}

/// Returns the tokens of a grammar without comments, each with the text after it.
fn tokens(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut left = text;
    std::iter::from_fn(move || {
        while left.starts_with('#') || left.starts_with("//") {
            left = &left[comment(left)..];
        }
        let c = left.chars().next()?;
        let len = match c {
            '"' | '/' => quoted(left, c),
            '{' | '~' => {
                let end = left[1..].find(|c: char| !(c.is_ascii_digit() || " \t,.}".contains(c)));
                end.map_or(left.len(), |at| at + 1)
            }
            _ => name(left).max(c.len_utf8()),
        };
        let (token, rest) = left.split_at(len);
        left = rest;
        Some((token, rest))
    })
}

/// Returns the text between the quotation marks of a token from [`quoted`].
fn inside(token: &str) -> &str {
    token[1..].strip_suffix(&token[..1]).unwrap_or(&token[1..])
}

fn comment(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Returns the length of the name at the beginning of a text. Terminals match `_?[A-Z][_A-Z0-9-]*`, rules
/// `_?[a-z][_a-z0-9-]*`.
fn name(text: &str) -> usize {
    let first = text.strip_prefix('_').unwrap_or(text).chars().next();
    let continues = |c: char, is_letter: fn(&char) -> bool| is_letter(&c) || c.is_ascii_digit() || c == '_' || c == '-';
    let end = match first {
        Some('A'..='Z') => text.find(|c| !continues(c, char::is_ascii_uppercase)),
        Some('a'..='z') => text.find(|c| !continues(c, char::is_ascii_lowercase)),
        _ => return 0,
    };
    end.unwrap_or(text.len())
}

/// Returns true if the text after a name shows that the name is defined here: `: …`, also `.1 [options] : …`.
fn is_definition(rest: &str) -> bool {
    let rest = rest.trim_start();
    // A priority.
    let rest = rest.trim_start_matches(|c: char| ".+-".contains(c) || c.is_ascii_digit() || c.is_whitespace());
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']').map_or("", |(_, rest)| rest).trim_start(),
        None => rest,
    };
    rest.starts_with(':') && !rest.starts_with("::")
}

/// Returns the length of a quoted text, including both quotation marks. A backslash escapes the mark.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == mark && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// Returns the expanded size of a definition. `depth` is its nesting depth in other definitions.
fn size_of<'t>(
    name: &'t str,
    definitions: &HashMap<&'t str, Vec<Item<'t>>>,
    sizes: &mut HashMap<&'t str, u64>,
    depth: usize,
) -> u64 {
    const MAX_DEPTH: usize = 200;
    if let Some(&size) = sizes.get(name) {
        return size;
    }
    // Cycles are errors of the compiler.
    if depth > MAX_DEPTH {
        return u64::MAX;
    }
    // Sizes of the open groups, and of the last item of each.
    let mut groups = vec![(0_u64, 0_u64)];
    let add = |groups: &mut Vec<(u64, u64)>, size: u64| {
        if let Some((sum, last)) = groups.last_mut() {
            *sum = sum.saturating_add(size);
            *last = size;
        }
    };
    for item in definitions.get(name).into_iter().flatten() {
        match item {
            Item::Text(size) => add(&mut groups, *size),
            Item::Name(other) => {
                // Rules are not expanded.
                let is_terminal = !other.contains(|c: char| c.is_ascii_lowercase()) && definitions.contains_key(other);
                let size = if is_terminal && *other != name {
                    size_of(other, definitions, sizes, depth + 1)
                } else {
                    1
                };
                add(&mut groups, size);
            }
            Item::Open => groups.push((0, 0)),
            Item::Close => {
                if groups.len() > 1
                    && let Some((sum, _)) = groups.pop()
                {
                    add(&mut groups, sum);
                }
            }
            Item::Times(count) => {
                if let Some((sum, last)) = groups.last_mut() {
                    *sum = sum.saturating_add(last.saturating_mul(count - 1));
                    *last = last.saturating_mul(*count);
                }
            }
        }
    }
    let size = groups.iter().map(|(sum, _)| *sum).fold(0, u64::saturating_add);
    sizes.insert(name, size);
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_of_expressions_are_written_out() {
        for (pattern, size) in [
            ("", 0),
            ("abc", 3),
            ("[a-z]{1,64}", 64),
            ("(a|bc){10}x*", 31),
            ("(.{1,400}){1,400}", 160_000),
            (r"\w?\d?[\wa]", 3 * TABLE + 1),
            ("[abc]é", 3),
            // Syntax of the compiler: an upper bound.
            ("(?=a)b{3}", 3 * 9 * TABLE),
        ] {
            assert_eq!(regex(pattern), size, "{pattern}");
        }
    }

    #[test]
    fn attributes_are_found_outside_of_texts() {
        assert!(has_attribute(
            "start: a\na[max_tokens=3, temperature = 0.5]: /b/",
            "temperature"
        ));
        for text in [
            "temperature: \"temperature=\" // temperature=1",
            "start: /temperature=1/",
            "",
        ] {
            assert!(!has_attribute(text, "temperature"), "{text}");
        }
    }

    #[test]
    fn terminals_are_replaced_by_their_definitions() {
        let doubling: String = (0..14).map(|i| format!("T{i}: T{0} T{0}\n", i + 1)).collect();
        let doubling = format!("start: T0\n{doubling}T14: \"y\"? \"x\"?");
        // 2 * (2^14 + 2^13 + ... + 1), and the start.
        assert_eq!(lark(&doubling), 2 * ((1 << 15) - 1) + (1 << 15));
        for (text, size) in [
            ("start: \"ab\" /c{3}/", 5),
            ("start: a\na: a a | \"x\"", 4),
            ("start: (\"ab\" \"c\"){4} D~3\nD: /[0-9]/", 16),
            ("start: A\nA: B\nB: A", u64::MAX),
            ("// T: \"text\"\nstart: \"a\\\"b\"\n  | \"c\"", 5),
            ("start: \"a\" # T: \"text\"\nT-1: \"b\"\nx: T-1 T-1", 4),
            ("start: X\nX: /a\n#b/", 8),
            (
                "%ignore /[ ]+/\n?start[capture, max_tokens=3]: X.2\nX.2: \"abc\"",
                1 + 2 + 3 + 3,
            ),
        ] {
            let found = lark(text);
            assert!(
                found == size || (size == 9 && found <= 20),
                "{text}: {found}, not {size}"
            );
        }
    }
}
