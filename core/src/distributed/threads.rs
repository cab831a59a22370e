//! Ranks as threads of one process, for tests: no network, and sums in the order of the ranks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Collective, CollectiveError, CollectiveFailure, Communicator, OverlappedCommunicator};
use crate::error::{Error, Result};

/// A group of ranks that are threads of this process, for tests of distributed code. It is not registered. Training
/// with it is slower than with one rank, because one rank uses all cores anyway.
#[derive(Debug)]
pub struct ThreadGroup;

impl ThreadGroup {
    /// Returns the communicators of `size` ranks, in order, one for each thread.
    #[expect(clippy::new_ret_no_self, reason = "a group is its members")]
    pub fn new(size: usize, time_limit: Duration) -> Vec<Arc<dyn Communicator>> {
        let shared = Arc::new(GroupState {
            size,
            time_limit,
            state: Mutex::new(State {
                posts: vec![None; size],
                gone: vec![None; size],
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let rank = |rank| -> Arc<dyn Communicator> {
            Arc::new(OverlappedCommunicator::new(ThreadCommunicator {
                rank,
                shared: shared.clone(),
            }))
        };
        (0..size).map(rank).collect()
    }
}

/// One rank of a [`ThreadGroup`]. Dropping it notifies the other ranks.
#[derive(Debug)]
pub struct ThreadCommunicator {
    rank: usize,
    shared: Arc<GroupState>,
}

#[derive(Debug)]
struct GroupState {
    size: usize,
    time_limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Collective and data of each rank that has arrived at the current collective.
    posts: Vec<Option<Post>>,
    /// All posts, once every rank has arrived; `taken` counts the ranks that took them.
    complete: Option<Arc<Vec<Post>>>,
    taken: usize,
    /// Ranks that ended, with their reasons.
    gone: Vec<Option<String>>,
}

/// The collective that a rank calls, and its data.
#[derive(Clone, Debug)]
struct Post {
    operation: Collective,
    tensor: String,
    root: usize,
    data: Vec<u8>,
}

impl Post {
    /// Returns the difference from another rank's call, if there is one.
    fn difference(&self, other: &Post) -> Option<String> {
        let title = |post: &Post| format!("{} of {}", post.operation, post.tensor);
        if title(self) != title(other) {
            return Some(format!("it calls {}", title(other)));
        }
        if self.root != other.root {
            return Some(format!(
                "its root is {}, the root of this rank is {}",
                other.root, self.root
            ));
        }
        let (own, theirs) = (self.data.len(), other.data.len());
        (own != theirs).then(|| format!("it has {theirs} bytes, this rank has {own}"))
    }
}

impl ThreadCommunicator {
    fn error(&self, operation: Collective, tensor: &str, failure: CollectiveFailure) -> Error {
        Error::collective(CollectiveError {
            rank: self.rank,
            size: self.shared.size,
            operation,
            tensor: tensor.to_owned(),
            failure,
        })
    }

    fn check_root(&self, operation: Collective, tensor: &str, root: usize) -> Result<()> {
        if root < self.shared.size {
            return Ok(());
        }
        let message = format!("rank {root} does not exist");
        Err(self.error(operation, tensor, CollectiveFailure::Invalid(message)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts data, and returns the posts of all ranks. After an error, the rank counts as gone.
    fn exchange(&self, post: Post) -> Result<Arc<Vec<Post>>> {
        let (operation, tensor) = (post.operation, post.tensor.clone());
        let all = self.try_exchange(post);
        all.map_err(|failure| {
            let error = self.error(operation, &tensor, failure);
            self.abort(&format!("{operation} of {tensor} failed there"));
            error
        })
    }

    fn try_exchange(&self, post: Post) -> Result<Arc<Vec<Post>>, CollectiveFailure> {
        let until = Instant::now() + self.shared.time_limit;
        let mut state = self.lock();
        if state.gone[self.rank].is_some() {
            return Err(CollectiveFailure::Transport(
                "the communicator failed in an earlier call".into(),
            ));
        }
        // Other ranks may still be taking the posts of the previous collective.
        while state.posts[self.rank].is_some() {
            state = self.wait(state, until)?;
        }
        state.posts[self.rank] = Some(post.clone());
        if state.posts.iter().all(Option::is_some) {
            state.complete = Some(Arc::new(state.posts.iter().flatten().cloned().collect()));
            self.shared.changed.notify_all();
        }
        let all = loop {
            match &state.complete {
                Some(all) => break all.clone(),
                None => state = self.wait(state, until)?,
            }
        };
        state.taken += 1;
        if state.taken == self.shared.size {
            state.taken = 0;
            state.complete = None;
            state.posts.fill(None);
            self.shared.changed.notify_all();
        }
        drop(state);
        let differences = all.iter().enumerate();
        let mut differences = differences.filter_map(|(peer, other)| Some((peer, post.difference(other)?)));
        match differences.next() {
            Some((peer, what)) => Err(CollectiveFailure::Mismatch { peer, what }),
            None => Ok(all),
        }
    }

    /// Waits until another rank contributes to the collective, takes its results or ends. Returns an error after the
    /// time limit, or if a rank has ended without its contribution.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        until: Instant,
    ) -> Result<MutexGuard<'s, State>, CollectiveFailure> {
        // A rank that posted before it ended is present; one that did not will never arrive.
        let lost = state.gone.iter().zip(&state.posts).enumerate();
        let mut lost = lost.filter_map(|(peer, (gone, post))| Some((peer, gone.as_ref().filter(|_| post.is_none())?)));
        if let Some((peer, reason)) = lost.next() {
            let reason = reason.clone();
            return Err(CollectiveFailure::PeerLost { peer, reason });
        }
        let now = Instant::now();
        if now >= until {
            let missing = state.posts.iter().enumerate().filter(|(_, post)| post.is_none());
            return Err(CollectiveFailure::TimedOut {
                missing: missing.map(|(rank, _)| rank).collect(),
                limit: self.shared.time_limit,
            });
        }
        let waited = self.shared.changed.wait_timeout(state, until - now);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Exchanges numbers and sums them in the order of the ranks.
    fn sum(&self, operation: Collective, tensor: &str, root: usize, data: &[f32]) -> Result<Vec<f32>> {
        let all = self.exchange(Post {
            operation,
            tensor: tensor.to_owned(),
            root,
            data: data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        })?;
        let mut sum = vec![0.0; data.len()];
        for post in &*all {
            for (sum, value) in sum.iter_mut().zip(post.data.chunks_exact(4)) {
                *sum += f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            }
        }
        Ok(sum)
    }
}

impl Communicator for ThreadCommunicator {
    fn name(&self) -> &str {
        "threads"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn time_limit(&self) -> Duration {
        self.shared.time_limit
    }

    fn all_reduce_sum(&self, tensor: &str, data: &mut [f32]) -> Result<()> {
        let sum = self.sum(Collective::AllReduce, tensor, 0, data)?;
        data.copy_from_slice(&sum);
        Ok(())
    }

    fn reduce_sum(&self, tensor: &str, root: usize, data: &mut [f32]) -> Result<()> {
        self.check_root(Collective::Reduce, tensor, root)?;
        let sum = self.sum(Collective::Reduce, tensor, root, data)?;
        if self.rank == root {
            data.copy_from_slice(&sum);
        }
        Ok(())
    }

    fn reduce_scatter_sum(&self, tensor: &str, data: &[f32], own: &mut [f32]) -> Result<()> {
        let operation = Collective::ReduceScatter;
        if data.len() != own.len() * self.shared.size {
            let message = format!("{} numbers are not {} for each rank", data.len(), own.len());
            return Err(self.error(operation, tensor, CollectiveFailure::Invalid(message)));
        }
        let sum = self.sum(operation, tensor, 0, data)?;
        let start = self.rank * own.len();
        own.copy_from_slice(&sum[start..start + own.len()]);
        Ok(())
    }

    fn all_gather(&self, tensor: &str, own: &[u8], all: &mut [u8]) -> Result<()> {
        let operation = Collective::AllGather;
        if all.len() != own.len() * self.shared.size {
            let message = format!("{} bytes are not {} of each rank", all.len(), own.len());
            return Err(self.error(operation, tensor, CollectiveFailure::Invalid(message)));
        }
        let posts = self.exchange(Post {
            operation,
            tensor: tensor.to_owned(),
            root: 0,
            data: own.to_vec(),
        })?;
        if !own.is_empty() {
            for (post, part) in posts.iter().zip(all.chunks_exact_mut(own.len())) {
                part.copy_from_slice(&post.data);
            }
        }
        Ok(())
    }

    fn broadcast(&self, tensor: &str, root: usize, data: &mut [u8]) -> Result<()> {
        let operation = Collective::Broadcast;
        self.check_root(operation, tensor, root)?;
        let posts = self.exchange(Post {
            operation,
            tensor: tensor.to_owned(),
            root,
            data: data.to_vec(),
        })?;
        data.copy_from_slice(&posts[root].data);
        Ok(())
    }

    fn barrier(&self, what: &str) -> Result<()> {
        self.exchange(Post {
            operation: Collective::Barrier,
            tensor: what.to_owned(),
            root: 0,
            data: Vec::new(),
        })?;
        Ok(())
    }

    fn abort(&self, reason: &str) {
        let mut state = self.lock();
        state.gone[self.rank].get_or_insert_with(|| reason.to_owned());
        self.shared.changed.notify_all();
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        self.abort("");
    }
}
