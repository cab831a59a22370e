//! Collective calls of MPI. All calls of the MPI library are in this file, in `notice.rs` and in `wait.rs`.

use std::ffi::c_int;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::{self, ManuallyDrop};
use std::time::Duration;

use meganeura_core::distributed::{Collective, CollectiveFailure};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;

use crate::notice::Notices;
use crate::signal;

/// Maximum number of elements in one call, because MPI counts in `int`.
const MAX_COUNT: usize = 1 << 28;

/// Maximum number of bytes of a tensor's name that are sent to other ranks.
const NAME_BYTES: usize = 72;
/// Size of a header in bytes: five 64-bit words, such as the size and the root of the call, and its name.
const HEADER_BYTES: usize = 40 + NAME_BYTES;

/// Encoded description of a rank's call. Ranks exchange them, to check that all make the same call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header(Vec<u8>);

impl Header {
    pub(crate) fn new(operation: Collective, tensor: &str, bytes: usize, root: usize) -> Self {
        let title = format!("{operation} of {tensor}");
        // Only the beginning of a long name is sent, but the hash covers all of it.
        let mut hasher = DefaultHasher::new();
        title.hash(&mut hasher);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        for word in [
            bytes as u64,
            root as u64,
            hasher.finish(),
            title.len().min(NAME_BYTES) as u64,
            0,
        ] {
            header.extend(word.to_le_bytes());
        }
        header.extend(title.bytes().take(NAME_BYTES));
        header.resize(HEADER_BYTES, 0);
        Header(header)
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    }

    fn title(bytes: &[u8]) -> String {
        let length = (Header::word(bytes, 3) as usize).min(NAME_BYTES);
        String::from_utf8_lossy(&bytes[40..40 + length]).into_owned()
    }

    /// Returns the difference from another rank's call, if there is one.
    fn difference(&self, other: &[u8]) -> Option<String> {
        let own = &self.0[..];
        if Header::word(own, 2) != Header::word(other, 2) {
            return Some(format!("it calls {}", Header::title(other)));
        }
        let (bytes, their_bytes) = (Header::word(own, 0), Header::word(other, 0));
        if bytes != their_bytes {
            return Some(format!("it has {their_bytes} bytes, this rank has {bytes}"));
        }
        let (root, their_root) = (Header::word(own, 1), Header::word(other, 1));
        (root != their_root).then(|| format!("its root is {their_root}, the root of this rank is {root}"))
    }
}

/// State of the connection, kept under a lock by the communicator.
pub(crate) struct State {
    universe: ManuallyDrop<Universe>,
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    pub(crate) notices: Notices,
    /// Memory that calls read from, and memory that they write to. If a call does not complete, it is leaked instead of
    /// freed.
    source: Vec<u8>,
    target: Vec<u8>,
    /// `true` if a call has failed. No further calls are made then.
    is_broken: bool,
}

// SAFETY: MPI was initialized so that threads may take turns, and the owner's lock has them do that; the handle of a
// communicator is a number or an address of the library, which any thread may use.
unsafe impl Send for State {}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, size, .. } = self;
        f.debug_struct("State")
            .field("rank", rank)
            .field("size", size)
            .finish_non_exhaustive()
    }
}

/// Converts an error code of MPI to a result.
fn check(code: c_int) -> Result<(), CollectiveFailure> {
    // `MPI_SUCCESS` is 0 by the standard.
    if code == 0 {
        return Ok(());
    }
    // More than `MPI_MAX_ERROR_STRING` of either library.
    let mut text = [0_u8; 2048];
    let mut length: c_int = 0;
    // SAFETY: the text has more room than the longest message.
    let found = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let message = match (found, usize::try_from(length)) {
        (0, Ok(length)) => String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned(),
        _ => format!("MPI error {code}"),
    };
    Err(CollectiveFailure::Transport(message))
}

/// Returns a copy of the communicator of all processes that returns errors instead of aborting.
fn duplicate() -> Result<ffi::MPI_Comm, String> {
    // SAFETY: MPI is initialized, so that its constants have their values; the pointers are to locals.
    unsafe {
        let mut comm = ffi::RSMPI_COMM_NULL;
        let made = ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut comm);
        let set = ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN);
        match (made, set) {
            (0, 0) => Ok(comm),
            _ => Err("MPI could not create a communicator".into()),
        }
    }
}

