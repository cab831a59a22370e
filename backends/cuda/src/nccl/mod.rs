//! NCCL: collectives between NVIDIA's GPUs, as a communicator for data-parallel training.
//!
//! Ranks are processes with one GPU each. They find each other through the environment variables of their launcher
//! (`group`), and through a TCP connection from each rank to the first rank (`links`). Over these connections they
//! also compare their calls, exchange a few bytes and report that they end. NCCL transfers tensors (`library`,
//! `device`): gradients go from GPU memory to GPU memory, after the kernels that compute them.

mod device;
mod group;
mod library;
mod links;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meganeura_core::backend::DeviceBuffer;
use meganeura_core::distributed::{
    Collective, CollectiveError, CollectiveFailure, Communicator, CommunicatorOptions, DeviceTensor,
};
use meganeura_core::{Error, Result};

use self::device::Device;
use self::group::Group;
use self::library::{Nccl, Operation, UniqueId};
use self::links::{ExchangeError, Links, RendezvousError};

/// Name of the communicator.
pub const NAME: &str = "nccl";

/// Maximum number of bytes that are sent together with the comparison of calls, instead of through the GPU.
const SMALL: usize = 4096;
/// Maximum length of the tensor name in the comparison of calls, in bytes.
const MAX_TITLE: usize = 200;

/// Returns the version of NCCL.
///
/// # Errors
/// The reason why NCCL is not found, and how to install it.
pub(crate) fn version() -> Result<String, String> {
    Nccl::open().map(|nccl| nccl.version_text())
}

/// A rank of a group whose GPUs communicate through NCCL.
pub struct NcclCommunicator {
    group: Group,
    limit: Duration,
    /// Device selector of this rank's GPU.
    selector: String,
    /// GPU of this rank. The lock permits one collective at a time. This field is dropped first, because the other
    /// ranks may be notified only after all work is complete.
    device: Mutex<Device>,
    links: Links,
}

impl fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclCommunicator")
            .field("group", &self.group)
            .field("device", &self.selector)
            .finish_non_exhaustive()
    }
}

/// The title of a call: operation, tensor and sizes. Ranks compare it before they move data.
struct Title {
    operation: Collective,
    root: usize,
    bytes: usize,
    tensor: String,
}

impl Title {
    /// Encodes the message: the title as a line, and the data if it is small.
    fn encode(&self, data: &[u8]) -> Vec<u8> {
        let end = (0..=self.tensor.len().min(MAX_TITLE))
            .rev()
            .find(|&end| self.tensor.is_char_boundary(end));
        let tensor = self.tensor[..end.unwrap_or(0)].replace('\n', " ");
        let mut bytes = format!("{} of {tensor}\t{}\t{}\n", self.operation, self.root, self.bytes).into_bytes();
        bytes.extend(data);
        bytes
    }

    /// Compares the titles of two messages. Returns the data after the title in the message of another rank if the
    /// titles are equal. Otherwise returns the difference of the titles.
    fn compare<'a>(own: &[u8], other: &'a [u8]) -> Result<&'a [u8], String> {
        fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
            (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
        }
        let ((own, _), (other, data)) = (line(own), line(other));
        if own == other {
            return Ok(data);
        }
        let parts =
            |line: &[u8]| -> Vec<String> { String::from_utf8_lossy(line).split('\t').map(str::to_owned).collect() };
        let (own, other) = (parts(own), parts(other));
        Err(match (&own[..], &other[..]) {
            ([title, root, bytes], [other_title, other_root, other_bytes]) => match () {
                () if title != other_title => format!("it calls {other_title}"),
                () if root != other_root => format!("its root is {other_root}, the root of this rank is {root}"),
                () => format!("it has {other_bytes} bytes, this rank has {bytes}"),
            },
            _ => "it sent a malformed message".into(),
        })
    }
}

