//! Functions that generated code may call, written by hand.

use std::collections::HashSet;
use std::sync::OnceLock;

use super::template::{Item, parse};

/// Functions that kernels share.
const FILES: [&str; 2] = [include_str!("../lib/math.wgsl"), include_str!("../lib/fault.wgsl")];

/// The library's functions.
///
/// # Errors
/// A file of the library that cannot be read.
pub(super) fn items() -> Result<&'static [Item], String> {
    static LIBRARY: OnceLock<Result<Vec<Item>, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| parse(&FILES.concat()));
    library.as_deref().map_err(|what| format!("lib: {what}"))
}

/// Functions that code uses, and those that they use, of the files in `lib/`.
pub(super) fn library(code: &str) -> String {
    let functions: Vec<(&str, &str)> = FILES.iter().flat_map(|file| functions(file)).collect();
    let mut used: HashSet<&str> = HashSet::new();
    let mut open: Vec<&str> = vec![code];
    while let Some(text) = open.pop() {
        for &(name, function) in &functions {
            if calls(text, name) && used.insert(name) {
                open.push(function);
            }
        }
    }
    let kept = functions.iter().filter(|(name, _)| used.contains(name));
    kept.map(|(_, text)| *text).collect()
}

/// Whether a text calls a function.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        starts && text[at + name.len()..].starts_with('(')
    })
}

/// Names and texts of the functions of a file; each begins a line with `fn` and ends with a brace of its own line.
fn functions(file: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = file;
    while let Some(start) = rest.find("fn ") {
        if start > 0 && !rest[..start].ends_with('\n') {
            rest = &rest[start + 3..];
            continue;
        }
        let text = &rest[start..];
        let (Some(paren), Some(end)) = (text.find('('), text.find("\n}\n")) else {
            break;
        };
        found.push((&text[3..paren], &text[..end + 3]));
        rest = &text[end + 3..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_what_is_used() {
        let text = library("let y = softplus_f32(x);");
        for name in ["softplus_f32", "max_f32", "log1p_f32", "log_core", "exp_core", "is_nan"] {
            assert!(text.contains(&format!("fn {name}(")), "{name} in\n{text}");
        }
        assert!(!text.contains("fn erf_f32("));
        assert_eq!(library("let y = x;"), "");
    }
}
