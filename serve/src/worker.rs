//! The thread that runs the steps of an engine, and the channel on which requests reach it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};
use meganeura_llm::engine::{ChosenToken, Engine, EngineCounts, Event, Finish, SequenceId, SequenceRequest};
use tokio::sync::mpsc::UnboundedSender;

use crate::lock::lock;
use crate::steps::Steps;
use crate::unsent::{LimitReached, RequestBytes};

/// Message to the thread.
enum Message {
    Job(Box<Job>),
    /// Notice that the mask of a grammar is ready.
    Wake,
}

/// Sequence to generate for a request.
pub(crate) struct Job {
    pub(crate) request: SequenceRequest,
    /// Index of the sequence among the choices of the request.
    pub(crate) choice: usize,
    /// Channel for the sequence's tokens. The sequence is cancelled when the receiver is dropped.
    pub(crate) updates: UnboundedSender<Update>,
    /// Counter of the bytes of updates that are not received yet.
    pub(crate) unsent: Arc<RequestBytes>,
    /// Flag that cancels only this sequence of the request.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// True if a grammar constrains the sequence.
    pub(crate) has_constraint: bool,
}

impl Job {
    fn is_left(&self) -> bool {
        self.updates.is_closed() || self.cancelled.load(Ordering::Relaxed)
    }
}

/// Progress of a choice, sent from the engine's thread to the request.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) choice: usize,
    pub(crate) progress: Progress,
}

/// Kind of an [`Update`].
#[derive(Debug)]
pub(crate) enum Progress {
    /// The prefill of the prompt is complete; see [`Event::Prompt`].
    Prompt {
        cached: usize,
        scored: Vec<ChosenToken>,
    },
    Token(ChosenToken),
    Finished(Finish),
    /// The client does not read fast enough: a limit of unsent bytes is reached.
    Full(LimitReached),
    /// The request is invalid (`by_request`), or the device failed.
    Failed {
        message: String,
        by_request: bool,
    },
}

impl Update {
    /// Returns the size of the update in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let scored = match &self.progress {
            Progress::Prompt { scored, .. } => scored.as_slice(),
            Progress::Token(chosen) => std::slice::from_ref(chosen),
            Progress::Finished(_) | Progress::Full(_) | Progress::Failed { .. } => &[],
        };
        size_of::<Self>() + scored.iter().map(size_of_token).sum::<usize>()
    }
}

/// Returns the size of a token with its log-probabilities in memory, in bytes.
pub(crate) fn size_of_token(chosen: &ChosenToken) -> usize {
    let top = chosen.logprobs.as_ref().map_or(0, |(_, top)| top.len());
    size_of::<ChosenToken>() + top * size_of::<(u32, f32)>()
}

/// State that the thread reports.
#[derive(Debug, Default)]
struct WorkerState {
    /// Number of running and waiting sequences.
    pending: AtomicUsize,
    counts: Mutex<EngineCounts>,
    /// Time of the last failed step; `None` if a later step succeeded.
    failed: Mutex<Option<Instant>>,
}

/// Handle of the thread. The thread ends when all handles and jobs are dropped.
#[derive(Clone)]
pub(crate) struct Worker {
    messages: Arc<Sender<Message>>,
    shared: Arc<WorkerState>,
    limit: usize,
}

/// Error if the queue is full.
#[derive(Debug)]
pub(crate) struct QueueFull;

impl Worker {
    /// Starts the thread. At most `limit` sequences run or wait.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(engine: Engine, limit: usize) -> Result<(Self, JoinHandle<()>)> {
        let (messages, inbox) = channel();
        let shared = Arc::new(WorkerState::default());
        *lock(&shared.counts) = engine.counts();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || run(engine, &inbox, &of_thread))
            .map_err(|e| Error::misuse(format!("the engine's thread cannot be started: {e}"), ""))?;
        let worker = Worker {
            messages: Arc::new(messages),
            shared,
            limit,
        };
        Ok((worker, thread))
    }

    /// Returns a function that wakes the thread when a grammar's mask is ready. The function does not keep the thread
    /// alive.
    pub(crate) fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let messages = Arc::downgrade(&self.messages);
        move || {
            if let Some(messages) = messages.upgrade() {
                let _ = messages.send(Message::Wake);
            }
        }
    }

    /// Reserves slots for all sequences of one request.
    ///
    /// # Errors
    /// [`QueueFull`] if not all of them fit.
    pub(crate) fn reserve(&self, count: usize) -> std::result::Result<ReservedSlots, QueueFull> {
        let fits = |pending: usize| pending.checked_add(count).filter(|&all| all <= self.limit(count));
        let pending = &self.shared.pending;
        match pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(ReservedSlots {
                worker: self.clone(),
                left: count,
            }),
            Err(_) => Err(QueueFull),
        }
    }

    /// Returns the maximum number of running and waiting sequences after a request of `count` sequences is accepted. The
    /// last quarter is reserved for requests of one sequence. Otherwise, a few requests with many choices could fill it.
    pub(crate) fn limit(&self, count: usize) -> usize {
        if count > 1 {
            self.limit - self.limit / 4
        } else {
            self.limit
        }
    }

    /// Returns the number of running and waiting sequences.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }
}

