//! Search of folders and files that look like models, without opening any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use meganeura_core::files;

use super::snapshots;
use crate::gguf::parts;
use crate::hub;

/// Variable with folders of models, separated as in `PATH`.
pub const FOLDERS_VARIABLE: &str = "MEGANEURA_MODELS";

/// Maximum depth of the search in a given folder: `ORG/NAME`.
const DEPTH: usize = 2;

/// The folders that are searched for models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFolders {
    /// The cache of the Hugging Face Hub, in the layout that its programs share.
    pub hub: Option<PathBuf>,
    /// The models' folder of this library.
    pub own: Option<PathBuf>,
    /// Further folders: folders of models, and folders of such folders. Each may also be a model itself, or a cache in
    /// the Hub's layout.
    pub folders: Vec<PathBuf>,
}

impl ModelFolders {
    /// Returns the folders of this machine: the cache of the Hub ([`hub::cache_folder`]), `models`
    /// in the cache folder of this library, and the folders of [`FOLDERS_VARIABLE`].
    pub fn from_environment() -> Self {
        let listed = std::env::var_os(FOLDERS_VARIABLE).unwrap_or_default();
        ModelFolders {
            hub: hub::cache_folder(),
            own: files::cache_folder().map(|folder| folder.join("models")),
            folders: std::env::split_paths(&listed)
                .filter(|folder| !folder.as_os_str().is_empty())
                .collect(),
        }
    }

    /// Returns all folders, in search order.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.hub.iter().chain(&self.own).chain(&self.folders)
    }

    /// Adds folders.
    #[must_use]
    pub fn with(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        self.folders.extend(folders);
        self
    }
}

/// The kind of folder that a model was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The cache of the Hugging Face Hub.
    Hub,
    /// Another folder.
    Folder,
}

impl Origin {
    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Hub => "hub",
            Origin::Folder => "folder",
        }
    }
}

/// Something that looks like a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: String,
    /// Path to open: a folder, or the first GGUF file.
    pub(super) path: PathBuf,
    /// All files of a GGUF model; none of a folder.
    pub(super) parts: Vec<PathBuf>,
    pub(super) origin: Origin,
    /// Commit, for models in the Hub's cache.
    pub(super) revision: Option<String>,
    /// Reason why it cannot be used, if it is detected without opening it.
    pub(super) problem: Option<String>,
}

impl Candidate {
    pub(super) fn folder(name: String, path: &Path) -> Self {
        Candidate {
            name,
            path: path.to_owned(),
            parts: Vec::new(),
            origin: Origin::Folder,
            revision: None,
            problem: None,
        }
    }

    pub(super) fn broken(name: String, path: &Path, problem: impl Into<String>) -> Self {
        Candidate {
            problem: Some(problem.into()),
            ..Candidate::folder(name, path)
        }
    }
}

/// Returns everything in some folders that looks like a model. If a model is found twice, the first
/// entry is kept.
pub(super) fn all(folders: &ModelFolders) -> Vec<Candidate> {
    let mut found = Vec::new();
    for (number, folder) in folders.all().enumerate() {
        let may_lack = number < usize::from(folders.hub.is_some()) + usize::from(folders.own.is_some());
        if may_lack && fs::metadata(folder).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            continue;
        }
        search(folder, "", 0, &mut found);
    }
    let mut seen = BTreeSet::new();
    found.retain(|place| {
        // Files of the Hub's cache are links to files without meaningful names: two links may lead
        // to one file.
        let own = place.path.parent().and_then(|folder| folder.canonicalize().ok());
        let own = (own.unwrap_or_default(), place.path.file_name().map(ToOwned::to_owned));
        seen.insert(own)
    });
    found
}

/// Returns the entries of a folder by their names.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        entries.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    entries.sort();
    Ok(entries)
}

