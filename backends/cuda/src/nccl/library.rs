//! Bindings to NCCL, NVIDIA's library of collectives.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use crate::library::{LibraryRequest, LoadedLibrary, version_text};

/// Description of the library, and how it is found.
const WANTED: LibraryRequest = LibraryRequest {
    variable: "MEGANEURA_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    what: "NCCL",
    remedy: "install NCCL (Debian's libnccl2, or the package nvidia-nccl-cu12 of PyPI), and let MEGANEURA_NCCL name its libnccl.so.2 \
             where the system does not find it",
};

/// Oldest supported version of NCCL. 2.10 has all functions that are used, including averages.
const MIN_VERSION: c_int = 21_000;

type Status = c_int;
/// The library's communicator handle.
pub(super) type RawComm = *mut c_void;

// Constants of the library's header.
const IN_PROGRESS: Status = 7;
const INT8: c_int = 0;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const AVERAGE: c_int = 4;

/// The identifier of a group of ranks. With it, all ranks connect to the first rank.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Sum of `f32`, or its mean, on every rank.
    AllReduce { mean: bool },
    /// Sum of `f32`, only on one rank.
    Reduce { root: usize },
    /// Sum of `f32`, of which each rank receives one part.
    ReduceScatter,
    /// Bytes of all ranks, concatenated on every rank.
    AllGather,
    /// Bytes of one rank, on every rank.
    Broadcast { root: usize },
}

/// The loaded library.
#[derive(Debug)]
pub(super) struct Nccl {
    library: LoadedLibrary,
    version: c_int,
}

type Reduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, RawComm, sys::CUstream) -> Status;
type ReduceTo = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, c_int, RawComm, sys::CUstream) -> Status;
type Gather = unsafe extern "C" fn(u64, u64, usize, c_int, RawComm, sys::CUstream) -> Status;
type BroadcastFrom = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, RawComm, sys::CUstream) -> Status;

impl Nccl {
    /// Opens the library.
    ///
    /// # Errors
    /// The library is not found, or is too old.
    pub(super) fn open() -> Result<Self, String> {
        WANTED.open(|library| {
            let version_of: unsafe extern "C" fn(*mut c_int) -> Status = library.function(c"ncclGetVersion")?;
            let mut version = 0;
            // SAFETY: the pointer is to a local.
            let status = unsafe { version_of(&mut version) };
            if status == 0 && version >= MIN_VERSION {
                Ok(Nccl { library, version })
            } else {
                Err(format!("its version is {version}, expected at least {MIN_VERSION}"))
            }
        })
    }

    /// Returns the version of NCCL as text, such as 2.21.5.
    pub(super) fn version_text(&self) -> String {
        version_text(self.version as usize)
    }

