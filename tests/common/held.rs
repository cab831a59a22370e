//! Resources of a process, for tests that search for leaks.

use std::fs;

/// Resources of this process (Linux): bytes of memory, number of open files, number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessResources {
    bytes: u64,
    files: usize,
    threads: u64,
}

impl ProcessResources {
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("a status");
        let number = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).expect("a line");
            let number = line.split_whitespace().nth(1).expect("a number");
            number.parse::<u64>().expect("a number")
        };
        ProcessResources {
            bytes: 1024 * number("VmRSS:"),
            files: fs::read_dir("/proc/self/fd").expect("open files").count(),
            threads: number("Threads:"),
        }
    }

    /// Returns the minimum of each resource.
    #[allow(dead_code, reason = "not every test looks several times")]
    pub(crate) fn least(self, other: Self) -> Self {
        ProcessResources {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
            threads: self.threads.min(other.threads),
        }
    }

    /// Fails if resources have grown by more than a tenth and 8 MiB of memory, or by more than these numbers of files and
    /// threads.
    pub(crate) fn assert_kept(self, late: ProcessResources, name: &str, files: usize, threads: u64) {
        self.assert_kept_within(late, name, 8 << 20, files, threads);
    }

    /// Checks like [`ProcessResources::assert_kept`] with another allowance of bytes.
    #[allow(dead_code, reason = "not every test needs another one")]
    pub(crate) fn assert_kept_within(self, late: ProcessResources, name: &str, bytes: u64, files: usize, threads: u64) {
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
