//! Exclusive locks of folders for writing.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the file that is locked.
pub const LOCK: &str = ".lock";
/// Maximum number of bytes that are read from the lock file.
const MAX_BYTES: u64 = 4096;
/// Maximum number of attempts when other processes interfere.
const ATTEMPTS: usize = 100;

/// Exclusive use of a folder by this process until it is dropped. The operating system releases the
/// lock when a process ends, in any way, so a killed process blocks no other.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    _file: File,
}

/// The process that holds a folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    process: u32,
    host: String,
    /// Time at which it locked the folder, in seconds since 1970.
    since: u64,
    /// Start of the process, in ticks since boot, if available: it distinguishes processes that reuse an id.
    started: Option<u64>,
}

impl FolderLock {
    /// Locks an existing folder.
    ///
    /// # Errors
    /// [`Error::File`] if another process holds the lock (with the process, its host and the time since then), or if
    /// the folder cannot be written.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK);
        let failed = |e: io::Error| {
            let message = format!("cannot be locked: {e}");
            Error::file(folder, message, "name a writable folder")
        };
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            let message = format!("cannot be locked: '{LOCK}' in it is not a regular file");
            return Err(Error::file(folder, message, "remove it, or name another folder"));
        }
        for _ in 0..ATTEMPTS {
            let mut options = File::options();
            let mut file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(taken(folder, owner(&mut file))),
                // On a file system without locks, rely on the contents of the file.
                Err(TryLockError::Error(_)) => match owner(&mut file) {
                    Some(owner) if !owner.is_gone() => return Err(taken(folder, Some(owner))),
                    _ => {}
                },
            }
            // The previous holder may have removed the file before it was locked here.
            if !is_at(&file, &path) {
                continue;
            }
            let text = ron::to_string(&Owner::this()).map_err(|e| failed(io::Error::other(e)))?;
            file.set_len(0).map_err(failed)?;
            file.rewind().and_then(|()| writeln!(file, "{text}")).map_err(failed)?;
            return Ok(FolderLock { path, _file: file });
        }
        Err(taken(folder, None))
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Remove the file while it is still locked: later it may be another process's.
        let _ = fs::remove_file(&self.path);
    }
}

fn taken(folder: &Path, owner: Option<Owner>) -> Error {
    let who = match owner {
        Some(owner) => {
            let now = seconds();
            let minutes = now.saturating_sub(owner.since) / 60;
            format!("process {} on '{}', since {minutes} min", owner.process, owner.host)
        }
        None => "another process".into(),
    };
    let remedy = "wait until that process ends, or name another folder; nothing was changed";
    Error::file(folder, format!("is in use by {who}"), remedy)
}

fn owner(file: &mut File) -> Option<Owner> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let mut owner: Owner = ron::from_str(text.trim()).ok()?;
    // The host name is printed to a terminal.
    owner.host.retain(|c| !c.is_control());
    Some(owner)
}

impl Owner {
    fn this() -> Self {
        Owner {
            process: std::process::id(),
            host: host(),
            since: seconds(),
            started: started(std::process::id()),
        }
    }

    /// Returns `true` if the process certainly ended.
    fn is_gone(&self) -> bool {
        let knows = self.host == host() && self.started.is_some();
        knows && started(self.process) != self.started
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("COMPUTERNAME").ok());
    let name = name.or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "this machine".into(), |name| name.trim().to_owned())
}

/// Returns the start time of a process (field 22 of `/proc/PID/stat`), if available.
fn started(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields follow the name, which may contain any characters.
    let fields = text.rsplit_once(") ")?.1;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Returns `true` if the path leads to this open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(own), Ok(found)) => own.dev() == found.dev() && own.ino() == found.ino(),
        _ => false,
    }
}

/// Returns `true` if the path exists: on these systems, open files cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_owners_until_it_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = FolderLock::take(folder.path()).expect("free");
        let error = FolderLock::take(folder.path()).expect_err("taken").to_string();
        let me = format!("in use by process {}", std::process::id());
        assert!(error.contains(&me) && error.contains(&host()), "{error}");
        drop(first);
        assert!(!folder.path().join(LOCK).exists());
        drop(FolderLock::take(folder.path()).expect("free again"));
        // The files of killed processes are not locked.
        for left in ["(process:1,host:\"elsewhere\",since:0,started:None)", "", "rubbish"] {
            fs::write(folder.path().join(LOCK), left).expect("writes");
            drop(FolderLock::take(folder.path()).expect("nobody's"));
        }
        let missing = folder.path().join("missing");
        assert!(
            FolderLock::take(&missing)
                .expect_err("no folder")
                .to_string()
                .contains("cannot be locked")
        );
    }

    #[test]
    fn owners_that_have_ended_are_told_from_living_ones() {
        let me = Owner::this();
        assert!(!me.is_gone());
        let earlier = Owner {
            started: me.started.map(|ticks| ticks + 1),
            ..Owner::this()
        };
        assert_eq!(earlier.is_gone(), me.started.is_some());
        let elsewhere = Owner {
            host: "elsewhere".into(),
            ..earlier
        };
        assert!(!elsewhere.is_gone(), "nothing is known of it");
    }
}