fn search(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<Candidate>) {
    let own_name = || {
        let of_path = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
        let absolute = || of_path(&folder.canonicalize().ok()?);
        let name = of_path(folder).or_else(absolute);
        name.unwrap_or_else(|| folder.display().to_string())
    };
    let name = match prefix {
        "" => own_name(),
        _ => prefix.to_owned(),
    };
    let entries = match entries(folder) {
        Ok(entries) => entries,
        Err(e) => return found.push(Candidate::broken(name, folder, format!("cannot be read: {e}"))),
    };
    let below = |own: &str| match prefix {
        "" => own.to_owned(),
        _ => format!("{prefix}/{own}"),
    };
    let is_model = is_checkpoint(&entries);
    if is_model {
        found.push(Candidate::folder(name, folder));
    }
    found.extend(gguf_models(&entries, below));
    if is_model || depth == DEPTH {
        return;
    }
    for (own, path) in entries {
        if own.starts_with('.') || !path.is_dir() {
            continue;
        }
        match own.strip_prefix(snapshots::PREFIX) {
            Some(repository) => snapshots::search(&path, repository, found),
            None => search(&path, &below(&own), depth + 1, found),
        }
    }
}

/// Returns true if the files of a folder are those of a checkpoint. With GGUF files, a
/// `config.json` is not sufficient.
pub(super) fn is_checkpoint(entries: &[(String, PathBuf)]) -> bool {
    let has = |wanted: &str| entries.iter().any(|(name, _)| name == wanted);
    let is_gguf = entries.iter().any(|(name, _)| parts::stem(name).is_some());
    has("model.safetensors") || has("model.safetensors.index.json") || (has("config.json") && !is_gguf)
}

/// Returns the models of a folder's GGUF files: files `NAME-00001-of-00003.gguf` are one.
pub(super) fn gguf_models(entries: &[(String, PathBuf)], named: impl Fn(&str) -> String) -> Vec<Candidate> {
    let mut models: BTreeMap<(&str, usize), BTreeMap<usize, &PathBuf>> = BTreeMap::new();
    for (name, path) in entries {
        let Some(stem) = parts::stem(name).filter(|_| !name.starts_with('.') && !path.is_dir()) else {
            continue;
        };
        let (stem, [part, count]) = parts::part_of(stem).unwrap_or((stem, [1, 1]));
        models.entry((stem, count)).or_default().insert(part, path);
    }
    let place = |((stem, count), files): ((&str, usize), BTreeMap<usize, &PathBuf>)| {
        // Counting ends at the first missing part, whatever number of parts a name contains.
        let missing = (1..=count).find(|part| !files.contains_key(part));
        let path = files.values().next().map(|path| path.to_path_buf()).unwrap_or_default();
        Candidate {
            parts: files.into_values().cloned().collect(),
            problem: missing.map(|part| format!("part {part} of {count} is missing")),
            ..Candidate::folder(named(stem), &path)
        }
    };
    models.into_iter().map(place).collect()
}

/// Returns the bytes of all files of a folder, link targets included; its direct subfolders are
/// included, but no deeper ones.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let of_folder = |folder: &Path, deeper: &dyn Fn(&Path) -> u64| -> u64 {
        let entries = entries(folder).unwrap_or_default().into_iter();
        let bytes = entries.map(|(_, path)| match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => deeper(&path),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        });
        bytes.fold(0, u64::saturating_add)
    };
    of_folder(folder, &|inner| of_folder(inner, &|_| 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_parts_are_one_model() {
        let names = [
            "b-00001-of-00002.gguf",
            "a.gguf",
            "b-00002-of-00002.gguf",
            "c-00002-of-99999.gguf",
            "d.txt",
        ];
        let entries: Vec<(String, PathBuf)> = names.iter().map(|n| ((*n).to_owned(), PathBuf::from(n))).collect();
        let models = gguf_models(&entries, |stem| format!("x/{stem}"));
        let found: Vec<(&str, usize, Option<&str>)> = models
            .iter()
            .map(|m| (m.name.as_str(), m.parts.len(), m.problem.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("x/a", 1, None),
                ("x/b", 2, None),
                ("x/c", 1, Some("part 1 of 99999 is missing"))
            ]
        );
        assert_eq!(models[1].path, Path::new("b-00001-of-00002.gguf"));
    }
}
