//! What a process holds, for tests that look for what grows.

use std::fs;

/// Bytes in memory, open files and threads of this process (Linux).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    bytes: u64,
    files: usize,
    threads: u64,
}

impl Held {
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("a status");
        let number = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).expect("a line");
            let number = line.split_whitespace().nth(1).expect("a number");
            number.parse::<u64>().expect("a number")
        };
        Held {
            bytes: 1024 * number("VmRSS:"),
            files: fs::read_dir("/proc/self/fd").expect("open files").count(),
            threads: number("Threads:"),
        }
    }

    /// The less of each.
    #[allow(dead_code, reason = "not every test looks several times")]
    pub(crate) fn least(self, other: Self) -> Self {
        Held {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
            threads: self.threads.min(other.threads),
        }
    }

    /// Fails where there is more at the end than earlier, but for a tenth and 8 MiB of memory, and so many files and threads.
    pub(crate) fn assert_kept(self, late: Held, name: &str, files: usize, threads: u64) {
        self.assert_kept_within(late, name, 8 << 20, files, threads);
    }

    /// [`Held::assert_kept`] with another allowance of bytes.
    #[allow(dead_code, reason = "not every test needs another one")]
    pub(crate) fn assert_kept_within(self, late: Held, name: &str, bytes: u64, files: usize, threads: u64) {
        println!("{name}: {self:?}, then {late:?}");
        assert!(
            late.bytes < self.bytes + self.bytes / 10 + bytes,
            "{name}: memory grows: {self:?}, {late:?}"
        );
        assert!(
            late.files <= self.files + files,
            "{name}: files stay open: {self:?}, {late:?}"
        );
        assert!(
            late.threads <= self.threads + threads,
            "{name}: threads stay: {self:?}, {late:?}"
        );
    }
}