impl State {
    pub(crate) fn open() -> Result<Self, String> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or("MPI was initialized in this process before")?;
        if threading < Threading::Serialized {
            return Err(format!(
                "this MPI library provides {threading:?}, expected at least MPI_THREAD_SERIALIZED"
            ));
        }
        let (comm, control) = (duplicate()?, duplicate()?);
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: the communicator is valid, the pointers are to locals.
        let codes = unsafe { [ffi::MPI_Comm_rank(comm, &mut rank), ffi::MPI_Comm_size(comm, &mut size)] };
        if codes != [0, 0] {
            return Err("MPI does not report the number of processes".into());
        }
        let (rank, size) = (rank as usize, size as usize);
        Ok(State {
            universe: ManuallyDrop::new(universe),
            comm,
            rank,
            size,
            notices: Notices::new(control, rank, size),
            source: Vec::new(),
            target: Vec::new(),
            is_broken: false,
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Marks the communicator as failed, and notifies the other ranks.
    pub(crate) fn fail(&mut self, reason: &str) {
        if !mem::replace(&mut self.is_broken, true) {
            self.notices.tell_end(reason);
        }
    }

    /// Checks that all other ranks make the same call.
    pub(crate) fn compare(&mut self, header: &Header, limit: Duration) -> Result<(), CollectiveFailure> {
        self.notices.begin();
        let mut all = vec![0; HEADER_BYTES * self.size];
        self.all_gather(&header.0, &mut all, limit)?;
        let mut others = all.chunks_exact(HEADER_BYTES).enumerate();
        match others.find_map(|(peer, other)| Some((peer, header.difference(other)?))) {
            Some((peer, what)) => Err(CollectiveFailure::Mismatch { peer, what }),
            None => Ok(()),
        }
    }

    /// Starts a call that uses the memory of `source` and `target`, and waits for it.
    fn start(
        &mut self,
        limit: Duration,
        call: impl FnOnce(*const u8, *mut u8, ffi::MPI_Comm, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<(), CollectiveFailure> {
        if self.is_broken {
            return Err(CollectiveFailure::Transport(
                "the communicator failed in an earlier call".into(),
            ));
        }
        // SAFETY: MPI is initialized, so that the constant has its value.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(call(
            self.source.as_ptr(),
            self.target.as_mut_ptr(),
            self.comm,
            &mut request,
        ))?;
        let waited = self.notices.wait(&mut request, limit);
        if waited.is_err() {
            // The library may still read and write them.
            mem::forget(mem::take(&mut self.source));
            mem::forget(mem::take(&mut self.target));
        }
        waited
    }

    /// Replaces the contents of `source`, and resizes `target` to `target` bytes.
    fn fill(&mut self, source: &[u8], target: usize) {
        self.source.clear();
        self.source.extend_from_slice(source);
        self.target.resize(target, 0);
    }

    pub(crate) fn all_reduce(&mut self, data: &mut [f32], limit: Duration) -> Result<(), CollectiveFailure> {
        for part in data.chunks_mut(MAX_COUNT) {
            let count = part.len() as c_int;
            self.fill(bytes_of(part), size_of_val(part));
            // SAFETY: both memories have `count` numbers of four bytes, and live until the call is complete or for ever.
            self.start(limit, |source, target, comm, request| unsafe {
                let (kind, op) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
                ffi::MPI_Iallreduce(source.cast(), target.cast(), count, kind, op, comm, request)
            })?;
            bytes_of_mut(part).copy_from_slice(&self.target);
        }
        Ok(())
    }

    pub(crate) fn reduce(&mut self, root: usize, data: &mut [f32], limit: Duration) -> Result<(), CollectiveFailure> {
        let (root, is_root) = (root as c_int, root == self.rank);
        for part in data.chunks_mut(MAX_COUNT) {
            let count = part.len() as c_int;
            self.fill(bytes_of(part), size_of_val(part));
            // SAFETY: as above.
            self.start(limit, |source, target, comm, request| unsafe {
                let (kind, op) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
                ffi::MPI_Ireduce(source.cast(), target.cast(), count, kind, op, root, comm, request)
            })?;
            if is_root {
                bytes_of_mut(part).copy_from_slice(&self.target);
            }
        }
        Ok(())
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        data: &[f32],
        own: &mut [f32],
        limit: Duration,
    ) -> Result<(), CollectiveFailure> {
        let count = count(own.len())?;
        self.fill(bytes_of(data), size_of_val(own));
        // SAFETY: as above, with `count` numbers in the target and `count` per rank in the source.
        self.start(limit, |source, target, comm, request| unsafe {
            let (kind, op) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Ireduce_scatter_block(source.cast(), target.cast(), count, kind, op, comm, request)
        })?;
        bytes_of_mut(own).copy_from_slice(&self.target);
        Ok(())
    }

    pub(crate) fn all_gather(&mut self, own: &[u8], all: &mut [u8], limit: Duration) -> Result<(), CollectiveFailure> {
        let count = count(own.len())?;
        self.fill(own, all.len());
        // SAFETY: as above, with `count` bytes in the source and `count` per rank in the target.
        self.start(limit, |source, target, comm, request| unsafe {
            let kind = ffi::RSMPI_UINT8_T;
            ffi::MPI_Iallgather(source.cast(), count, kind, target.cast(), count, kind, comm, request)
        })?;
        all.copy_from_slice(&self.target);
        Ok(())
    }

    pub(crate) fn broadcast(&mut self, root: usize, data: &mut [u8], limit: Duration) -> Result<(), CollectiveFailure> {
        let root = root as c_int;
        for part in data.chunks_mut(MAX_COUNT) {
            let count = part.len() as c_int;
            self.fill(&[], part.len());
            self.target.copy_from_slice(part);
            // SAFETY: as above, with `count` bytes in the target.
            self.start(limit, |_, target, comm, request| unsafe {
                ffi::MPI_Ibcast(target.cast(), count, ffi::RSMPI_UINT8_T, root, comm, request)
            })?;
            part.copy_from_slice(&self.target);
        }
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        signal::finish();
        // A failed communicator is not finalized, as MPI might wait for ranks that are gone.
        if !self.is_broken && !std::thread::panicking() {
            // SAFETY: it is dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.universe) };
        }
    }
}

fn count(elements: usize) -> Result<c_int, CollectiveFailure> {
    match elements {
        0..=MAX_COUNT => Ok(elements as c_int),
        _ => Err(CollectiveFailure::Invalid(format!(
            "{elements} elements of each rank are more than {MAX_COUNT}"
        ))),
    }
}

fn bytes_of(data: &[f32]) -> &[u8] {
    // SAFETY: `f32` has no padding; the length in bytes is that of the slice; u8 has no alignment.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

fn bytes_of_mut(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; any bytes form valid numbers; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}
