//! Tests that comments, documents and names stay easy to read. CONTRIBUTING.md contains the rules.
//!
//! Limits of comments are a ratchet: they may only fall.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::plain_language_markers::Finder;

/// Marked wording at the start of a comment.
const IN_COMMENTS: [(&str, &str); 2] = [
    (
        "a comment that begins with a relative clause",
        r"^\s*//[/!] (What|Whether|Which|Where|How|When|If|Why|Who)\b(?!.*\?)",
    ),
    (
        "'Most' and 'Least' for 'Maximum' and 'Minimum'",
        r"^\s*///? (Most|Least|Fewest|So many|As many)\b",
    ),
];

/// Maximum share of marked comment lines by crate, in tenths of a percent.
const COMMENTS: [(&str, usize); 17] = [
    (".", 29),
    ("backends/blade", 5),
    ("backends/cpu", 5),
    ("backends/cuda", 5),
    ("benches/peers", 5),
    ("cli", 29),
    ("core", 21),
    ("core/compiler", 9),
    ("formats/onnx", 33),
    ("fuzz", 35),
    ("llm", 18),
    ("plugins/examples/ndarray/linked", 0),
    ("plugins/host", 32),
    ("plugins/mpi", 8),
    ("serve", 14),
    ("shaders", 11),
    ("tests/conformance", 16),
];

/// Maximum share for a crate that is not listed, in tenths of a percent.
const NEW_CRATE: usize = 20;

/// Maximum distance of a limit from the actual share, in tenths of a percent. A higher limit must be lowered.
const SLACK: usize = 10;

/// Maximum number of marked words per 1,000 words of Markdown.
const MARKDOWN: usize = 4;

