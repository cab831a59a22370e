//! The text of a kernel before naga sees it.

use crate::term::shortened;

/// Longest array of a constant length, in elements.
const LONGEST_ARRAY: u32 = 16_384;
/// Deepest nesting of brackets.
const DEEPEST: usize = 24;
/// Most operators and brackets of a statement.
const MOST_OPERATORS: usize = 150;
/// Most alternatives of conditions.
const MOST_BRANCHES: usize = 64;

/// The text without comments.
///
/// # Errors
/// A comment without an end; an array whose length is no plain number, or too large: evaluating constants takes the memory
/// of what they make.
pub(super) fn prepare(text: &str) -> Result<String, String> {
    let text = without_comments(text)?;
    check_arrays(&text)?;
    check_statements(&text)?;
    Ok(text)
}

fn without_comments(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut depth = 0usize;
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('/', Some('*')) => {
                chars.next();
                depth += 1;
            }
            ('*', Some('/')) if depth > 0 => {
                chars.next();
                depth -= 1;
                if depth == 0 {
                    out.push(' ');
                }
            }
            ('/', Some('/')) if depth == 0 => while chars.next_if(|&c| !is_line_end(c)).is_some() {},
            _ if depth == 0 && !c.is_ascii() => {
                return Err("it has characters that are not ASCII outside of comments".into());
            }
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    match depth {
        0 => Ok(out),
        _ => Err("a comment does not end".into()),
    }
}

/// What ends a line in WGSL.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\u{b}' | '\u{c}' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Every `array<T, N>` has a plain number as its length.
fn check_arrays(text: &str) -> Result<(), String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, word) in text.match_indices("array") {
        let Some(inside) = text[at + word.len()..].trim_start().strip_prefix('<') else {
            continue;
        };
        if text[..at].ends_with(is_word) {
            continue;
        }
        let mut depth = 1usize;
        let end = inside.find(|c| {
            match c {
                '<' => depth += 1,
                '>' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let arguments = &inside[..end.ok_or("the type of an array does not end")?];
        let mut depth = 0usize;
        let comma = arguments.find(|c| {
            match c {
                '<' => depth += 1,
                '>' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        });
        let length = comma.map_or("", |comma| {
            arguments[comma + 1..].trim().trim_end_matches(',').trim_end()
        });
        let number = length.strip_suffix(['u', 'i']).unwrap_or(length);
        if !length.is_empty() && !number.parse::<u32>().is_ok_and(|n| n <= LONGEST_ARRAY) {
            return Err(format!(
                "the length of an array is '{}'; it is to be a plain number, at most {LONGEST_ARRAY}",
                shortened(length)
            ));
        }
    }
    Ok(())
}

/// Statements of bounded size: what reads and writes them is recursive.
fn check_statements(text: &str) -> Result<(), String> {
    let (mut depth, mut operators) = (0usize, 0usize);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1).ok_or("a bracket closes that was not opened")?,
            _ => {}
        }
        match c {
            ';' | '{' | '}' => operators = 0,
            '+' | '-' | '*' | '/' | '%' | '&' | '|' | '^' | '<' | '>' | '!' | '~' | '.' | '[' | '(' => operators += 1,
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("brackets are nested deeper than {DEEPEST}"));
        }
        if operators > MOST_OPERATORS {
            return Err(format!(
                "a statement has more than {MOST_OPERATORS} operators and brackets"
            ));
        }
    }
    let branches = text.matches("else").count();
    match branches <= MOST_BRANCHES {
        true => Ok(()),
        false => Err(format!("it has {branches} times 'else'; {MOST_BRANCHES} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_the_rest_stays() {
        let text = "a /* b /* c */ */ d // e\nf /* \u{e4} */";
        assert_eq!(prepare(text).expect("fine"), "a   d \nf  ");
        assert!(prepare("a /* b").is_err());
        assert!(prepare("\u{e4}").is_err());
    }

    #[test]
    fn arrays_have_plain_lengths() {
        for text in [
            "array<f32>",
            "array<f32, 64>",
            "array < vec4<f32> , 64u >",
            "array<array<f32, 4>, 8,>",
            "my_array<n>",
            "array(1, 2)",
        ] {
            assert!(prepare(text).is_ok(), "{text}");
        }
        for text in [
            "array<f32, n>",
            "array<f32, 100000>",
            "array<f32, 64 * 64>",
            "array<array<f32, n>, 8>",
            "array/* */<f32, /* 4 */ n>",
            "array<f32",
        ] {
            assert!(prepare(text).is_err(), "{text}");
        }
    }

    #[test]
    fn statements_are_bounded() {
        for text in [
            "(".repeat(40),
            "{".repeat(40),
            "-".repeat(200),
            "a+".repeat(200),
            "else ".repeat(100),
        ] {
            assert!(prepare(&text).is_err(), "{text}");
        }
        assert!(prepare(&"x = a + b;".repeat(200)).is_ok());
    }
}
