//! Threads that compute which tokens a grammar allows next.
//!
//! An ambiguous grammar can take seconds for one token. The engine therefore never waits for a mask: it computes the logits of
//! the token meanwhile, and continues with other sequences until the mask is ready.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::{CancellationHandle, Matcher};
use meganeura_core::{Error, Result};
use meganeura_llm::engine::Constraint;
use toktrie::SimpleVob;

/// Maximum time of one mask.
const STEP_BUDGET: Duration = Duration::from_secs(2);
/// Maximum time of all masks of a request.
const REQUEST_BUDGET: Duration = Duration::from_secs(30);
/// Maximum time that the last token waits for the result whether the text is complete.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Time that the masks of a request took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent(Arc<AtomicU64>);

impl Spent {
    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// A mask to compute.
struct Job {
    spent: Spent,
    work: Box<dyn FnOnce() + Send>,
}

/// Jobs that wait for a thread.
#[derive(Default)]
struct Queue {
    jobs: Mutex<(Vec<Job>, bool)>,
    changed: Condvar,
}

/// Threads that compute masks. Requests that took the least time so far come first.
pub(crate) struct MaskPool {
    queue: Arc<Queue>,
    /// Called when a mask is ready.
    wake: Arc<dyn Fn() + Send + Sync>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MaskPool {
    /// Starts the threads; half of the cores, so that the engine keeps its own.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(wake: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = MaskPool {
            queue: Arc::default(),
            wake: Arc::new(wake),
        };
        for _ in 0..(cores / 2).clamp(1, 4) {
            let queue = pool.queue.clone();
            std::thread::Builder::new()
                .name("masks".into())
                .spawn(move || run(&queue))
                .map_err(|e| Error::misuse(format!("a thread for masks cannot be started: {e}"), ""))?;
        }
        Ok(pool)
    }

    fn submit(&self, job: Job) {
        lock(&self.queue.jobs).0.push(job);
        self.queue.changed.notify_one();
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).1 = true;
        self.queue.changed.notify_all();
    }
}

