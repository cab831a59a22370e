//! Processor time of a thread. Unlike elapsed time, it does not grow while other programs have the processor.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A point in the processor time of this thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTime(Duration);

impl ThreadTime {
    /// Returns the current point.
    pub fn now() -> Self {
        ThreadTime(spent())
    }

    /// Returns the processor time since this point. Call it on the same thread.
    pub fn elapsed(&self) -> Duration {
        spent().saturating_sub(self.0)
    }
}

/// Limit of the processor time of some work, such as rendering a template.
#[derive(Debug)]
pub struct TimeLimit {
    time: Duration,
    exceeded: AtomicBool,
    cancelled: AtomicBool,
}

thread_local! {
    static LIMIT: RefCell<Option<Arc<TimeLimit>>> = const { RefCell::new(None) };
}

/// Restores the limit of this thread on drop.
struct Restore(Option<Arc<TimeLimit>>);

impl Drop for Restore {
    fn drop(&mut self) {
        LIMIT.with_borrow_mut(|limit| *limit = self.0.take());
    }
}

impl TimeLimit {
    /// Creates a limit of this processor time.
    pub fn new(time: Duration) -> Self {
        TimeLimit {
            time,
            exceeded: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Returns the limit of the work on this thread, if it has one.
    pub fn current() -> Option<Arc<TimeLimit>> {
        LIMIT.with_borrow(Clone::clone)
    }

    /// Runs work with this limit. Work that checks the limit ends with an error once it has taken too long.
    pub fn run<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _restore = Restore(LIMIT.with_borrow_mut(|limit| limit.replace(self.clone())));
        work()
    }

    /// Ends the work early.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns true if the work must end, because it has taken `elapsed` or is cancelled.
    pub fn ends(&self, elapsed: Duration) -> bool {
        if elapsed > self.time {
            self.exceeded.store(true, Ordering::Relaxed);
        }
        self.is_exceeded() || self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns true if work has ended because it took too long.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }
}

#[cfg(unix)]
fn spent() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elapsed time, on systems without the clock.
#[cfg(not(unix))]
fn spent() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn waiting_takes_no_processor_time() {
        let begun = ThreadTime::now();
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_millis(40));
        let mut number = 1_u64;
        while begun.elapsed() < Duration::from_millis(5) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
    }
}
