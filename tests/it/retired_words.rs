//! Words that the documents no longer use are not in public documents and names of public items. The standard terms are
//! in docs/glossary.md. Those of the command's help are tested with the command.

use std::fs;
use std::path::{Path, PathBuf};

use crate::retired::{RETIRED, complaints, complaints_of_text, has_word};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files with an ending, but for those that are built or hidden.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder exists") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let is_skipped = name.starts_with('.') || ["target", "shared", "node_modules"].contains(&name);
            if path.is_dir() && !is_skipped {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) && path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn documents_have_no_retired_words() {
    let mut found = Vec::new();
    for path in files("md") {
        let name = relative(&path);
        // These tell what was.
        if name == "CHANGELOG.md" || name.starts_with("docs/experiments") {
            continue;
        }
        found.extend(complaints_of_text(&name, &fs::read_to_string(&path).expect("readable")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The part of a line that names a public item or field; nothing of other lines.
fn public_name(line: &str) -> Option<&str> {
    let declared = line.trim_start().strip_prefix("pub ")?;
    // What follows is types, bodies and paths.
    let end = declared.find(['(', '{', '=', ';', '<']).unwrap_or(declared.len());
    let named = declared[..end]
        .split_once(':')
        .map_or(&declared[..end], |(name, _)| name);
    (!named.starts_with("use ")).then_some(named)
}

#[test]
fn public_names_have_no_retired_words() {
    let mut found = Vec::new();
    for path in files("rs") {
        let text = fs::read_to_string(&path).expect("readable");
        for (i, line) in text.lines().enumerate() {
            if public_name(line).is_some_and(|name| RETIRED.iter().any(|word| has_word(name, word))) {
                found.extend(complaints(&format!("{}:{}", relative(&path), i + 1), line));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_are_found_as_words() {
    assert!(has_word("all MOST_AXES", "MOST_") && has_word("on_matrix_units", "matrix_units"));
    assert!(!has_word("ALMOST_AXES", "MOST_") && !has_word("everlasting", "lasting"));
    assert_eq!(
        public_name("    pub const MOST_AXES: usize = 4;"),
        Some("const MOST_AXES")
    );
    assert_eq!(public_name("pub(crate) fn halves() {"), None);
    assert_eq!(public_name("pub fn halves(x: u32) {"), Some("fn halves"));
}
