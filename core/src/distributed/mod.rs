//! Collectives of data-parallel training: several processes, the *ranks*, each with a session of the same plan.
//!
//! The core defines the interface [`Communicator`]; other crates implement it and register their
//! communicators with [`register_communicator!`](crate::register_communicator), as for backends.
//! Nothing here moves data between processes. [`ThreadGroup`] uses the threads of one process as
//! ranks and is for tests.
//!
//! Collectives work on host memory. They block, or are started and awaited later
//! ([`Communicator::start`]). A communicator that supports devices may also average gradients in
//! device memory ([`Communicator::all_reduce_mean_on_device`]).

mod agreement;
mod buckets;
mod owners;
mod pending;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use agreement::{agree, gather_texts};
pub use buckets::{BUCKET_BYTES, Bucket, BucketEntry, Buckets};
pub use owners::Owners;
pub use pending::{Call, OverlappedCommunicator, PendingCollective};
pub use threads::{ThreadCommunicator, ThreadGroup};

use crate::backend::DeviceBuffer;
pub use crate::error::{Collective, CollectiveError, CollectiveFailure};
use crate::error::{Error, Result, names_there_are};

/// Default time that a rank waits for other ranks in one collective.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(300);

/// The connection of one rank to all other ranks.
///
/// Every rank calls the same collectives in the same order, with data of the same sizes. It is an error if a call
/// differs between ranks, if a rank ended, or if a rank does not arrive within [`time_limit`](Self::time_limit); the
/// communicator is then unusable. Errors include `tensor` as the name of the data.
///
/// Sums are deterministic: the same on every rank, bit for bit.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// Returns the name that it is registered by, such as `mpi`.
    fn name(&self) -> &str;

    /// Returns the number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks, at least 1.
    fn size(&self) -> usize;

    /// Returns the maximum time that a collective waits for other ranks.
    fn time_limit(&self) -> Duration;

    /// Replaces `data` by the sum over all ranks; `data` is `f32 [n]` with the same `n` on every rank.
    ///
    /// # Errors
    /// A rank that ended, does not arrive in time, or calls another collective; a failure of the
    /// transport.
    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()>;

    /// Replaces `data` on the rank `root` by the sum over all ranks; `data` is `f32 [n]` with the same `n` on every
    /// rank. On other ranks, the contents of `data` are undefined afterwards. The default implementation is an
    /// all-reduce.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; no such rank.
    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        let _ = root;
        self.all_reduce_sum(tensor, data)
    }

    /// Sums `data`, `f32 [size * n]`, over all ranks, and writes this rank's part to `own`,
    /// `f32 [n]`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; lengths that do not match.
    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()>;

    /// Concatenates the `n` bytes `own` of each rank in `all`, which has `size * n` bytes.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_sum`].
    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()>;

    /// Replaces `data` by that of the rank `root`; it has the same number of bytes on every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; no such rank.
    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()>;

    /// Returns after every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`].
    fn barrier(&self, what: &str) -> Result<()>;

    /// Starts a collective on `data`, `f32 [n]`, and returns a handle that gives the data back.
    /// Meanwhile the caller may compute and start further collectives: they run in the order in
    /// which they were started. The default implementation blocks until the call is complete;
    /// [`OverlappedCommunicator`] runs it on a thread.
    ///
    /// [`PendingCollective::wait`] returns the errors.
    fn start(&self, call: Call, tensor: &str, data: Vec<f32>) -> PendingCollective {
        PendingCollective::complete(call.complete(self, tensor, data))
    }

    /// Returns the selector of the device that this rank uses, such as `cuda:1`, if the
    /// communicator moves data between devices. It is the default device of a trainer.
    fn device(&self) -> Option<String> {
        None
    }

    /// Returns `true` if [`all_reduce_mean_on_device`](Self::all_reduce_mean_on_device) supports
    /// this memory.
    ///
    /// # Errors
    /// Memory of a supported kind, but on another device than [`device`](Self::device).
    fn takes_device_memory(&self, buffer: &DeviceBuffer) -> Result<bool> {
        let _ = buffer;
        Ok(false)
    }

    /// Replaces `f32` tensors in device memory by their means over all ranks; every rank passes the
    /// same number of tensors with the same sizes. Returns when the operation is enqueued: after
    /// all work in the tensors' queue, or, for a tensor with a [`ready`](DeviceTensor::ready)
    /// event, after that event. Work that is enqueued later sees the means.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`], but a rank that does not arrive may be reported by the
    /// next call; unsupported memory.
    fn all_reduce_mean_on_device(&self, tensor: &str, tensors: &[DeviceTensor]) -> Result<()> {
        let _ = tensors;
        Err(Error::collective(CollectiveError {
            rank: self.rank(),
            size: self.size(),
            operation: Collective::AllReduce,
            tensor: tensor.to_owned(),
            failure: CollectiveFailure::Invalid(format!("'{}' does not support device memory", self.name())),
        }))
    }

    /// Returns `true` if an external signal asked this rank to stop, as `mpirun` does. The run then
    /// ends after the same update on every rank, with a last checkpoint.
    fn stop_requested(&self) -> bool {
        false
    }

    /// Notifies the other ranks that this one ends with an error, so that they need not wait for
    /// the time limit. The communicator is unusable afterwards. Further calls have no effect.
    fn abort(&self, reason: &str);
}

