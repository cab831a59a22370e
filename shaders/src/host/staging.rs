//! Copies to staging memory, on several threads if they are large.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Minimum number of bytes for each thread. A thread starts in the time in which one processor copies a tenth of this.
const SHARE: usize = 4 << 20;
/// Maximum number of threads. A few threads use the whole bandwidth of the memory.
const MAX_THREADS: usize = 8;

/// Copies `bytes` to memory of the same length.
///
/// # Panics
/// The lengths differ.
pub fn copy_to_staging(bytes: &[u8], staging: &mut [u8]) {
    assert_eq!(bytes.len(), staging.len(), "the lengths of a copy differ");
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (bytes.len() / SHARE).min(processors).min(MAX_THREADS);
    if threads < 2 {
        staging.copy_from_slice(bytes);
        return;
    }
    let parts = Mutex::new(bytes.chunks(SHARE).zip(staging.chunks_mut(SHARE)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let copy = || {
        while let Some((from, to)) = next() {
            to.copy_from_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without this thread it only takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied() {
        for len in [0, 1, 4097, 2 * SHARE, 3 * SHARE + 5] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut staging = vec![0; len];
            copy_to_staging(&bytes, &mut staging);
            assert!(staging == bytes, "{len} bytes");
        }
    }
}
