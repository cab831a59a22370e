//! Shared code of tests.

use std::fs;
use std::path::Path;

/// Returns the names of the files in a folder, sorted.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it exists");
    let mut names: Vec<String> = entries
        .map(|e| e.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
