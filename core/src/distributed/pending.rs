//! Collectives that run while the caller does other work.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Communicator, bytes_of_f32};
use crate::error::{Error, Result};

/// A collective that can be started with [`Communicator::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Sum on every rank: [`Communicator::all_reduce_sum`].
    AllReduceSum,
    /// Sum on one rank: [`Communicator::reduce_sum`].
    ReduceSum {
        /// The rank that gets the sum.
        root: usize,
    },
    /// Copy from one rank to all ranks: [`Communicator::broadcast`].
    Broadcast {
        /// The rank whose data is sent to all.
        root: usize,
    },
}

impl Call {
    /// Runs the collective to completion.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn complete<C>(self, communicator: &C, tensor: &str, mut data: Vec<f32>) -> Result<Vec<f32>>
    where
        C: Communicator + ?Sized,
    {
        match self {
            Call::AllReduceSum => communicator.all_reduce_sum(tensor, &mut data)?,
            Call::ReduceSum { root } => communicator.reduce_sum(tensor, root, &mut data)?,
            Call::Broadcast { root } => communicator.broadcast(tensor, root, bytes_of_f32(&mut data))?,
        }
        Ok(data)
    }
}

/// The handle of a started collective. Dropping it does not stop the collective.
#[derive(Debug)]
#[must_use = "what the collective gives, and its error, come out of `wait`"]
pub struct PendingCollective(Outcome);

#[derive(Debug)]
enum Outcome {
    Complete(Result<Vec<f32>>),
    Running(Receiver<Result<Vec<f32>>>),
}

impl PendingCollective {
    /// Creates the handle of a completed collective.
    pub fn complete(outcome: Result<Vec<f32>>) -> Self {
        PendingCollective(Outcome::Complete(outcome))
    }

    /// Waits for the collective, and returns its data.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn wait(self) -> Result<Vec<f32>> {
        match self.0 {
            Outcome::Complete(outcome) => outcome,
            Outcome::Running(receiver) => receiver.recv().unwrap_or_else(|_| Err(thread_ended())),
        }
    }
}

fn thread_ended() -> Error {
    Error::misuse(
        "the thread that communicates with the other ranks ended in the middle of a collective",
        "its panic was printed above; start the run again from its last checkpoint",
    )
}

/// A communicator that runs started collectives on a thread of its own, one after the other, in the
/// order in which they were started. Blocking collectives wait for them first, so that calls keep
/// the program's order.
///
/// It turns a blocking communicator into an asynchronous one: communicators only need to implement
/// the blocking calls.
pub struct OverlappedCommunicator<C: Communicator + 'static> {
    inner: Arc<C>,
    thread: Mutex<Option<Worker>>,
    unfinished: Arc<UnfinishedCount>,
}

struct Worker {
    jobs: Sender<Job>,
    handle: JoinHandle<()>,
}

struct Job {
    call: Call,
    tensor: String,
    data: Vec<f32>,
    outcome: Sender<Result<Vec<f32>>>,
}

/// The number of started collectives that are not complete.
#[derive(Debug, Default)]
struct UnfinishedCount {
    count: Mutex<usize>,
    changed: Condvar,
}

impl UnfinishedCount {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard that counts a collective as complete when it is dropped, also after a panic.
struct CompletionGuard<'a>(&'a UnfinishedCount);

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.changed.notify_all();
    }
}

impl<C: Communicator + 'static> OverlappedCommunicator<C> {
    /// Wraps a communicator. The thread is started with the first collective that needs it.
    pub fn new(inner: C) -> Self {
        OverlappedCommunicator {
            inner: Arc::new(inner),
            thread: Mutex::new(None),
            unfinished: Arc::default(),
        }
    }

    /// Passes a collective to the thread, or returns it if no thread can be started.
    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = self.spawn();
        }
        let Some(worker) = &*thread else { return Err(job) };
        *self.unfinished.lock() += 1;
        worker.jobs.send(job).map_err(|refused| {
            // The thread panicked before.
            *self.unfinished.lock() -= 1;
            refused.0
        })
    }

    fn spawn(&self) -> Option<Worker> {
        let (jobs, received) = mpsc::channel::<Job>();
        let (inner, unfinished) = (self.inner.clone(), self.unfinished.clone());
        let run = move || {
            for job in received {
                let counted = CompletionGuard(&unfinished);
                let outcome = job.call.complete(&*inner, &job.tensor, job.data);
                drop(counted);
                // If the handle was dropped, no receiver is left.
                let _ = job.outcome.send(outcome);
            }
        };
        let spawned = thread::Builder::new().name("collectives".into()).spawn(run);
        spawned.ok().map(|handle| Worker { jobs, handle })
    }

    /// Waits for all started collectives, and returns the communicator.
    fn settled(&self) -> &C {
        let mut count = self.unfinished.lock();
        while *count > 0 {
            let waited = self.unfinished.changed.wait(count);
            count = waited.unwrap_or_else(PoisonError::into_inner);
        }
        &self.inner
    }
}

impl<C: Communicator + 'static> fmt::Debug for OverlappedCommunicator<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<C: Communicator + 'static> Communicator for OverlappedCommunicator<C> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn time_limit(&self) -> Duration {
        self.inner.time_limit()
    }

    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()> {
        self.settled().all_reduce_sum(tensor, data)
    }

    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        self.settled().reduce_sum(tensor, root, data)
    }

    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()> {
        self.settled().reduce_scatter_sum(tensor, data, own)
    }

    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()> {
        self.settled().all_gather(tensor, own, all)
    }

    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()> {
        self.settled().broadcast(tensor, root, data)
    }

    fn barrier(&self, what: &str) -> Result<()> {
        self.settled().barrier(what)
    }

    fn start(&self, call: Call, tensor: &str, data: Vec<f32>) -> PendingCollective {
        let (outcome, receiver) = mpsc::channel();
        let job = Job {
            call,
            tensor: tensor.to_owned(),
            data,
            outcome,
        };
        match self.submit(job) {
            Ok(()) => PendingCollective(Outcome::Running(receiver)),
            // Without a thread the call runs immediately.
            Err(job) => PendingCollective::complete(call.complete(self.settled(), tensor, job.data)),
        }
    }

    fn stop_requested(&self) -> bool {
        self.inner.stop_requested()
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

impl<C: Communicator + 'static> Drop for OverlappedCommunicator<C> {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Worker { jobs, handle }) = thread.take() {
            // The thread must end before the communicator is dropped: a library is finalized by the
            // thread that opened it.
            drop(jobs);
            let _ = handle.join();
        }
    }
}
