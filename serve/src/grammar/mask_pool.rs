//! Threads that compute masks, shared by all requests, and the limits of all requests together.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meganeura_core::{Error, Result};

use crate::lock::lock;

/// Maximum time to compute one mask.
const STEP_BUDGET: Duration = Duration::from_secs(2);
/// The same while masks of other requests wait.
const CONTENDED_STEP: Duration = Duration::from_millis(300);
/// Maximum time to compute all masks of a request.
const REQUEST_BUDGET: Duration = Duration::from_secs(30);
/// The same while more sequences with grammars are running and queued than the engine runs at once, in addition to
/// [`USUAL_MASK`] for each mask.
const CONTENDED_BUDGET: Duration = Duration::from_millis(200);
/// Processor time of a mask that is not slow. Most masks take less than a millisecond.
const USUAL_MASK: Duration = Duration::from_millis(2);

/// Maximum number of items that the parsers of all sequences hold; an item takes 8 to 16 bytes.
const MAX_ITEMS: u64 = 32 << 20;
/// Number of items of a sequence that always continues. JSON of 50 kB usually takes fewer.
const FREE_ITEMS: u64 = 1 << 20;

/// Maximum mean time per mask of a request that counts as quick.
const QUICK: Duration = Duration::from_millis(20);

/// Processor time that the masks of a request have taken so far, shared by its sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct MaskTime(Arc<Times>);

#[derive(Debug, Default)]
struct Times {
    /// Total, in microseconds.
    spent: AtomicU64,
    /// Number of masks.
    masks: AtomicU64,
    /// Virtual end time of the request's last mask, see [`Jobs::clock`].
    finish: AtomicU64,
}

impl MaskTime {
    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.0.spent.load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, time: Duration) {
        self.0.spent.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        self.0.masks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if both belong to the same request.
    fn is_same(&self, other: &MaskTime) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns true if the masks of the request were slow.
    pub(super) fn is_slow(&self) -> bool {
        self.get() > self.contended_budget()
    }

    /// Returns the maximum processor time of all masks of the request while other requests wait for the engine.
    fn contended_budget(&self) -> Duration {
        let masks = self.0.masks.load(Ordering::Relaxed);
        CONTENDED_BUDGET + USUAL_MASK * u32::try_from(masks).unwrap_or(u32::MAX)
    }

    /// Returns true if earlier masks of the request were quick.
    fn is_quick(&self) -> bool {
        let masks = self.0.masks.load(Ordering::Relaxed) as u32;
        masks > 0 && self.get() < QUICK * masks
    }
}

/// Job that computes a mask.
struct Job {
    time: MaskTime,
    /// Virtual start time of the job; the job with the smallest is next.
    start: u64,
    work: Box<dyn FnOnce() + Send>,
}

/// Jobs that wait for a thread.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<Job>,
    /// Requests of the running jobs.
    running: Vec<MaskTime>,
    /// Virtual time in microseconds, as in weighted fair queueing (Demers, Keshav and Shenker, 1989). It advances by
    /// the work done, divided by the number of requests that share the threads. New requests begin at this time, so that
    /// they do not overtake requests that had less than their share.
    clock: u64,
    has_ended: bool,
}

impl Jobs {
    fn add(&mut self, time: MaskTime, work: Box<dyn FnOnce() + Send>) {
        let start = self.clock.max(time.0.finish.load(Ordering::Relaxed));
        self.waiting.push(Job { time, start, work });
    }

    /// Removes and returns the next job. With `only_quick`, considers only jobs of quick requests.
    fn next(&mut self, only_quick: bool) -> Option<Job> {
        let waiting = self.waiting.iter().enumerate();
        let allowed = waiting.filter(|(_, job)| !only_quick || job.time.is_quick());
        // Sequences of one request may submit masks together. After one mask, the rest of the request waits for its next turn.
        let start = |job: &Job| job.start.max(job.time.0.finish.load(Ordering::Relaxed));
        let (at, _) = allowed.min_by_key(|(_, job)| (start(job), job.time.get()))?;
        let mut job = self.waiting.remove(at);
        job.start = start(&job);
        self.running.push(job.time.clone());
        Some(job)
    }

    /// Returns the number of requests with running or waiting jobs.
    fn requests(&self) -> u64 {
        let times = self.waiting.iter().map(|job| &job.time).chain(&self.running);
        let requests: HashSet<_> = times.map(|time| Arc::as_ptr(&time.0)).collect();
        requests.len() as u64
    }

    /// Advances the virtual time after a job.
    fn finish(&mut self, time: &MaskTime, start: u64, elapsed: Duration) {
        let elapsed = elapsed.as_micros() as u64;
        time.0.finish.fetch_max(start + elapsed, Ordering::Relaxed);
        self.clock += elapsed / self.requests().max(1);
        if let Some(place) = self.running.iter().position(|running| running.is_same(time)) {
            self.running.swap_remove(place);
        }
    }
}

