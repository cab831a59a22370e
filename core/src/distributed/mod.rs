//! Collectives of data-parallel training: several processes, the *ranks*, each with a session of the same plan.
//!
//! The core defines what a [`Communicator`] does; crates bring them and announce them with
//! [`register_communicator!`](crate::register_communicator), as they do backends. Nothing here moves data between
//! processes. [`ThreadGroup`] has the threads of one process as ranks and is for tests.
//!
//! Collectives work on host memory. They block, or are started and waited for later ([`Communicator::start`]). A communicator
//! that knows devices may also average gradients in their memory ([`Communicator::all_reduce_mean_on_device`]).

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
pub use pending::{Call, Overlapped, Pending};
pub use threads::{ThreadCommunicator, ThreadGroup};

use crate::backend::DeviceBuffer;
pub use crate::error::{Collective, CollectiveError, CollectiveFailure};
use crate::error::{Error, Result, names_there_are};

/// How long a rank waits for the others in one collective, unless told otherwise.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(300);

/// The connection of one rank to all others.
///
/// Every rank calls the same collectives in the same order, with data of the same sizes. A call that differs between
/// ranks, a rank that is gone and a rank that does not come within [`time_limit`](Self::time_limit) are errors, after which
/// the communicator is of no more use. `tensor` says in errors what is communicated.
///
/// Sums are deterministic: the same on every rank, bit for bit.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// Name that it is registered by, such as `mpi`.
    fn name(&self) -> &str;

    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks, at least 1.
    fn size(&self) -> usize;

    /// How long a collective waits for other ranks.
    fn time_limit(&self) -> Duration;

    /// Replaces `data`, `f32 [n]` with the same `n` on every rank, by the sum over all ranks.
    ///
    /// # Errors
    /// A rank that is gone, that does not come in time, or that calls something else; a failure of the transport.
    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()>;

    /// Replaces `data`, `f32 [n]` with the same `n` on every rank, by the sum over all ranks on the rank `root`. On the other
    /// ranks `data` may hold anything afterwards. Unless a communicator has something cheaper, it is an all-reduce.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; no such rank.
    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        let _ = root;
        self.all_reduce_sum(tensor, data)
    }

    /// Sums `data`, `f32 [size * n]`, over all ranks, and puts the part of this rank into `own`, `f32 [n]`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; lengths that do not fit together.
    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()>;

    /// Puts `own`, `n` bytes of each rank, one after the other into `all`, `size * n` bytes.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_sum`].
    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()>;

    /// Replaces `data` by what the rank `root` has; the same number of bytes on every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`]; no such rank.
    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()>;

    /// Returns after every rank called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`].
    fn barrier(&self, what: &str) -> Result<()>;

    /// Starts a collective on `data`, `f32 [n]`, and returns a handle that gives the data back. Until it was waited for, the
    /// caller may compute, and start more: these follow in the order in which they were started, as all collectives do. A
    /// communicator that only blocks makes the call at once; [`Overlapped`] gives it a thread.
    ///
    /// Errors come out of [`Pending::wait`].
    fn start(&self, call: Call, tensor: &str, data: Vec<f32>) -> Pending {
        Pending::complete(call.complete(self, tensor, data))
    }

    /// Selector of the device that this rank works on, such as `cuda:1`, where the communicator moves data between devices. A
    /// trainer that was given no device takes this one.
    fn device(&self) -> Option<String> {
        None
    }

    /// Whether [`all_reduce_mean_on_device`](Self::all_reduce_mean_on_device) takes this memory.
    ///
    /// # Errors
    /// Memory that it would take, but for another device than [`device`](Self::device).
    fn takes_device_memory(&self, buffer: &DeviceBuffer) -> Result<bool> {
        let _ = buffer;
        Ok(false)
    }

    /// Replaces `f32` tensors in the memory of a device by their means over all ranks, which have as many of the same sizes. It
    /// returns when that is enqueued: behind what is in the tensors' queue already, or for tensors that tell when they are
    /// [`ready`](DeviceTensor::ready) behind that. What is put into the queue afterwards sees the means.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`], but a rank that does not come may be an error of the next call only; memory that it does not
    /// take.
    fn all_reduce_mean_on_device(&self, tensor: &str, tensors: &[DeviceTensor]) -> Result<()> {
        let _ = tensors;
        Err(Error::collective(CollectiveError {
            rank: self.rank(),
            size: self.size(),
            operation: Collective::AllReduce,
            tensor: tensor.to_owned(),
            failure: CollectiveFailure::Invalid(format!("'{}' does not take memory of devices", self.name())),
        }))
    }

    /// Whether this rank was asked from outside to end soon, as `mpirun` asks by a signal. A run then ends after the same
    /// update on every rank, with a last checkpoint.
    fn stop_requested(&self) -> bool {
        false
    }

    /// Tells the other ranks that this one ends with an error, so that they need not wait for the time limit. The
    /// communicator is of no more use. Calls after the first change nothing.
    fn abort(&self, reason: &str);
}

/// An `f32` tensor in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Where it begins, and the queue in whose order it is used.
    pub buffer: DeviceBuffer,
    /// Its elements, of which the buffer has at least as many.
    pub elements: usize,
    /// The event of the device that is signalled when the tensor is complete, where that is before all that is in its queue
    /// ([`Executable::signal_when_done`](crate::backend::Executable::signal_when_done)).
    pub ready: Option<u64>,
}

/// What a communicator is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorOptions {
    /// How long a collective waits for other ranks.
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
    /// Options with that time limit.
    pub fn with_time_limit(time_limit: Duration) -> Self {
        CommunicatorOptions { time_limit }
    }
}

/// Entry of the registry of communicators.
#[derive(Debug)]
pub struct CommunicatorEntry {
    /// Name that users ask for it by: lower case.
    pub name: &'static str,
    /// Joins the group that the process was started in.
    pub open: fn(&CommunicatorOptions) -> Result<Arc<dyn Communicator>>,
}

inventory::collect!(CommunicatorEntry);

/// Announces a communicator:
/// `register_communicator!(CommunicatorEntry { name: "mine", open: |options| Ok(Arc::new(Mine::open(options)?)) });`
#[macro_export]
macro_rules! register_communicator {
    ($entry:expr) => {
        $crate::registry::inventory::submit! { $entry }
    };
}

/// Communicators that this release knows of, and how to get them.
const KNOWN: &[(&str, &str)] = &[
    (
        "mpi",
        "build the command with `--features mpi`, which needs the headers of Open MPI or MPICH",
    ),
    (
        "nccl",
        "build with the crate `meganeura-cuda`, which usual builds of the command have",
    ),
];

/// Names of all registered communicators, sorted.
pub fn communicators() -> Vec<&'static str> {
    let mut names: Vec<_> = inventory::iter::<CommunicatorEntry>
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort_unstable();
    names
}

/// Opens the communicator of that name: joins the group of processes that this one was started in.
///
/// # Errors
/// [`Error::Plugin`] when there is none of that name, with those that there are, or it cannot be opened.
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
            format!("none is part of this build; there are {}", all.join("; "))
        }
        None => names_there_are(name, names.iter().copied()),
    };
    Err(Error::Plugin {
        plugin: name.to_owned(),
        message: "no communicator of that name is part of this build".into(),
        remedy,
    })
}

/// The bytes of numbers, for collectives that take bytes.
pub(crate) fn bytes_of_f32(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: `f32` has no padding and every bit pattern is valid; the length in bytes is that of the slice; u8 has no
    // alignment; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}