    /// Creates the identifier that the first rank sends to the other ranks.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let make: unsafe extern "C" fn(*mut UniqueId) -> Status = self.library.function(c"ncclGetUniqueId")?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a local identifier.
        self.check(unsafe { make(&mut id) }, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// Joins the ranks with the same identifier, using the current device. Waits for all of them.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn join(&self, id: UniqueId, rank: usize, size: usize) -> Result<RawComm, String> {
        let join: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int) -> Status =
            self.library.function(c"ncclCommInitRank")?;
        let mut comm = ptr::null_mut();
        // SAFETY: the pointer is to a local communicator.
        let status = unsafe { join(&mut comm, size as c_int, id, rank as c_int) };
        self.check(status, "ncclCommInitRank")?;
        Ok(comm)
    }

    /// Aborts all work of a communicator, and frees it.
    ///
    /// # Safety
    /// The communicator must not be used afterwards.
    pub(super) unsafe fn abort(&self, comm: RawComm) {
        if let Ok(abort) = self
            .library
            .function::<unsafe extern "C" fn(RawComm) -> Status>(c"ncclCommAbort")
        {
            // SAFETY: by the contract of this function.
            unsafe { abort(comm) };
        }
    }

    /// Frees a communicator whose collectives are complete.
    ///
    /// # Safety
    /// The communicator must not be used afterwards.
    pub(super) unsafe fn destroy(&self, comm: RawComm) {
        if let Ok(destroy) = self
            .library
            .function::<unsafe extern "C" fn(RawComm) -> Status>(c"ncclCommDestroy")
        {
            // SAFETY: by the contract of this function.
            unsafe { destroy(comm) };
        }
    }

    /// Returns an error that occurred after a collective was enqueued, such as a broken connection.
    ///
    /// # Safety
    /// The communicator must be valid.
    pub(super) unsafe fn asynchronous_error(&self, comm: RawComm) -> Option<String> {
        let get: unsafe extern "C" fn(RawComm, *mut Status) -> Status =
            self.library.function(c"ncclCommGetAsyncError").ok()?;
        let mut found = 0;
        // SAFETY: by the contract of this function; the pointer is to a local.
        let status = unsafe { get(comm, &mut found) };
        match (status, found) {
            (0, 0 | IN_PROGRESS) => None,
            (0, error) | (error, _) => Some(self.text(error)),
        }
    }

    /// Enqueues an operation on `elements` elements of this rank: `f32` for sums, bytes for the other operations.
    ///
    /// # Safety
    /// The communicator must be valid. The memory must be on its device, have the size that the operation requires,
    /// and stay valid until the stream has passed this point.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) unsafe fn enqueue(
        &self,
        operation: Operation,
        [from, to]: [u64; 2],
        elements: usize,
        comm: RawComm,
        stream: sys::CUstream,
    ) -> Result<(), String> {
        // SAFETY: by the contract of this function, which includes all of these calls.
        let (status, name) = unsafe {
            match operation {
                Operation::AllReduce { mean } => {
                    let call: Reduce = self.library.function(c"ncclAllReduce")?;
                    let what = if mean { AVERAGE } else { SUM };
                    (call(from, to, elements, FLOAT32, what, comm, stream), "ncclAllReduce")
                }
                Operation::Reduce { root } => {
                    let call: ReduceTo = self.library.function(c"ncclReduce")?;
                    let status = call(from, to, elements, FLOAT32, SUM, root as c_int, comm, stream);
                    (status, "ncclReduce")
                }
                Operation::ReduceScatter => {
                    let call: Reduce = self.library.function(c"ncclReduceScatter")?;
                    (
                        call(from, to, elements, FLOAT32, SUM, comm, stream),
                        "ncclReduceScatter",
                    )
                }
                Operation::AllGather => {
                    let call: Gather = self.library.function(c"ncclAllGather")?;
                    (call(from, to, elements, INT8, comm, stream), "ncclAllGather")
                }
                Operation::Broadcast { root } => {
                    let call: BroadcastFrom = self.library.function(c"ncclBroadcast")?;
                    (
                        call(from, to, elements, INT8, root as c_int, comm, stream),
                        "ncclBroadcast",
                    )
                }
            }
        };
        self.check(status, name)
    }

    /// Enqueues several operations as one group.
    ///
    /// # Errors
    /// Errors of the library and of `enqueue`.
    pub(super) fn group(&self, enqueue: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let begin: unsafe extern "C" fn() -> Status = self.library.function(c"ncclGroupStart")?;
        let end: unsafe extern "C" fn() -> Status = self.library.function(c"ncclGroupEnd")?;
        // SAFETY: the function takes no arguments.
        self.check(unsafe { begin() }, "ncclGroupStart")?;
        let enqueued = enqueue();
        // SAFETY: as above. Every group that was started is ended.
        let ended = self.check(unsafe { end() }, "ncclGroupEnd");
        enqueued.and(ended)
    }

    fn check(&self, status: Status, function: &str) -> Result<(), String> {
        match status {
            0 | IN_PROGRESS => Ok(()),
            status => Err(format!("{function}: {}", self.text(status))),
        }
    }

    /// Formats an error. The text contains the library's description of the status, and its last error message.
    fn text(&self, status: Status) -> String {
        type Text = unsafe extern "C" fn(Status) -> *const c_char;
        let Ok(describe) = self.library.function::<Text>(c"ncclGetErrorString") else {
            return format!("status {status}");
        };
        // SAFETY: the library returns a static text.
        let text = unsafe { CStr::from_ptr(describe(status)) }
            .to_string_lossy()
            .into_owned();
        let last = self
            .library
            .function::<unsafe extern "C" fn(RawComm) -> *const c_char>(c"ncclGetLastError");
        let last = last.ok().and_then(|last| {
            // SAFETY: the library does not use the argument. It returns null, or a text that is valid until the next
            // error.
            let text = unsafe { last(ptr::null_mut()) };
            // SAFETY: as above.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
        });
        match last.filter(|last| !last.is_empty()) {
            Some(last) => format!("{text} ({last})"),
            None => text,
        }
    }
}
