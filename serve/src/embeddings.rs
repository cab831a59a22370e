//! The thread that runs the steps of an encoder, and the channel on which requests reach it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::Embedder;
use meganeura_llm::engine::EngineCounts;
use tokio::sync::oneshot;

use crate::lock::lock;
use crate::steps::Steps;
use crate::worker::QueueFull;

/// Maximum number of texts per step. Requests share the steps in turn, so that long requests do not delay short ones.
const STEP_TEXTS: usize = 32;
/// Duration of the state "failing" that the server reports after a failed step, unless a later step succeeds.
const FAILURE_REPORTED: Duration = Duration::from_secs(30);

/// Vectors of a request, or the error message.
pub(crate) type Answer = std::result::Result<Vec<Vec<f32>>, String>;

/// Request in the queue.
struct Job {
    texts: Vec<Vec<u32>>,
    /// Vectors computed so far.
    done: Vec<Vec<f32>>,
    answer: oneshot::Sender<Answer>,
    /// Slot in the queue, freed on drop.
    _place: QueueSlot,
}

/// State that the thread reports.
#[derive(Default)]
struct WorkerState {
    /// Number of queued and running requests.
    pending: AtomicUsize,
    steps: AtomicU64,
    tokens: AtomicU64,
    /// Time of the last failed step; `None` if a later step succeeded.
    failed: Mutex<Option<Instant>>,
}

/// Handle of the thread. The thread ends when all handles are dropped.
#[derive(Clone)]
pub(crate) struct EmbeddingWorker {
    jobs: Sender<Job>,
    shared: Arc<WorkerState>,
    limit: usize,
}

/// Slot in the queue, freed on drop.
pub(crate) struct QueueSlot(Arc<WorkerState>);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EmbeddingWorker {
    /// Starts the thread. At most `limit` requests are queued or running.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(embedder: Embedder, limit: usize) -> Result<(Self, JoinHandle<()>)> {
        let (jobs, inbox) = channel();
        let shared = Arc::new(WorkerState::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("encoder".into())
            .spawn(move || run(embedder, &inbox, &of_thread))
            .map_err(|e| Error::misuse(format!("the encoder's thread cannot be started: {e}"), ""))?;
        Ok((EmbeddingWorker { jobs, shared, limit }, thread))
    }

    /// Reserves a slot in the queue.
    ///
    /// # Errors
    /// [`QueueFull`] if the queue is full.
    pub(crate) fn reserve(&self) -> std::result::Result<QueueSlot, QueueFull> {
        let fits = |pending: usize| (pending < self.limit).then_some(pending + 1);
        let pending = &self.shared.pending;
        match pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(QueueSlot(self.shared.clone())),
            Err(_) => Err(QueueFull),
        }
    }

    /// Submits a request. Dropping the receiver cancels it.
    pub(crate) fn submit(&self, place: QueueSlot, texts: Vec<Vec<u32>>) -> oneshot::Receiver<Answer> {
        let (answer, waiting) = oneshot::channel();
        let job = Job {
            done: Vec::with_capacity(texts.len()),
            texts,
            answer,
            _place: place,
        };
        // If the thread has ended, the dropped job closes its channel.
        let _ = self.jobs.send(job);
        waiting
    }
}

impl Steps for EmbeddingWorker {
    fn counts(&self) -> EngineCounts {
        let pending = self.shared.pending.load(Ordering::Relaxed);
        EngineCounts {
            steps: self.shared.steps.load(Ordering::Relaxed),
            prompt_tokens: self.shared.tokens.load(Ordering::Relaxed),
            running: pending.min(1),
            waiting: pending.saturating_sub(1),
            ..EngineCounts::default()
        }
    }

    fn is_failing(&self) -> bool {
        lock(&self.shared.failed).is_some_and(|failed| failed.elapsed() < FAILURE_REPORTED)
    }
}

