//! State of a plugin's files that is visible without reading them. When it changes, a rejected plugin is tried again.

use std::fs::Metadata;
use std::path::Path;

/// Maximum number of entries of a plugin's folder that are inspected.
const MAX_ENTRIES: usize = 4096;

/// The visible state of a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PluginState {
    /// Allowed SHA-256 sums, if there is a list.
    allow: Option<Vec<String>>,
    /// Metadata of the file, or of the files of a folder, and of the folders above. Empty if nothing exists.
    stamps: Vec<Stamp>,
}

impl PluginState {
    pub(crate) fn of(path: &Path, allow: Option<&[String]>) -> PluginState {
        let mut stamps = Vec::new();
        if let Ok(real) = path.canonicalize() {
            for folder in real.ancestors() {
                stamps.extend(folder.metadata().ok().as_ref().map(stamp));
            }
            if real.is_dir() {
                within(&real, &mut stamps);
            }
        }
        PluginState {
            allow: allow.map(<[String]>::to_vec),
            stamps,
        }
    }
}

/// Adds the metadata of everything in a folder, sorted by name.
fn within(folder: &Path, stamps: &mut Vec<Stamp>) {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).take(MAX_ENTRIES).collect();
    paths.sort();
    for path in paths {
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        stamps.push(stamp(&metadata));
        if metadata.is_dir() && stamps.len() < MAX_ENTRIES {
            within(&path, stamps);
        }
    }
}

#[cfg(unix)]
type Stamp = [u64; 7];

/// Returns the metadata of a file that change with it. A folder changes with any file in it, so only its permissions
/// count.
#[cfg(unix)]
fn stamp(metadata: &Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let (size, seconds, nanos) = if metadata.is_dir() {
        (0, 0, 0)
    } else {
        (metadata.size(), metadata.ctime() as u64, metadata.ctime_nsec() as u64)
    };
    let (uid, mode) = (metadata.uid().into(), metadata.mode().into());
    [metadata.dev(), metadata.ino(), uid, mode, size, seconds, nanos]
}

#[cfg(not(unix))]
type Stamp = (u64, bool, Option<std::time::SystemTime>);

#[cfg(not(unix))]
fn stamp(metadata: &Metadata) -> Stamp {
    let changed = metadata.modified().ok().filter(|_| !metadata.is_dir());
    (metadata.len(), metadata.is_dir(), changed)
}
