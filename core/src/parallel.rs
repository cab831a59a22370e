//! Work in shares on a few threads of the host, for work outside of steps.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Maximum number of threads. More threads would wait for memory.
const MAX_THREADS: usize = 8;

/// Runs `work` for each share, on several threads if there are several shares and processors. Returns when all work is
/// done.
///
/// # Panics
/// `work` panics.
pub fn for_each_share<T>(shares: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = processors.min(MAX_THREADS).min(shares.len());
    let left = Mutex::new(shares);
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let serve = || {
        while let Some(share) = next() {
            work(share);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without this thread it only takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, serve);
        }
        serve();
    });
}
