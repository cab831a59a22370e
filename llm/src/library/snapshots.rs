//! The layout of the Hub's cache: `models--ORG--NAME` with `refs`, `snapshots` of commits, and `blobs` that snapshots
//! link to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meganeura_core::files::read_text_limited;

use super::places::{Candidate, Origin, entries, gguf_models, is_checkpoint};

/// Prefix of the names of model folders; data sets have another one.
pub(super) const PREFIX: &str = "models--";
/// Name of the main revision.
const MAIN: &str = "main";
/// Maximum depth of folders in `refs`: names of revisions may contain slashes.
const MAX_DEPTH: usize = 3;
/// Digits of a commit that identify it.
const COMMIT_CHARACTERS: usize = 12;
/// Suffixes of the names of incomplete downloads.
const PARTIAL: [&str; 2] = [".incomplete", ".part"];

/// Finds the models of a repository's folder, one for each snapshot, and for each GGUF model in it.
pub(super) fn search(folder: &Path, repository: &str, found: &mut Vec<Candidate>) {
    let name = repository.replacen("--", "/", 1);
    let mut refs = BTreeMap::new();
    read_refs(&folder.join("refs"), "", 0, &mut refs);
    let snapshots = entries(&folder.join("snapshots")).unwrap_or_default();
    let main = refs.iter().find(|(_, names)| names.iter().any(|name| name == MAIN));
    let main = main.map(|(commit, _)| commit.clone());
    let has_main = snapshots.iter().any(|(commit, _)| Some(commit) == main.as_ref());
    let of_hub = |place: Candidate, commit: &str| Candidate {
        origin: Origin::Hub,
        revision: Some(commit.to_owned()).filter(|commit| !commit.is_empty()),
        ..place
    };
    if !has_main && (main.is_some() || snapshots.is_empty()) {
        let place = Candidate::broken(name.clone(), folder, incomplete(folder));
        found.push(of_hub(place, main.as_deref().unwrap_or_default()));
    }
    for (commit, path) in &snapshots {
        let other = refs
            .get(commit)
            .and_then(|names| names.iter().find(|name| *name != commit));
        let short: String = commit.chars().take(COMMIT_CHARACTERS).collect();
        let label = match other {
            _ if main.as_ref() == Some(commit) => name.clone(),
            // The only revision.
            None if main.is_none() && snapshots.len() == 1 => name.clone(),
            Some(other) => format!("{name}@{other}"),
            None => format!("{name}@{short}"),
        };
        found.extend(models_of(path, &label).into_iter().map(|place| of_hub(place, commit)));
    }
}

/// Returns the reason why a repository has no snapshot that can be opened.
fn incomplete(folder: &Path) -> &'static str {
    let blobs = entries(&folder.join("blobs")).unwrap_or_default();
    if blobs
        .iter()
        .any(|(name, _)| PARTIAL.iter().any(|end| name.ends_with(end)))
    {
        "its download is incomplete"
    } else {
        "has no snapshot of its main revision"
    }
}

fn models_of(snapshot: &Path, name: &str) -> Vec<Candidate> {
    let entries_of = match entries(snapshot) {
        Ok(entries) => entries,
        Err(e) => {
            return vec![Candidate::broken(
                name.to_owned(),
                snapshot,
                format!("cannot be read: {e}"),
            )];
        }
    };
    let mut models = gguf_models(&entries_of, |stem| format!("{name}/{stem}"));
    // Large files of several parts are in separate subfolders.
    for (inner, path) in entries_of.iter().filter(|(_, path)| path.is_dir()) {
        let files = entries(path).unwrap_or_default();
        models.extend(gguf_models(&files, |stem| format!("{name}/{inner}/{stem}")));
    }
    if models.is_empty() || is_checkpoint(&entries_of) {
        models.insert(0, Candidate::folder(name.to_owned(), snapshot));
    }
    models
}

/// Reads the names of revisions, by their commits.
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