/// Threads that compute masks. Requests share them equally. One more thread serves only requests whose masks are quick.
pub(crate) struct MaskPool {
    queue: Arc<Queue>,
    /// Callback that wakes the engine when a mask is ready.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Number of running and waiting sequences with a grammar, and of requests that wait to compile one.
    constraints: AtomicUsize,
    /// Number of items that the parsers of all sequences hold.
    items: AtomicU64,
    /// Maximum number of sequences that the engine runs at once.
    sequences: usize,
}

impl MaskPool {
    /// Starts one thread for every two cores (1 to 4), and one for quick requests. `sequences` is the maximum number
    /// that the engine runs at once.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(sequences: usize, wake: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = MaskPool {
            queue: Arc::default(),
            wake: Arc::new(wake),
            constraints: AtomicUsize::new(0),
            items: AtomicU64::new(0),
            sequences,
        };
        let threads = (cores / 2).clamp(1, 4);
        for number in 0..=threads {
            let queue = pool.queue.clone();
            std::thread::Builder::new()
                .name("masks".into())
                .spawn(move || run(&queue, number == threads))
                .map_err(|e| Error::misuse(format!("a thread for masks cannot be started: {e}"), ""))?;
        }
        Ok(pool)
    }

    /// Returns the current maximum time of all masks of a request.
    pub(super) fn budget(&self, spent: &MaskTime) -> Duration {
        if self.constraints.load(Ordering::Relaxed) <= self.sequences {
            REQUEST_BUDGET
        } else {
            REQUEST_BUDGET.min(spent.contended_budget())
        }
    }

    /// Returns the current maximum time of one mask of a request.
    pub(super) fn step_budget(&self, own: &MaskTime) -> Duration {
        let jobs = lock(&self.queue.jobs);
        if jobs.waiting.iter().any(|job| !job.time.is_same(own)) {
            CONTENDED_STEP
        } else {
            STEP_BUDGET
        }
    }

    /// Wakes the engine when the returned value is dropped.
    pub(super) fn wake_on_drop(&self) -> WakeOnDrop {
        WakeOnDrop(self.wake.clone())
    }

    pub(super) fn submit(&self, time: MaskTime, work: Box<dyn FnOnce() + Send>) {
        lock(&self.queue.jobs).add(time, work);
        // One thread does not take every job.
        self.queue.changed.notify_all();
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).has_ended = true;
        self.queue.changed.notify_all();
    }
}

