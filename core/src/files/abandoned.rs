//! What killed processes leave, told from what living ones are at work on.
//!
//! A process holds a lock of the operating system on each file or folder with a temporary name. The system gives it up
//! when the process ends, in whatever way; what nobody holds may be removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Age from on which no program can be at work on something, where the file system has no locks.
const STALE: Duration = Duration::from_secs(3600);
/// Between the name of a file and the letters that make the name of a temporary one its own.
const PARTIAL: &str = ".partial";
/// How many letters there are.
const LETTERS: usize = 6;

/// Holds a file or folder that was just made, until the handle is dropped. `None` where there are no locks.
///
/// # Errors
/// It is gone, or another program holds it: one that takes it for abandoned. Make another one.
pub(super) fn hold(path: &Path) -> io::Result<Option<File>> {
    let held = match File::open(path) {
        Ok(file) => lock(&file)?.then_some(file),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
        // Folders, where they cannot be opened.
        Err(_) => None,
    };
    // It may have been removed before it was locked.
    fs::symlink_metadata(path)?;
    Ok(held)
}

/// Locks a file that was just made; false where there are no locks.
///
/// # Errors
/// Another program holds it.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::ResourceBusy.into()),
        Err(TryLockError::Error(_)) => Ok(false),
    }
}

/// What no living process is at work on, and which none can take while this is there: [`hold`] and [`lock`] fail until it was
/// removed, or this is dropped.
#[derive(Debug)]
pub(super) struct Abandoned {
    /// Locked. `None` where there are no locks.
    _file: Option<File>,
}

/// Takes something with a temporary name, so that it can be removed, if no living process is at work on it.
pub(super) fn take_abandoned(path: &Path) -> Option<Abandoned> {
    let found = fs::symlink_metadata(path).ok()?;
    // Opening anything else may wait for ever.
    if !found.is_file() && !found.is_dir() {
        return None;
    }
    let file = File::open(path).ok();
    match file.as_ref().map(File::try_lock) {
        Some(Ok(())) => return Some(Abandoned { _file: file }),
        Some(Err(TryLockError::WouldBlock)) => return None,
        Some(Err(TryLockError::Error(_))) | None => {}
    }
    let age = SystemTime::now().duration_since(found.modified().ok()?).ok()?;
    (age > STALE).then_some(Abandoned { _file: None })
}

/// Begins the names of temporary files for a file.
pub(super) fn prefix_of(name: &str) -> String {
    format!(".{name}{PARTIAL}")
}

/// Whether a name is that of a temporary file.
pub(super) fn is_partial_name(name: &str) -> bool {
    let Some((before, letters)) = name.rsplit_once(PARTIAL) else {
        return false;
    };
    before.len() > 1
        && before.starts_with('.')
        && letters.len() == LETTERS
        && letters.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Removes what killed processes left of files in a folder, whose names `wanted` knows.
pub(super) fn clean(folder: &Path, wanted: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_partial_name(&name) || !wanted(&name) {
            continue;
        }
        if let Some(_taken) = take_abandoned(&entry.path()) {
            // One that cannot be removed is only in the way.
            let _ = fs::remove_file(entry.path());
        }
    }
}
