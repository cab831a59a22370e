//! Atomic replacement of folders.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::abandoned::{hold, is_partial_name, take_abandoned};
use super::folder_of;
use crate::error::Error;

/// Maximum number of attempts when other programs interfere.
const ATTEMPTS: usize = 100;

/// Contents by which a folder is recognized as replaceable.
#[derive(Clone, Copy, Debug)]
pub struct FolderKind {
    /// Names of all files that such a folder may have.
    pub names: &'static [&'static str],
    /// The file that distinguishes such a folder from another program's.
    pub marker: &'static str,
    /// Returns true if the contents of the marker file belong to such a folder.
    pub is_own: fn(&[u8]) -> bool,
}

impl FolderKind {
    /// Returns `true` if a folder of the kind may contain a file of this name, including temporary
    /// files of killed processes.
    fn has(&self, name: &str) -> bool {
        let of_partial = |own: &&str| name.strip_prefix('.').is_some_and(|name| name.starts_with(*own));
        self.names.contains(&name) || is_partial_name(name) && self.names.iter().any(of_partial)
    }
}

/// Reason why a folder was not replaced. The folder is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The path must not be replaced: it is a file, or a folder whose contents are not of its kind.
    #[error(
        "{}: not replaced, because it is not only a model folder: {message}\n  help: save the model in another folder",
        folder.display()
    )]
    NotReplaced {
        /// The folder.
        folder: PathBuf,
        /// Description of what the folder contains.
        message: String,
    },

    /// The file system failed.
    #[error("{}: could not be {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl FolderError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| FolderError::Io { path, action, source }
    }

    /// Converts it to an [`Error::File`].
    pub fn into_error(self) -> Error {
        match self {
            FolderError::NotReplaced { folder, message } => Error::file(
                &folder,
                format!("is not replaced, because it is not only a model folder: {message}"),
                "name another folder",
            ),
            FolderError::Io { path, action, source } => {
                let remedy = match source.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        "free disk space, or write to another disk"
                    }
                    _ => "name a writable folder",
                };
                Error::file(
                    &path,
                    format!("could not be {action}: {source}; the folder is unchanged"),
                    remedy,
                )
            }
        }
    }
}

type Result<T> = std::result::Result<T, FolderError>;

/// Method for replacing one folder by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    /// Atomically if the file system supports it, else like `Aside`.
    Exchange,
    /// By two renames; between them, the old folder has the name that [`old_of`] returns.
    Aside,
}

/// A folder that is written under a temporary name next to its destination and moved there with [`NewFolder::put`]. At
/// any moment, also after a kill, readers find either the old or the new folder: under its name or (only between two
/// renames, if the system has no atomic exchange) under the name that [`old_of`] returns. If it is dropped before
/// `put`, it is removed.
#[derive(Debug)]
pub struct NewFolder {
    temporary: PathBuf,
    place: PathBuf,
    old: PathBuf,
    kind: FolderKind,
    /// Final permissions; until `put`, other users cannot access the folder.
    permissions: fs::Permissions,
    /// Lock that protects the temporary folder from other processes while this one writes it.
    _held: Option<File>,
}

impl NewFolder {
    /// Creates an empty folder that will replace `folder`, and missing parents.
    ///
    /// # Errors
    /// [`FolderError::NotReplaced`] if `folder` contains anything that its kind does not allow;
    /// [`FolderError::Io`].
    pub fn begin(folder: &Path, kind: FolderKind) -> Result<Self> {
        // Resolve links, so that the target of a link is replaced.
        let place = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let (Some(name), Some(old)) = (place.file_name(), old_of(&place)) else {
            return Err(FolderError::NotReplaced {
                folder: place.clone(),
                message: "it has no name".into(),
            });
        };
        let parent = folder_of(&place);
        fs::create_dir_all(&parent).map_err(FolderError::io(&parent, "made"))?;
        if !place.exists() && old.is_dir() {
            // A save was killed between its renames.
            match fs::rename(&old, &place) {
                Err(e) if !place.exists() => return Err(FolderError::io(&old, "renamed")(e)),
                _ => {}
            }
        }
        check_replaceable(&place, &kind)?;
        let prefix = format!(".{}.new-", name.to_string_lossy());
        clean(&parent, &prefix, &kind);
        if place.exists() {
            remove(&old, &kind);
        }
        let (temporary, held) = make(&parent, &prefix)?;
        let as_found = fs::metadata(&place).or_else(|_| fs::metadata(&temporary));
        let permissions = as_found.map_err(FolderError::io(&temporary, "read"))?.permissions();
        let new = NewFolder {
            temporary,
            place,
            old,
            kind,
            permissions,
            _held: held,
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let own = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&new.temporary, own).map_err(FolderError::io(&new.temporary, "made"))?;
        }
        Ok(new)
    }

    /// Returns the folder in which the files must be written before `put`.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Moves the folder to its destination and syncs it to disk. Files that exist in the old folder
    /// keep their permissions.
    ///
    /// # Errors
    /// [`FolderError::Io`]; the old folder is then unchanged.
    pub fn put(self) -> Result<()> {
        self.put_by(if cfg!(target_os = "linux") {
            Swap::Exchange
        } else {
            Swap::Aside
        })
    }

    fn put_by(self, swap: Swap) -> Result<()> {
        self.finish().map_err(FolderError::io(&self.temporary, "written"))?;
        let moved = put(&self.temporary, &self.place, &self.old, &self.kind, swap);
        moved.map_err(FolderError::io(&self.place, "replaced"))?;
        // Renames are entries of the parent. If it cannot be synced, the file system writes them
        // eventually.
        sync_folder(&folder_of(&self.place));
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.temporary)? {
            let path = entry?.path();
            // Without this, a crash of the machine could leave the new names with no contents.
            File::options().write(true).open(&path)?.sync_all()?;
            if let Some(Ok(found)) = path.file_name().map(|name| fs::metadata(self.place.join(name))) {
                fs::set_permissions(&path, found.permissions())?;
            }
        }
        sync_folder(&self.temporary);
        fs::set_permissions(&self.temporary, self.permissions.clone())
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // It now contains the old files, or the new ones if `put` failed.
        remove(&self.temporary, &self.kind);
    }
}