fn run(queue: &Queue, only_quick: bool) {
    loop {
        let mut jobs = lock(&queue.jobs);
        let Job { time, start, work } = loop {
            if jobs.has_ended {
                return;
            }
            match jobs.next(only_quick) {
                Some(job) => break job,
                None => jobs = queue.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(jobs);
        let begun = Instant::now();
        // If a job panics, its request gets no answer and fails.
        let _ = catch_unwind(AssertUnwindSafe(work));
        lock(&queue.jobs).finish(&time, start, begun.elapsed());
    }
}
/// Guard that wakes the engine when it is dropped.
pub(super) struct WakeOnDrop(Arc<dyn Fn() + Send + Sync>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Entry of a sequence with a grammar, or of a request that waits to compile one, in [`MaskPool::constraints`]. It is removed on drop.
pub(crate) struct CountedGrammar(Arc<MaskPool>);

impl CountedGrammar {
    pub(crate) fn new(pool: Arc<MaskPool>) -> Self {
        pool.constraints.fetch_add(1, Ordering::Relaxed);
        CountedGrammar(pool)
    }
}

impl Drop for CountedGrammar {
    fn drop(&mut self) {
        self.0.constraints.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of items that the parser of a sequence holds, counted in [`MaskPool::items`] until it is dropped. An Earley parser keeps
/// items for each byte of the text.
pub(super) struct ParserItems {
    pool: Arc<MaskPool>,
    own: AtomicU64,
}

impl ParserItems {
    pub(super) fn new(pool: Arc<MaskPool>) -> Arc<Self> {
        Arc::new(ParserItems {
            pool,
            own: AtomicU64::new(0),
        })
    }

    /// Adds new items. Errors are messages.
    pub(super) fn add(&self, items: u64) -> std::result::Result<(), String> {
        let own = items + self.own.fetch_add(items, Ordering::Relaxed);
        let all = items + self.pool.items.fetch_add(items, Ordering::Relaxed);
        if all > MAX_ITEMS && own > FREE_ITEMS {
            return Err(format!(
                "its parser holds {own} items, and those of all requests more than {MAX_ITEMS}"
            ));
        }
        Ok(())
    }
}

impl Drop for ParserItems {
    fn drop(&mut self) {
        self.pool.items.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the next job of a single thread as if it took this time; returns its request.
    fn turn(jobs: &mut Jobs, names: &[(&'static str, MaskTime)], millis: impl Fn(&str) -> u64) -> &'static str {
        let job = jobs.next(false).expect("a job");
        let name = names.iter().find(|(_, time)| Arc::ptr_eq(&time.0, &job.time.0));
        let name = name.expect("a known request").0;
        let elapsed = Duration::from_millis(millis(name));
        job.time.add(elapsed);
        jobs.finish(&job.time, job.start, elapsed);
        name
    }

    #[test]
    fn new_requests_with_slow_masks_starve_nobody() {
        let mut jobs = Jobs::default();
        let millis = |name: &str| if name == "quick" { 1 } else { 500 };
        let quick = ("quick", MaskTime::default());
        let mut names = vec![quick.clone()];
        jobs.add(quick.1.clone(), Box::new(|| {}));
        let mut quick_masks = 0;
        for _ in 0..100 {
            // Two clients send a new request as soon as the last one has its mask.
            while jobs
                .waiting
                .iter()
                .filter(|job| !Arc::ptr_eq(&job.time.0, &quick.1.0))
                .count()
                < 2
            {
                let new = ("slow", MaskTime::default());
                jobs.add(new.1.clone(), Box::new(|| {}));
                names.push(new);
            }
            if turn(&mut jobs, &names, millis) == "quick" {
                quick_masks += 1;
                jobs.add(quick.1.clone(), Box::new(|| {}));
            }
        }
        // At least every third turn.
        assert!(quick_masks >= 30, "{quick_masks}");
    }

    #[test]
    fn requests_share_the_time_equally() {
        let mut jobs = Jobs::default();
        let names = [("cheap", MaskTime::default()), ("dear", MaskTime::default())];
        for (_, time) in &names {
            jobs.add(time.clone(), Box::new(|| {}));
        }
        for _ in 0..600 {
            let name = turn(&mut jobs, &names, |name| if name == "cheap" { 2 } else { 10 });
            let (_, time) = names.iter().find(|(own, _)| *own == name).expect("known");
            jobs.add(time.clone(), Box::new(|| {}));
        }
        let [cheap, dear] = names.map(|(_, time)| time.get().as_secs_f64());
        assert!((0.8..1.25).contains(&(cheap / dear)), "{cheap} {dear}");
    }

    #[test]
    fn sequences_of_one_request_have_one_share() {
        let mut jobs = Jobs::default();
        let (many, one) = (("many", MaskTime::default()), ("one", MaskTime::default()));
        for _ in 0..7 {
            jobs.add(many.1.clone(), Box::new(|| {}));
        }
        let names = [many, one.clone()];
        let millis = |_: &str| 500;
        assert_eq!(turn(&mut jobs, &names, millis), "many");
        jobs.add(one.1.clone(), Box::new(|| {}));
        assert_eq!(turn(&mut jobs, &names, millis), "one");
    }

    #[test]
    fn a_thread_is_for_quick_requests_only() {
        let mut jobs = Jobs::default();
        let (quick, slow, new) = (MaskTime::default(), MaskTime::default(), MaskTime::default());
        quick.add(Duration::from_millis(1));
        slow.add(Duration::from_millis(500));
        for time in [&slow, &new, &quick] {
            jobs.add(time.clone(), Box::new(|| {}));
        }
        assert!(jobs.next(true).is_some_and(|job| Arc::ptr_eq(&job.time.0, &quick.0)));
        assert!(jobs.next(true).is_none());
        // Among jobs that are due at the same time, the request that had the least time is next.
        assert!(jobs.next(false).is_some_and(|job| Arc::ptr_eq(&job.time.0, &new.0)));
    }

    #[test]
    fn the_largest_parsers_end_when_all_hold_too_many_items() {
        let pool = Arc::new(MaskPool::start(4, || {}).expect("threads"));
        let [large, small] = [0; 2].map(|_| ParserItems::new(pool.clone()));
        assert_eq!(large.add(MAX_ITEMS), Ok(()));
        assert_eq!(small.add(FREE_ITEMS), Ok(()));
        let error = large.add(1).expect_err("too many");
        assert!(error.contains("33554433 items"), "{error}");
        drop(large);
        assert_eq!(small.add(1), Ok(()));
        drop(small);
        assert_eq!(pool.items.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slow_masks_have_a_smaller_budget_among_many_requests() {
        let pool = Arc::new(MaskPool::start(1, || {}).expect("threads"));
        let [quick, slow] = [0; 2].map(|_| MaskTime::default());
        for _ in 0..1000 {
            quick.add(Duration::from_millis(1));
        }
        for _ in 0..20 {
            slow.add(Duration::from_millis(15));
        }
        assert!(slow.is_slow() && !quick.is_slow());
        assert_eq!([&quick, &slow].map(|time| pool.budget(time)), [REQUEST_BUDGET; 2]);
        let _counted = [CountedGrammar::new(pool.clone()), CountedGrammar::new(pool.clone())];
        assert!(pool.budget(&quick) > quick.get());
        assert_eq!(pool.budget(&slow), Duration::from_millis(240));
        assert!(slow.get() > pool.budget(&slow));
    }
}