fn run(queue: &Queue) {
    loop {
        let mut jobs = lock(&queue.jobs);
        let job = loop {
            let (waiting, has_ended) = &mut *jobs;
            if *has_ended {
                return;
            }
            let next = (0..waiting.len()).min_by_key(|&at| waiting[at].spent.get());
            match next {
                Some(at) => break waiting.remove(at),
                None => jobs = queue.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(jobs);
        (job.work)();
    }
}

/// Result of a job: the matcher, and the mask of the next token. There is no mask if the text ends here.
struct Answer {
    matcher: Matcher,
    mask: std::result::Result<Option<SimpleVob>, String>,
}

/// State of a [`GrammarConstraint`].
enum State {
    Ready(Box<Answer>),
    /// A thread computes the next mask, or will; it sends when it began, and then the answer.
    Busy {
        answer: Receiver<Answer>,
        began: Arc<Mutex<Option<Instant>>>,
        cancel: CancellationHandle,
    },
    Failed(String),
}

/// A constraint whose masks are computed by a [`MaskPool`].
pub(crate) struct GrammarConstraint {
    pool: Arc<MaskPool>,
    spent: Spent,
    /// Tokens that end texts.
    ends: Arc<[u32]>,
    state: State,
}

impl GrammarConstraint {
    /// Starts to compute the first mask.
    pub(crate) fn new(pool: Arc<MaskPool>, matcher: Matcher, spent: Spent, ends: Arc<[u32]>) -> Self {
        let mut constraint = GrammarConstraint {
            pool,
            spent,
            ends,
            state: State::Failed(String::new()),
        };
        constraint.compute(matcher, None);
        constraint
    }

    /// Submits a job that takes a token and computes the next mask.
    fn compute(&mut self, matcher: Matcher, token: Option<u32>) {
        let mut matcher = matcher.into_cancellable();
        let cancel = matcher.cancellation_handle().unwrap_or_default();
        let (sender, answer) = channel();
        let began = Arc::new(Mutex::new(None));
        let (of_job, spent, wake) = (began.clone(), self.spent.clone(), self.pool.wake.clone());
        let work = move || {
            let start = Instant::now();
            *lock(&of_job) = Some(start);
            let consumed = token.map_or(Ok(()), |token| matcher.consume_token(token));
            let mask = consumed.and_then(|()| {
                if matcher.is_stopped() && !matcher.is_error() {
                    Ok(None)
                } else {
                    matcher.compute_mask().map(Some)
                }
            });
            spent.add(start.elapsed());
            let mask = mask.map_err(|e| e.to_string());
            // A sequence that was cancelled receives nothing.
            let _ = sender.send(Answer { matcher, mask });
            wake();
        };
        self.pool.submit(Job {
            spent: self.spent.clone(),
            work: Box::new(work),
        });
        self.state = State::Busy { answer, began, cancel };
    }

    /// Takes an answer that has arrived, and ends a mask that takes too long.
    fn poll(&mut self) {
        let State::Busy { answer, began, cancel } = &self.state else {
            return;
        };
        let began = *lock(began);
        match answer.try_recv() {
            Ok(answer) => self.state = State::Ready(Box::new(answer)),
            Err(TryRecvError::Disconnected) => self.state = State::Failed("its thread panicked".into()),
            Err(TryRecvError::Empty) => {
                let is_late = began.is_some_and(|began| began.elapsed() > STEP_BUDGET);
                let message = if is_late {
                    format!("one token takes longer than {} s", STEP_BUDGET.as_secs())
                } else if self.spent.get() > REQUEST_BUDGET {
                    format!(
                        "the request took longer than {} s for its grammar",
                        REQUEST_BUDGET.as_secs()
                    )
                } else {
                    return;
                };
                cancel.cancel();
                self.state = State::Failed(message);
            }
        }
    }
}

fn failed(error: &str) -> Error {
    let error: String = error.chars().take(300).collect();
    Error::misuse(
        format!("the grammar cannot be followed any further: {error}"),
        "use a simpler schema or grammar",
    )
}

impl Constraint for GrammarConstraint {
    fn is_ready(&mut self) -> bool {
        self.poll();
        !matches!(self.state, State::Busy { .. })
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<bool> {
        self.poll();
        let answer = match &self.state {
            State::Ready(answer) => answer,
            State::Busy { .. } => return Err(failed("its mask is not ready")),
            State::Failed(message) => return Err(failed(message)),
        };
        let Some(mask) = answer.mask.as_ref().map_err(|e| failed(e))? else {
            return Ok(false);
        };
        // Where the text may end, any token that ends texts may end it.
        let may_end = self.ends.first().is_some_and(|&end| mask.is_allowed(end));
        for (token, logit) in (0u32..).zip(logits) {
            let is_allowed = mask.is_allowed(token) || (may_end && self.ends.contains(&token));
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(true)
    }

    fn accept(&mut self, token: u32) -> Result<bool> {
        match std::mem::replace(&mut self.state, State::Failed("its mask is not ready".into())) {
            State::Ready(answer) => self.compute(answer.matcher, Some(token)),
            State::Failed(message) => return Err(failed(&message)),
            busy @ State::Busy { .. } => {
                self.state = busy;
                return Err(failed("its mask is not ready"));
            }
        }
        Ok(false)
    }

    fn is_complete(&mut self) -> bool {
        if let State::Busy { answer, .. } = &self.state {
            match answer.recv_timeout(LAST_WAIT) {
                Ok(answer) => self.state = State::Ready(Box::new(answer)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        matches!(&self.state, State::Ready(answer) if matches!(answer.mask, Ok(None)))
    }
}

impl Drop for GrammarConstraint {
    fn drop(&mut self) {
        if let State::Busy { cancel, .. } = &self.state {
            cancel.cancel();
        }
    }
}
