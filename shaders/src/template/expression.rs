//! Evaluation of constant expressions: numbers, `+ - * / %`, comparisons, `&& || !`, `min`, `max`, parentheses.

use std::collections::HashMap;

use super::items::is_word;

/// Returns the value of an expression. True is 1, and false is 0.
///
/// # Errors
/// The text is not an expression, a name has no value, or a result is not a `u32`.
pub(super) fn evaluate(text: &str, values: &HashMap<String, u64>) -> Result<u64, String> {
    let mut parser = Parser {
        tokens: tokens(text),
        at: 0,
        values,
    };
    let value = parser.binary(0);
    match value {
        Ok(value) if parser.at == parser.tokens.len() => Ok(value),
        Ok(_) => Err(format!("'{text}' goes on behind its end")),
        Err(what) => Err(format!("'{text}': {what}")),
    }
}

/// Operators by precedence, lowest precedence first.
const LEVELS: [&[&str]; 6] = [
    &["||"],
    &["&&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["+", "-"],
    &["*", "/", "%"],
];

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    values: &'a HashMap<String, u64>,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Result<&'a str, String> {
        let token = self.tokens.get(self.at).copied().ok_or("it ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.next()? {
            token if token == wanted => Ok(()),
            token => Err(format!("'{token}' stands where '{wanted}' should")),
        }
    }

    fn binary(&mut self, level: usize) -> Result<u64, String> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.tokens.get(self.at).filter(|t| operators.contains(*t)).copied() {
            self.at += 1;
            let right = self.binary(level + 1)?;
            let result = match operator {
                "||" => Some(u64::from(left != 0 || right != 0)),
                "&&" => Some(u64::from(left != 0 && right != 0)),
                "==" => Some(u64::from(left == right)),
                "!=" => Some(u64::from(left != right)),
                "<" => Some(u64::from(left < right)),
                ">" => Some(u64::from(left > right)),
                "<=" => Some(u64::from(left <= right)),
                ">=" => Some(u64::from(left >= right)),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                "/" => left.checked_div(right),
                _ => left.checked_rem(right),
            };
            left = result.ok_or_else(|| format!("{left} {operator} {right} has no value"))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<u64, String> {
        match self.next()? {
            "!" => Ok(u64::from(self.unary()? == 0)),
            "(" => {
                let value = self.binary(0)?;
                self.expect(")")?;
                Ok(value)
            }
            name @ ("min" | "max") => {
                self.expect("(")?;
                let left = self.binary(0)?;
                self.expect(",")?;
                let right = self.binary(0)?;
                self.expect(")")?;
                Ok(if name == "min" {
                    left.min(right)
                } else {
                    left.max(right)
                })
            }
            "true" => Ok(1),
            "false" => Ok(0),
            token => match number(token) {
                Some(value) => Ok(value),
                None => self
                    .values
                    .get(token)
                    .copied()
                    .ok_or_else(|| format!("'{token}' has no value")),
            },
        }
    }
}

fn number(token: &str) -> Option<u64> {
    let digits = token.strip_suffix('u').unwrap_or(token);
    match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false
                if ["||", "&&", "==", "!=", "<=", ">="]
                    .iter()
                    .any(|two| rest.starts_with(two)) =>
            {
                2
            }
            false => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        tokens.push(token);
        rest = behind.trim_start();
    }
    tokens
}