/// An `f32` tensor in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Start of the tensor, and the queue that orders its uses.
    pub buffer: DeviceBuffer,
    /// Number of elements; the buffer has at least this many.
    pub elements: usize,
    /// Event that the device signals when the tensor is complete, if that is before all work in its queue
    /// ([`Executable::signal_when_done`](crate::backend::Executable::signal_when_done)).
    pub ready: Option<u64>,
}

/// Options for opening a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorOptions {
    /// Maximum time that a collective waits for other ranks.
    pub time_limit: Duration,
}

impl Default for CommunicatorOptions {
    fn default() -> Self {
        CommunicatorOptions {
            time_limit: DEFAULT_TIME_LIMIT,
        }
    }
}

impl CommunicatorOptions {
    /// Creates options with this time limit.
    pub fn with_time_limit(time_limit: Duration) -> Self {
        CommunicatorOptions { time_limit }
    }
}

/// Entry of the registry of communicators.
#[derive(Debug)]
pub struct CommunicatorEntry {
    /// Name by which users select it, in lower case.
    pub name: &'static str,
    /// Joins the group that the process was started in.
    pub open: fn(&CommunicatorOptions) -> Result<Arc<dyn Communicator>>,
}

inventory::collect!(CommunicatorEntry);

/// Registers a communicator:
/// `register_communicator!(CommunicatorEntry { name: "mine", open: |options| Ok(Arc::new(Mine::open(options)?)) });`
#[macro_export]
macro_rules! register_communicator {
    ($entry:expr) => {
        $crate::registry::inventory::submit! { $entry }
    };
}

/// Communicators of this release, and how to get them.
const KNOWN: &[(&str, &str)] = &[
    (
        "mpi",
        "build the command with `--features mpi`, which needs the headers of Open MPI or MPICH",
    ),
    (
        "nccl",
        "build with the crate `meganeura-cuda`, which is part of default builds of the command",
    ),
];

/// Returns the names of all registered communicators, sorted.
pub fn communicators() -> Vec<&'static str> {
    let mut names: Vec<_> = inventory::iter::<CommunicatorEntry>
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort_unstable();
    names
}

/// Opens the communicator with this name: joins the group of processes that this one was started
/// in.
///
/// # Errors
/// [`Error::Plugin`] if no communicator has this name (the error lists the existing ones), or it
/// cannot be opened.
pub fn open(name: &str, options: &CommunicatorOptions) -> Result<Arc<dyn Communicator>> {
    let mut entries = inventory::iter::<CommunicatorEntry>.into_iter();
    if let Some(entry) = entries.find(|entry| entry.name == name) {
        return (entry.open)(options);
    }
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let names = communicators();
    let remedy = match known {
        Some((_, how)) => (*how).to_owned(),
        None if names.is_empty() => {
            let all: Vec<String> = KNOWN.iter().map(|(name, how)| format!("`{name}`: {how}")).collect();
            format!("this build has none; known are {}", all.join("; "))
        }
        None => names_there_are(name, names.iter().copied()),
    };
    Err(Error::Plugin {
        plugin: name.to_owned(),
        message: "this build has no communicator of that name".into(),
        remedy,
    })
}

/// Returns the bytes of numbers, for collectives on bytes.
pub(crate) fn bytes_of_f32(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: `f32` has no padding and every bit pattern is valid; the length in bytes is that of the slice; u8 has no
    // alignment; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}
