//! What a refusal depends on, as far as it can be seen without reading files: when it changes, a plugin is tried again.

use std::fs::Metadata;
use std::path::Path;

/// Entries of a plugin's folder that are looked at.
const MAX_ENTRIES: usize = 4096;

/// A look at a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The sums that were allowed.
    allow: Option<Vec<String>>,
    /// The file, or the files of a folder, and the folders above. Empty, if there is nothing.
    stamps: Vec<Stamp>,
}

impl Seen {
    pub(crate) fn of(path: &Path, allow: Option<&[String]>) -> Seen {
        let mut stamps = Vec::new();
        if let Ok(real) = path.canonicalize() {
            for folder in real.ancestors() {
                stamps.extend(folder.metadata().ok().as_ref().map(stamp));
            }
            if real.is_dir() {
                within(&real, &mut stamps);
            }
        }
        Seen {
            allow: allow.map(<[String]>::to_vec),
            stamps,
        }
    }
}

/// All that lies in a folder, in the order of names.
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

/// What changes when a file does. Folders change with every file that others put into them, so only their rights count.
#[cfg(unix)]
fn stamp(metadata: &Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let (size, seconds, nanos) = match metadata.is_dir() {
        true => (0, 0, 0),
        false => (metadata.size(), metadata.ctime() as u64, metadata.ctime_nsec() as u64),
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
