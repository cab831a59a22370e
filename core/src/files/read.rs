//! Bounded reading of files that users name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Maximum bytes of a settings file.
pub const MAX_SETTINGS: u64 = 1 << 24;

/// Opens a regular file. Devices and pipes, which may be endless or block forever, are refused.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for anything but a regular file; errors of the system.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check_regular(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    // The path may have been replaced meanwhile.
    check_regular(&file.metadata()?)?;
    Ok(file)
}

fn check_regular(found: &fs::Metadata) -> io::Result<()> {
    let what = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => "a folder",
        _ => "a device or a pipe",
    };
    let message = format!("it is {what}, not a regular file; copy its contents to a file first");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::FileTooLarge`] with both sizes.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= limit {
        bytes.try_reserve_exact(length as usize)?;
        // Limit the bytes, as the file may grow while it is read.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    match length.max(bytes.len() as u64) {
        found if found > limit => Err(too_large(found, limit)),
        _ => Ok(bytes),
    }
}

/// Reads the text of a regular file, in UTF-8, like [`read_limited`].
///
/// # Errors
/// As [`read_limited`]; [`io::ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_text_limited(path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read_limited(path, limit)?;
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Reads a regular file that fits into memory. Its size may be up to half of the free memory, because the caller also
/// needs memory for the parsed result.
///
/// # Errors
/// As [`read_limited`].
pub fn read_within_memory(path: &Path) -> io::Result<Vec<u8>> {
    read_limited(path, free_memory().map_or(u64::MAX, |free| free / 2))
}

/// Opens a regular file whose contents fit into memory, with the limit of [`read_within_memory`].
///
/// # Errors
/// As [`read_within_memory`].
pub fn open_within_memory(path: &Path) -> io::Result<File> {
    let file = open_regular(path)?;
    let (length, limit) = (file.metadata()?.len(), free_memory().map_or(u64::MAX, |free| free / 2));
    if length > limit {
        Err(too_large(length, limit))
    } else {
        Ok(file)
    }
}

fn too_large(found: u64, limit: u64) -> io::Error {
    let message = format!("it has {found} bytes, expected at most {limit}");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// Returns the bytes of memory that this process can still allocate: limited by the machine, the
/// control group and the limit of the address space (`ulimit -v`). Returns `None` on systems
/// without Linux's `/proc`.
pub fn free_memory() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).ok();
    let machine = text("/proc/meminfo").and_then(|text| {
        let swap = kilobytes(&text, "SwapFree:").unwrap_or(0);
        kilobytes(&text, "MemAvailable:")?.checked_add(swap)
    });
    let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max").map(|limit| {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        // The kernel drops cached pages of files when memory is needed.
        let cached = text("/sys/fs/cgroup/memory.stat").and_then(|stat| {
            let line = stat.lines().find_map(|line| line.strip_prefix("file "))?;
            line.trim().parse::<u64>().ok()
        });
        limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0)))
    });
    [machine, group, address_space_left()].into_iter().flatten().min()
}

/// Returns the bytes that the limit of the address space (`ulimit -v`) leaves, if there is one.
pub fn address_space_left() -> Option<u64> {
    let limit = limit_of(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let used = fs::read_to_string("/proc/self/status").ok();
    let used = used.and_then(|text| kilobytes(&text, "VmSize:"));
    Some(limit.saturating_sub(used.unwrap_or(0)))
}

/// Parses a line such as `MemTotal:  1000 kB` into bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// Returns the soft limit of the address space, if there is one.
fn limit_of(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_their_limit_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "12345").expect("written");
        assert_eq!(read_limited(&path, 5).expect("within"), b"12345");
        assert_eq!(read_text_limited(&path, 5).expect("within"), "12345");
        let error = read_limited(&path, 4).expect_err("beyond");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("has 5 bytes, expected at most 4"), "{error}");
        let said = |path: &Path| read_limited(path, 5).expect_err("no file").to_string();
        assert!(said(folder.path()).contains("a folder, not a regular file"));
        fs::write(&path, [0xff]).expect("written");
        assert_eq!(
            read_text_limited(&path, 5).expect_err("no text").kind(),
            io::ErrorKind::InvalidData
        );
        #[cfg(target_os = "linux")]
        {
            assert!(said(Path::new("/dev/zero")).contains("a device or a pipe"));
            let pipe = folder.path().join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(made.is_ok_and(|status| status.success()));
            // Opening a pipe without a writer would block forever.
            assert!(said(&pipe).contains("a device or a pipe"));
            // A hole in a file takes no disk space.
            let hole = File::create(&path).expect("made");
            hole.set_len(1 << 43).expect("a hole");
            let error = read_within_memory(&path).expect_err("no memory for it");
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
        }
    }

    #[test]
    fn limits_are_read_in_the_kernels_words() {
        assert_eq!(
            kilobytes("MemFree: 1 kB\nMemAvailable:   20 kB\n", "MemAvailable:"),
            Some(20 << 10)
        );
        assert_eq!(kilobytes("MemFree: many kB\n", "MemFree:"), None);
        let limits = "Max resident set          unlimited            unlimited            bytes     \n\
                      Max address space         1024                 unlimited            bytes     \n";
        assert_eq!(limit_of(limits), Some(1024));
        assert_eq!(
            limit_of("Max address space         unlimited            unlimited            bytes\n"),
            None
        );
        assert!(cfg!(not(target_os = "linux")) || free_memory().is_some_and(|free| free > 1 << 20));
    }
}
