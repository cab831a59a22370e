//! The thread that runs the steps of an encoder, and the channel on which requests reach it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::engine::EngineCounts;
use meganeura_llm::{Embedder, check_vectors};
use tokio::sync::oneshot;

use crate::lock::lock;
use crate::steps::Steps;
use crate::worker::QueueFull;

/// Maximum number of texts per step. Requests share the steps in turn, so that long requests do not delay short ones.
const STEP_TEXTS: usize = 32;
/// Aim for the time of a step: a short request waits for the current step. Long texts take seconds on a CPU.
const STEP_TIME: Duration = Duration::from_millis(250);
/// Number of tokens of the first step, when the speed of the device is unknown.
const FIRST_TOKENS: usize = 1024;
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
    let mut tokens = FIRST_TOKENS;
    loop {
        if jobs.is_empty() {
            let Ok(job) = inbox.recv() else { return };
            jobs.push(job);
        }
        jobs.extend(inbox.try_iter());
        jobs.retain(|job| !job.answer.is_closed());
        let start = Instant::now();
        let computed = step(&mut embedder, &mut jobs, shared, tokens);
        tokens = next_tokens(tokens, computed, start.elapsed());
    }
}

/// Returns the maximum number of tokens of the next step, from the tokens and the time of the last one.
fn next_tokens(most: usize, computed: usize, time: Duration) -> usize {
    let fitting = computed as f64 * STEP_TIME.as_secs_f64() / time.as_secs_f64().max(1e-6);
    // A step with few tokens takes longer per token than a full one.
    let is_full = computed * 2 >= most;
    let next = if is_full { fitting } else { fitting.max(most as f64) };
    (next as usize)
        .clamp(most / 2, most * 2)
        .clamp(FIRST_TOKENS / 8, 1 << 20)
}

/// Runs one step with texts of all jobs, and answers the jobs that are complete. Returns the number of computed tokens.
fn step(embedder: &mut Embedder, jobs: &mut Vec<Job>, shared: &WorkerState, most_tokens: usize) -> usize {
    let lengths = |job: &Job| {
        job.texts[job.done.len()..]
            .iter()
            .take(STEP_TEXTS)
            .map(Vec::len)
            .collect()
    };
    let left: Vec<Vec<usize>> = jobs.iter().map(lengths).collect();
    let chosen = choose(&left, STEP_TEXTS, most_tokens);
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
                    // Other requests of the step are not affected.
                    let checked = check_vectors(&job.done).map_err(|error| error.to_string());
                    let answer = checked.map(|()| job.done);
                    // A closed channel means that the client has left.
                    let _ = job.answer.send(answer);
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
    tokens
}

/// Distributes the texts of a step over the jobs, in turn: at most `most_texts` with at most `most_tokens` tokens in total,
/// and at least one text. `left` contains the lengths of the remaining texts of each job. Returns the number of texts of
/// each job.
fn choose(left: &[Vec<usize>], most_texts: usize, most_tokens: usize) -> Vec<usize> {
    let mut chosen = vec![0; left.len()];
    let (mut texts, mut tokens) = (0, 0);
    loop {
        let before = texts;
        for (chosen, left) in chosen.iter_mut().zip(left) {
            let Some(&length) = left.get(*chosen).filter(|_| texts < most_texts) else {
                continue;
            };
            if texts == 0 || tokens + length <= most_tokens {
                *chosen += 1;
                texts += 1;
                tokens += length;
            }
        }
        if texts == before {
            return chosen;
        }
    }
}

/// Moves jobs that had texts in this step (a count above 0) to the end, so that the next step begins with the rest.
fn unserved_first<T>(jobs: Vec<(T, usize)>) -> Vec<T> {
    let (served, unserved): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|(_, count)| *count > 0);
    unserved.into_iter().chain(served).map(|(job, _)| job).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FIRST_TOKENS, STEP_TIME, choose, next_tokens, unserved_first};

    const NO_LIMIT: usize = usize::MAX;

    #[test]
    fn steps_with_long_texts_are_short() {
        // A long request, and a short one that arrives later.
        let left = [vec![500; 32], vec![2]];
        assert_eq!(choose(&left, 32, 1024), [2, 1]);
        // A text with more tokens than the limit of a step is computed alone.
        assert_eq!(choose(&left, 32, 100), [1, 0]);
        assert_eq!(choose(&[vec![2], vec![500]], 32, 100), [1, 0]);
        let second = Duration::from_secs(1);
        assert_eq!(next_tokens(1024, 1000, second), 512);
        assert_eq!(next_tokens(4096, 4000, STEP_TIME), 4000);
        assert_eq!(next_tokens(1024, 1024, Duration::from_millis(1)), 2048);
        // The time of a small step does not reduce the limit.
        assert_eq!(next_tokens(1024, 2, Duration::from_millis(5)), 1024);
        assert!(next_tokens(128, 128, 100 * second) >= FIRST_TOKENS / 8);
    }

    #[test]
    fn a_short_request_is_not_behind_all_texts_of_long_ones() {
        const SHORT: usize = 100;
        // Number and remaining texts of each request.
        let mut jobs: Vec<(usize, usize)> = (0..SHORT).map(|job| (job, 50)).collect();
        jobs.push((SHORT, 1));
        let steps = (1..).find(|_| {
            let left: Vec<Vec<usize>> = jobs.iter().map(|(_, left)| vec![1; *left]).collect();
            let chosen = choose(&left, 32, NO_LIMIT);
            let served = std::mem::take(&mut jobs).into_iter().zip(chosen);
            let served = served.map(|((job, left), count)| ((job, left - count), count));
            jobs = unserved_first(served.filter(|((_, left), _)| *left > 0).collect());
            !jobs.iter().any(|(job, _)| *job == SHORT)
        });
        assert_eq!(steps, Some(4)); // 101 requests in steps of 32
    }

    #[test]
    fn requests_take_turns() {
        let texts = |counts: &[usize]| -> Vec<Vec<usize>> { counts.iter().map(|count| vec![1; *count]).collect() };
        assert_eq!(choose(&texts(&[100, 1, 3]), 8, NO_LIMIT), [4, 1, 3]);
        assert_eq!(choose(&texts(&[2, 0]), 8, NO_LIMIT), [2, 0]);
        assert_eq!(choose(&texts(&[9, 9, 9]), 2, NO_LIMIT), [1, 1, 0]);
        assert_eq!(choose(&[], 8, NO_LIMIT), [0usize; 0]);
    }
}
