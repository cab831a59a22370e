//! Tests that `docs/kernel-limits.md` lists every limit of the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders and files with limits of kernels.
const SOURCES: [&str; 9] = [
    "shaders/src",
    "backends/cpu/src",
    "backends/blade/src",
    "backends/cuda/src",
    "core/src/ops",
    "core/src/program.rs",
    "core/src/shape.rs",
    "core/compiler/src/cluster",
    "core/compiler/src/rewrite/dialect.rs",
];

/// Adds the Rust files of a folder, without tests.
fn add_files(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            add_files(&entry.expect("an entry").path(), files);
        }
        return;
    }
    let name = path.to_string_lossy();
    if name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.contains("/src/tests/") {
        files.push(path.to_owned());
    }
}

/// Returns the name of the constant that a line declares, if it is a limit.
fn limit(line: &str) -> Option<&str> {
    let (before, rest) = line.trim_start().split_once("const ")?;
    let (name, _) = rest.split_once(':')?;
    let is_declaration = before.is_empty() || before.starts_with("pub");
    let is_limit = ["MAX", "MOST"].contains(&name) || name.starts_with("MAX_") || name.starts_with("MOST_");
    (is_declaration && is_limit).then_some(name)
}

#[test]
fn every_limit_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/kernel-limits.md")).expect("the page");
    let mut files = Vec::new();
    for source in SOURCES {
        add_files(&root.join(source), &mut files);
    }
    let mut found = 0;
    let mut missing = Vec::new();
    for file in &files {
        let path = file.strip_prefix(&root).expect("a file of the repository");
        let path = path.to_string_lossy();
        let text = fs::read_to_string(file).expect("a source");
        for name in text.lines().filter_map(limit) {
            found += 1;
            let is_listed = |row: &str| row.contains(&format!("`{path}`:")) && row.contains(&format!("`{name}`"));
            if !page.lines().any(is_listed) {
                missing.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(found > 100, "only {found} limits");
    assert!(missing.is_empty(), "not in docs/kernel-limits.md: {missing:#?}");
}

/// The cases that the page names exist in the suite.
#[test]
fn every_documented_case_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/kernel-limits.md")).expect("the page");
    let sources = ["limits.rs", "kernel_limits.rs"].map(|name| {
        let path = root.join("src/semantics").join(name);
        fs::read_to_string(path).expect("the cases")
    });
    let mut found = 0;
    let rows = page
        .lines()
        .filter(|row| row.starts_with("| ") && row.matches(" | ").count() == 3);
    for row in rows {
        let cases = row.rsplit(" | ").next().unwrap_or_default();
        for case in cases.split('`').skip(1).step_by(2).filter(|case| case.contains(' ')) {
            found += 1;
            let quoted = format!("\"limits/{case}\"");
            assert!(
                sources.iter().any(|text| text.contains(&quoted)),
                "there is no case {case}"
            );
        }
    }
    assert!(found > 20, "only {found} cases");
}
