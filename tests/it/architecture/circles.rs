//! Files that name each other in circles, found by the paths in their text.
//!
//! Methods are not followed: `impl` blocks of a type in several files of a module look like one direction.

use std::collections::{BTreeMap, BTreeSet};

/// Where a file's module is in its crate: empty for the root.
pub(crate) type Module = Vec<String>;

/// The module of a file, by its path below `src`.
pub(crate) fn module_of(file: &str) -> Module {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    module.pop_if(|name| ["lib", "main", "mod"].contains(&name.as_str()));
    module
}

/// The circles among files with these texts: sets of several modules each of which leads to all others, the largest first.
pub(crate) fn circles(texts: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let named = named(texts);
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = texts.keys().map(|m| (m, reached_from(m, &named))).collect();
    let mut circles = BTreeSet::new();
    for (&module, others) in &reached {
        let circle = others.iter().filter(|&&other| reached[other].contains(module));
        let circle: Vec<Module> = circle.map(|&other| other.clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<Vec<Module>> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// Which modules each file names.
pub(crate) fn named(texts: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let named = texts.iter();
    named
        .map(|(module, text)| (module, named_by(module, text, texts)))
        .collect()
}

fn reached_from<'a>(module: &'a Module, named: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        next.extend(named[module].iter().filter(|&&other| reached.insert(other)));
    }
    reached
}

/// The modules with a file of their own whose items a file names.
fn named_by<'a>(module: &Module, text: &str, texts: &'a BTreeMap<Module, String>) -> BTreeSet<&'a Module> {
    let tokens = tokens(text);
    let mut named = BTreeSet::new();
    for (start, token) in tokens.iter().enumerate() {
        // Not in the middle of a path, nor where an item is visible.
        let before = start.checked_sub(1).map_or("", |before| &tokens[before]);
        if !is_name(token) || ["::", "in"].contains(&before) {
            continue;
        }
        let mut paths = Vec::new();
        read_paths(&tokens, &mut start.clone(), Vec::new(), &mut paths);
        let own = |path: Vec<&str>| file_of(module, &path, texts);
        named.extend(paths.into_iter().filter_map(own));
    }
    named.remove(module);
    named
}

/// The file that has the item of a path, if it is in this crate.
fn file_of<'a>(module: &Module, path: &[&str], texts: &'a BTreeMap<Module, String>) -> Option<&'a Module> {
    let (first, mut rest) = path.split_first()?;
    let mut file = module.clone();
    match *first {
        _ if rest.is_empty() => return None,
        "crate" => file.clear(),
        "self" => {}
        "super" => {
            file.pop();
            while let Some(("super", after)) = rest.split_first().map(|(name, after)| (*name, after)) {
                file.pop();
                rest = after;
            }
        }
        child => {
            file.push(child.to_owned());
            texts.get(&file)?;
        }
    }
    for name in rest {
        file.push((*name).to_owned());
        if !texts.contains_key(&file) {
            file.pop();
            break;
        }
    }
    texts.get_key_value(&file).map(|(file, _)| file)
}

/// The paths that begin at a token: several where there are braces.
fn read_paths<'a>(tokens: &'a [String], at: &mut usize, mut path: Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.as_str() {
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    read_paths(tokens, at, path.clone(), paths);
                }
                *at += 1;
                return;
            }
            // Between names in braces.
            "," => return,
            name if is_name(name) => {
                path.push(name);
                if tokens.get(*at).is_none_or(|token| token != "::") {
                    break;
                }
                *at += 1;
            }
            _ => break,
        }
    }
    paths.push(path);
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and other signs, without comments, texts and characters.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inner) = rest.strip_prefix("r\"") {
            2 + inner.find('"').map_or(inner.len(), |end| end + 1)
        } else if let Some(inner) = rest.strip_prefix("r#\"") {
            3 + inner.find("\"#").map_or(inner.len(), |end| end + 2)
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if first == '\'' {
            // A character, or the mark of a lifetime.
            let inner: Vec<char> = rest.chars().skip(1).take(2).collect();
            match inner[..] {
                ['\\', _] => 3 + rest[3..].find('\'').map_or(0, |end| end + 1),
                [inner, '\''] => 2 + inner.len_utf8(),
                _ => 1,
            }
        } else if is_name(rest) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let end = end.unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

#[test]
fn circles_are_found_by_paths_of_any_form() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
        (
            "a.rs",
            "mod inner; use inner::Inner; use crate::{d::D, b::{self, B as Other}};",
        ),
        (
            "a/inner.rs",
            "use super::super::d::{D}; /* 'x' */ pub(in super::super) fn f<'a>() {}",
        ),
        (
            "b.rs",
            "fn f() -> char { let text = \"crate::d::D \\\" crate::d\"; super::c::g(text); '\"' }",
        ),
        ("c/mod.rs", "// crate::d::D\nuse super::a::A as Another; use std::d::B;"),
        ("d.rs", "use blade::a::A; fn a() { a() }"),
    ];
    let texts = files.map(|(file, text)| (module_of(file), text.to_owned()));
    let found = circles(&BTreeMap::from(texts.clone()));
    assert_eq!(found, [["a", "b", "c"].map(|name| vec![name.to_owned()])]);
    let mut texts = BTreeMap::from(texts);
    texts.insert(module_of("d.rs"), "use crate::a::inner::f;".to_owned());
    let found = circles(&texts);
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2], "{found:?}");
    assert_eq!(found[1][0], module_of("a/inner.rs"));
}
