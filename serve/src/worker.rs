//! The thread that makes the steps of an engine, and how requests reach it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::engine::{Chosen, Engine, EngineCounts, Event, Finish, SequenceId, SequenceRequest};
use tokio::sync::mpsc::UnboundedSender;

use crate::api::Steps;

/// A sequence that somebody waits for.
pub(crate) struct Job {
    pub(crate) request: SequenceRequest,
    /// Its number among those of one request.
    pub(crate) choice: usize,
    /// Where its tokens go. It ends when nobody receives them.
    pub(crate) updates: UnboundedSender<Update>,
    /// Whether it is to end though others of the request go on.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Whether a grammar decides what may come next.
    pub(crate) has_constraint: bool,
}

impl Job {
    fn is_left(&self) -> bool {
        self.updates.is_closed() || self.cancelled.load(Ordering::Relaxed)
    }
}

/// What became of a choice.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) choice: usize,
    pub(crate) what: What,
}

/// See [`Update`].
#[derive(Debug)]
pub(crate) enum What {
    Token(Chosen),
    Finished(Finish),
    /// The request itself was wrong, or the device failed.
    Failed {
        message: String,
        by_request: bool,
    },
}

/// What the thread says of itself.
#[derive(Debug, Default)]
struct Shared {
    /// Sequences that are computed or wait.
    pending: AtomicUsize,
    counts: Mutex<EngineCounts>,
    /// When a step failed, if none succeeded after it.
    failed: Mutex<Option<Instant>>,
}

/// Where jobs are handed in. The thread ends when all of these are gone, and the jobs with them.
#[derive(Clone)]
pub(crate) struct Worker {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    limit: usize,
}

/// There are as many jobs as may wait.
#[derive(Debug)]
pub(crate) struct Busy;

impl Worker {
    /// Starts the thread. At most `limit` sequences are computed or wait.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(engine: Engine, limit: usize) -> Result<(Self, JoinHandle<()>)> {
        let (jobs, inbox) = channel();
        let shared = Arc::new(Shared::default());
        *lock(&shared.counts) = engine.counts();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || run(engine, &inbox, &of_thread))
            .map_err(|e| Error::misuse(format!("the engine's thread cannot be started: {e}"), ""))?;
        Ok((Worker { jobs, shared, limit }, thread))
    }

    /// Places for the sequences of one request, before anything is done for them.
    ///
    /// # Errors
    /// [`Busy`] if not all of them may wait.
    pub(crate) fn reserve(&self, count: usize) -> std::result::Result<Places, Busy> {
        let fits = |pending: usize| pending.checked_add(count).filter(|&all| all <= self.limit);
        let pending = &self.shared.pending;
        match pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Places {
                worker: self.clone(),
                left: count,
            }),
            Err(_) => Err(Busy),
        }
    }

    /// Sequences that may be computed or wait at a time.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Sequences that are computed or wait.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }
}

impl Steps for Worker {
    fn counts(&self) -> EngineCounts {
        *lock(&self.shared.counts)
    }

    // Later nothing is known until the next request.
    fn is_failing(&self) -> bool {
        const KNOWN: Duration = Duration::from_secs(30);
        lock(&self.shared.failed).is_some_and(|failed| failed.elapsed() < KNOWN)
    }
}

/// Places for sequences. Those that are not used are free again.
pub(crate) struct Places {
    worker: Worker,
    left: usize,
}

impl Places {
    /// Hands in a sequence.
    pub(crate) fn submit(&mut self, job: Job) {
        debug_assert!(self.left > 0);
        // The thread lives as long as this handle; a job that is not taken drops its sender, which its receiver sees.
        if self.worker.jobs.send(job).is_ok() {
            self.left -= 1;
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.worker.shared.pending.fetch_sub(self.left, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine with those who wait for its sequences.
struct Work<'a> {
    engine: Engine,
    jobs: HashMap<SequenceId, Job>,
    shared: &'a Shared,
}

fn run(engine: Engine, inbox: &Receiver<Job>, shared: &Shared) {
    let mut work = Work {
        engine,
        jobs: HashMap::new(),
        shared,
    };
    loop {
        if work.engine.is_idle() {
            let Ok(job) = inbox.recv() else { return };
            work.start(job);
        }
        while let Ok(job) = inbox.try_recv() {
            work.start(job);
        }
        work.end_those_left();
        work.step();
        *lock(&shared.counts) = work.engine.counts();
    }
}

impl Work<'_> {
    fn start(&mut self, mut job: Job) {
        let request = std::mem::replace(&mut job.request, empty());
        match self.engine.submit(request) {
            Ok(id) => {
                self.jobs.insert(id, job);
            }
            Err(error) => self.fail(&job, &error, true),
        }
    }

    fn fail(&self, job: &Job, error: &Error, by_request: bool) {
        let message = error.to_string();
        self.tell(job, What::Failed { message, by_request });
        self.shared.pending.fetch_sub(1, Ordering::Relaxed);
    }

    fn tell(&self, job: &Job, what: What) {
        // Whoever does not receive it has left, which is looked at before the next step.
        let _ = job.updates.send(Update {
            choice: job.choice,
            what,
        });
    }

    fn end_those_left(&mut self) {
        let left: Vec<SequenceId> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_left())
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            self.engine.cancel(id);
            self.remove(id);
        }
    }

    fn remove(&mut self, id: SequenceId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        Some(job)
    }

    fn step(&mut self) {
        let engine = &mut self.engine;
        let outcome = catch_unwind(AssertUnwindSafe(|| engine.step()));
        let outcome = outcome.unwrap_or_else(|_| Err(Error::misuse("a step panicked; the log says where", "")));
        match outcome {
            // Steps of no rows say nothing.
            Ok(events) if events.is_empty() => {}
            Ok(events) => {
                *lock(&self.shared.failed) = None;
                events.into_iter().for_each(|event| self.pass_on(event));
            }
            Err(error) => {
                *lock(&self.shared.failed) = Some(Instant::now());
                log::error!("a step failed, and all requests with it: {error}");
                for (id, job) in std::mem::take(&mut self.jobs) {
                    self.engine.cancel(id);
                    self.fail(&job, &error, false);
                }
            }
        }
    }

    fn pass_on(&mut self, event: Event) {
        match event {
            Event::Token(id, chosen) => {
                if let Some(job) = self.jobs.get(&id) {
                    self.tell(job, What::Token(chosen));
                }
            }
            Event::Finished(id, finish) => {
                if let Some(job) = self.remove(id) {
                    self.tell(&job, What::Finished(finish));
                }
            }
            Event::Failed(id, error) => {
                if let Some(job) = self.jobs.remove(&id) {
                    // Whoever asks for a grammar that cannot be followed would ask again in vain.
                    self.fail(&job, &error, job.has_constraint);
                }
            }
        }
    }
}

/// Stands where a request was taken.
fn empty() -> SequenceRequest {
    SequenceRequest {
        prompt: Vec::new(),
        max_tokens: 0,
        sampling: meganeura_llm::Sampling::default(),
        stop: Vec::new(),
        top_logprobs: None,
        constraint: None,
    }
}
