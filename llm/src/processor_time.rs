//! Processor time of a thread. Unlike elapsed time, it does not grow while other programs have the processor.

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
