//! Speed of clients that read their answers.

use std::time::{Duration, Instant};

/// Bytes per second that a client may take to read an answer without being slow.
const BYTES_PER_SECOND: u64 = 64 << 10;
/// Time that a client may be late.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Times of a connection whose client does not read as fast as the server writes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Start of the current wait for the client, if the server waits.
    since: Option<Instant>,
    /// All earlier waits.
    waited: Duration,
    /// Bytes that were sent after a wait began.
    sent: u64,
}

impl Pace {
    /// Records that bytes wait for the client.
    pub(crate) fn wait(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Records that bytes were passed to the operating system.
    pub(crate) fn send(&mut self, bytes: usize) {
        if self.since.is_some() {
            self.sent += bytes as u64;
        }
    }

    /// Records that no bytes are left.
    pub(crate) fn flush(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited += now - since;
        }
    }

    /// Returns the time by which the client is late. The times of all answers on the connection are added up.
    pub(crate) fn lateness(&self, now: Instant) -> Duration {
        self.delay(now).saturating_sub(TOLERANCE)
    }

    /// Returns the time by which the client is late, without any tolerance.
    pub(crate) fn delay(&self, now: Instant) -> Duration {
        let waits = self.waited + self.since.map_or(Duration::ZERO, |since| now - since);
        let allowed = Duration::from_millis(self.sent * 1000 / BYTES_PER_SECOND);
        waits.saturating_sub(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_clients_are_late() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::default();
        pace.send(1 << 20);
        pace.flush(at(1));
        assert_eq!(pace.lateness(at(60)), Duration::ZERO);
        // Ten answers, each of which takes two seconds for 16 KiB.
        for second in (0..20).step_by(2) {
            pace.wait(at(second));
            pace.wait(at(second + 1));
            pace.send(16 << 10);
            pace.flush(at(second + 2));
        }
        assert_eq!(pace.lateness(at(60)), Duration::from_millis(20_000 - 2_500 - 1_000));
        // A large answer over a slow line.
        let mut pace = Pace::default();
        pace.wait(at(0));
        pace.send(1 << 20);
        assert_eq!(pace.lateness(at(16)), Duration::ZERO);
        assert_eq!(pace.lateness(at(20)), Duration::from_secs(3));
    }
}
