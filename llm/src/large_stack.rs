//! Threads with a large stack, for templates and grammars, whose engines recurse.
//!
//! With a limit of the address space (`ulimit -v`), a few such stacks can take all of it. The next allocation of any thread
//! would then end the process. A thread therefore starts only if some address space stays free.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

/// Size of the stack, in bytes. Only its used pages take memory.
pub const STACK: usize = 256 << 20;

/// Bytes of the address space that stay free for everything else in a process such as a server.
pub const RESERVE: usize = 128 << 20;

/// Number of running threads, and a signal when one ends.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Reason why a function has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackError {
    /// The system cannot start a thread with a large stack.
    NoThread,
    /// The function panicked.
    Panicked,
}

/// Runs `work` on a new thread with the name `name` and a stack of [`STACK`] bytes, and waits for it. First waits while less
/// than `reserve` bytes of the address space would stay free and other such threads are running.
///
/// # Errors
/// `work` panicked, or the system cannot start the thread, or less than `reserve` bytes of the address space would stay free.
pub fn run<T: Send>(name: &str, reserve: usize, work: impl FnOnce() -> T + Send) -> Result<T, StackError> {
    std::thread::scope(|scope| {
        let thread = {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            while free_address_space() < (STACK + reserve) as u64 {
                if *running == 0 {
                    return Err(StackError::NoThread);
                }
                running = ENDED.wait(running).unwrap_or_else(PoisonError::into_inner);
            }
            let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
            // The next caller measures the address space with this stack.
            let thread = thread.spawn_scoped(scope, work).map_err(|_| StackError::NoThread)?;
            *running += 1;
            thread
        };
        let result = thread.join().map_err(|_| StackError::Panicked);
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_all();
        result
    })
}

/// Returns the free address space of this process in bytes. Returns the maximum if it has no limit, or its limit is unknown.
pub fn free_address_space() -> u64 {
    #[cfg(unix)]
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::As).current {
        return limit.saturating_sub(process_size().unwrap_or(0));
    }
    u64::MAX
}

/// Returns the size of this process's address space in bytes.
///
/// # Errors
/// The system does not report it; only Linux does.
pub fn process_size() -> io::Result<u64> {
    if !cfg!(target_os = "linux") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kilobytes = size.and_then(|size| size.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_a_large_stack() {
        fn deep(level: usize) -> usize {
            let block = std::hint::black_box([level; 1024]);
            if level == 0 {
                0
            } else {
                deep(level - 1) + block[0] - level + 1
            }
        }
        assert_eq!(run("test", 0, || deep(10_000)), Ok(10_000));
        assert_eq!(
            run("test", 0, || panic!("as it should")),
            Err::<(), _>(StackError::Panicked)
        );
        assert_eq!(*RUNNING.lock().expect("no panic"), 0);
    }

    /// Runs itself in a process with a limit of its address space.
    #[cfg(target_os = "linux")]
    #[test]
    fn address_space_stays_free() {
        const INNER: &str = "MEGANEURA_TEST_ADDRESS_SPACE";
        if std::env::var_os(INNER).is_none() {
            let program = std::env::current_exe().expect("the test");
            let test = ["--exact", "large_stack::tests::address_space_stays_free", "--nocapture"];
            let mut command = std::process::Command::new(program);
            // Otherwise, the allocator reserves address space for each thread.
            command.args(test).env(INNER, "1").env("MALLOC_ARENA_MAX", "1");
            let status = command.status();
            assert!(status.expect("the test starts").success());
            return;
        }
        // One stack and the reserve fit, but not two stacks.
        let limit = process_size().expect("Linux") + (STACK + STACK / 2 + RESERVE) as u64;
        let limit = rustix::process::Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        rustix::process::setrlimit(rustix::process::Resource::As, limit).expect("a lower limit");
        let most = std::sync::atomic::AtomicUsize::new(0);
        let now = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            use std::sync::atomic::Ordering::SeqCst;
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            now.fetch_sub(1, SeqCst);
        };
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| run("test", RESERVE, work))).collect();
            for caller in callers {
                assert_eq!(caller.join().expect("no panic"), Ok(()));
            }
        });
        assert_eq!(most.into_inner(), 1);
        assert_eq!(run("test", RESERVE + STACK, || ()), Err(StackError::NoThread));
    }
}
