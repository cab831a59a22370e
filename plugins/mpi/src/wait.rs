//! Waiting for a call, with all that may end the wait.

use std::ffi::c_int;
use std::thread;
use std::time::{Duration, Instant};

use meganeura_core::distributed::CollectiveFailure;
use mpi::ffi;

use crate::notice::Notices;
use crate::signal;

/// So long a rank only tests: most collectives are over by then.
const SPIN: Duration = Duration::from_millis(2);
/// So often a rank that waits looks for messages.
const LOOK: Duration = Duration::from_millis(20);
/// After so long, or half of a shorter time limit, it tells that it waits.
const TELL: Duration = Duration::from_secs(1);
/// Between tests later, so that a rank that computes on the same core gets on.
const SLEEP: Duration = Duration::from_micros(50);
/// What others told arrives at about the same time as this rank's own limit ends.
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
                return Err(self.lost(format!("MPI gave error {code} while this rank waited")));
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
            if now - looked >= LOOK {
                looked = now;
                self.receive();
                if let Some((peer, reason)) = self.ended.clone() {
                    return Err(CollectiveFailure::PeerLost { peer, reason });
                }
                // Where all ranks live, the collective comes to its end, and they can agree to stop.
                if signal::terminated() && now - *terminated.get_or_insert(now) >= signal::grace() {
                    return Err(signal::failure());
                }
                if waited >= TELL.min(limit / 2) && !self.has_told {
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

    /// The transport failed: because of a rank that told that it ends, if one did.
    fn lost(&mut self, message: String) -> CollectiveFailure {
        self.receive();
        match self.ended.clone() {
            Some((peer, reason)) => CollectiveFailure::PeerLost { peer, reason },
            None => CollectiveFailure::Transport(message),
        }
    }
}