impl NcclCommunicator {
    /// Joins the group in which this process was started.
    ///
    /// # Errors
    /// [`Error::Collective`] for a process that was not started in a group, ranks that do not arrive, and errors of
    /// NCCL; [`Error::Backend`] if NCCL or a GPU for this rank is missing.
    pub fn open(options: &CommunicatorOptions) -> Result<Self> {
        let group = Group::of(|name| std::env::var(name).ok()).map_err(|why| {
            Error::misuse(
                format!("NCCL connects processes of one group, but {why}"),
                "see docs/distributed.md",
            )
        })?;
        NcclCommunicator::join(group, options.time_limit)
    }

    fn join(group: Group, limit: Duration) -> Result<Self> {
        let backend = |why: String| Error::backend(NAME, why);
        let nccl = Nccl::open().map_err(backend)?;
        let devices = crate::driver::devices().map_err(backend)?;
        let index = group.device(devices.len()).map_err(backend)?;
        let error = |failure| {
            Error::collective(CollectiveError {
                rank: group.rank,
                size: group.size,
                operation: Collective::Agreement,
                tensor: format!("the ranks at {}:{}", group.address, group.port),
                failure,
            })
        };
        let (id, links) = Links::connect(&group, limit, || nccl.unique_id().map(|id| id.0)).map_err(|unmet| {
            error(match unmet {
                RendezvousError::Missing(missing) => CollectiveFailure::TimedOut { missing, limit },
                RendezvousError::Other(why) => CollectiveFailure::Transport(why),
            })
        })?;
        let selector = format!("{}:{index}", crate::gpu::NAME);
        log::info!(
            "rank {} of {}: NCCL {}, {selector}",
            group.rank,
            group.size,
            nccl.version_text()
        );
        let device = Device::join(nccl, &devices[index], UniqueId(id), &group, links.watcher())?;
        Ok(NcclCommunicator {
            device: Mutex::new(device),
            group,
            limit,
            selector,
            links,
        })
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, operation: Collective, tensor: &str, failure: CollectiveFailure) -> Error {
        Error::collective(CollectiveError {
            rank: self.group.rank,
            size: self.group.size,
            operation,
            tensor: tensor.to_owned(),
            failure,
        })
    }

    /// Compares a call with the calls of the other ranks, and exchanges small data. Returns the data of all ranks in
    /// the order of ranks.
    fn compare(
        &self,
        (operation, tensor): (Collective, &str),
        root: usize,
        bytes: usize,
        data: &[u8],
    ) -> Result<Vec<Vec<u8>>, CollectiveFailure> {
        let title = Title {
            operation,
            root,
            bytes,
            tensor: tensor.to_owned(),
        };
        let own = title.encode(data);
        let all = self.links.exchange(&own, self.limit).map_err(|why| match why {
            ExchangeError::Lost((peer, reason)) => CollectiveFailure::PeerLost { peer, reason },
            ExchangeError::Missing(missing) => CollectiveFailure::TimedOut {
                missing,
                limit: self.limit,
            },
        })?;
        let data = all
            .iter()
            .enumerate()
            .map(|(peer, other)| match Title::compare(&own, other) {
                Ok(data) => Ok(data.to_vec()),
                Err(what) => Err(CollectiveFailure::Mismatch { peer, what }),
            });
        data.collect()
    }

    /// Ends all ranks if the call failed on this rank.
    fn checked<T>(&self, (operation, tensor): (Collective, &str), called: Result<T, CollectiveFailure>) -> Result<T> {
        called.map_err(|failure| {
            let error = self.error(operation, tensor, failure);
            // The `help:` line is omitted, because it applies to this rank only.
            self.abort(error.to_string().lines().next().unwrap_or_default());
            error
        })
    }

