//! Detection and removal of temporary files and folders that killed processes left.
//!
//! A process locks each temporary file or folder with a lock of the operating system. The system
//! releases the lock when the process ends, in any way; an unlocked temporary file may be removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Age from which a temporary file counts as abandoned on a file system without locks.
const STALE: Duration = Duration::from_secs(3600);
/// Separator between the name of a file and the random letters of its temporary name.
const PARTIAL: &str = ".partial";
/// Number of random letters in a temporary name.
const LETTERS: usize = 6;

/// Locks a file or folder that was just created, until the handle is dropped. Returns `None` on a
/// file system without locks.
///
/// # Errors
/// It is gone, or another program that considers it abandoned has locked it. The caller should
/// create another one.
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

/// Locks a file that was just created; returns `false` on a file system without locks.
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

/// An abandoned file or folder. While this exists, no other process can lock it: [`hold`] and
/// [`lock`] fail until it is removed, or this is dropped.
#[derive(Debug)]
pub(super) struct AbandonedPath {
    /// Handle that holds the lock; `None` on a file system without locks.
    _file: Option<File>,
}

/// Locks a file or folder with a temporary name for removal. Returns `None` if a living process uses it.
pub(super) fn take_abandoned(path: &Path) -> Option<AbandonedPath> {
    let found = fs::symlink_metadata(path).ok()?;
    // Opening anything else may block forever.
    if !found.is_file() && !found.is_dir() {
        return None;
    }
    let file = File::open(path).ok();
    match file.as_ref().map(File::try_lock) {
        Some(Ok(())) => return Some(AbandonedPath { _file: file }),
        Some(Err(TryLockError::WouldBlock)) => return None,
        Some(Err(TryLockError::Error(_))) | None => {}
    }
    let age = SystemTime::now().duration_since(found.modified().ok()?).ok()?;
    (age > STALE).then_some(AbandonedPath { _file: None })
}

/// Returns the prefix of the names of a file's temporary files.
pub(super) fn prefix_of(name: &str) -> String {
    format!(".{name}{PARTIAL}")
}

/// Returns `true` for the name of a temporary file.
pub(super) fn is_partial_name(name: &str) -> bool {
    let Some((before, letters)) = name.rsplit_once(PARTIAL) else {
        return false;
    };
    before.len() > 1
        && before.starts_with('.')
        && letters.len() == LETTERS
        && letters.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Removes abandoned temporary files of a folder whose names `wanted` accepts.
pub(super) fn clean(folder: &Path, wanted: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_partial_name(&name) || !wanted(&name) {
            continue;
        }
        if let Some(_taken) = take_abandoned(&entry.path()) {
            // A file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}