fn run(mut embedder: Embedder, inbox: &Receiver<Job>, shared: &WorkerState) {
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        if jobs.is_empty() {
            let Ok(job) = inbox.recv() else { return };
            jobs.push(job);
        }
        jobs.extend(inbox.try_iter());
        jobs.retain(|job| !job.answer.is_closed());
        step(&mut embedder, &mut jobs, shared);
    }
}

/// Runs one step with texts of all jobs, and answers the jobs that are complete.
fn step(embedder: &mut Embedder, jobs: &mut Vec<Job>, shared: &WorkerState) {
    let chosen = choose(jobs.iter().map(|job| job.texts.len() - job.done.len()), STEP_TEXTS);
    let mut texts = Vec::new();
    for (job, &count) in jobs.iter_mut().zip(&chosen) {
        let first = job.done.len();
        texts.extend(job.texts[first..first + count].iter_mut().map(std::mem::take));
    }
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let outcome = catch_unwind(AssertUnwindSafe(|| embedder.embed_tokens(&texts)));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::misuse("a step panicked; see the log", "")));
    match outcome {
        Ok(vectors) => {
            *lock(&shared.failed) = None;
            shared.steps.fetch_add(1, Ordering::Relaxed);
            shared.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
            let mut vectors = vectors.into_iter();
            let mut left = Vec::new();
            for (mut job, count) in std::mem::take(jobs).into_iter().zip(chosen) {
                job.done.extend(vectors.by_ref().take(count));
                if job.done.len() == job.texts.len() {
                    // A closed channel means that the client has left.
                    let _ = job.answer.send(Ok(job.done));
                } else {
                    left.push((job, count));
                }
            }
            *jobs = unserved_first(left);
        }
        Err(error) => {
            *lock(&shared.failed) = Some(Instant::now());
            log::error!("a step failed, and all requests with it: {error}");
            for job in jobs.drain(..) {
                let _ = job.answer.send(Err(error.to_string()));
            }
        }
    }
}

/// Distributes at most `most` texts of a step over the jobs, in turn. `left` contains the remaining texts of each job.
/// Returns the number of texts of each job.
fn choose(left: impl Iterator<Item = usize>, most: usize) -> Vec<usize> {
    let left: Vec<usize> = left.collect();
    let mut chosen = vec![0; left.len()];
    let mut room = most.min(left.iter().sum());
    while room > 0 {
        for (chosen, &left) in chosen.iter_mut().zip(&left) {
            if *chosen < left && room > 0 {
                *chosen += 1;
                room -= 1;
            }
        }
    }
    chosen
}

/// Moves jobs that had texts in this step (a count above 0) to the end, so that the next step begins with the rest.
fn unserved_first<T>(jobs: Vec<(T, usize)>) -> Vec<T> {
    let (served, unserved): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|(_, count)| *count > 0);
    unserved.into_iter().chain(served).map(|(job, _)| job).collect()
}

#[cfg(test)]
mod tests {
    use super::{choose, unserved_first};

    #[test]
    fn a_short_request_is_not_behind_all_texts_of_long_ones() {
        const SHORT: usize = 100;
        // Number and remaining texts of each request.
        let mut jobs: Vec<(usize, usize)> = (0..SHORT).map(|job| (job, 50)).collect();
        jobs.push((SHORT, 1));
        let steps = (1..).find(|_| {
            let chosen = choose(jobs.iter().map(|(_, left)| *left), 32);
            let served = std::mem::take(&mut jobs).into_iter().zip(chosen);
            let served = served.map(|((job, left), count)| ((job, left - count), count));
            jobs = unserved_first(served.filter(|((_, left), _)| *left > 0).collect());
            !jobs.iter().any(|(job, _)| *job == SHORT)
        });
        assert_eq!(steps, Some(4)); // 101 requests in steps of 32
    }

    #[test]
    fn requests_take_turns() {
        assert_eq!(choose([100, 1, 3].into_iter(), 8), [4, 1, 3]);
        assert_eq!(choose([2, 0].into_iter(), 8), [2, 0]);
        assert_eq!(choose([9, 9, 9].into_iter(), 2), [1, 1, 0]);
        assert_eq!(choose([].into_iter(), 8), [0usize; 0]);
    }
}
