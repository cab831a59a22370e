//! Atomic writing of files.

mod abandoned;
mod folder;
mod lock;
mod read;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
pub use folder::{FolderError, FolderKind, NewFolder, old_of, place_of, prepare_folder};
pub use lock::{FolderLock, LOCK};
pub use read::{
    MAX_SETTINGS, address_space_left, free_memory, open_regular, open_within_memory, read_limited, read_text_limited,
    read_within_memory,
};

/// Writes a file under a temporary name in the same folder, and renames it when it is complete and
/// on disk. Readers of the path see the old or the new file, even if the process is killed or
/// several processes write at once.
///
/// Devices, such as `/dev/stdout`, and pipes are not replaced: data is written to them directly. A
/// link to a missing file becomes a link to the new file.
///
/// A killed process leaves a file whose name is `.`, the file's own name and `.partial` with a
/// suffix. The next write of the file removes it. The temporary file of a living process remains,
/// because the process holds a lock on it.
///
/// # Errors
/// [`Error::File`] when the folder does not exist or cannot be written, or the disk is full; the
/// old file is unchanged.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    if is_stream(path) {
        return write_through(path, write).map_err(|error| {
            let message = format!("could not be written: {error}");
            Error::file(path, message, "check the program that reads it, or write to a file")
        });
    }
    try_write(&target_of(path), write).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free disk space, or write to another disk",
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "create the folder first",
            io::ErrorKind::IsADirectory => "name a file, not a folder",
            _ => "check that the folder is writable, or write to another folder",
        };
        Error::file(
            path,
            format!("could not be written: {error}; an existing file is unchanged"),
            remedy,
        )
    })
}

/// Returns `true` if a path leads to a character device or a pipe, which must not be replaced by a
/// file.
#[cfg(unix)]
fn is_stream(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device() || found.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_stream(_: &Path) -> bool {
    false
}

fn write_through(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(1 << 16, File::options().write(true).open(path)?);
    write(&mut buffered)?;
    buffered.flush()
}

/// Returns the path to replace: the target of a link, if `path` is one.
fn target_of(path: &Path) -> PathBuf {
    // Maximum length of a chain of links, as in Linux.
    const LINKS: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        match (fs::canonicalize(&target), fs::read_link(&target)) {
            (Ok(found), _) => return found,
            (Err(_), Ok(next)) => target = folder_of(&target).join(next),
            (Err(_), Err(_)) => break,
        }
    }
    target
}

fn try_write(target: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => return Err(io::Error::other("it exists and is not a regular file")),
        _ => {}
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let prefix = abandoned::prefix_of(&name);
    let folder = folder_of(target);
    abandoned::clean(&folder, |name| name.starts_with(&prefix));
    let mut temporary = tempfile::Builder::new();
    temporary.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Permissions of the replaced file, or of a new file, which the umask limits.
        let mode = fs::metadata(target).map_or(0o666, |m| m.permissions().mode() & 0o777);
        temporary.permissions(fs::Permissions::from_mode(mode));
    }
    let mut file = make(&temporary, &folder)?;
    let mut buffered = BufWriter::with_capacity(1 << 16, file.as_file_mut());
    write(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    // Without this, a crash of the machine could leave the new name with the old file's contents gone.
    file.as_file().sync_all()?;
    file.persist(target)?;
    // The rename is an entry of the folder. If it cannot be synced, the file system writes it
    // eventually.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Creates a temporary file and locks it.
fn make(named: &tempfile::Builder, folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    const ATTEMPTS: usize = 100;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let file = named.tempfile_in(folder)?;
        // Another process that cleans up may remove the file before it is locked.
        match abandoned::lock(file.as_file()).and_then(|_| fs::symlink_metadata(file.path())) {
            Ok(_) => return Ok(file),
            Err(e) => last = Some(e),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into()))
}

