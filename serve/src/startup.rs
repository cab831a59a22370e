//! Checks of the resources that a server needs, before it starts.

use std::sync::{Arc, Mutex};

use meganeura_core::{Error, Result};
use meganeura_llm::large_stack;

use crate::lock::lock;
use crate::preparation::Preparation;

/// Stack size of the runtime's threads, in bytes.
pub(crate) const STACK: usize = 16 << 20;

/// Starts and ends `count` threads, to find out whether the system allows them. The runtime panics or hangs if it cannot start a thread.
///
/// # Errors
/// [`Error::InvalidUse`] if the system refuses a thread.
pub(crate) fn check_threads(count: usize) -> Result<()> {
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let refused = std::thread::scope(|scope| {
        let (mut refused, mut threads) = (None, Vec::new());
        for number in 0..count {
            let gate = gate.clone();
            let wait = move || {
                // Ends when `release` is dropped.
                let _ = lock(&gate).recv();
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            match thread.spawn_scoped(scope, wait) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    refused = Some((number, error));
                    break;
                }
            }
        }
        drop(release);
        // The end of the scope does not wait until the system no longer counts the threads.
        for thread in threads {
            let _ = thread.join();
        }
        refused
    });
    match refused {
        None => Ok(()),
        Some((number, error)) => Err(Error::misuse(
            format!("the server needs {count} threads, and the system refused the one after {number}: {error}"),
            "raise the limits of processes (ulimit -u) and of memory (ulimit -v)",
        )),
    }
}

/// Address space that the server needs after its start, in bytes: some threads with large stacks, all threads that prepare requests, and
/// the data of requests.
fn needed_address_space() -> u64 {
    let stacks = 2 * large_stack::STACK + Preparation::threads() * STACK;
    (stacks + (768 << 20)) as u64
}

/// Checks that the process may use enough memory for requests. Otherwise, an allocation would fail later and end the process.
///
/// # Errors
/// [`Error::InvalidUse`] with both sizes.
pub(crate) fn check_address_space() -> Result<()> {
    let (free, needed) = (large_stack::free_address_space(), needed_address_space());
    if free >= needed {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(Error::misuse(
        format!(
            "the server needs {} MiB of address space for requests, and has {} MiB",
            mib(needed),
            mib(free)
        ),
        "raise the limit of memory (ulimit -v)",
    ))
}
