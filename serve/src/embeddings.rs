//! The thread that runs the steps of an encoder, and the channel on which requests reach it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::Embedder;
use meganeura_llm::engine::EngineCounts;
use tokio::sync::oneshot;

use crate::api::Steps;
use crate::worker::Busy;

/// Maximum number of texts per step. Texts of several requests alternate, so that a long request does not delay the rest.
const STEP_TEXTS: usize = 32;
/// Time after a failed step during which the server reports it, unless a later step succeeds.
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
    _place: Place,
}

/// State that the thread reports.
#[derive(Default)]
struct Shared {
    /// Number of queued and running requests.
    pending: AtomicUsize,
    steps: AtomicU64,
    tokens: AtomicU64,
    /// Time of the last failed step, unless a later one succeeded.
    failed: Mutex<Option<Instant>>,
}

/// Handle of the thread. The thread ends when all handles are dropped.
#[derive(Clone)]
pub(crate) struct EmbeddingWorker {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    limit: usize,
}

/// Slot in the queue.
pub(crate) struct Place(Arc<Shared>);

impl Drop for Place {
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
        let shared = Arc::new(Shared::default());
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
    /// [`Busy`] if the queue is full.
    pub(crate) fn reserve(&self) -> std::result::Result<Place, Busy> {
        let fits = |pending: usize| (pending < self.limit).then_some(pending + 1);
        let pending = &self.shared.pending;
        match pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Place(self.shared.clone())),
            Err(_) => Err(Busy),
        }
    }

    /// Submits a request. Dropping the receiver cancels it.
    pub(crate) fn submit(&self, place: Place, texts: Vec<Vec<u32>>) -> oneshot::Receiver<Answer> {
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut embedder: Embedder, inbox: &Receiver<Job>, shared: &Shared) {
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

/// Embeds some texts of all jobs, and answers complete jobs.
fn step(embedder: &mut Embedder, jobs: &mut Vec<Job>, shared: &Shared) {
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
            for (job, &count) in jobs.iter_mut().zip(&chosen) {
                job.done.extend(vectors.by_ref().take(count));
            }
            for job in jobs.extract_if(.., |job| job.done.len() == job.texts.len()) {
                // A closed channel means that the client has left.
                let _ = job.answer.send(Ok(job.done));
            }
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

/// Distributes at most `most` texts over the jobs, one of each in turn; `left` are the remaining texts of each job.
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

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn requests_take_turns() {
        assert_eq!(choose([100, 1, 3].into_iter(), 8), [4, 1, 3]);
        assert_eq!(choose([2, 0].into_iter(), 8), [2, 0]);
        assert_eq!(choose([9, 9, 9].into_iter(), 2), [1, 1, 0]);
        assert_eq!(choose([].into_iter(), 8), [0usize; 0]);
    }
}