/// Names that types must not have: bare participles, prepositions or adverbs do not describe the values of a type.
const NAMES: [&str; 65] = [
    "Abandoned",
    "Accepted",
    "After",
    "Allowed",
    "Applied",
    "Applies",
    "Around",
    "Asked",
    "Begun",
    "Beside",
    "Brings",
    "Carried",
    "Checked",
    "Chosen",
    "Compared",
    "Converted",
    "Counted",
    "Described",
    "Emitted",
    "Ends",
    "Entered",
    "Examined",
    "Exported",
    "Extras",
    "Forced",
    "Found",
    "Given",
    "Grown",
    "Held",
    "Incoming",
    "Inside",
    "Joined",
    "Keep",
    "Kept",
    "Known",
    "Lacking",
    "Left",
    "Listed",
    "Lost",
    "Lowered",
    "Made",
    "Noted",
    "Noticed",
    "Odd",
    "Of",
    "Once",
    "Opened",
    "Reached",
    "Ready",
    "Rebuilt",
    "Refused",
    "Seen",
    "Sent",
    "Spent",
    "Taken",
    "This",
    "Together",
    "Told",
    "Tried",
    "Unmade",
    "Wanted",
    "Watched",
    "What",
    "With",
    "Without",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files with these extensions, except built, hidden and generated ones.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let skipped = ["target", "shared", "node_modules", "snapshots", "golden", "fixtures"];
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder exists") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !name.starts_with('.') && !skipped.contains(&name) {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|e| endings.iter().any(|ending| e == *ending))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the folder of the crate that a file belongs to, relative to the repository; "." for the root's.
fn crate_of(path: &Path) -> String {
    let folders = path.ancestors().skip(1);
    let folder = folders
        .take_while(|f| *f != root())
        .find(|f| f.join("Cargo.toml").exists());
    let name = folder.map(|f| f.strip_prefix(root()).expect("below the root").display().to_string());
    name.unwrap_or_else(|| ".".into()).replace('\\', "/")
}

fn is_comment(path: &Path, line: &str) -> bool {
    let mark = if path.extension().is_some_and(|e| e == "egg") {
        ";"
    } else {
        "//"
    };
    line.trim_start().starts_with(mark)
}

#[test]
fn comments_are_plain() {
    let finder = Finder::new(&IN_COMMENTS);
    let mut crates: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    for path in files(&["rs", "wgsl", "egg"]) {
        // This file and the patterns quote the wording.
        if path.ends_with("tests/common/plain_language.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        let (lines, marked) = crates.entry(crate_of(&path)).or_default();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| is_comment(&path, line)) {
            *lines += 1;
            if finder.is_marked(line) {
                let reasons = finder.reasons(line).join(", ");
                let name = path.strip_prefix(root()).expect("below the root").display();
                marked.push(format!("{name}:{}: {} ({reasons})", i + 1, line.trim()));
            }
        }
    }
    let mut complaints = Vec::new();
    for (name, (lines, marked)) in &crates {
        let share = 1000 * marked.len() / (*lines).max(1);
        let limit = COMMENTS
            .iter()
            .find(|(of, _)| of == name)
            .map_or(NEW_CRATE, |&(_, limit)| limit);
        if share > limit {
            complaints.push(format!(
                "{name}: {} of {lines} comment lines are marked, {share} per 1,000, maximum {limit}:\n{}",
                marked.len(),
                marked.join("\n")
            ));
        } else if COMMENTS.iter().any(|(of, _)| of == name) && share + SLACK < limit {
            complaints.push(format!(
                "{name}: {share} per 1,000 lines are marked; lower the limit from {limit}"
            ));
        }
    }
    let gone = COMMENTS.iter().filter(|(name, _)| !crates.contains_key(*name));
    complaints.extend(gone.map(|(name, _)| format!("{name}: no such crate; remove its limit")));
    assert!(
        COMMENTS.iter().all(|&(_, limit)| limit < 50),
        "every limit is below 5 %"
    );
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn documents_are_plain() {
    let finder = Finder::new(&[]);
    let (mut words, mut marked) = (0, Vec::new());
    for path in files(&["md"]) {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        // The former describes the past, the latter is generated from docstrings.
        if name == "CHANGELOG.md" || name.ends_with("operators.md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        words += text.split_whitespace().count();
        for (i, line) in text.lines().enumerate() {
            marked.extend(
                finder
                    .reasons(line)
                    .iter()
                    .map(|why| format!("{name}:{}: {why}: {line}", i + 1)),
            );
        }
    }
    assert!(
        1000 * marked.len() < MARKDOWN * words,
        "{} marked words among {words} words of Markdown, maximum {MARKDOWN} per 1,000:\n{}",
        marked.len(),
        marked.join("\n")
    );
}

/// Returns the name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    Some(&rest[..end])
}

#[test]
fn types_have_nouns_as_names() {
    let mut complaints = Vec::new();
    for path in files(&["rs"]) {
        let text = fs::read_to_string(&path).expect("readable");
        for (i, line) in text.lines().enumerate() {
            if declared_type(line).is_some_and(|name| NAMES.contains(&name)) {
                complaints.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
            }
        }
    }
    assert!(
        complaints.is_empty(),
        "name these after what they are:\n{}",
        complaints.join("\n")
    );
}

#[test]
fn wording_and_names_are_found() {
    let (prose, comments) = (Finder::new(&[]), Finder::new(&IN_COMMENTS));
    assert_eq!(prose.reasons("The rows lie beside those.").len(), 3);
    assert!(
        prose
            .reasons("Written in place; a placeholder takes its slot.")
            .is_empty()
    );
    assert!(comments.is_marked("    /// Whether rows are padded.") && !prose.is_marked("Whether rows are padded."));
    assert!(
        comments.is_marked("/// Most bytes of a block.")
            && !comments.is_marked("/// Maximum number of bytes of a block.")
    );
    assert_eq!(declared_type("    pub(crate) struct Known<'a> {"), Some("Known"));
    assert_eq!(declared_type("pub type Made = u32;"), Some("Made"));
    assert_eq!(declared_type("enum KnownTensor {"), Some("KnownTensor"));
    assert_eq!(declared_type("let structure = Known;"), None);
}
