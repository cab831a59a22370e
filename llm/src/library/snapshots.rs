//! The layout of the Hub's cache: `models--ORG--NAME` with `refs`, `snapshots` of commits, and `blobs` that snapshots
//! link to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meganeura_core::files::read_text_limited;

use super::places::{Origin, Place, entries, gguf_models, is_checkpoint};

/// Begins the names of folders of models; data sets have others.
pub(super) const PREFIX: &str = "models--";
/// The revision that has no name.
const MAIN: &str = "main";
/// Folders beneath `refs`: names of revisions have slashes in them.
const MAX_DEPTH: usize = 3;
/// What is enough of a commit to tell it from others.
const COMMIT_CHARACTERS: usize = 12;
/// Ends the names of files whose download has not ended.
const PARTIAL: [&str; 2] = [".incomplete", ".part"];

/// The models of a repository's folder, one for each snapshot, and for each GGUF model in it.
pub(super) fn search(folder: &Path, repository: &str, found: &mut Vec<Place>) {
    let name = repository.replacen("--", "/", 1);
    let mut refs = BTreeMap::new();
    read_refs(&folder.join("refs"), "", 0, &mut refs);
    let snapshots = entries(&folder.join("snapshots")).unwrap_or_default();
    let main = refs.iter().find(|(_, names)| names.iter().any(|name| name == MAIN));
    let main = main.map(|(commit, _)| commit.clone());
    let has_main = snapshots.iter().any(|(commit, _)| Some(commit) == main.as_ref());
    let of_hub = |place: Place, commit: &str| Place {
        origin: Origin::Hub,
        revision: Some(commit.to_owned()).filter(|commit| !commit.is_empty()),
        ..place
    };
    if !has_main && (main.is_some() || snapshots.is_empty()) {
        let place = Place::broken(name.clone(), folder, incomplete(folder));
        found.push(of_hub(place, main.as_deref().unwrap_or_default()));
    }
    for (commit, path) in &snapshots {
        let other = refs
            .get(commit)
            .and_then(|names| names.iter().find(|name| *name != commit));
        let short: String = commit.chars().take(COMMIT_CHARACTERS).collect();
        let label = match other {
            _ if main.as_ref() == Some(commit) => name.clone(),
            // The only one there is.
            None if main.is_none() && snapshots.len() == 1 => name.clone(),
            Some(other) => format!("{name}@{other}"),
            None => format!("{name}@{short}"),
        };
        found.extend(models_of(path, &label).into_iter().map(|place| of_hub(place, commit)));
    }
}

/// Why a repository has no snapshot that could be opened.
fn incomplete(folder: &Path) -> &'static str {
    let blobs = entries(&folder.join("blobs")).unwrap_or_default();
    match blobs
        .iter()
        .any(|(name, _)| PARTIAL.iter().any(|end| name.ends_with(end)))
    {
        true => "its download is not complete",
        false => "has no snapshot of its main revision",
    }
}

fn models_of(snapshot: &Path, name: &str) -> Vec<Place> {
    let entries_of = match entries(snapshot) {
        Ok(entries) => entries,
        Err(e) => return vec![Place::broken(name.to_owned(), snapshot, format!("cannot be read: {e}"))],
    };
    let mut models = gguf_models(&entries_of, |stem| format!("{name}/{stem}"));
    // Large files of several parts have folders of their own.
    for (inner, path) in entries_of.iter().filter(|(_, path)| path.is_dir()) {
        let files = entries(path).unwrap_or_default();
        models.extend(gguf_models(&files, |stem| format!("{name}/{inner}/{stem}")));
    }
    if models.is_empty() || is_checkpoint(&entries_of) {
        models.insert(0, Place::folder(name.to_owned(), snapshot));
    }
    models
}

/// The names of revisions, by their commits.
fn read_refs(folder: &Path, prefix: &str, depth: usize, refs: &mut BTreeMap<String, Vec<String>>) {
    const MAX_BYTES: u64 = 1 << 10;
    let entries: Vec<(String, PathBuf)> = entries(folder).unwrap_or_default();
    for (own, path) in entries {
        let name = format!("{prefix}{own}");
        if path.is_dir() {
            if depth < MAX_DEPTH {
                read_refs(&path, &format!("{name}/"), depth + 1, refs);
            }
            continue;
        }
        if let Ok(commit) = read_text_limited(&path, MAX_BYTES) {
            refs.entry(commit.trim().to_owned()).or_default().push(name);
        }
    }
}
