//! Validation of the text of a rule set before egglog parses it, and of a set before it is
//! registered.
//!
//! Rules are untrusted text. Egglog's parser recurses, misreads numbers that are out of range, and supports commands
//! that open files. This module rejects all text that could cause that.

use egglog::ast::{Action, Expr, Fact};

use super::rule::{ROOT, shortened};
use meganeura_core::ops::OpRef;
use meganeura_core::rule_set::RuleSet;

/// Maximum length of a rule set's text, in bytes.
const MAX_TEXT: usize = 1 << 20;
/// Maximum nesting of parentheses.
const MAX_DEPTH: usize = 64;
/// Maximum length of a word or string, in bytes.
const MAX_WORD: usize = 1 << 10;
/// Maximum number of rules in a set.
pub(super) const MAX_RULES: usize = 10_000;
/// Maximum number of calls, variables and literals in a rule.
const MAX_NODES: usize = 200;

/// An error in a text: the byte offset and the message.
pub(super) type TextFault = (usize, String);

/// The commands that a rule set may use.
const COMMANDS: [&str; 4] = ["define", "rewrite", "birewrite", "rule"];

/// Checks size, nesting, words and commands of a text, with the same tokens as egglog's parser.
///
/// # Errors
/// The first error, with its position.
pub(super) fn text(text: &str) -> Result<(), TextFault> {
    if text.len() > MAX_TEXT {
        return Err((0, format!("the text is longer than {MAX_TEXT} bytes")));
    }
    let mut depth = 0usize;
    // Whether the next word is the name of a command.
    let mut command = true;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            ';' => while chars.next_if(|&(_, c)| c != '\n').is_some() {},
            '(' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err((at, format!("parentheses are nested deeper than {MAX_DEPTH}")));
                }
            }
            ')' => {
                let Some(outer) = depth.checked_sub(1) else {
                    return Err((at, "a parenthesis closes that was not opened".into()));
                };
                depth = outer;
                command = depth == 0;
            }
            '"' => {
                let mut escaped = false;
                let closed = loop {
                    match chars.next() {
                        None => break None,
                        Some((end, '"')) if !escaped => break Some(end),
                        Some((_, c)) => escaped = c == '\\' && !escaped,
                    }
                };
                let Some(end) = closed else {
                    return Err((at, "the string does not end".into()));
                };
                word_length(at, end)?;
            }
            c if c.is_whitespace() => {}
            _ => {
                let mut end = at + c.len_utf8();
                while let Some((i, c)) = chars.next_if(|&(_, c)| !c.is_whitespace() && !matches!(c, ';' | '(' | ')')) {
                    end = i + c.len_utf8();
                }
                word_length(at, end)?;
                let word = &text[at..end];
                check_word(word).map_err(|message| (at, message))?;
                if command && !(depth == 1 && COMMANDS.contains(&word)) {
                    let message = format!(
                        "only {} are allowed in a rule set, not '{}'",
                        COMMANDS.join(", "),
                        shortened(word)
                    );
                    return Err((at, message));
                }
                command = false;
            }
        }
    }
    if depth > 0 {
        return Err((text.len(), "a parenthesis is not closed".into()));
    }
    Ok(())
}

fn word_length(start: usize, end: usize) -> Result<(), TextFault> {
    if end - start > MAX_WORD {
        return Err((start, format!("the word is longer than {MAX_WORD} bytes")));
    }
    Ok(())
}

/// Checks a word outside of strings: a word that looks like a number must be one.
fn check_word(word: &str) -> Result<(), String> {
    if word == ROOT {
        return Err(format!("'{ROOT}' is reserved"));
    }
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    let is_integer = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if is_integer && word.parse::<i64>().is_err() {
        return Err(format!("the integer {} does not fit into 64 bits", shortened(word)));
    }
    if word.parse::<f64>().is_ok_and(|v| !v.is_finite()) {
        return Err(format!("'{}' is not a finite number", shortened(word)));
    }
    if word.chars().any(char::is_control) {
        return Err("control characters are not allowed".into());
    }
    Ok(())
}

/// Checks the size of a rule.
///
/// # Errors
/// A message when it has too many parts.
pub(super) fn size(body: &[Fact], head: &[Action]) -> Result<(), String> {
    fn count(expr: &Expr) -> usize {
        match expr {
            Expr::Var(..) | Expr::Lit(..) => 1,
            Expr::Call(_, _, arguments) => 1 + arguments.iter().map(count).sum::<usize>(),
        }
    }
    let facts = body.iter().map(|fact| match fact {
        Fact::Eq(_, a, b) => count(a) + count(b),
        Fact::Fact(a) => count(a),
    });
    let actions = head.iter().map(|action| match action {
        Action::Let(_, _, a) | Action::Expr(_, a) => count(a),
        Action::Union(_, a, b) => count(a) + count(b),
        Action::Set(..) | Action::Change(..) | Action::Panic(..) => 1,
    });
    let total: usize = facts.chain(actions).sum();
    if total > MAX_NODES {
        return Err(format!(
            "the rule has {total} calls, variables and literals; {MAX_NODES} are allowed"
        ));
    }
    Ok(())
}

/// Checks that the name of a rule is valid.
///
/// # Errors
/// A message when it is empty, too long or cannot be printed.
pub(super) fn rule_name(name: &str) -> Result<(), String> {
    const MAX_LENGTH: usize = 200;
    if name.trim().is_empty() || name.starts_with('#') {
        return Err("the rule has no :name".into());
    }
    if name.len() > MAX_LENGTH {
        return Err(format!("the rule's name is longer than {MAX_LENGTH} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err("the rule's name has control characters".into());
    }
    Ok(())
}

/// Checks namespace and operators of a set.
///
/// # Errors
/// A message naming the invalid part.
pub(super) fn set(set: &RuleSet) -> Result<(), String> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if set.namespace.is_empty() || set.namespace.len() > 64 || !set.namespace.chars().all(valid) {
        return Err("the namespace must be lower-case letters, digits, '-' and '_', and at most 64 of them".into());
    }
    for (i, op) in set.ops.iter().enumerate() {
        operator(*op)?;
        if set.ops[..i].contains(op) {
            return Err(format!("two of its operators are called '{}'", op.name()));
        }
    }
    Ok(())
}

/// Checks that an operator's name has a namespace and can be used in rules.
fn operator(op: OpRef) -> Result<(), String> {
    let name = op.name();
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty() || !part.chars().all(valid)) {
        return Err(format!(
            "its operator '{}' must be called namespace.name, in lower-case letters, digits, '-' and '_'",
            shortened(name)
        ));
    }
    Ok(())
}
