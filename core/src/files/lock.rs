//! Folders that one process at a time may write.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the file that is locked.
pub const LOCK: &str = ".lock";
/// What is read of it at most.
const MAX_BYTES: u64 = 4096;
/// Times that another process may come in between.
const ATTEMPTS: usize = 100;

/// A folder that is this process's alone until this is dropped. The operating system gives the lock up when a process ends,
/// in whatever way, so that one that was killed is in nobody's way.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    _file: File,
}

/// Who holds a folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    process: u32,
    host: String,
    /// Seconds since 1970 at which it took the folder.
    since: u64,
    /// When the process started, in ticks since its system did, where that is known: numbers of processes come again.
    started: Option<u64>,
}

impl FolderLock {
    /// Takes a folder, which exists.
    ///
    /// # Errors
    /// [`Error::File`] with the process that has it, its host and for how long; or if the folder cannot be written.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK);
        let failed = |e: io::Error| {
            let message = format!("cannot be locked: {e}");
            Error::file(folder, message, "name a folder that you can write to")
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
                // A file system without locks: what the file says is all there is.
                Err(TryLockError::Error(_)) => match owner(&mut file) {
                    Some(owner) if !owner.is_gone() => return Err(taken(folder, Some(owner))),
                    _ => {}
                },
            }
            // Whoever had it may have removed it before it was locked here.
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
        // While it is locked still: after that it may be another process's.
        let _ = fs::remove_file(&self.path);
    }
}

fn taken(folder: &Path, owner: Option<Owner>) -> Error {
    let who = match owner {
        Some(owner) => {
            let now = seconds();
            let minutes = now.saturating_sub(owner.since) / 60;
            format!("process {} on '{}', for {minutes} min", owner.process, owner.host)
        }
        None => "another process".into(),
    };
    let remedy = "wait until that process has ended, or name another folder; nothing was changed";
    Error::file(folder, format!("is in use by {who}"), remedy)
}

fn owner(file: &mut File) -> Option<Owner> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let mut owner: Owner = ron::from_str(text.trim()).ok()?;
    // It goes to a terminal.
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

    /// Whether it is known that it has ended.
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

/// When a process started (field 22 of `/proc/PID/stat`), where there is that.
fn started(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have any characters.
    let fields = text.rsplit_once(") ")?.1;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Whether a path leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(own), Ok(found)) => own.dev() == found.dev() && own.ino() == found.ino(),
        _ => false,
    }
}

/// Whether a path leads to an open file: open ones are not removed there.
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
        // What a killed process leaves is locked by nobody.
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