    /// Runs a collective on host memory, after the comparison of the calls. Small data is sent with the comparison.
    fn call(
        &self,
        what: (Collective, &str),
        root: usize,
        own: &[u8],
        few: impl FnOnce(Vec<Vec<u8>>) -> Result<(), CollectiveFailure>,
        many: impl FnOnce(&mut Device, Duration) -> Result<(), CollectiveFailure>,
    ) -> Result<()> {
        let mut device = self.device();
        let called = device.usable().and_then(|()| {
            let is_small = own.len() <= SMALL;
            let all = self.compare(what, root, own.len(), if is_small { own } else { &[] })?;
            match is_small {
                true if all.iter().any(|data| data.len() != own.len()) => Err(CollectiveFailure::Transport(
                    "ranks have data of different sizes".into(),
                )),
                true => few(all),
                false => many(&mut device, self.limit),
            }
        });
        drop(device);
        self.checked(what, called)
    }

    fn check_root(&self, what: (Collective, &str), root: usize) -> Result<()> {
        if root < self.group.size {
            Ok(())
        } else {
            let message = format!("rank {root} does not exist");
            Err(self.error(what.0, what.1, CollectiveFailure::Invalid(message)))
        }
    }

    fn check(&self, what: (Collective, &str), own: usize, all: usize) -> Result<()> {
        if all == own * self.group.size {
            return Ok(());
        }
        let message = format!("{all} elements are not {own} for each of {} ranks", self.group.size);
        Err(self.error(what.0, what.1, CollectiveFailure::Invalid(message)))
    }
}