/// Returns the name that the old folder has while it is replaced by two renames.
pub fn old_of(folder: &Path) -> Option<PathBuf> {
    let name = folder.file_name()?.to_string_lossy();
    Some(folder.with_file_name(format!(".{name}.old")))
}

/// Returns the path of the folder at this moment: its own, or that of [`old_of`] if the folder is just being replaced.
pub fn place_of(folder: &Path) -> PathBuf {
    match (folder.exists(), old_of(folder)) {
        (false, Some(old)) if old.is_dir() => old,
        _ => folder.to_owned(),
    }
}

/// Checks that [`NewFolder::begin`] can write the folder: it may be replaced, and its parent is
/// writable.
///
/// # Errors
/// As [`NewFolder::begin`].
pub fn prepare_folder(folder: &Path, kind: FolderKind) -> Result<()> {
    NewFolder::begin(folder, kind).map(drop)
}

/// Creates a folder whose name contains the id of this process, and locks it.
fn make(parent: &Path, prefix: &str) -> Result<(PathBuf, Option<File>)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{prefix}{}-{count}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => {}
            // The name exists: from another process with this number, at an earlier time or on
            // another machine.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                last = Some(e);
                continue;
            }
            Err(e) => return Err(FolderError::io(&folder, "made")(e)),
        }
        match hold(&folder) {
            Ok(held) => return Ok((folder, held)),
            // Another process removed the folder before it was locked.
            Err(e) => last = Some(e),
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into());
    Err(FolderError::io(parent, "extended by a temporary folder")(error))
}

/// Returns an error if the path is a file, or if the folder contains a file that its kind does not allow or lacks a
/// valid marker file. An empty or missing folder is accepted.
fn check_replaceable(folder: &Path, kind: &FolderKind) -> Result<()> {
    let refuse = |message: String| {
        Err(FolderError::NotReplaced {
            folder: folder.to_owned(),
            message,
        })
    };
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return refuse("it is a file".into()),
        Err(e) => return Err(FolderError::io(folder, "read")(e)),
        Ok(entries) => entries,
    };
    let mut is_empty = true;
    for entry in entries {
        let entry = entry.map_err(FolderError::io(folder, "read"))?;
        let name = entry.file_name();
        is_empty = false;
        if !kind.has(&name.to_string_lossy()) {
            return refuse(format!("it holds '{}'", name.to_string_lossy()));
        }
    }
    if is_empty {
        return Ok(());
    }
    // Another program's file may have the same name. A concurrent save may interfere, so look twice
    // for a missing file.
    let path = folder.join(kind.marker);
    let text = fs::read(&path).or_else(|_| fs::read(&path));
    if text.is_ok_and(|text| (kind.is_own)(&text)) {
        Ok(())
    } else {
        refuse(format!("its {} does not belong to a model", kind.marker))
    }
}

fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// Renames the folder `new` to `place`. The old folder then has the name of `new`, or is gone.
fn put(new: &Path, place: &Path, old: &Path, kind: &FolderKind, swap: Swap) -> io::Result<()> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        if !place.exists() {
            match fs::rename(new, place) {
                Ok(()) => return Ok(()),
                // Another program was faster.
                Err(_) if place.exists() => {}
                Err(e) => return Err(e),
            }
        }
        if swap == Swap::Exchange {
            match exchange(new, place) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    last = Some(e);
                    continue;
                }
                // A system or file system that has no exchange.
                Err(_) => {}
            }
        }
        match fs::rename(place, old) {
            Ok(()) => {}
            Err(e) => {
                // If the folder exists, the old one is not needed. If not, another program is doing
                // the same.
                if e.kind() != io::ErrorKind::NotFound {
                    remove(old, kind);
                }
                last = Some(e);
                continue;
            }
        }
        match fs::rename(new, place) {
            Ok(()) => {
                remove(old, kind);
                return Ok(());
            }
            Err(e) => {
                let _ = fs::rename(old, place);
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into()))
}

/// Exchanges the names of two folders in one step.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let [a, b] = [a, b].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (a, b) = (a?, b?);
    // SAFETY: both paths end with a zero byte and live until the call returns, which keeps nothing of them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Removes the files that the kind names, and then the folder, unless it contains other files. A folder that remains
/// does no harm.
fn remove(folder: &Path, kind: &FolderKind) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if kind.has(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Removes abandoned folders of killed programs.
fn clean(parent: &Path, prefix: &str, kind: &FolderKind) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        if let Some(_taken) = take_abandoned(&entry.path()) {
            remove(&entry.path(), kind);
        }
    }
}

#[cfg(test)]
mod tests;
