//! Wait for a call of MPI, with all events that can end it: completion, messages of other ranks, signals, and the time
//! limit.

use std::ffi::c_int;
use std::thread;
use std::time::{Duration, Instant};

use meganeura_core::distributed::CollectiveFailure;
use mpi::ffi;

use crate::notice::Notices;
use crate::signal;

/// Duration of busy-waiting: most collectives complete within it.
const SPIN: Duration = Duration::from_millis(2);
/// Interval between checks for messages.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a rank waits before it notifies the other ranks. If half of its time limit is shorter, it waits that time.
const NOTIFY_AFTER: Duration = Duration::from_secs(1);
/// Pause between tests for completion after busy-waiting, so that a rank on the same core can compute.
const SLEEP: Duration = Duration::from_micros(50);
/// Additional waiting time after this rank's time limit, because reports of other ranks arrive at about the same time.
const GRACE: Duration = Duration::from_millis(500);

impl Notices {
    /// Waits until a request is complete.
    pub(crate) fn wait(&mut self, request: &mut ffi::MPI_Request, limit: Duration) -> Result<(), CollectiveFailure> {
        let start = Instant::now();
        let mut looked = start;
        let mut terminated: Option<Instant> = None;
        loop {
            let mut done: c_int = 0;
            // SAFETY: the request was returned by a call and is not complete; its memory lives for as long.
            let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            if code != 0 {
                return Err(self.lost(format!("MPI returned error {code} while this rank waited")));
            }
            if done != 0 {
                return Ok(());
            }
            let now = Instant::now();
            let waited = now - start;
            if waited < SPIN {
                thread::yield_now();
                continue;
            }
            if now - looked >= CHECK_INTERVAL {
                looked = now;
                self.receive();
                if let Some((peer, reason)) = self.ended.clone() {
                    return Err(CollectiveFailure::PeerLost { peer, reason });
                }
                // If all ranks are alive, the collective completes, and they can agree to stop.
                if signal::terminated() && now - *terminated.get_or_insert(now) >= signal::grace() {
                    return Err(signal::failure());
                }
                if waited >= NOTIFY_AFTER.min(limit / 2) && !self.has_told {
                    self.tell_wait();
                }
            }
            if waited >= limit + GRACE.min(limit) {
                self.receive();
                let missing = self.missing();
                return Err(CollectiveFailure::TimedOut { missing, limit });
            }
            thread::sleep(SLEEP);
        }
    }

    /// Returns the failure for a broken connection. If a rank reported that it ends, that rank is the cause.
    fn lost(&mut self, message: String) -> CollectiveFailure {
        self.receive();
        match self.ended.clone() {
            Some((peer, reason)) => CollectiveFailure::PeerLost { peer, reason },
            None => CollectiveFailure::Transport(message),
        }
    }
}
