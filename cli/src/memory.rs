//! A thread that returns freed memory to the operating system.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::time::Duration;

    /// Growth of the process after which freed memory is returned, in bytes.
    const GROWTH: usize = 64 << 20;
    /// Interval of the checks.
    const INTERVAL: Duration = Duration::from_secs(5);
    /// Number of returns after growth: the memory may still be in use at the first ones.
    const ROUNDS: u32 = 24;

    pub(super) fn return_after_peaks() {
        let (mut kept, mut rounds) = (resident(), 0);
        loop {
            std::thread::sleep(INTERVAL);
            if resident() > kept.saturating_add(GROWTH) {
                rounds = ROUNDS;
            }
            if rounds > 0 {
                rounds -= 1;
                // SAFETY: the function has no preconditions; it locks the allocator itself.
                unsafe { libc::malloc_trim(0) };
                kept = resident();
            }
        }
    }

    /// Returns the bytes of the process in memory; 0 if they are unknown.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        // SAFETY: the function has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or_default();
        pages.unwrap_or_default().saturating_mul(page)
    }

    #[test]
    fn the_process_has_a_size() {
        assert!((1 << 20..1 << 40).contains(&resident()));
    }
}

/// Starts a thread that returns memory after peaks. The allocator of glibc keeps what threads have freed, so that a server would stay
/// as large as its largest requests made it.
pub(crate) fn return_after_peaks() {
    // Without the thread, the server only uses more memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let _ = std::thread::Builder::new()
        .name("memory".into())
        .spawn(glibc::return_after_peaks);
}
