//! Shared code of the tests that give randomly changed files to readers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura::random::SplitMix64;

/// Allocator that records the largest allocation of the process, and its maximum memory.
pub(crate) struct PeakAllocator;

static MAX_ALLOCATION: AtomicUsize = AtomicUsize::new(0);
static NOW: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use when the measurement began.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator; counting has no other effect.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MAX_ALLOCATION.fetch_max(layout.size(), Ordering::Relaxed);
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
}

impl PeakAllocator {
    /// Restarts the measurement of allocations.
    pub(crate) fn forget() {
        MAX_ALLOCATION.store(0, Ordering::Relaxed);
        let now = NOW.load(Ordering::Relaxed);
        BEFORE.store(now, Ordering::Relaxed);
        MAX.store(now, Ordering::Relaxed);
    }

    /// Returns the size of the largest allocation since the restart, in bytes.
    pub(crate) fn seen() -> usize {
        MAX_ALLOCATION.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of bytes in use since the restart, without the bytes that were in use before.
    #[allow(dead_code, reason = "not every test asks for it")]
    pub(crate) fn most() -> usize {
        MAX.load(Ordering::Relaxed)
            .saturating_sub(BEFORE.load(Ordering::Relaxed))
    }
}

/// Returns the number of changed files; `MEGANEURA_FUZZ_RUNS` overrides it for long runs.
pub(crate) fn runs(default: usize) -> usize {
    let runs = std::env::var("MEGANEURA_FUZZ_RUNS").ok().and_then(|n| n.parse().ok());
    runs.unwrap_or(default)
}

/// Makes one random change: bytes flipped, removed or repeated, or a number replaced by another.
pub(crate) fn mutate(bytes: &mut Vec<u8>, rng: &mut SplitMix64) {
    const NUMBERS: [&str; 8] = [
        "0",
        "1",
        "7",
        "65536",
        "4294967295",
        "18446744073709551615",
        "1e300",
        "-1",
    ];
    let at = rng.below(bytes.len());
    let len = (1 + rng.below(24)).min(bytes.len() - at);
    match rng.below(8) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => drop(bytes.drain(at..at + len)),
        2 => {
            let again = bytes[at..at + len].to_vec();
            bytes.splice(at..at, again);
        }
        3 => bytes.truncate(at),
        _ => {
            // Replaces the next number after this position.
            let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else {
                return;
            };
            let digits = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = match rng.below(2) {
                0 => NUMBERS[rng.below(NUMBERS.len())].to_owned(),
                _ => rng.below(64).to_string(),
            };
            bytes.splice(start..start + digits, number.into_bytes());
        }
    }
}
