//! Checks of a kernel's text before naga parses it.

use crate::term::shortened;

/// Maximum number of elements of an array with constant length: the number of words of workgroup memory.
const MAX_ARRAY: u32 = 4_096;
/// Maximum nesting depth of brackets.
const DEEPEST: usize = 24;
/// Maximum number of operators and brackets of a statement.
const MAX_OPERATORS: usize = 150;
/// Maximum number of alternatives in a chain of conditions.
const MAX_BRANCHES: usize = 64;

/// Checks a kernel's text, and returns it without comments.
///
/// # Errors
/// A comment without an end; an array whose length is not a plain number, or too large, because
/// evaluating constants takes as much memory as the result; types that hide their size.
pub(super) fn prepare(text: &str) -> Result<String, String> {
    let text = without_comments(text)?;
    check_arrays(&text)?;
    check_types(&text)?;
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
            // Keep line breaks, for line numbers in messages.
            ('\n', _) => out.push(c),
            _ => {}
        }
    }
    match depth {
        0 => Ok(out),
        _ => Err("a comment does not end".into()),
    }
}

/// Returns `true` for characters that end a line in WGSL.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\u{b}' | '\u{c}' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns the positions of a word in a text.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// Checks that the length of every `array<T, N>` is a plain number within the limit, nested arrays included.
fn check_arrays(text: &str) -> Result<(), String> {
    words(text, "array").try_for_each(|at| elements(&text[at..]).map(|_| ()))
}

/// Returns the number of elements of the array type at the beginning of a text, including nested
/// arrays; 1 if it gives no length.
fn elements(text: &str) -> Result<u32, String> {
    let Some(inside) = text["array".len()..].trim_start().strip_prefix('<') else {
        return Ok(1);
    };
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
    let (of, length) = match comma {
        Some(comma) => (&arguments[..comma], arguments[comma + 1..].trim()),
        None => (arguments, ""),
    };
    let of = of.trim_start();
    let each = match words(of, "array").next() {
        Some(0) => elements(of)?,
        _ => 1,
    };
    let length = length.trim_end_matches(',').trim_end();
    if length.is_empty() {
        return Ok(each);
    }
    let number = length.strip_suffix(['u', 'i']).unwrap_or(length).parse::<u32>().ok();
    let all = number.and_then(|n| n.checked_mul(each));
    all.filter(|&n| n <= MAX_ARRAY).ok_or_else(|| {
        format!(
            "the length of an array is '{}'; expected a plain number, and at most {MAX_ARRAY} elements in total",
            shortened(length)
        )
    })
}

/// Checks that no type hides its size: type aliases, and structures of structures or arrays, are refused.
fn check_types(text: &str) -> Result<(), String> {
    if words(text, "alias").next().is_some() {
        return Err("it has an 'alias'; write the type".into());
    }
    let structures: Vec<(&str, &str)> = words(text, "struct")
        .filter_map(|at| {
            let (name, rest) = text[at + "struct".len()..].split_once('{')?;
            Some((name.trim(), rest.split('}').next().unwrap_or_default()))
        })
        .collect();
    for (name, members) in &structures {
        let nested = structures.iter().map(|(other, _)| *other).chain(["array"]);
        let types = members.split(',').filter_map(|member| Some(member.split_once(':')?.1));
        for ty in types {
            if let Some(inner) = nested.clone().find(|inner| words(ty, inner).next().is_some()) {
                return Err(format!(
                    "the structure '{}' has a member of the type '{}'; its members are numbers, vectors and matrices",
                    shortened(name),
                    shortened(inner)
                ));
            }
        }
    }
    Ok(())
}

/// Limits the size of statements, because the parser and writer of naga recurse.
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
        if operators > MAX_OPERATORS {
            return Err(format!(
                "a statement has more than {MAX_OPERATORS} operators and brackets"
            ));
        }
    }
    let branches = text.matches("else").count();
    if branches <= MAX_BRANCHES {
        Ok(())
    } else {
        Err(format!("it has {branches} times 'else'; {MAX_BRANCHES} are allowed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_the_rest_stays() {
        let text = "a /* b /* c */ */ d // e\nf /* \u{e4} */";
        assert_eq!(prepare(text).expect("fine"), "a   d \nf  ");
        assert_eq!(
            prepare("a /* b\n /* c\n */\n */ d\ne").expect("fine"),
            "a \n\n\n  d\ne",
            "lines stay"
        );
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
            "array<array<f32, 64>, 64>",
            "my_array<n>",
            "struct S { a: f32, my_array: vec4<f32>, }; array<S, 3>",
            "array(1, 2)",
        ] {
            assert!(prepare(text).is_ok(), "{text}");
        }
        for text in [
            "array<f32, n>",
            "array<f32, 100000>",
            "array<f32, 64 * 64>",
            "array<array<f32, n>, 8>",
            "array<array<f32, 64>, 65>",
            "array<array<array<f32, 4096>, 4096>, 4096>",
            "alias A = array<f32, 64>;",
            "struct S { a: f32 } struct T { a: S, b: S }",
            "struct S { a: f32, b: array<f32, 4> }",
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
