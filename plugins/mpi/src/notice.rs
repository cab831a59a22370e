//! Short messages in addition to collectives: that a rank waits, and that it ends. With the first,
//! a rank that waits too long can report which ranks are missing; with the second, other ranks need
//! not wait at all.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use mpi::ffi;

use crate::signal;

/// Tag of the messages.
const TAG: c_int = 1;
/// Maximum bytes of a message.
const MAX_BYTES: usize = 512;
/// Maximum time that an ending rank spends on notifying the other ranks.
const TELL: Duration = Duration::from_secs(2);
/// The same after SIGTERM: SIGKILL follows a second later, and there must be time left to report the failure.
const TELL_LAST: Duration = Duration::from_millis(50);
const WAITS: u8 = 0;
const ENDS: u8 = 1;

/// A message that is being sent, with its memory.
struct SentMessage {
    request: ffi::MPI_Request,
    _bytes: Box<[u8]>,
}

/// Notices from and to other ranks.
pub(crate) struct Notices {
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    /// Sequence number of the current collective.
    pub(crate) sequence: u64,
    /// Number of the last collective in which each rank reported waiting.
    waits_in: Vec<u64>,
    /// The rank that announced its end, with the reason.
    pub(crate) ended: Option<(usize, String)>,
    sent: Vec<SentMessage>,
    /// `true` if this rank has reported that it waits in the current collective.
    pub(crate) has_told: bool,
}

impl Notices {
    pub(crate) fn new(comm: ffi::MPI_Comm, rank: usize, size: usize) -> Self {
        Notices {
            comm,
            rank,
            size,
            sequence: 0,
            waits_in: vec![0; size],
            ended: None,
            sent: Vec::new(),
            has_told: false,
        }
    }

    /// Starts another collective.
    pub(crate) fn begin(&mut self) {
        self.sequence += 1;
        self.has_told = false;
    }

    /// Returns the ranks that have not yet reported waiting in the current collective.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let others = (0..self.size).filter(|&rank| rank != self.rank);
        others.filter(|&rank| self.waits_in[rank] < self.sequence).collect()
    }

    /// Notifies the other ranks that this one waits.
    pub(crate) fn tell_wait(&mut self) {
        self.has_told = true;
        self.tell(WAITS, "");
    }

    /// Notifies the other ranks that this one ends.
    pub(crate) fn tell_end(&mut self, reason: &str) {
        self.tell(ENDS, reason);
        let until = Instant::now() + if signal::terminated() { TELL_LAST } else { TELL };
        while Instant::now() < until {
            self.receive();
            if self.forget_sent() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn tell(&mut self, kind: u8, text: &str) {
        let mut message = vec![kind];
        message.extend(self.sequence.to_le_bytes());
        message.extend(text.bytes().take(MAX_BYTES - message.len()));
        for peer in (0..self.size).filter(|&peer| peer != self.rank) {
            let bytes: Box<[u8]> = message.clone().into();
            // SAFETY: MPI is initialized; the memory lives until the message is sent, or is leaked;
            // errors are returned, and a message that cannot be sent counts as not delivered.
            let sent = unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (data, kind) = (bytes.as_ptr().cast(), ffi::RSMPI_UINT8_T);
                let length = bytes.len() as c_int;
                let code = ffi::MPI_Isend(data, length, kind, peer as c_int, TAG, self.comm, &mut request);
                (code == 0).then_some(request)
            };
            match sent {
                Some(request) => self.sent.push(SentMessage { request, _bytes: bytes }),
                None => std::mem::forget(bytes),
            }
        }
    }

    /// Frees the memory of messages that were sent. Returns `true` if no message is left.
    fn forget_sent(&mut self) -> bool {
        self.sent.retain_mut(|sent| {
            let mut done: c_int = 0;
            // SAFETY: the request belongs to a message of this list that was not complete before.
            let code = unsafe { ffi::MPI_Test(&mut sent.request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            code == 0 && done == 0
        });
        self.sent.is_empty()
    }

    /// Receives all messages that have arrived.
    pub(crate) fn receive(&mut self) {
        self.forget_sent();
        loop {
            let mut bytes = [0_u8; MAX_BYTES];
            let mut arrived: c_int = 0;
            // SAFETY: an MPI status is plain data, which a probe fills.
            let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
            // SAFETY: the pointers are to locals.
            let probed = unsafe { ffi::MPI_Iprobe(ffi::RSMPI_ANY_SOURCE, TAG, self.comm, &mut arrived, &mut status) };
            if probed != 0 || arrived == 0 {
                return;
            }
            let source = status.MPI_SOURCE;
            // SAFETY: no message is longer than the memory.
            let received = unsafe {
                let (data, kind) = (bytes.as_mut_ptr().cast(), ffi::RSMPI_UINT8_T);
                ffi::MPI_Recv(data, MAX_BYTES as c_int, kind, source, TAG, self.comm, &mut status)
            };
            let mut length: c_int = 0;
            // SAFETY: the status belongs to the message.
            let counted = unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut length) };
            let peer = source as usize;
            if received != 0 || counted != 0 || length < 9 || peer >= self.size {
                return;
            }
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[1..9]);
            match bytes[0] {
                WAITS => self.waits_in[peer] = u64::from_le_bytes(word),
                _ => {
                    let text = String::from_utf8_lossy(&bytes[9..length as usize]).into_owned();
                    self.ended.get_or_insert((peer, text));
                }
            }
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // The library may still read messages that are not sent yet.
        std::mem::take(&mut self.sent).into_iter().for_each(std::mem::forget);
    }
}