/// Sums the data of all ranks. The order is that of the ranks, so the sums are equal on every rank.
fn sum(all: &[Vec<u8>], data: &mut [f32]) {
    data.fill(0.0);
    for brought in all {
        for (sum, bytes) in data.iter_mut().zip(brought.chunks_exact(4)) {
            *sum += f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
}

fn to_bytes(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Communicator for NcclCommunicator {
    fn name(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.group.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn time_limit(&self) -> Duration {
        self.limit
    }

    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()> {
        let bytes = to_bytes(data);
        let data = std::cell::RefCell::new(data);
        self.call(
            (Collective::AllReduce, tensor),
            0,
            &bytes,
            |all| {
                sum(&all, &mut data.borrow_mut());
                Ok(())
            },
            |device, limit| {
                let operation = Operation::AllReduce { mean: false };
                let mut data = data.borrow_mut();
                let to = Some(device::bytes_of(&mut data));
                device.run(operation, &bytes, to, bytes.len() / 4, limit)
            },
        )
    }

    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        let what = (Collective::Reduce, tensor);
        self.check_root(what, root)?;
        let bytes = to_bytes(data);
        let is_root = root == self.group.rank;
        let data = std::cell::RefCell::new(data);
        self.call(
            what,
            root,
            &bytes,
            |all| {
                sum(&all, &mut data.borrow_mut());
                Ok(())
            },
            |device, limit| {
                let mut data = data.borrow_mut();
                let to = is_root.then(|| device::bytes_of(&mut data));
                device.run(Operation::Reduce { root }, &bytes, to, bytes.len() / 4, limit)
            },
        )
    }

    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()> {
        let what = (Collective::ReduceScatter, tensor);
        self.check(what, own.len(), data.len())?;
        let bytes = to_bytes(data);
        let rank = self.group.rank;
        let own = std::cell::RefCell::new(own);
        self.call(
            what,
            0,
            &bytes,
            |all| {
                let mut sums = vec![0.0; data.len()];
                sum(&all, &mut sums);
                let mut own = own.borrow_mut();
                let len = own.len();
                own.copy_from_slice(&sums[rank * len..][..len]);
                Ok(())
            },
            |device, limit| {
                let mut own = own.borrow_mut();
                let elements = own.len();
                device.run(
                    Operation::ReduceScatter,
                    &bytes,
                    Some(device::bytes_of(&mut own)),
                    elements,
                    limit,
                )
            },
        )
    }

    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()> {
        let what = (Collective::AllGather, tensor);
        self.check(what, own.len(), all.len())?;
        let all = std::cell::RefCell::new(all);
        self.call(
            what,
            0,
            own,
            |brought| {
                all.borrow_mut().copy_from_slice(&brought.concat());
                Ok(())
            },
            |device, limit| device.run(Operation::AllGather, own, Some(&mut all.borrow_mut()), own.len(), limit),
        )
    }

    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()> {
        let what = (Collective::Broadcast, tensor);
        self.check_root(what, root)?;
        let own = data.to_vec();
        let data = std::cell::RefCell::new(data);
        self.call(
            what,
            root,
            &own,
            |all| {
                data.borrow_mut().copy_from_slice(&all[root]);
                Ok(())
            },
            |device, limit| {
                device.run(
                    Operation::Broadcast { root },
                    &own,
                    Some(&mut data.borrow_mut()),
                    own.len(),
                    limit,
                )
            },
        )
    }

    fn barrier(&self, what: &str) -> Result<()> {
        let what = (Collective::Barrier, what);
        let compared = self.compare(what, 0, 0, &[]);
        self.checked(what, compared).map(|_| ())
    }

    fn device(&self) -> Option<String> {
        Some(self.selector.clone())
    }

    fn takes_device_memory(&self, buffer: &DeviceBuffer) -> Result<bool> {
        if buffer.stream.is_none() {
            return Ok(false);
        }
        match self.device().holds(buffer.address) {
            None => Ok(false),
            Some(true) => Ok(true),
            Some(false) => Err(Error::misuse(
                format!(
                    "the session of rank {} is not on the GPU of this rank, {}",
                    self.group.rank, self.selector
                ),
                format!("select no device, or {}", self.selector),
            )),
        }
    }

    fn all_reduce_mean_on_device(&self, tensor: &str, tensors: &[DeviceTensor]) -> Result<()> {
        let called = self.device().average(tensors, self.limit);
        self.checked((Collective::AllReduce, tensor), called)
    }

    fn abort(&self, reason: &str) {
        if self.device().end() {
            self.links.end(reason);
        }
    }
}

meganeura_core::register_communicator!(meganeura_core::distributed::CommunicatorEntry {
    name: NAME,
    open: |options| Ok(std::sync::Arc::new(NcclCommunicator::open(options)?)),
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_differ_are_described() {
        let title = |operation, root, bytes, tensor: &str| {
            Title {
                operation,
                root,
                bytes,
                tensor: tensor.into(),
            }
            .encode(b"ab\ncd")
        };
        let own = title(Collective::Broadcast, 0, 8, "x");
        assert_eq!(Title::compare(&own, &own), Ok(&b"ab\ncd"[..]));
        for (other, words) in [
            (title(Collective::AllReduce, 0, 8, "x"), "it calls all-reduce of x"),
            (title(Collective::Broadcast, 0, 8, "y"), "it calls broadcast of y"),
            (
                title(Collective::Broadcast, 1, 8, "x"),
                "its root is 1, the root of this rank is 0",
            ),
            (
                title(Collective::Broadcast, 0, 4, "x"),
                "it has 4 bytes, this rank has 8",
            ),
            (b"?".to_vec(), "malformed"),
        ] {
            let found = Title::compare(&own, &other).expect_err(words);
            assert!(found.contains(words), "{found}");
        }
        let long = title(Collective::Barrier, 0, 0, &"é".repeat(500));
        assert!(long.len() < 300 && Title::compare(&long, &long).is_ok());
    }

    #[test]
    fn sums_are_those_of_the_order_of_ranks() {
        let all = [to_bytes(&[1.0, 2.0]), to_bytes(&[0.5, -2.0])];
        let mut data = [9.0; 2];
        sum(&all, &mut data);
        assert_eq!(data, [1.5, 0.0]);
    }

    #[test]
    fn a_process_that_was_started_alone_is_told_how_to_start_it() {
        if std::env::var_os("RANK").is_some() || std::env::var_os("OMPI_COMM_WORLD_RANK").is_some() {
            return;
        }
        let error = NcclCommunicator::open(&CommunicatorOptions::default())
            .expect_err("alone")
            .to_string();
        assert!(error.contains("mpirun") && error.contains("WORLD_SIZE"), "{error}");
    }
}