impl Steps for Worker {
    fn counts(&self) -> EngineCounts {
        *lock(&self.shared.counts)
    }

    // After that time the next request decides.
    fn is_failing(&self) -> bool {
        const KNOWN: Duration = Duration::from_secs(30);
        lock(&self.shared.failed).is_some_and(|failed| failed.elapsed() < KNOWN)
    }
}

/// Slots reserved for a request. Unused slots are freed on drop.
pub(crate) struct ReservedSlots {
    worker: Worker,
    left: usize,
}

impl ReservedSlots {
    /// Submits a sequence to the engine, in one of the reserved slots.
    pub(crate) fn submit(&mut self, job: Job) {
        debug_assert!(self.left > 0);
        // If the thread has ended, the dropped job closes its channel of updates.
        if self.worker.messages.send(Message::Job(Box::new(job))).is_ok() {
            self.left -= 1;
        }
    }
}

impl Drop for ReservedSlots {
    fn drop(&mut self) {
        self.worker.shared.pending.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// Engine, and the jobs of its sequences.
struct Work<'a> {
    engine: Engine,
    jobs: HashMap<SequenceId, Job>,
    shared: &'a WorkerState,
}

/// Maximum time that the idle thread waits for masks or new jobs. Disconnects are therefore noticed within this time.
const IDLE_WAIT: Duration = Duration::from_millis(20);

fn run(engine: Engine, inbox: &Receiver<Message>, shared: &WorkerState) {
    let mut work = Work {
        engine,
        jobs: HashMap::new(),
        shared,
    };
    loop {
        if work.engine.is_idle() {
            match inbox.recv() {
                Ok(message) => work.take(message),
                Err(_) => return,
            }
        } else if work.engine.waits_for_constraints()
            && let Ok(message) = inbox.recv_timeout(IDLE_WAIT)
        {
            work.take(message);
        }
        while let Ok(message) = inbox.try_recv() {
            work.take(message);
        }
        work.cancel_abandoned();
        work.step();
        *lock(&shared.counts) = work.engine.counts();
    }
}

impl Work<'_> {
    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.start(*job),
            Message::Wake => {}
        }
    }

    fn start(&mut self, mut job: Job) {
        let request = std::mem::replace(&mut job.request, SequenceRequest::new(Vec::new(), 0));
        match self.engine.submit(request) {
            Ok(id) => {
                self.jobs.insert(id, job);
            }
            Err(error) => self.fail(&job, &error, true),
        }
    }

    fn fail(&self, job: &Job, error: &Error, by_request: bool) {
        let message = error.to_string();
        self.report(job, Progress::Failed { message, by_request });
        self.shared.pending.fetch_sub(1, Ordering::Relaxed);
    }

    fn report(&self, job: &Job, progress: Progress) {
        let _ = self.try_report(job, progress);
    }

    /// Sends progress to the request, unless its client has too many unread bytes.
    fn try_report(&self, job: &Job, progress: Progress) -> std::result::Result<(), LimitReached> {
        let update = Update {
            choice: job.choice,
            progress,
        };
        match &update.progress {
            Progress::Prompt { .. } | Progress::Token(_) => job.unsent.add(update.bytes())?,
            // The last update of a sequence always fits.
            Progress::Finished(_) | Progress::Full(_) | Progress::Failed { .. } => {}
        }
        // A closed channel is noticed before the next step.
        let _ = job.updates.send(update);
        Ok(())
    }

    /// Sends progress to the request, and cancels the sequence if its client has too many unread bytes.
    fn advance(&mut self, id: SequenceId, progress: Progress) {
        let Some(job) = self.jobs.get(&id) else { return };
        if let Err(full) = self.try_report(job, progress) {
            self.engine.cancel(id);
            if let Some(job) = self.remove(id) {
                self.report(&job, Progress::Full(full));
            }
        }
    }

    /// Cancels the sequences of clients that have left.
    fn cancel_abandoned(&mut self) {
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
        let outcome = outcome.unwrap_or_else(|_| Err(Error::misuse("a step panicked; see the log", "")));
        match outcome {
            // A step without events proves nothing.
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
            Event::Prompt(id, cached, scored) => self.advance(id, Progress::Prompt { cached, scored }),
            Event::Token(id, chosen) => self.advance(id, Progress::Token(chosen)),
            Event::Finished(id, finish) => {
                if let Some(job) = self.remove(id) {
                    self.report(&job, Progress::Finished(finish));
                }
            }
            Event::Failed(id, error) => {
                if let Some(job) = self.jobs.remove(&id) {
                    // A grammar that cannot be followed is an error of the request.
                    self.fail(&job, &error, job.has_constraint);
                }
            }
        }
    }
}
