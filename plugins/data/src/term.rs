//! Expressions in the syntax of rules: `(core.mul x (core.sigmoid x))`.

use std::fmt;
use std::panic::catch_unwind;

use egglog::ast::{Expr, Literal, Parser};

/// Maximum length of an expression, in bytes.
const MAX_LENGTH: usize = 4096;
/// Maximum nesting.
const DEEPEST: usize = 32;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Term {
    /// A name.
    Name(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Call(String, Vec<Term>),
}

impl Term {
    /// Parses an expression.
    ///
    /// # Errors
    /// Description of the syntax error.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("it has {} bytes; {MAX_LENGTH} are allowed", text.len()));
        }
        check_nesting(text)?;
        // The parser reads one expression and ignores the rest; wrapping it in a list detects
        // trailing text.
        let listed = format!("(list {text}\n)");
        let parsed = catch_unwind(|| Parser::default().get_expr_from_string(None, &listed));
        let expr = match parsed {
            Ok(Ok(expr)) => expr,
            Ok(Err(e)) => return Err(format!("'{}' is not an expression: {}", shortened(text), e.1)),
            Err(_) => return Err(format!("'{}' is not an expression", shortened(text))),
        };
        match Term::of(&expr)? {
            Term::Call(_, mut terms) if terms.len() == 1 => Ok(terms.remove(0)),
            _ => Err(format!("'{}' is not one expression", shortened(text))),
        }
    }

    fn of(expr: &Expr) -> Result<Self, String> {
        Ok(match expr {
            Expr::Var(_, name) => Term::Name(name.clone()),
            Expr::Call(_, name, arguments) => {
                let arguments: Result<_, String> = arguments.iter().map(Term::of).collect();
                Term::Call(name.clone(), arguments?)
            }
            Expr::Lit(_, literal) => match literal {
                Literal::Int(v) => Term::Int(*v),
                Literal::Float(v) if v.0.is_finite() => Term::Float(v.0),
                Literal::Bool(v) => Term::Bool(*v),
                Literal::String(v) => Term::Text(v.clone()),
                _ => return Err("it has a literal that is not a finite number, flag or word".into()),
            },
        })
    }

    /// Calls `visit` with every name of a call and every name of a value.
    pub(crate) fn names<'a>(&'a self, visit: &mut impl FnMut(&'a str, bool)) {
        match self {
            Term::Name(name) => visit(name, false),
            Term::Call(name, arguments) => {
                visit(name, true);
                arguments.iter().for_each(|a| a.names(visit));
            }
            _ => {}
        }
    }

    /// Adds the integers in it.
    pub(crate) fn integers(&self, to: &mut Vec<i64>) {
        match self {
            Term::Int(v) => to.push(*v),
            Term::Call(_, arguments) => arguments.iter().for_each(|a| a.integers(to)),
            _ => {}
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Name(name) => f.write_str(name),
            Term::Int(v) => write!(f, "{v}"),
            Term::Float(v) => write!(f, "{v:?}"),
            Term::Bool(v) => write!(f, "{v}"),
            Term::Text(v) => write!(f, "{v:?}"),
            Term::Call(name, arguments) => {
                write!(f, "({name}")?;
                arguments.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
        }
    }
}

/// Limits the nesting of parentheses, because the parser recurses.
fn check_nesting(text: &str) -> Result<(), String> {
    let (mut depth, mut quoted) = (0usize, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '\\' | ';' => return Err(format!("'{c}' is not allowed in an expression")),
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth = depth.checked_sub(1).ok_or("a parenthesis closes that was not opened")?,
            c if c.is_control() && c != '\n' => return Err("control characters are not allowed".into()),
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("parentheses are nested deeper than {DEEPEST}"));
        }
    }
    if depth > 0 || quoted {
        return Err("a parenthesis or a word is not closed".into());
    }
    Ok(())
}

/// Returns the beginning of a text, for messages.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN: usize = 80;
    let line: String = text.chars().take(SHOWN).filter(|c| !c.is_control()).collect();
    match text.chars().nth(SHOWN) {
        None => line,
        Some(_) => format!("{line}..."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_is_printed() {
        for text in ["x", "-3", "1.5", "true", "(f x (g \"[1, n]\") 2)"] {
            assert_eq!(Term::parse(text).expect("an expression").to_string(), text);
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        let deep = "(f ".repeat(40) + &")".repeat(40);
        for (text, words) in [
            ("", "not one expression"),
            ("x y", "not one expression"),
            (") (x", "closes"),
            ("(f x", "not closed"),
            ("(f \"x", "not closed"),
            ("()", "not a finite number"),
            ("inf", "not a finite number"),
            ("x ; y", "not allowed"),
            (&deep, "nested deeper"),
            (&"x".repeat(5000), "5000 bytes"),
        ] {
            let error = Term::parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
