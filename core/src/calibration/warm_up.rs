//! Warming up a device to its full clock before anything is timed.

use std::time::Duration;

/// Minimum duration of the load.
const MIN_DURATION: Duration = Duration::from_millis(500);
/// Maximum duration of the load.
const MAX: Duration = Duration::from_secs(3);
/// Length of the time spans that are compared with each other.
const SPAN: Duration = Duration::from_millis(250);
/// Relative speedup between two spans above which the clock is still rising.
const RISE: f64 = 0.03;

/// Repeats a batch of work until it no longer gets faster: for at least half a second and at most
/// three seconds. `batch` does some milliseconds of the same work, waits for it and returns the
/// time it took. Returns the total time.
///
/// GPUs lower their clock while a process uses them little, and raise it only under sustained load.
/// An H200 ran at 345 instead of 1,980 MHz for some seconds after opening a Vulkan device that was
/// busy a tenth of the time: matmuls took five times as long, and samples of 20 ms did not change
/// that. CPUs need no warm-up.
///
/// ```
/// use std::time::Duration;
/// # use meganeura_core::calibration::warm_up;
/// let took = warm_up(|| Ok::<_, meganeura_core::Error>(Duration::from_millis(25)))?;
/// assert_eq!(took, Duration::from_millis(500));
/// # Ok::<(), meganeura_core::Error>(())
/// ```
///
/// # Errors
/// Those of the work.
pub fn warm_up<E>(mut batch: impl FnMut() -> Result<Duration, E>) -> Result<Duration, E> {
    let (mut total, mut span, mut before) = (Duration::ZERO, Duration::ZERO, f64::INFINITY);
    let mut best = f64::INFINITY;
    loop {
        // Batches of zero duration would loop forever.
        let time = batch()?.max(Duration::from_micros(1));
        total += time;
        span += time;
        best = best.min(time.as_secs_f64());
        if span < SPAN {
            continue;
        }
        let is_steady = best >= before * (1.0 - RISE);
        if (total >= MIN_DURATION && is_steady) || total >= MAX {
            return Ok(total);
        }
        (before, best, span) = (best, f64::INFINITY, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds that [`warm_up`] takes on a device whose speed depends on the load: after `t` seconds of load,
    /// a batch takes `time(t)` seconds.
    fn load(time: impl Fn(f64) -> f64) -> f64 {
        let mut now = 0.0;
        let took = warm_up(|| {
            let seconds = time(now);
            now += seconds;
            Ok::<_, ()>(Duration::from_secs_f64(seconds))
        });
        took.expect("nothing fails").as_secs_f64()
    }

    #[test]
    fn a_steady_device_has_half_a_second() {
        for seconds in [0.001, 0.02, 0.1, 0.25] {
            let found = load(|_| seconds);
            assert!((0.5..0.75).contains(&found), "{seconds}: {found}");
        }
    }

    #[test]
    fn one_whose_clock_rises_is_waited_for() {
        // Gets five times as fast within a second: until then, every span is faster than the one
        // before.
        let rising = |now: f64| 0.02 / (1.0 + 4.0 * now.min(1.0));
        let found = load(rising);
        assert!((1.2..2.0).contains(&found), "{found}");
    }

    #[test]
    fn it_ends_in_any_case() {
        assert!((3.0..3.5).contains(&load(|now| 0.1 / (1.0 + now * now))));
        assert!(load(|_| 10.0) < 11.0);
        assert!(load(|_| 0.0) < 0.75);
    }

    #[test]
    fn a_failure_ends_it() {
        let mut batches = 0;
        let failed = warm_up(|| {
            batches += 1;
            Err("it is broken")
        });
        assert_eq!(failed, Err("it is broken"));
        assert_eq!(batches, 1);
    }
}