/// Removes from a folder the abandoned temporary files of [`write_atomically`] whose names begin with `begin`. Files of
/// living processes remain.
pub fn clean_partial_files(folder: &Path, begin: &str) {
    abandoned::clean(folder, |name| {
        name.strip_prefix('.').is_some_and(|name| name.starts_with(begin))
    });
}

/// Returns the SHA-256 (FIPS 180-4) of bytes, as lower-case hexadecimal digits.
pub fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hex(hash)
}

/// Computes [`sha256`] of the bytes of many small values without storing them.
pub fn sha256_of<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> String {
    const CHUNK: usize = 1 << 16;
    let (mut hash, mut chunk) = (Sha256::new(), Vec::with_capacity(CHUNK + N));
    for value in values {
        chunk.extend(value);
        if chunk.len() >= CHUNK {
            hash.update(&chunk);
            chunk.clear();
        }
    }
    hash.update(&chunk);
    hex(hash)
}

pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prepends a first line to a text: a magic text that identifies the kind of file, the version, and
/// the hash of the rest.
pub fn seal(magic: &str, version: u32, body: &str) -> String {
    format!("{magic}{version}, sha256 {}\n{body}", checksum(body))
}

/// Result of parsing the first line of a text that [`seal`] may have made.
#[derive(Debug, PartialEq, Eq)]
pub enum SealLine<'a> {
    /// The text is not of this kind.
    Foreign,
    /// The hash does not match the rest.
    Damaged,
    /// The text has another version.
    OtherVersion(u32),
    /// The rest, unchanged.
    Whole(&'a str),
}

/// Removes the first line of a text, ignoring carriage returns, which version control may add.
pub fn unseal<'a>(magic: &str, version: u32, text: &'a str) -> SealLine<'a> {
    let Some(rest) = text.strip_prefix(magic) else {
        return if text.is_empty() {
            SealLine::Damaged
        } else {
            SealLine::Foreign
        };
    };
    let Some((line, body)) = rest.split_once('\n') else {
        return SealLine::Damaged;
    };
    let Some((found, hash)) = line.trim_end_matches('\r').split_once(", sha256 ") else {
        return SealLine::Damaged;
    };
    match found.parse::<u32>() {
        Err(_) => SealLine::Damaged,
        Ok(found) if found != version => SealLine::OtherVersion(found),
        Ok(_) if checksum(body) == hash => SealLine::Whole(body),
        Ok(_) => SealLine::Damaged,
    }
}

/// Returns the hash of a text, ignoring carriage returns.
fn checksum(text: &str) -> String {
    sha256(text.split('\r').map(str::as_bytes))
}

/// Returns this library's folder within the user's cache folder: `meganeura` in `XDG_CACHE_HOME`,
/// or in `.cache` of `HOME`; `None` if neither variable is set. The folder need not exist.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("meganeura"))
}

