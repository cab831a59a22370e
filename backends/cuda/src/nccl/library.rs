//! NCCL, NVIDIA's library of collectives.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use crate::library::{Opened, Wanted};

/// Where it is.
const WANTED: Wanted = Wanted {
    variable: "MEGANEURA_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    what: "NCCL",
    remedy: "install NCCL (Debian's libnccl2, or the package nvidia-nccl-cu12 of PyPI), and let MEGANEURA_NCCL name its libnccl.so.2 \
             where the system does not find it",
};

/// The oldest version whose functions are all there: 2.10 has averages.
const MIN_VERSION: c_int = 21_000;

type Status = c_int;
/// A communicator as the library knows it.
pub(super) type RawComm = *mut c_void;

// Numbers of the library's header.
const IN_PROGRESS: Status = 7;
const INT8: c_int = 0;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const AVERAGE: c_int = 4;

/// By what the first rank lets the others find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The sum of `f32`, or its mean, on every rank.
    AllReduce { mean: bool },
    /// The sum of `f32` on one rank.
    Reduce { root: usize },
    /// The sum of `f32`, a part on each rank.
    ReduceScatter,
    /// Bytes of all ranks, on every rank.
    AllGather,
    /// Bytes of one rank, on every rank.
    Broadcast { root: usize },
}

/// The library.
#[derive(Debug)]
pub(super) struct Nccl {
    library: Opened,
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
    /// It is not found, or too old.
    pub(super) fn open() -> Result<Self, String> {
        WANTED.open(|library| {
            let version_of: unsafe extern "C" fn(*mut c_int) -> Status = library.function(c"ncclGetVersion")?;
            let mut version = 0;
            // SAFETY: it is a place for a number.
            let status = unsafe { version_of(&mut version) };
            match status == 0 && version >= MIN_VERSION {
                true => Ok(Nccl { library, version }),
                false => Err(format!(
                    "its version is {version}, and {MIN_VERSION} is the oldest one that is supported"
                )),
            }
        })
    }

    /// Its version as people write it.
    pub(super) fn version_text(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100)
    }

    /// What the first rank gives the others.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let make: unsafe extern "C" fn(*mut UniqueId) -> Status = self.library.function(c"ncclGetUniqueId")?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: it is a place for an id.
        self.check(unsafe { make(&mut id) }, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// Joins the ranks of an id, with the current device. It waits for all of them.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn join(&self, id: UniqueId, rank: usize, size: usize) -> Result<RawComm, String> {
        let join: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int) -> Status =
            self.library.function(c"ncclCommInitRank")?;
        let mut comm = ptr::null_mut();
        // SAFETY: it is a place for a communicator.
        let status = unsafe { join(&mut comm, size as c_int, id, rank as c_int) };
        self.check(status, "ncclCommInitRank")?;
        Ok(comm)
    }

    /// Ends everything that a communicator does, and frees it.
    ///
    /// # Safety
    /// Nobody uses it afterwards.
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
    /// Nobody uses it afterwards.
    pub(super) unsafe fn destroy(&self, comm: RawComm) {
        if let Ok(destroy) = self
            .library
            .function::<unsafe extern "C" fn(RawComm) -> Status>(c"ncclCommDestroy")
        {
            // SAFETY: by the contract of this function.
            unsafe { destroy(comm) };
        }
    }

    /// An error that came up after a collective was enqueued, such as a connection that broke.
    ///
    /// # Safety
    /// The communicator is there.
    pub(super) unsafe fn asynchronous_error(&self, comm: RawComm) -> Option<String> {
        let get: unsafe extern "C" fn(RawComm, *mut Status) -> Status =
            self.library.function(c"ncclCommGetAsyncError").ok()?;
        let mut found = 0;
        // SAFETY: by the contract of this function; it is a place for a number.
        let status = unsafe { get(comm, &mut found) };
        match (status, found) {
            (0, 0 | IN_PROGRESS) => None,
            (0, error) | (error, _) => Some(self.text(error)),
        }
    }

    /// Enqueues an operation on `elements` of this rank's own: `f32`, or bytes where no sum is made.
    ///
    /// # Safety
    /// The communicator is there; the memory is of its device, as large as the operation says, and stays until the stream has come past.
    ///
    /// # Errors
    /// The library's.
    pub(super) unsafe fn enqueue(
        &self,
        operation: Operation,
        [from, to]: [u64; 2],
        elements: usize,
        comm: RawComm,
        stream: sys::CUstream,
    ) -> Result<(), String> {
        // SAFETY: by the contract of this function, all of them.
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

    /// Enqueues several operations as one.
    ///
    /// # Errors
    /// The library's, and those of `enqueue`.
    pub(super) fn group(&self, enqueue: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let begin: unsafe extern "C" fn() -> Status = self.library.function(c"ncclGroupStart")?;
        let end: unsafe extern "C" fn() -> Status = self.library.function(c"ncclGroupEnd")?;
        // SAFETY: it takes nothing.
        self.check(unsafe { begin() }, "ncclGroupStart")?;
        let enqueued = enqueue();
        // SAFETY: as above; each group that begins ends.
        let ended = self.check(unsafe { end() }, "ncclGroupEnd");
        enqueued.and(ended)
    }

    fn check(&self, status: Status, function: &str) -> Result<(), String> {
        match status {
            0 | IN_PROGRESS => Ok(()),
            status => Err(format!("{function}: {}", self.text(status))),
        }
    }

    /// An error as the library describes it, with what it noted last.
    fn text(&self, status: Status) -> String {
        type Text = unsafe extern "C" fn(Status) -> *const c_char;
        let Ok(describe) = self.library.function::<Text>(c"ncclGetErrorString") else {
            return format!("status {status}");
        };
        // SAFETY: it gives a text that stays.
        let text = unsafe { CStr::from_ptr(describe(status)) }
            .to_string_lossy()
            .into_owned();
        let last = self
            .library
            .function::<unsafe extern "C" fn(RawComm) -> *const c_char>(c"ncclGetLastError");
        let last = last.ok().and_then(|last| {
            // SAFETY: the argument is not used; it gives nothing, or a text that stays until the next error.
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
