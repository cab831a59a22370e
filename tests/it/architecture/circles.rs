//! Detection of import cycles between files, by the paths in their text.
//!
//! A name that is imported through a re-export counts as an import of the file that defines it; a re-export by itself is no
//! dependency. Methods are not followed: `impl` blocks of a type in several files of a module look like one direction.

use std::collections::{BTreeMap, BTreeSet};

/// Path of a file's module in its crate: empty for the root.
pub(crate) type Module = Vec<String>;

/// Returns the module of a file, by its path below `src`.
pub(crate) fn module_of(file: &str) -> Module {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    module.pop_if(|name| ["lib", "main", "mod"].contains(&name.as_str()));
    module
}

/// Returns the cycles among files with these texts: sets of several modules that each depend on all others, the largest first.
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

/// Returns the modules that each file depends on, by the paths in its text.
pub(crate) fn named(texts: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let files: Files = texts.iter().map(|(module, text)| (module, File::of(text))).collect();
    let mut named = BTreeMap::new();
    for (&module, file) in &files {
        let found = file.paths.iter().filter_map(|path| defining(&files, module, path));
        named.insert(module, found.filter(|&found| found != module).collect());
    }
    named
}

fn reached_from<'a>(module: &'a Module, named: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        next.extend(named[module].iter().filter(|&&other| reached.insert(other)));
    }
    reached
}

/// Path of an item, as it is written in the code.
type ItemPath = Vec<String>;

/// Items, imports and paths of a file.
#[derive(Default)]
struct File {
    /// Names of the items that the file defines.
    defines: BTreeSet<String>,
    /// All imports, including re-exports. The last name is `*` for all items of a module.
    imports: Vec<ItemPath>,
    /// Imports that are not re-exported, and paths in the code.
    paths: Vec<ItemPath>,
}

type Files<'a> = BTreeMap<&'a Module, File>;

impl File {
    fn of(text: &str) -> Self {
        let tokens = tokens(text);
        let mut file = File::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let before = at.checked_sub(1).map_or("", |before| &tokens[before]);
            let next = tokens.get(at + 1).map_or("", String::as_str);
            match token.as_str() {
                "use" => {
                    at += 1;
                    let mut paths = Vec::new();
                    read_paths(&tokens, &mut at, Vec::new(), &mut paths);
                    // `pub use` or `pub(crate) use`.
                    if !["pub", ")"].contains(&before) {
                        file.paths.extend(paths.iter().cloned());
                    }
                    file.imports.extend(paths);
                    continue;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" if is_name(next) => {
                    file.defines.insert(next.to_owned());
                }
                "macro_rules" => {
                    file.defines.extend(tokens.get(at + 2).cloned());
                }
                // Skips the middle of a path, and the path of a `pub(in ...)`.
                name if is_name(name) && next == "::" && !["::", "in"].contains(&before) => {
                    let mut end = at;
                    read_paths(&tokens, &mut end, Vec::new(), &mut file.paths);
                }
                _ => {}
            }
            at += 1;
        }
        file
    }
}

/// Returns the file that defines the item of a path, if it is in this crate.
fn defining<'a>(files: &Files<'a>, module: &Module, path: &[String]) -> Option<&'a Module> {
    let from_root = from_root(files, module, path).or_else(|| {
        // A module that was imported by its name.
        let imports = &files[module].imports;
        let import = imports
            .iter()
            .find(|import| import.len() > 1 && import.last() == path.first())?;
        let mut full = self::from_root(files, module, import)?;
        full.extend(path[1..].iter().cloned());
        Some(full)
    })?;
    resolve(files, &from_root, 0)
}

/// Returns a path from the root of the crate; `None` for a path of another crate, or of an imported name.
fn from_root(files: &Files, module: &Module, path: &[String]) -> Option<ItemPath> {
    let (first, rest) = path.split_first()?;
    let (mut full, mut rest) = (module.clone(), rest);
    match first.as_str() {
        "crate" => full.clear(),
        "self" => {}
        "super" => {
            full.pop();
            while let Some((_, after)) = rest.split_first().filter(|(name, _)| *name == "super") {
                full.pop();
                rest = after;
            }
        }
        child => {
            full.push(child.to_owned());
            files.get(&full)?;
        }
    }
    full.extend(rest.iter().cloned());
    Some(full)
}

/// Maximum number of re-exports through which a name is followed.
const MAX_REEXPORTS: usize = 8;

/// Returns the file that defines the item of a path from the root.
fn resolve<'a>(files: &Files<'a>, path: &[String], depth: usize) -> Option<&'a Module> {
    let known = |len: &usize| files.contains_key(&path[..*len].to_vec());
    let len = (0..=path.len()).rev().find(known)?;
    let (&module, file) = files.get_key_value(&path[..len].to_vec())?;
    let Some(name) = path
        .get(len)
        .filter(|name| depth < MAX_REEXPORTS && !file.defines.contains(*name))
    else {
        return Some(module);
    };
    for import in &file.imports {
        let Some(last) = import.last() else { continue };
        if last == name {
            return from_root(files, module, import).map_or(Some(module), |full| resolve(files, &full, depth + 1));
        }
        if last == "*"
            && let Some(full) = from_root(files, module, &import[..import.len() - 1])
            && full[..] != path[..len]
            && let Some(found) = resolve(files, &full, depth + 1)
            && files[found].defines.contains(name)
        {
            return Some(found);
        }
    }
    // `super` in a module within a file looks like a path to the parent of the file: the root has no such item.
    (!module.is_empty()).then_some(module)
}

/// Reads the paths that begin at a token. A group in braces gives several paths.
fn read_paths(tokens: &[String], at: &mut usize, mut path: ItemPath, paths: &mut Vec<ItemPath>) {
    while let Some(token) = tokens.get(*at) {
        match token.as_str() {
            "{" => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    let start = *at;
                    read_paths(tokens, at, path.clone(), paths);
                    // A separator, or a token that is not part of a path.
                    *at += usize::from(*at == start || tokens.get(*at).is_some_and(|token| token == ","));
                }
                *at += 1;
                return;
            }
            name if is_name(name) || name == "*" => {
                path.push(name.to_owned());
                *at += 1;
                if tokens.get(*at).is_none_or(|token| token != "::") {
                    break;
                }
                *at += 1;
            }
            _ => break,
        }
    }
    // Another name for the item.
    if tokens.get(*at).is_some_and(|token| token == "as") {
        *at += 2;
    }
    // `use a::{self}` imports the module.
    path.pop_if(|name| name == "self");
    if !path.is_empty() {
        paths.push(path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits code into names, `::` and other symbols, without comments, strings and character literals.
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