/// Returns the parent folder of a file.
pub fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("it exists");
        let mut names: Vec<String> = entries
            .map(|e| e.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_hash_is_sha256() {
        // The examples of FIPS 180-4: no bytes, and "abc".
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256([]), nothing);
        assert_eq!(sha256([&b"a"[..], b"bc"]), abc);
        assert_eq!(sha256_of(b"abc".iter().map(|&byte| [byte])), abc);
        let many: Vec<[u8; 4]> = (0..50_000u32).map(u32::to_le_bytes).collect();
        assert_eq!(sha256_of(many.iter().copied()), sha256([many.as_flattened()]));
    }

    #[test]
    fn what_was_sealed_is_told_from_anything_else() {
        let text = seal("// things, format ", 3, "one\ntwo\n");
        assert_eq!(unseal("// things, format ", 3, &text), SealLine::Whole("one\ntwo\n"));
        let windows = text.replace('\n', "\r\n");
        assert_eq!(
            unseal("// things, format ", 3, &windows),
            SealLine::Whole("one\r\ntwo\r\n")
        );
        assert_eq!(unseal("// things, format ", 4, &text), SealLine::OtherVersion(3));
        assert_eq!(unseal("// others, format ", 3, &text), SealLine::Foreign);
        for damaged in [
            "",
            "// things, format 3",
            "// things, format x, sha256 0\n",
            &text.replace("two", "too"),
        ] {
            assert_eq!(unseal("// things, format ", 3, damaged), SealLine::Damaged, "{damaged}");
        }
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        write_atomically(&path, |w| w.write_all(b"old")).expect("writes");
        let full = |w: &mut dyn Write| {
            w.write_all(&[0; 100_000])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let error = write_atomically(&path, full).expect_err("it is full").to_string();
        assert!(error.contains("free disk space"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"old");
        assert_eq!(names(folder.path()), ["data"]);
        write_atomically(&path, |w| w.write_all(b"new")).expect("writes");
        assert_eq!(fs::read(&path).expect("it is there"), b"new");
    }

    #[test]
    fn partial_files_of_dead_processes_are_removed_and_those_of_living_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [".data.partialAb12Cd", ".other.partialAb12Cd", ".data.partial-notes"] {
            fs::write(folder.path().join(name), "half").expect("writes");
        }
        let path = folder.path().join("data");
        write_atomically(&path, |w| {
            w.write_all(b"outer")?;
            // Another writer of the same file, while this one is at work.
            write_atomically(&path, |w| w.write_all(b"inner")).map_err(io::Error::other)
        })
        .expect("its own partial file is still there");
        assert_eq!(fs::read(&path).expect("it is there"), b"outer");
        assert_eq!(
            names(folder.path()),
            [".data.partial-notes", ".other.partialAb12Cd", "data"]
        );
        clean_partial_files(folder.path(), "oth");
        assert_eq!(names(folder.path()), [".data.partial-notes", "data"]);
    }

    #[test]
    fn folders_that_are_none_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("missing/data");
        let error = write_atomically(&inside, |_| Ok(()))
            .expect_err("no folder")
            .to_string();
        assert!(error.contains("create the folder first"), "{error}");
        let error = write_atomically(folder.path(), |_| Ok(()))
            .expect_err("a folder")
            .to_string();
        assert!(error.contains("name a file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_pipes_and_links_stay_what_they_are() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()));
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).expect("readable")
        });
        write_atomically(&pipe, |w| w.write_all(b"data")).expect("writes");
        assert_eq!(reader.join().expect("it ends"), b"data");
        let found = fs::symlink_metadata(&pipe).expect("it is there");
        assert!(found.file_type().is_fifo());
        // A link to a device, like the names of standard output.
        let null = folder.path().join("null");
        symlink("/dev/null", &null).expect("links");
        write_atomically(&null, |w| w.write_all(b"data")).expect("writes");
        let full = folder.path().join("full");
        if Path::new("/dev/full").exists() {
            symlink("/dev/full", &full).expect("links");
            let error = write_atomically(&full, |w| w.write_all(b"data")).expect_err("it is full");
            assert!(error.to_string().contains("could not be written"), "{error}");
            fs::remove_file(&full).expect("removed");
        }
        // A link to a file that does not exist yet, and a link in a cycle.
        let (new, link) = (folder.path().join("new"), folder.path().join("link"));
        symlink("new", &link).expect("links");
        write_atomically(&link, |w| w.write_all(b"data")).expect("writes");
        assert_eq!(fs::read(&new).expect("it is there"), b"data");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        let circle = folder.path().join("circle");
        symlink("circle", &circle).expect("links");
        write_atomically(&circle, |w| w.write_all(b"data")).expect_err("it leads nowhere");
        assert_eq!(names(folder.path()), ["circle", "link", "new", "null", "pipe"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, b"old").expect("writes");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("its own file");
        symlink(&file, &link).expect("links");
        write_atomically(&link, |w| w.write_all(b"new")).expect("writes");
        assert_eq!(fs::read(&file).expect("it is there"), b"new");
        let mode = fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    }
}
