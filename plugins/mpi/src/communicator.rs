//! The MPI communicator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meganeura_core::distributed::{
    Collective, CollectiveError, CollectiveFailure, Communicator, CommunicatorEntry, CommunicatorOptions,
    OverlappedCommunicator,
};
use meganeura_core::error::{Error, Result};
use meganeura_core::{register_communicator, register_plugin, registry};

use crate::call::{Header, State};
use crate::signal;

/// Name of the communicator.
pub const NAME: &str = "mpi";

register_plugin!(registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &[],
    ops: &[],
    rule_sets: &[],
});

register_communicator!(CommunicatorEntry {
    name: NAME,
    open: |options| Ok(Arc::new(OverlappedCommunicator::new(MpiCommunicator::open(options)?))),
});

/// Communicator of all processes that `mpirun` started together. A process that was started without `mpirun` is a
/// single rank.
#[derive(Debug)]
pub struct MpiCommunicator {
    rank: usize,
    size: usize,
    time_limit: Duration,
    state: Mutex<State>,
}

impl MpiCommunicator {
    /// Initializes MPI and joins all processes of the run. Only possible once per process.
    ///
    /// # Errors
    /// [`Error::Plugin`] if MPI was already initialized, or does not support serialized calls from
    /// several threads.
    pub fn open(options: &CommunicatorOptions) -> Result<Self> {
        let state = State::open().map_err(|message| Error::Plugin {
            plugin: NAME.into(),
            message,
            remedy: "open it once in a process, with an MPI library that supports MPI_THREAD_SERIALIZED".into(),
        })?;
        signal::watch();
        Ok(MpiCommunicator {
            rank: state.rank(),
            size: state.size(),
            time_limit: options.time_limit,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, operation: Collective, tensor: &str, failure: CollectiveFailure) -> Error {
        Error::collective(CollectiveError {
            rank: self.rank,
            size: self.size,
            operation,
            tensor: tensor.to_owned(),
            failure,
        })
    }

    /// Executes a call after checking that the other ranks make the same call.
    fn call(
        &self,
        operation: Collective,
        tensor: &str,
        (bytes, root): (usize, usize),
        call: impl FnOnce(&mut State, Duration) -> Result<(), CollectiveFailure>,
    ) -> Result<()> {
        let mut state = self.lock();
        let title = format!("{operation} of {tensor}");
        signal::prepare(&signal::told_to_end(self.rank, self.size, &title));
        let header = Header::new(operation, tensor, bytes, root);
        let called = state
            .compare(&header, self.time_limit)
            .and_then(|()| call(&mut state, self.time_limit));
        // Afterwards, the title is that of the last call.
        let (rank, size) = (self.rank, self.size);
        signal::prepare(&signal::told_to_end(rank, size, &format!("a step after {title}")));
        called.map_err(|failure| {
            let error = self.error(operation, tensor, failure);
            // Without the remedy, which applies to this rank only.
            state.fail(error.to_string().lines().next().unwrap_or_default());
            error
        })
    }

    fn check_root(&self, operation: Collective, tensor: &str, root: usize) -> Result<()> {
        if root < self.size {
            return Ok(());
        }
        let message = format!("rank {root} does not exist");
        Err(self.error(operation, tensor, CollectiveFailure::Invalid(message)))
    }

    /// Checks that the lengths of a rank's own part and of the whole tensor match.
    fn check(&self, operation: Collective, tensor: &str, own: usize, all: usize) -> Result<()> {
        if all == own * self.size {
            return Ok(());
        }
        let message = format!("{all} elements are not {own} for each of {} ranks", self.size);
        Err(self.error(operation, tensor, CollectiveFailure::Invalid(message)))
    }
}

impl Communicator for MpiCommunicator {
    fn name(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()> {
        let call = (size_of_val(data), 0);
        self.call(Collective::AllReduce, tensor, call, |state, limit| {
            state.all_reduce(data, limit)
        })
    }

    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        let operation = Collective::Reduce;
        self.check_root(operation, tensor, root)?;
        let call = (size_of_val(data), root);
        self.call(operation, tensor, call, |state, limit| state.reduce(root, data, limit))
    }

    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()> {
        let operation = Collective::ReduceScatter;
        self.check(operation, tensor, own.len(), data.len())?;
        self.call(operation, tensor, (size_of_val(data), 0), |state, limit| {
            state.reduce_scatter(data, own, limit)
        })
    }

    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()> {
        let operation = Collective::AllGather;
        self.check(operation, tensor, own.len(), all.len())?;
        self.call(operation, tensor, (own.len(), 0), |state, limit| {
            state.all_gather(own, all, limit)
        })
    }

    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()> {
        let operation = Collective::Broadcast;
        self.check_root(operation, tensor, root)?;
        self.call(operation, tensor, (data.len(), root), |state, limit| {
            state.broadcast(root, data, limit)
        })
    }

    fn barrier(&self, what: &str) -> Result<()> {
        // Comparing calls waits for all ranks.
        self.call(Collective::Barrier, what, (0, 0), |_, _| Ok(()))
    }

    fn stop_requested(&self) -> bool {
        signal::requested()
    }

    fn abort(&self, reason: &str) {
        self.lock().fail(reason);
    }
}
